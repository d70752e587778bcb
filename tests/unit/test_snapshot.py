"""What a snapshot refuses, and the words in which it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import omniray

SCHEMA = """
node Person { name: String @key }
edge Knows: Person -> Person
"""


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[omniray.Snapshot]:
    path: Path = tmp_path_factory.mktemp("graph") / "social"
    with omniray.init(str(path), schema=SCHEMA) as graph:
        yield graph.snapshot()


def test_columns_given_as_one_text_are_refused_with_the_list_that_was_meant(snapshot: omniray.Snapshot) -> None:
    with pytest.raises(omniray.InputError, match=r"give columns=\['name'\]"):
        snapshot.table("Person", columns="name")


def test_sql_over_a_mistyped_table_names_the_type_that_was_meant_and_all_there_are(snapshot: omniray.Snapshot) -> None:
    with pytest.raises(omniray.InputError) as refused:
        snapshot.sql("select * from Persn")
    assert str(refused.value) == (
        "no table 'Persn' (did you mean 'Person'?); every type is a table of its name: Person, Knows"
    )


def test_sql_over_a_table_like_none_lists_the_types_and_nothing_of_duckdb(snapshot: omniray.Snapshot) -> None:
    with pytest.raises(omniray.InputError) as refused:
        snapshot.sql('select * from Person, "a table"')
    assert str(refused.value) == "no table 'a table'; every type is a table of its name: Person, Knows"


def test_sql_with_an_unknown_function_says_so(snapshot: omniray.Snapshot) -> None:
    with pytest.raises(omniray.InputError, match=r"can't run the query: .*nonsense"):
        snapshot.sql("select nonsense(name) from Person")


def test_a_query_may_name_tables_of_its_own(snapshot: omniray.Snapshot) -> None:
    assert snapshot.sql("with Somebody as (select 1 as one) select one from Somebody").to_pydict() == {"one": [1]}
