"""The line made queryable: each object is folded exactly once, and history and pins come out of it as they were."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import lance
import msgspec
import pytest

from omniray.engine.base.errors import FormatMismatch, GraphGone, InvariantViolation, StorageError
from omniray.engine.base.failpoints import Action, FailpointHit, Point, armed, fail
from omniray.engine.history import audit
from omniray.engine.history import manifest as manifest_module
from omniray.engine.history.cas_table import STAMP
from omniray.engine.history.lineage_entry import LineageEntry
from omniray.engine.history.manifest import TAIL_ROWS_MAX, Folded, Manifest
from omniray.engine.line.branch_id import BranchId
from omniray.engine.line.commit_object import FORMAT, SEQ_MAX, Binding, first_of, follow
from omniray.engine.line.graph_identity import PATH as IDENTITY
from omniray.engine.line.graph_identity import GraphIdentity, encode
from omniray.engine.store.directory import DirectoryStore
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.store.open_store import open_store
from omniray.engine.tables import old_versions as archive
from omniray.engine.tables.empty_table import FIRST_MANIFEST
from tests.kit.faulty_store import ALWAYS, CallFault, Effect, FaultyStore
from tests.lines import BEGIN, BRANCH, PERSON, birth, commit, line, recovered
from tests.lines import SCHEMA as LINE_SCHEMA
from tests.stores import Root


@pytest.fixture
def store(disk: Root) -> DirectoryStore:
    return DirectoryStore(Path(disk.uri))


def born(store: ObjectStore) -> Manifest:
    """A manifest with the first object folded in."""
    manifest = Manifest(store, BRANCH)
    manifest.fold([birth()], named_through=0)
    return manifest


def object_ids(store: ObjectStore) -> list[str]:
    """What plain Lance finds in the manifest."""
    dataset = lance.dataset(f"{store.uri}/__manifest", storage_options=store.lance_options)
    found: list[str] = dataset.to_table(columns=["object_id"])["object_id"].to_pylist()
    return found


def test_a_manifest_is_born_with_its_registrations_and_the_first_object(store: DirectoryStore) -> None:
    manifest = born(store)
    assert manifest.folded_through() == 1
    assert [entry.commit_id for entry in manifest.commits()] == ["commit-000001"]
    rows = lance.dataset(f"{store.uri}/__manifest").to_table().to_pylist()
    locations = {r["object_id"]: json.loads(r["metadata"])["location"] for r in rows if r["object_type"] == "table"}
    assert locations == {
        "table:node:Person": "nodes/Person.lance",
        "table:node:City": "nodes/City.lance",
        "table:edge:Knows": "edges/Knows.lance",
    }
    assert [r["object_id"] for r in rows if r["object_type"] == "graph_head"] == [f"graph_head:{BRANCH.ulid}"]


def test_where_there_is_no_manifest_nothing_is_folded_yet(any_root: Root) -> None:
    store = open_store(f"{any_root.uri}/graph", any_root.storage_options)
    manifest = Manifest(store, BRANCH)
    assert manifest.folded_through() == 0
    assert [*manifest.commits(), *manifest.recoveries()] == []
    looked_for = (manifest.commit("commit-000001"), manifest.recorded(["op"]), manifest.newest_commit_until(BEGIN))
    assert looked_for == (None, set(), None)
    assert (manifest.pins_at(1), manifest.versions_introduced(1)) == ({}, {})
    assert store.first_name("__manifest") is None
    assert manifest.fold(line(3), named_through=0) == 3
    assert [entry.seq for entry in manifest.commits()] == [3, 2, 1]


def test_any_number_of_processes_create_it_at_once_and_fold_each_object_once(any_root: Root) -> None:
    stores = [open_store(f"{any_root.uri}/graph", any_root.storage_options) for _ in range(4)]
    objects = recovered(line(3), "lost-op")
    barrier = threading.Barrier(len(stores))

    def fold(store: ObjectStore) -> int:
        barrier.wait()
        return Manifest(store, BRANCH).fold(objects, named_through=0)

    with ThreadPoolExecutor(len(stores)) as pool:
        assert set(pool.map(fold, stores)) == {4}
    ids = object_ids(stores[0])
    assert len(ids) == len(set(ids))
    assert {f"graph_head:{BRANCH.ulid}", "table:edge:Knows", "commit-000003", "recovery:lost-op"} <= set(ids)
    assert [r.operation_id for r in audit.recorded(stores[0])] == ["lost-op"]


@pytest.mark.parametrize("puts_done", [0, 1, 2])
def test_a_creation_that_was_cut_short_is_finished_by_the_next_fold(store: DirectoryStore, puts_done: int) -> None:
    put, puts = store.put_if_absent, iter([True] * puts_done)

    def cut_short(path: str, data: bytes) -> Answer:
        answer = put(path, data) if next(puts, False) else None
        if answer is None:
            raise FailpointHit
        return answer

    store.put_if_absent = cut_short  # type: ignore[method-assign]
    with contextlib.suppress(FailpointHit):
        Manifest(store, BRANCH)._table.create()
    store.put_if_absent = put  # type: ignore[method-assign]
    assert Manifest(store, BRANCH).folded_through() == 0
    assert Manifest(store, BRANCH).fold(line(2), named_through=0) == 2
    assert len(object_ids(store)) == len(set(object_ids(store)))


def test_a_creation_whose_answers_are_lost_is_put_again_and_a_silent_store_is_named(store: DirectoryStore) -> None:
    losing, silent = FaultyStore(store), FaultyStore(store)
    for nth in (1, 3):
        losing.arm(CallFault(Effect.LOSE, frozenset({"put_if_absent"}), nth=nth))
    assert Manifest(cast(ObjectStore, losing), BRANCH).fold(line(1), named_through=0) == 1
    assert [fault.met for fault in losing.faults] == [4, 4]
    silent.arm(CallFault(Effect.UNCLEAR, frozenset({"put_if_absent"}), times=ALWAYS))
    shutil.rmtree(store.root / "__manifest")
    with pytest.raises(StorageError, match="no clear answer"):
        Manifest(cast(ObjectStore, silent), BRANCH).fold(line(1), named_through=0)


def test_versions_have_the_names_that_list_newest_first(store: DirectoryStore) -> None:
    born(store).fold(line(2), named_through=0)
    finals = [name for name in store.names("__manifest/_versions") if name.endswith(".manifest")]
    assert finals == [f"{SEQ_MAX - version:020}.manifest" for version in (3, 2, 1)]


def test_history_comes_back_newest_first_with_everything_that_was_said(store: DirectoryStore) -> None:
    manifest = born(store)
    objects = line(7)
    manifest.fold(objects[1:3], named_through=0)
    manifest.fold(objects[3:], named_through=0)
    entries = list(Manifest(store, BRANCH).commits())
    assert [entry.seq for entry in entries] == [7, 6, 5, 4, 3, 2, 1]
    newest = entries[1]
    assert (newest.commit_id, newest.parent, newest.op_id) == ("commit-000006", "commit-000005", "op-6")
    assert (newest.kind, newest.actor, newest.tenant, newest.tables) == ("Load", "ann", "acme", (PERSON,))
    assert newest.at == BEGIN + timedelta(seconds=6)
    assert (newest.payload_hash, newest.nodes, newest.edges, newest.rejected) == ("hash-6", 6, 7, 8)
    assert [e.seq for e in Manifest(store, BRANCH).commits(limit=2)] == [7, 6]


def test_several_commits_of_one_object_are_each_other_s_parents(store: DirectoryStore) -> None:
    manifest = born(store)
    manifest.fold(line(3, commits_each=3)[1:], named_through=0)
    parents = {entry.commit_id: entry.parent for entry in manifest.commits()}
    chain = sorted(parents)
    assert [parents[c] for c in chain] == ["", *chain[:-1]]


def test_an_object_that_is_folded_already_is_not_folded_again(store: DirectoryStore) -> None:
    manifest = born(store)
    objects = line(5)
    assert manifest.fold(objects[1:], named_through=0) == 5
    assert manifest.fold(objects[1:], named_through=0) == 5
    assert Manifest(store, BRANCH).fold(objects, named_through=0) == 5
    assert [entry.seq for entry in manifest.commits()] == [5, 4, 3, 2, 1]


def test_two_that_fold_at_once_fold_each_object_exactly_once(store: DirectoryStore) -> None:
    born(store)
    objects = line(41)
    folders = [Manifest(store, BRANCH) for _ in range(4)]
    barrier = threading.Barrier(len(folders))

    def fold(manifest: Manifest) -> None:
        barrier.wait()
        for end in range(5, 42, 4):
            manifest.fold(objects[1:end], named_through=0)

    with ThreadPoolExecutor(len(folders)) as pool:
        list(pool.map(fold, folders))
    assert [entry.seq for entry in Manifest(store, BRANCH).commits()] == list(range(41, 0, -1))
    ids = object_ids(store)
    assert len(ids) == len(set(ids))


def test_the_second_of_two_folds_on_one_head_begins_again_from_the_winner_s(store: DirectoryStore) -> None:
    slow, fast, objects = born(store), Manifest(store, BRANCH), line(6)
    slow.fold(objects[1:2], named_through=0)
    fast.fold(objects[2:4], named_through=0)
    assert slow.fold(objects[1:], named_through=0) == 6
    assert [entry.seq for entry in slow.commits()] == [6, 5, 4, 3, 2, 1]


def test_a_gap_is_refused(store: DirectoryStore) -> None:
    manifest = born(store)
    with pytest.raises(InvariantViolation, match=r"can't fold object 4.*folded through 1"):
        manifest.fold(line(5)[3:], named_through=0)
    assert manifest.folded_through() == 1


def test_what_is_remembered_of_the_last_fold_is_not_taken_for_a_gap(store: DirectoryStore) -> None:
    manifest, other, objects = born(store), Manifest(store, BRANCH), line(6)
    manifest.fold(objects[1:2], named_through=0)
    other.fold(objects[2:5], named_through=0)
    assert manifest.fold(objects[5:], named_through=0) == 6


def test_pins_are_those_of_any_number_of_the_line(store: DirectoryStore) -> None:
    manifest = born(store)
    objects = line(23)
    manifest.fold(objects[1:], named_through=0)
    for obj in objects:
        assert manifest.pins_at(obj.seq) == obj.pins, obj.seq


def test_what_a_later_omniray_says_of_versions_and_commits_is_no_obstacle(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown fields of a pin come back with it; those of a commit are passed over."""
    manifest, objects = born(store), line(3)
    known = manifest_module.commit_row

    def with_a_seal(entry: LineageEntry) -> dict[str, Any]:
        row = known(entry)
        return row | {"metadata": json.dumps(json.loads(row["metadata"]) | {"seal": 1})}

    monkeypatch.setattr(manifest_module, "commit_row", with_a_seal)
    told = replace(objects[1].pins[PERSON], later={"quota": msgspec.Raw(b'{"rows":5}')})
    second = replace(objects[1], pins={**objects[1].pins, PERSON: told})
    manifest.fold([second], named_through=0)
    assert manifest.pins_at(second.seq) == second.pins
    assert [entry.seq for entry in manifest.commits(1)] == [second.seq]


def test_a_commit_is_found_by_its_id_and_by_a_time(store: DirectoryStore) -> None:
    manifest = born(store)
    manifest.fold(line(9)[1:], named_through=0)
    found = manifest.commit("commit-000004")
    assert found is not None
    assert found.seq == 4
    assert manifest.commit("commit-000099") is None
    until = manifest.newest_commit_until(BEGIN + timedelta(seconds=4.5))
    assert until is not None
    assert until.seq == 4
    assert manifest.newest_commit_until(BEGIN) is None


def test_of_the_commits_of_one_object_the_last_one_is_found_by_their_time(store: DirectoryStore) -> None:
    """A round of a coordinator gives all its commits one time; what is not folded yet answers with the last, too."""
    manifest, objects = born(store), line(9)
    together = [replace(one, at_us=objects[-1].head_at_us) for one in (commit(9), commit(10), commit(11))]
    manifest.fold([*objects[1:-1], replace(objects[-1], commits=tuple(together))], named_through=0)
    until = manifest.newest_commit_until(BEGIN + timedelta(seconds=9))
    assert until is not None
    assert until.commit_id == "commit-000011"


def test_ids_are_new_only_to_a_version_that_is_folded_far_enough(store: DirectoryStore) -> None:
    assert not Manifest(store, BRANCH).holds_none(["commit-000099"], 1)
    manifest, objects = born(store), line(6)
    manifest.fold(objects[:4], named_through=0)
    reader = Manifest(store, BRANCH)
    assert [reader.holds_none(["commit-000099"], seq) for seq in (1, 4, 5)] == [True, True, False]
    assert not reader.holds_none(["commit-000099", "commit-000002"], 4)
    manifest.fold(objects, named_through=0)
    assert [reader.holds_none(["commit-000099"], seq) for seq in (4, 6, 7)] == [True, True, False]
    assert not reader.holds_none(["commit-000006"], 4)


def test_how_far_a_later_version_is_folded_says_nothing_of_an_earlier_one(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads share a manifest: one opened a version, the other looked at a later one meanwhile."""
    manifest, objects = born(store), line(6)
    manifest.fold(objects[:3], named_through=0)
    reader = Manifest(store, BRANCH)
    earlier = reader._table.open_to_read()
    manifest.fold(objects, named_through=0)
    assert reader.holds_none(["commit-000099"], 6)
    monkeypatch.setattr(reader._table, "open_to_read", lambda: earlier)
    assert not reader.holds_none(["commit-000005"], 5)


def test_table_versions_are_those_that_a_number_of_the_line_brought_in(store: DirectoryStore) -> None:
    manifest = born(store)
    objects = line(10)
    manifest.fold(objects, named_through=0)
    for obj in objects:
        assert manifest.versions_introduced(obj.seq) == {k: pin.version for k, pin in obj.introduced().items()}


def test_recoveries_are_folded_with_everything_that_was_said(store: DirectoryStore) -> None:
    objects = recovered(recovered(line(2), "op-a"), "op-b", "op-c")
    manifest = born(store)
    manifest.fold(objects, named_through=0)
    told = [recovery for obj in objects for recovery in obj.recoveries]
    assert list(manifest.recoveries()) == told[::-1]
    assert list(manifest.recoveries(through=3)) == told[:1]
    assert manifest.recorded(["op-b", "op-1"]) == {"op-b"}
    rows = lance.dataset(f"{store.uri}/__manifest").to_table(filter="object_type = 'graph_recovery'").to_pylist()
    assert [(row["object_id"], row["seq"]) for row in rows] == [
        ("recovery:op-a", 3),
        ("recovery:op-b", 4),
        ("recovery:op-c", 4),
    ]
    assert rows[0]["at"] == BEGIN + timedelta(seconds=3, microseconds=7)


def test_a_fold_that_was_killed_before_its_final_name_is_seen_by_nobody(store: DirectoryStore) -> None:
    manifest, objects = born(store), line(3)
    with armed({Point.D_FOLD_STAGED: Action(fail)}), pytest.raises(FailpointHit):
        manifest.fold(objects, named_through=0)
    assert Manifest(store, BRANCH).folded_through() == 1
    assert Manifest(store, BRANCH).fold(objects, named_through=0) == 3
    assert manifest.fold(objects, named_through=0) == 3
    assert [entry.seq for entry in manifest.commits()] == [3, 2, 1]
    store.delete_all(manifest.take_leftovers())
    assert manifest.take_leftovers() == []


def test_a_tail_is_sealed_when_it_is_full_and_history_stays_whole(store: DirectoryStore) -> None:
    """Many folds over more rows than a tail takes: few fragments, none of them lost or doubled."""
    manifest = born(store)
    objects = line(200, commits_each=12)
    for start in range(1, 200, 7):
        folder = manifest if start % 3 else Manifest(store, BRANCH)
        folder.fold(objects[start : start + 7], named_through=0)
    reader = Manifest(store, BRANCH)
    expected = [c.commit_id for obj in objects for c in obj.commits]
    assert [entry.commit_id for entry in reader.commits()] == expected[::-1]
    assert len(set(expected)) > 2 * TAIL_ROWS_MAX
    sizes = [f.count_rows() for f in lance.dataset(f"{store.uri}/__manifest").get_fragments()]
    assert sizes[-1] == 1
    assert all(size >= TAIL_ROWS_MAX for size in sizes[:-2])
    assert len(sizes) <= 2 + len(expected) // TAIL_ROWS_MAX + 1


def test_an_object_without_commits_and_pins_moves_the_head_and_nothing_else(store: DirectoryStore) -> None:
    """A change of owner leaves no lineage; just after the tail was sealed there is no other row to write either."""
    manifest = born(store)
    objects = line(2, commits_each=TAIL_ROWS_MAX + 1)
    for _ in range(2):
        last = objects[-1]
        objects.append(replace(last, seq=last.seq + 1, prev_op_id=last.op_id, op_id=f"op-{last.seq + 1}", commits=()))
    manifest.fold(objects[1:2], named_through=0)
    manifest.fold(objects[2:3], named_through=0)
    manifest.fold(objects[3:4], named_through=0)
    assert Manifest(store, BRANCH).folded_through() == 4
    assert len(list(manifest.commits())) == TAIL_ROWS_MAX + 2


def test_a_fold_whose_store_fails_says_so_and_the_next_one_begins_from_the_head(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, objects = born(store), line(3)
    commit_, failed = lance.LanceDataset.commit, []

    def landed_and_failed(*args: object, **kwargs: object) -> None:
        failed.append(commit_(*args, **kwargs))
        raise OSError("connection lost")

    with monkeypatch.context() as patch:
        patch.setattr(lance.LanceDataset, "commit", landed_and_failed)
        with pytest.raises(StorageError, match="connection lost"):
            manifest.fold(objects[1:], named_through=0)
    assert manifest.fold(objects[1:], named_through=0) == 3
    assert [entry.seq for entry in manifest.commits()] == [3, 2, 1]


@pytest.mark.parametrize(("stamp", "advice"), [(FORMAT - 1, "omniray export"), (FORMAT + 1, "upgrade omniray")])
def test_a_manifest_of_another_format_is_refused(store: DirectoryStore, stamp: int, advice: str) -> None:
    manifest = born(store)
    lance.dataset(f"{store.uri}/__manifest").update_schema_metadata({STAMP.decode(): str(stamp)}, replace=True)
    with pytest.raises(FormatMismatch, match=advice):
        manifest.folded_through()


def test_a_manifest_that_can_t_be_read_is_named(store: DirectoryStore) -> None:
    store.put(f"__manifest/_versions/{FIRST_MANIFEST}", b"junk")
    with pytest.raises(StorageError, match="__manifest"):
        Manifest(store, BRANCH).folded_through()


def test_a_manifest_that_is_gone_is_not_begun_again_in_the_middle_of_the_line(store: DirectoryStore) -> None:
    born(store).fold(line(3), named_through=0)
    shutil.rmtree(store.root / "__manifest")
    with pytest.raises(InvariantViolation, match=r"can't fold object 4.*folded through 0.*backup"):
        Manifest(store, BRANCH).fold(line(4)[3:], named_through=0)
    assert store.first_name("__manifest") is None


@pytest.mark.parametrize(
    ("graph_id", "error", "match"),
    [
        pytest.param(BRANCH.ulid, InvariantViolation, "does not end in the head", id="it is our graph"),
        pytest.param("another", GraphGone, "another one was created", id="it is another graph's"),
    ],
)
def test_a_manifest_that_somebody_else_wrote_to_is_noticed(
    store: DirectoryStore, graph_id: str, error: type[Exception], match: str
) -> None:
    manifest = born(store)
    store.put(IDENTITY, encode(GraphIdentity(graph_id)))
    uri = f"{store.uri}/__manifest"
    lance.write_dataset(lance.dataset(uri).to_table().slice(0, 1), uri, mode="append")
    with pytest.raises(error, match=match):
        manifest.folded_through()


def test_the_head_says_how_far_final_names_are_given_and_never_goes_back(store: DirectoryStore) -> None:
    objects = line(5)
    Manifest(store, BRANCH).fold(objects[:3], named_through=2)
    assert Manifest(store, BRANCH).folded() == Folded(3, 2)
    Manifest(store, BRANCH).fold(objects[:4], named_through=1)
    assert Manifest(store, BRANCH).folded() == Folded(4, 2)
    Manifest(store, BRANCH).fold(objects, named_through=5)
    assert Manifest(store, BRANCH).folded() == Folded(5, 5)


def test_every_branch_folds_into_a_dataset_of_its_own(store: DirectoryStore) -> None:
    born(store).fold(line(3), named_through=3)
    trial = BranchId("trial", "01M0000000000000000000TRYS")
    binding = Binding(trial.ulid, BRANCH.ulid, 3, line(3)[-1].pins, LINE_SCHEMA, {BRANCH.ulid: 3}, "commit-000003", 1)
    first = first_of(binding)
    second = follow(first, op_id="op-t", changed={}, commits=(commit(77),), finalised_through=0)
    Manifest(store, trial).fold([first, second], named_through=2)
    assert [entry.commit_id for entry in Manifest(store, trial).commits()] == ["commit-000077"]
    assert Manifest(store, trial).pins_at(1) == line(3)[-1].pins, "its versions are its parent's"
    assert Manifest(store, BRANCH).folded_through() == 3


def test_a_fold_on_top_of_versions_that_were_deleted_since_begins_again(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lance would rebase it over the gap, and fold everything a second time."""
    monkeypatch.setattr("omniray.engine.history.cas_table.KEPT_VERSIONS", 2)
    objects = line(20)
    sleeper = born(store)
    sleeper.fold(objects[:2], named_through=0)
    for count in range(3, 20):
        other = Manifest(store, BRANCH)
        other.fold(objects[:count], named_through=0)
        other.discard_old_versions()
    assert sleeper.fold(objects, named_through=0) == 20
    assert [entry.seq for entry in Manifest(store, BRANCH).commits()] == list(range(20, 0, -1))


def test_a_folder_that_slept_on_a_number_used_and_deleted_meanwhile_begins_again(store: DirectoryStore) -> None:
    objects = line(4)
    born(store).fold(objects[:2], named_through=0)
    now = [0.0]
    sleeper = Manifest(store, BRANCH, clock=lambda: now[0])
    put = store.copy_if_absent

    def sleeping(source: str, target: str) -> Answer | None:
        store.copy_if_absent = put  # type: ignore[method-assign]
        other = Manifest(store, BRANCH)
        for count in (3, 4):
            other.fold(objects[:count], named_through=0)
        archive.discard(store, "__manifest", keep=1)
        now[0] += 3600
        return put(source, target)

    store.copy_if_absent = sleeping  # type: ignore[method-assign]
    assert sleeper.fold(objects[:3], named_through=0) == 4
    assert [entry.seq for entry in Manifest(store, BRANCH).commits()] == [4, 3, 2, 1]
