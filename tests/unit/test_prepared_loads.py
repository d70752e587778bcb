"""Loads that are read and staged but not yet committed: their ids, their leases, and what a repeated one leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import omniray
from omniray import Graph, InputError, WriteResult
from omniray.engine.base.errors import PayloadMismatch
from omniray.engine.base.failpoints import Action, FailpointHit, Point, armed, fail
from omniray.engine.base.principal import Author
from omniray.engine.judge.pinned_state import PinnedState
from omniray.engine.line.sidecar import STAGING, Sidecars
from omniray.engine.store.open_store import open_store
from omniray.engine.writes import row_sink
from omniray.engine.writes.lease import Lease
from omniray.engine.writes.load import LoadIntent, prepare_load
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.staging_tables import StagingTables
from omniray.engine.writes.terms import WriteTerms
from tests.graphs import files_below, opened

SCHEMA = """
node Person { name: String @key   age: I32?   @range(age, 0..150) }
node Note { text: String }
edge Knows: Person -> Person
"""
TXN = "01J00000000000000000000000"
FIRST = WriteResult(TXN, 5, 6, rejected=7, versions={"node:Person": 2}, repeated=True)
Prepare = Callable[..., LoadIntent]


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Graph]:
    with omniray.init(str(tmp_path / "g"), schema=SCHEMA) as graph:
        yield graph


@pytest.fixture
def staged_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sink, "INLINE_ROWS_MAX", 10)


@pytest.fixture
def prepare(graph: Graph) -> Prepare:
    """Reads and stages a source as `graph.load` would, on the graph as it was born."""
    graph.flush()
    branch = opened(open_store(graph.uri))
    newest = branch.tip.newest
    tables = StagingTables(branch.schema, branch.storage, branch.open_newest, lambda: Lease(branch.sidecars, newest))

    def prepare(
        source: Any, *, txn_id: str | None = TXN, mode: str = "append", rejects: Path | None = None
    ) -> LoadIntent:
        options = LoadOptions.checked(mode, "reject" if rejects else "fail", rejects)
        terms = WriteTerms(Author("ann"), txn_id=txn_id)
        return prepare_load(source, tables, options, terms, type_name=None, format=None, progress=None)

    return prepare


def leased(graph: Graph) -> list[str]:
    """The tables that are under a lease."""
    sidecars = Sidecars(open_store(graph.uri))
    leases = (sidecar for sidecar in sidecars.read_all(sidecars.listed()) if sidecar.kind == STAGING)
    return sorted(table.table_key for lease in leases for table in lease.tables)


def data_files(graph: Graph) -> list[str]:
    return [file for file in files_below(graph.uri) if file.startswith(("nodes/", "edges/")) and "/data/" in file]


def person(name: str, **data: object) -> dict[str, object]:
    return {"type": "Person", "data": {"name": name, **data}}


def knows(source: str, target: str) -> dict[str, object]:
    return {"edge": "Knows", "from": source, "to": target}


def notes(count: int) -> list[dict[str, object]]:
    return [{"type": "Note", "data": {"text": f"note {n}"}} for n in range(count)]


def test_an_id_of_the_caller_s_is_the_commit_s_in_canonical_spelling(prepare: Prepare) -> None:
    with prepare([person("a")], txn_id=TXN.lower()) as intent:
        assert (intent.commit_id, intent.resubmittable) == (TXN, True)


def test_a_load_without_an_id_is_not_hashed(prepare: Prepare) -> None:
    with prepare([person("a")], txn_id=None) as intent:
        assert (intent.resubmittable, intent.payload_hash) == (False, "")


@pytest.mark.parametrize("txn_id", ["", "7", TXN[:-1], TXN[:-1] + "U", "8" + TXN[1:], TXN + "\n", 7])
def test_an_id_that_is_no_ulid_is_refused_with_the_way_to_make_one(
    graph: Graph, prepare: Prepare, tmp_path: Path, txn_id: Any
) -> None:
    with pytest.raises(InputError, match=r"invalid txn_id .* make one with str\(ulid\.ULID\(\)\)"):
        prepare([person("a")], txn_id=txn_id, rejects=tmp_path / "bad.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


def test_ids_that_are_minted_do_not_count_as_data(prepare: Prepare) -> None:
    with prepare(notes(3)) as first, prepare(notes(3)) as again, prepare(notes(3), mode="merge") as other:
        assert first.payload_hash == again.payload_hash != other.payload_hash


def test_records_that_are_rejected_are_counted_before_the_commit(
    graph: Graph, prepare: Prepare, tmp_path: Path
) -> None:
    records = [person("a", age=200), person("b"), knows("b", "nobody"), person("b")]
    branch = opened(open_store(graph.uri))
    born = PinnedState(branch.cache, branch.tip.newest)
    with prepare(records, rejects=tmp_path / "bad.jsonl") as intent:
        assert (intent.resolve(born).rejected, intent.resolve(born).rejected) == (3, 3)


@pytest.mark.usefixtures("staged_early")
def test_a_load_is_announced_for_each_table_whose_files_it_stages_until_it_ends(graph: Graph, prepare: Prepare) -> None:
    with prepare([*(person(f"p{n}") for n in range(50)), *notes(50), knows("p0", "p1")]) as intent:
        assert leased(graph) == ["node:Note", "node:Person"]
        assert len(data_files(graph)) == 2
        intent.finished(WriteResult(TXN, 100, 1))
    assert leased(graph) == []
    assert len(data_files(graph)) == 2


@pytest.mark.usefixtures("staged_early")
@pytest.mark.parametrize("point", [Point.STAGE_AFTER_LEASE, Point.STAGE_AFTER_ROWS])
def test_a_load_that_fails_while_staging_leaves_neither_files_nor_lease(
    graph: Graph, prepare: Prepare, point: Point
) -> None:
    seen: list[list[str]] = []

    def look_and_fail() -> None:
        seen.append(leased(graph))
        fail()

    with armed({point: Action(look_and_fail)}), pytest.raises(FailpointHit):
        prepare([person(f"p{n}") for n in range(50)])
    assert seen == [["node:Person"]]
    assert (leased(graph), data_files(graph)) == ([], [])


@pytest.mark.usefixtures("staged_early")
def test_a_lease_outlives_the_files_that_it_speaks_of(
    graph: Graph, prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, left = Lease.release, []

    def watched(lease: Lease) -> None:
        left.append(data_files(graph))
        release(lease)

    monkeypatch.setattr(Lease, "release", watched)
    with prepare([person(f"p{n}") for n in range(50)]):
        pass
    assert left == [[]]


@pytest.mark.usefixtures("staged_early")
def test_a_repeated_load_gives_the_first_outcome_and_deletes_what_it_staged(
    graph: Graph, prepare: Prepare, tmp_path: Path
) -> None:
    with prepare([person(f"p{n}") for n in range(50)], rejects=tmp_path / "bad.jsonl") as intent:
        assert len(data_files(graph)) == 1
        assert intent.finished(FIRST) == FIRST
    assert (leased(graph), data_files(graph)) == ([], [])


@pytest.mark.usefixtures("staged_early")
def test_a_load_that_was_sent_again_keeps_what_may_have_landed_the_first_time(graph: Graph, prepare: Prepare) -> None:
    with prepare([person(f"p{n}") for n in range(50)]) as intent:
        assert intent.finished(FIRST, sent_again=True) == FIRST
    assert (leased(graph), len(data_files(graph))) == ([], 1)


@pytest.mark.parametrize("known", [None, "of the first time\n"])
def test_a_repeated_load_tells_what_was_refused_while_reading_unless_its_first_time_did(
    prepare: Prepare, tmp_path: Path, known: str | None
) -> None:
    rejects = tmp_path / "bad.jsonl"
    if known is not None:
        rejects.write_text(known)
    with prepare([person("a", age=200), person("b"), person("b")], rejects=rejects) as intent:
        intent.finished(FIRST)
    assert rejects.read_text() == known if known else json.loads(rejects.read_text())["line"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "g"]


# The same load sent twice


def test_the_same_id_again_applies_nothing_and_returns_the_first_outcome(graph: Graph, tmp_path: Path) -> None:
    rejects = tmp_path / "bad.jsonl"
    records = [person("a"), person("b", age=200), *notes(3), knows("a", "nobody")]
    first = graph.load(records, txn_id=TXN, on_error="reject", rejects=rejects)
    refused = rejects.read_text()
    graph.load([person("later")])
    again = graph.load(records, txn_id=TXN.lower(), on_error="reject", rejects=rejects, actor="bob")
    assert (first.rejected, again) == (2, replace(first, repeated=True))
    assert (graph.snapshot().count("Note"), rejects.read_text()) == (3, refused)


@pytest.mark.usefixtures("staged_early")
def test_a_large_load_that_is_sent_again_leaves_no_files(graph: Graph) -> None:
    graph.load(notes(50), txn_id=TXN)
    before = data_files(graph)
    assert graph.load(notes(50), txn_id=TXN).repeated
    assert (data_files(graph), leased(graph)) == (before, [])


def test_the_same_id_with_other_data_is_refused(graph: Graph) -> None:
    graph.load(notes(3), txn_id=TXN)
    with pytest.raises(PayloadMismatch, match=f"{TXN} was committed with other data"):
        graph.load(notes(4), txn_id=TXN)
    with pytest.raises(PayloadMismatch):
        graph.mutate('query q() { insert Note { text: "note 0" } }', txn_id=TXN)
    assert graph.snapshot().count("Note") == 3
