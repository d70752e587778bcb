"""Parts of a load that others have read: few rows travel, many are staged, and together they are judged as one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

import omniray
from omniray.engine.base.principal import Author
from omniray.engine.base.ulids import new_ulid
from omniray.engine.judge.resolution import WriteResult
from omniray.engine.line.sidecar import SidecarIntent
from omniray.engine.load_stager import LoadStager
from omniray.engine.store.open_store import open_store
from omniray.engine.tables.storage import StagedRows
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.part import Minted, Part
from omniray.engine.writes.part_message import decode_part, encode_part
from omniray.engine.writes.terms import WriteTerms
from tests.graphs import new_graph, opened, people
from tests.stores import Root

SOME, MANY = 3, 40


@pytest.fixture(autouse=True)
def few_rows_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omniray.engine.writes.part.INLINE_ROWS_MAX", 10)


@pytest.fixture
def graph(any_root: Root) -> Iterator[omniray.Graph]:
    with new_graph(any_root) as graph:
        yield graph


def persons(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"name": [f"p{n}" for n in numbers], "age": [n % 100 for n in numbers]})


def part_of(graph: omniray.Graph, *batches: pa.RecordBatch, type: str = "Person", source: str = "part") -> Part:
    stager = LoadStager(opened(open_store(graph.uri, graph.storage_options)))
    made = stager.read_part(iter(batches), type, source, SidecarIntent(new_ulid(), "test"))
    travelled = decode_part(encode_part(made), graph.schema)
    assert isinstance(travelled, Part)
    return travelled


def committed(
    graph: omniray.Graph,
    *parts: Part,
    types: tuple[str, ...] = (),
    mode: str = "append",
    txn_id: str | None = None,
) -> WriteResult:
    announced = [operation for part in parts for operation in part.announced]
    options = LoadOptions.checked(mode, "fail", None)
    intent = graph.begin_load(options, WriteTerms(Author("test"), txn_id=txn_id), announced=announced)
    intent.take_parts(types, parts)
    return graph.commit_load(intent)


def sidecars(graph: omniray.Graph) -> list[str]:
    return list(open_store(graph.uri, graph.storage_options).names("__recovery"))


def leftovers(graph: omniray.Graph) -> int:
    graph.flush()
    return sum(table.deleted.files for table in graph.sweep(older_than_s=0, dry_run=True).tables)


def test_few_rows_travel_and_many_are_staged(graph: omniray.Graph) -> None:
    assert isinstance(part_of(graph, persons(*range(SOME))).tables["node:Person"], pa.Table)
    assert isinstance(part_of(graph, persons(*range(MANY))).tables["node:Person"], StagedRows)


@pytest.mark.parametrize("sizes", [(SOME, SOME), (MANY, MANY), (SOME, MANY, SOME), (0, SOME)])
def test_parts_of_any_size_land_as_one_commit(graph: omniray.Graph, sizes: tuple[int, ...]) -> None:
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    parts = [part_of(graph, persons(*range(start, start + n))) for start, n in zip(starts, sizes, strict=True)]
    committed(graph, *parts)
    assert people(graph) == sorted(f"p{n}" for n in range(sum(sizes)))
    assert len(graph.history()) == 2


@pytest.mark.parametrize("sizes", [(SOME, SOME), (MANY, MANY), (MANY, SOME)])
def test_a_key_that_two_parts_have_is_refused_and_its_place_named(graph: omniray.Graph, sizes: tuple[int, int]) -> None:
    first = part_of(graph, persons(*range(sizes[0])), source="partition 0")
    second = part_of(graph, persons(*range(2, 2 + sizes[1])), source="partition 1")
    with pytest.raises(
        omniray.ConstraintViolation, match=r"partition 1 record 1: .* duplicate key 'p2', first at partition 0 record 3"
    ):
        committed(graph, first, second)
    assert people(graph) == []


def test_a_part_whose_rows_do_not_fit_leaves_no_file_and_no_lease(graph: omniray.Graph) -> None:
    bad = pa.RecordBatch.from_pydict({"name": ["p"] * MANY + [None], "age": [1] * (MANY + 1)})
    with pytest.raises(omniray.RecordError, match=f"part record {MANY + 1 + 20}: null value for Person.name"):
        part_of(graph, persons(*range(20)), bad)
    assert leftovers(graph) == 0


def test_a_part_that_is_never_committed_is_kept_from_the_sweep_while_its_maker_lives(graph: omniray.Graph) -> None:
    part_of(graph, persons(*range(MANY)))
    assert len(sidecars(graph)) == 1
    graph.recover()
    assert len(sidecars(graph)) == 1
    assert leftovers(graph) == 0


def test_a_commit_releases_what_its_parts_announced(graph: omniray.Graph) -> None:
    committed(graph, part_of(graph, persons(*range(MANY))))
    graph.sweep(older_than_s=0)  # tidies up behind the write itself
    assert sidecars(graph) == []
    assert len(people(graph)) == MANY


def test_a_key_that_two_parts_have_is_merged_after_a_sweep_as_before_it(graph: omniray.Graph) -> None:
    """One of its two rows is dropped, so the parts' files are written anew."""
    graph.sweep(older_than_s=0)
    parts = [part_of(graph, persons(*range(start, start + MANY))) for start in (0, MANY - 1)]
    committed(graph, *parts, mode="merge")
    assert len(people(graph)) == 2 * MANY - 1


def test_the_same_id_is_committed_once(graph: omniray.Graph) -> None:
    txn_id = new_ulid()
    committed(graph, part_of(graph, persons(*range(MANY))), txn_id=txn_id)
    again = committed(graph, part_of(graph, persons(*range(MANY))), txn_id=txn_id)
    assert again.repeated
    assert len(people(graph)) == MANY


def test_a_type_without_rows_is_emptied_by_an_overwrite(graph: omniray.Graph) -> None:
    committed(graph, part_of(graph, persons(*range(SOME))))
    committed(graph, types=("Person",), mode="overwrite")
    assert people(graph) == []


def test_an_id_that_was_minted_is_judged_as_none_and_one_that_was_given_as_itself(any_root: Root) -> None:
    schema = "node Person { name: String @key }\nedge Knows: Person -> Person { @unique(src, dst) }"
    with omniray.init(f"{any_root.uri}/ends", schema=schema, storage_options=any_root.storage_options) as graph:
        committed(graph, part_of(graph, pa.RecordBatch.from_pydict({"name": [f"p{n}" for n in range(MANY)]})))
        ends = {"from": [f"p{n}" for n in range(MANY)], "to": ["p0"] * MANY}
        given = [f"edge {n}" if n % 2 else None for n in range(MANY)]
        edges = pa.RecordBatch.from_pydict({"id": pa.array(given, pa.string()), **ends})
        committed(graph, part_of(graph, edges, type="Knows"), mode="merge")
        nameless = pa.RecordBatch.from_pydict(ends)
        committed(graph, part_of(graph, nameless, type="Knows"), mode="merge")
        found = graph.snapshot().table("Knows", ["id"])["id"].to_pylist()
        assert len(found) == MANY
        assert {one for one in given if one} <= set(found)


@pytest.mark.parametrize("marks", [[True, True], [False, False], [True, False, True], []])
def test_minted_ids_are_forgotten_from_any_row_on(marks: list[bool]) -> None:
    minted = Minted.of(np.array(marks, np.bool_))
    for first in range(len(marks)):
        ids = pa.array([str(n) for n in range(first, len(marks))])
        kept = [None if mark else str(n) for n, mark in enumerate(marks)][first:]
        forgotten = pa.nulls(len(ids), pa.string()) if minted.all else minted.forgotten(ids, first)
        assert forgotten.to_pylist() == kept
