"""SQL over a snapshot is locked up: it reads the tables of the graph and nothing else, within limits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import omniray
from omniray.engine.base import scratch
from omniray.engine.reading import sql
from omniray.engine.reading.sql import DEFAULT_LIMITS

SECRET = "kept-to-itself"
MANY = "select * from range(200000) t(i)"


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[omniray.Snapshot]:
    path: Path = tmp_path_factory.mktemp("graph") / "social"
    with omniray.init(str(path), schema="node Person { name: String @key }") as graph:
        graph.load([{"name": f"p{n}"} for n in range(10)], type="Person")
        yield graph.snapshot()


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "secret.csv"
    path.write_text(f"{SECRET}\n{SECRET}\n")
    return str(path)


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('{file}')",
        "select * from read_csv('{file}', columns = {{'a': 'INTEGER'}})",
        "select * from read_text('{file}')",
        "select * from read_blob('{file}')",
        "select * from '{file}'",
        "select * from glob('{file}*')",
        "select * from read_csv('http://127.0.0.1:9/{file}')",
        "select (select content from read_text('{file}')) from Person",
        "select getenv('HOME')",
        "from '{file}'",
        'select * from "{file}"',
        "with x as (select * from '{file}') select * from x",
        "select name from Person union all select content from read_text('{file}')",
        "select * from query('select * from read_text(''{file}'')')",
        "select * from query_table('{file}')",
        "select list_transform(['{file}'], x -> (select content from read_text(x)))",
        "select * from json_execute_serialized_sql(json_serialize_sql('select * from read_text(''{file}'')'))",
        "select * from read_json_auto('{file}')",
        "select * from read_duckdb('{file}')",
        "select * from parquet_metadata('{file}')",
        "select * from sniff_csv('{file}')",
        "select * from sqlite_scan('{file}', 'x')",
        "select * from (describe '{file}')",
        "select * from (summarize '{file}')",
        "select * from arrow_scan(1, 2, 3)",
        "select * from pandas_scan(1)",
        "select * from enable_logging()",
    ],
)
def test_a_query_reads_no_file_and_no_network_and_its_error_tells_nothing_of_them(
    snapshot: omniray.Snapshot, file: str, query: str
) -> None:
    """DuckDB reads the first lines of a file to find out its columns, before the query runs."""
    with pytest.raises(omniray.InputError) as refused:
        snapshot.sql(query.format(file=file))
    assert SECRET not in str(refused.value)


def test_a_query_reads_no_variable_of_the_program(snapshot: omniray.Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB takes a table that it does not know for a variable of whoever calls it."""
    monkeypatch.setattr(sql, "secrets", pa.table({"secret": [SECRET]}), raising=False)
    with pytest.raises(omniray.InputError, match="no table 'secrets'"):
        snapshot.sql("select * from secrets")


@pytest.mark.parametrize(
    "query",
    [
        "install httpfs",
        "load httpfs",
        "set memory_limit = '1TB'",
        "pragma version",
        "attach 'x.db' as x",
        "detach memory",
        "copy (select 1) to 'out.csv'",
        "copy Person to 'out'",
        "export database 'x'",
        "import database 'x'",
        "use memory",
        "create view v as select * from 'secret.csv'",
        "create table t as select 1",
        "create macro m() as 1",
        "vacuum",
        "set variable x = 1",
        "prepare p as select 1",
        "begin",
        "update extensions",
        "checkpoint",
        "select 1; copy (select 1) to 'out.csv'",
        "explain analyze select 1",
    ],
)
def test_a_query_changes_nothing(snapshot: omniray.Snapshot, query: str) -> None:
    with pytest.raises(omniray.InputError, match="exactly one SELECT"):
        snapshot.sql(query)


def test_settings_can_t_be_changed_by_a_function_either(snapshot: omniray.Snapshot) -> None:
    found = snapshot.sql("select name, value from duckdb_settings() where name = 'lock_configuration'")
    assert found.to_pylist() == [{"name": "lock_configuration", "value": "true"}]


def test_what_a_query_can_show_names_neither_user_nor_secrets(snapshot: omniray.Snapshot) -> None:
    shown = snapshot.sql("select value from duckdb_settings()")["value"].to_pylist()
    assert not [value for value in shown if value and str(Path.home()) in value and "omniray-" not in value]
    for query in ("select * from duckdb_secrets()", "select path from duckdb_databases() where path is not null"):
        with contextlib.suppress(omniray.InputError):  # refused altogether
            assert snapshot.sql(query).num_rows == 0


def test_a_query_that_takes_too_long_is_interrupted(snapshot: omniray.Snapshot) -> None:
    limits = replace(DEFAULT_LIMITS, timeout_s=0.2)
    with pytest.raises(omniray.InputError, match=r"took more than 0\.2 s"):
        snapshot.sql("select sum(a.i * b.i) from range(1000000000) a(i), range(1000000000) b(i)", limits=limits)


def test_a_query_that_needs_more_memory_than_it_may_have_is_refused(snapshot: omniray.Snapshot) -> None:
    limits = replace(DEFAULT_LIMITS, memory_bytes=16 << 20)
    with pytest.raises(omniray.InputError, match="needs more than 16 MiB of memory"):
        snapshot.sql("select list(i) from range(100000000) t(i)", limits=limits)


@pytest.mark.parametrize(
    ("limits", "what"),
    [
        (replace(DEFAULT_LIMITS, result_rows=100_000), "more than 100,000 rows"),
        (replace(DEFAULT_LIMITS, result_bytes=1 << 20), "more than 1 MiB"),
    ],
)
def test_a_result_that_is_too_large_is_refused_before_it_is_read(
    snapshot: omniray.Snapshot, limits: sql.SqlLimits, what: str
) -> None:
    with pytest.raises(omniray.InputError, match=what):
        snapshot.sql(MANY, limits=limits)
    assert snapshot.sql(f"{MANY} limit 5", limits=limits).num_rows == 5


def test_a_query_that_is_too_long_is_refused(snapshot: omniray.Snapshot) -> None:
    with pytest.raises(omniray.InputError, match="shorten it"):
        snapshot.sql("select 1" + " " * sql.QUERY_CHARS_MAX)


def test_a_query_leaves_no_folder(snapshot: omniray.Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def noted(purpose: str) -> Path:
        made.append(scratch.scratch_folder(purpose))
        return made[-1]

    monkeypatch.setattr(sql, "scratch_folder", noted)
    assert snapshot.sql("select count(*) as n from Person").to_pylist() == [{"n": 10}]
    assert [folder.exists() for folder in made] == [False]
