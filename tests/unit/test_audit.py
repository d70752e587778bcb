"""The audit of recoveries: one row for each operation that was recovered, whatever happens to those who write it."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from omniray.engine.base.errors import StorageError
from omniray.engine.base.failpoints import Action, FailpointHit, Point, armed, fail
from omniray.engine.history import audit
from omniray.engine.history.manifest import Manifest
from omniray.engine.store.directory import DirectoryStore
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.store.open_store import open_store
from tests.lines import BEGIN, BRANCH, line, recovered
from tests.stores import Root


@pytest.fixture
def store(disk: Root) -> DirectoryStore:
    return DirectoryStore(Path(disk.uri))


def plain_rows(store: ObjectStore) -> pa.Table:
    """What plain Lance finds in the audit."""
    return lance.dataset(f"{store.uri}/{audit.PATH}", storage_options=store.lance_options).to_table()


def operations(store: ObjectStore) -> list[str]:
    found: list[str] = plain_rows(store)["operation_id"].to_pylist()
    return found


def test_a_recovery_is_one_row_that_plain_lance_reads(any_root: Root) -> None:
    store = open_store(f"{any_root.uri}/graph", any_root.storage_options)
    objects = recovered(line(2), "op-x")
    assert audit.recorded(store) == []
    audit.record(store, objects)
    (row,) = plain_rows(store).to_pylist()
    told = objects[-1].recoveries[0]
    assert row.pop("created_at") == BEGIN.replace(second=3, microsecond=7)
    assert json.loads(row.pop("outcomes")) == told.outcomes
    assert row == {
        "operation_id": "op-x",
        "recovery_kind": "RolledBack",
        "recovery_for_actor": "ann",
        "sidecar_writer_kind": "Load",
        "actor": "omniray:recovery",
        "seq": 3,
    }
    assert audit.recorded(store) == [told]


def test_a_graph_that_nothing_happened_to_has_no_audit(store: DirectoryStore) -> None:
    Manifest(store, BRANCH).fold(line(5), named_through=5)
    assert store.first_name(audit.PATH) is None
    assert store.first_name(f"{audit.PATH}/_versions") is None


def test_what_is_recorded_already_is_not_recorded_again(store: DirectoryStore) -> None:
    objects = recovered(line(1), "op-a", "op-b")
    audit.record(store, objects)
    version = lance.dataset(f"{store.uri}/{audit.PATH}").version
    audit.record(store, objects)
    assert lance.dataset(f"{store.uri}/{audit.PATH}").version == version
    audit.record(store, recovered(objects, "op-c"))
    assert operations(store) == ["op-a", "op-b", "op-c"]


def test_an_operation_that_the_line_tells_of_twice_has_the_row_of_the_first(store: DirectoryStore) -> None:
    objects = recovered(recovered(recovered(line(1), "op-a"), "op-b"), "op-a")
    audit.record(store, objects)
    audit.record(store, objects[2:])
    assert plain_rows(store).select(["operation_id", "seq"]).to_pylist() == [
        {"operation_id": "op-a", "seq": 2},
        {"operation_id": "op-b", "seq": 3},
    ]


def test_several_that_record_at_once_leave_one_row_for_each_operation(any_root: Root) -> None:
    """Each begins with objects of its own and ends with all of them; the table is not there yet."""
    stores = [open_store(f"{any_root.uri}/graph", any_root.storage_options) for _ in range(3)]
    objects = line(1)
    for number in range(3):
        objects = recovered(objects, f"op-{number}-a", f"op-{number}-b")
    barrier = threading.Barrier(len(stores))

    def record(worker: int) -> None:
        barrier.wait()
        for begin in (worker, 0):
            audit.record(stores[worker], objects[begin:])

    with ThreadPoolExecutor(len(stores)) as pool:
        list(pool.map(record, range(len(stores))))
    expected = sorted(r.operation_id for obj in objects for r in obj.recoveries)
    assert sorted(operations(stores[0])) == expected
    assert [r.operation_id for r in audit.recorded(stores[0])] == expected


@pytest.mark.parametrize("point", [Point.D_BEFORE_AUDIT, Point.D_AUDIT_STAGED, Point.D_FOLD_STAGED])
def test_a_phase_d_that_is_killed_anywhere_and_repeated_leaves_one_row_in_audit_and_manifest(
    store: DirectoryStore, point: Point
) -> None:
    objects = recovered(line(2), "op-a")
    with armed({point: Action(fail)}):
        for _ in range(2):
            with pytest.raises(FailpointHit):
                Manifest(store, BRANCH).fold(objects, named_through=0)
    assert Manifest(store, BRANCH).recorded(["op-a"]) == set()
    assert len(audit.recorded(store)) == (1 if point is Point.D_FOLD_STAGED else 0)
    for _ in range(2):
        assert Manifest(store, BRANCH).fold(objects, named_through=0) == 3
    assert operations(store) == ["op-a"]
    assert [r.operation_id for r in Manifest(store, BRANCH).recoveries()] == ["op-a"]


def test_what_is_folded_is_recorded_before(store: DirectoryStore) -> None:
    """Were it the other way round, a kill in between would leave a recovery without its row for ever."""
    seen: list[list[str]] = []
    with armed({Point.D_FOLD_STAGED: Action(lambda: seen.append(operations(store)))}):
        Manifest(store, BRANCH).fold(recovered(line(1), "op-a"), named_through=0)
    assert seen == [["op-a"]]


def test_a_row_whose_answer_got_lost_is_not_written_twice(store: DirectoryStore) -> None:
    copy, answers = store.copy_if_absent, []

    def losing(source: str, target: str) -> Answer | None:
        answers.append(copy(source, target))
        return Answer.UNCLEAR if len(answers) == 1 else answers[-1]

    store.copy_if_absent = losing  # type: ignore[method-assign]
    audit.record(store, recovered(line(1), "op-a"))
    assert answers[0] is Answer.CREATED
    assert operations(store) == ["op-a"]


def test_a_slower_one_begins_again_on_top_of_what_the_faster_one_has_written(store: DirectoryStore) -> None:
    """Both build on the same version: the slower one's rows must neither be lost nor stand beside the same ones."""
    objects = recovered(recovered(line(1), "op-a"), "op-b")
    audit.record(store, recovered(line(1), "op-0"))

    def another_process() -> None:
        with armed({Point.D_AUDIT_STAGED: Action(lambda: None)}):
            audit.record(DirectoryStore(store.root), objects[:2])

    with armed({Point.D_AUDIT_STAGED: Action(another_process, nth=1)}):
        audit.record(store, objects)
    assert operations(store) == ["op-0", "op-a", "op-b"]


def test_a_long_life_leaves_few_fragments_few_versions_and_no_staged_versions(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omniray.engine.history.cas_table.KEPT_VERSIONS", 4)
    monkeypatch.setattr("omniray.engine.history.audit.TAIL_ROWS_MAX", 10)
    objects = line(1)
    for number in range(24):
        objects = recovered(objects, f"op-{number:02}")
        audit.record(store, objects[-1:])
    assert operations(store) == [f"op-{number:02}" for number in range(24)]
    sizes = [f.count_rows() for f in lance.dataset(f"{store.uri}/{audit.PATH}").get_fragments()]
    assert sizes == [10, 10, 4]
    names = list(store.names(f"{audit.PATH}/_versions"))
    assert not [name for name in names if ".manifest-" in name]
    assert len([name for name in names if name.endswith(".manifest")]) <= 8


def test_outcomes_and_actors_may_hold_any_text(store: DirectoryStore) -> None:
    objects = recovered(line(1), "op-a")
    strange = replace(objects[-1].recoveries[0], recovery_for_actor="o'Neill \"\n\x00 é", outcomes={"node:Ä'": "x"})
    audit.record(store, [replace(objects[-1], recoveries=(strange,))])
    assert audit.recorded(store) == [strange]


def test_a_store_that_fails_is_named_and_the_next_record_goes_on(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = recovered(line(1), "op-a")

    def failed(*args: object, **kwargs: object) -> None:
        raise OSError("connection lost")

    with monkeypatch.context() as patch:
        patch.setattr(lance.LanceDataset, "commit", failed)
        with pytest.raises(StorageError, match=r"_graph_commit_recoveries.lance: connection lost"):
            Manifest(store, BRANCH).fold(objects, named_through=0)
    assert Manifest(store, BRANCH).folded_through() == 0
    Manifest(store, BRANCH).fold(objects, named_through=0)
    assert operations(store) == ["op-a"]
