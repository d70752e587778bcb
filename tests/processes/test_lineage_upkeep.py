"""Merged and indexed lineage answers as the line itself does, whatever is killed, overtaken or read meanwhile.

Everything is small here: a fragment is sealed at 8 rows, two of a level make one of the next, and pins are written out
every 4 numbers.
"""

from __future__ import annotations

import multiprocessing
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest

from omniray.engine.base.errors import InvariantViolation, StorageError
from omniray.engine.base.failpoints import Action, FailpointHit, Point, armed, fail
from omniray.engine.history import (
    cas_table,
    lineage_levels,
    lineage_upkeep,
    manifest,
    manifest_reader,
    time_search,
    written_pins,
)
from omniray.engine.history.lineage_levels import Fragment, to_index, to_merge
from omniray.engine.history.manifest import Manifest
from omniray.engine.history.manifest_rows import SCHEMA
from omniray.engine.line import graph_identity
from omniray.engine.line.commit_object import CommitObject, follow
from omniray.engine.store.directory import DirectoryStore
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from omniray.engine.tables.version_names import final_path
from tests.lines import BEGIN, BRANCH, commit, line, recovered
from tests.stores import Root

UPKEEP = [Point.D_UPKEEP_WRITTEN, Point.D_UPKEEP_STAGED, Point.D_AFTER_UPKEEP]


@pytest.fixture
def store(disk: Root) -> DirectoryStore:
    return DirectoryStore(Path(disk.uri))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage_levels, "SEALED_ROWS", 8)
    monkeypatch.setattr(lineage_levels, "FAN_IN", 2)
    monkeypatch.setattr(manifest, "TAIL_ROWS_MAX", 8)
    monkeypatch.setattr(written_pins, "PINS_EVERY", 4)
    monkeypatch.setattr(time_search, "PROBES", 3)
    monkeypatch.setattr(time_search, "READ_ROWS", 5)
    monkeypatch.setattr(manifest_reader, "CHUNK_ROWS", 5)


def plain(store: ObjectStore) -> lance.LanceDataset:
    return lance.dataset(f"{store.uri}/__manifest", storage_options=store.lance_options)


def fragments(dataset: lance.LanceDataset) -> list[Fragment]:
    return [Fragment(f.fragment_id, f.physical_rows) for f in dataset.get_fragments()]


def segments(dataset: lance.LanceDataset) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {name: {} for name in lineage_upkeep.INDEXES.values()}
    for index in dataset.describe_indices():
        found[index.name] = {segment.uuid: set(segment.fragment_ids) for segment in index.segments}
    return found


def is_kept_up(store: ObjectStore) -> bool:
    dataset = plain(store)
    return to_merge(fragments(dataset)) is None and to_index(fragments(dataset), segments(dataset)) is None


def random_line(rng: random.Random, count: int) -> list[CommitObject]:
    """Objects with none to three commits each, a recovery now and then, and times that stand still for a while."""
    objects = line(1)
    number = 1
    for _ in range(count):
        if rng.random() < 0.1:
            objects = recovered(objects, f"lost-{len(objects)}")
            continue
        before = objects[-1]
        moved = {key: pin for key, pin in before.pins.items() if rng.random() < 0.3}
        changed = {
            key: replace(
                pin,
                version=pin.version + rng.choice((1, 1, 3)),
                transaction=f"tx-{key.replace(':', '-')}-{before.seq}",
                rows=7,
            )
            for key, pin in moved.items()
        }
        made = tuple(commit(number + n + 1, *moved) for n in range(rng.choice((0, 1, 1, 3))))
        at_us = before.head_at_us + rng.choice((0, 1_000_000, 50_000_000))
        made = tuple(replace(one, at_us=max(at_us, commit(1).at_us)) for one in made)
        number += len(made)
        objects.append(follow(before, op_id=f"op-{before.seq + 1}", changed=changed, commits=made, finalised_through=0))
    return objects


def fold_all(store: ObjectStore, objects: Sequence[CommitObject], rng: random.Random | None = None) -> Manifest:
    """Fold in small batches, and keep up as Phase D does."""
    folder, start = Manifest(store, BRANCH), 0
    while start < len(objects):
        step = rng.randint(1, 9) if rng is not None else 5
        if rng is not None and rng.random() < 0.2:
            folder = Manifest(store, BRANCH)
        folder.fold(objects[: start + step], named_through=0)
        store.delete_all(folder.take_leftovers())
        folder.keep_up()
        start += step
    return folder


def check(store: ObjectStore, objects: Sequence[CommitObject], rng: random.Random) -> None:
    """Everything that a manifest is asked, beside what the objects themselves say."""
    found = Manifest(store, BRANCH)
    commits = [(one, obj) for obj in objects for one in obj.commits]
    assert [(e.commit_id, e.seq) for e in found.commits()] == [
        (one.commit_id, obj.seq) for one, obj in reversed(commits)
    ]
    assert [tuple(one) for one in found.commit_ids()] == [(c.commit_id, o.seq, c.at_us) for c, o in reversed(commits)]
    assert [e.commit_id for e in found.commits(limit=3)] == [one.commit_id for one, _ in reversed(commits)][:3]
    told = [recovery for obj in objects for recovery in obj.recoveries]
    assert list(found.recoveries()) == told[::-1]
    assert found.recorded([*(r.operation_id for r in told), "nobody"]) == {r.operation_id for r in told}
    asked = [*rng.sample(commits, min(8, len(commits))), commits[-1]]
    for one, obj in asked:
        entry = found.commit(one.commit_id)
        assert entry is not None
        assert (entry.seq, entry.op_id, entry.payload_hash) == (obj.seq, obj.op_id, one.payload_hash)
    assert found.commit("commit-999999") is None
    ids = [one.commit_id for one, _ in asked]
    assert {e.commit_id for e in found.commits_with([*ids, "commit-999999"])} == set(ids)
    for obj in rng.sample(list(objects), min(8, len(objects))):
        assert found.pins_at(obj.seq) == dict(obj.pins)
        assert found.versions_introduced(obj.seq) == {key: pin.version for key, pin in obj.introduced().items()}
        through = rng.randint(obj.seq, objects[-1].seq)
        moving = [o for o in objects if obj.seq < o.seq <= through and o.introduced()]
        steps = found.steps(obj.seq, through)
        assert [(s.seq, s.commit_ids) for s in steps] == [
            (o.seq, tuple(one.commit_id for one in o.commits)) for o in moving
        ]
        assert [s.pins for s in steps] == [o.introduced() for o in moving]
    assert found.pins_at(objects[-1].seq + 10) == found.pins_at(objects[-1].seq)
    for one, _ in asked:
        for off_us in (-1, 0, 1):
            at = BEGIN + timedelta(microseconds=one.at_us - int(BEGIN.timestamp()) * 1_000_000 + off_us)
            until = found.newest_commit_until(at)
            expected = [o.seq for c, o in commits if c.at_us <= one.at_us + off_us]
            assert (until and until.seq) == (expected[-1] if expected else None)
    assert found.newest_commit_until(BEGIN - timedelta(days=1)) is None
    check_plain(plain(store), objects)


def check_plain(dataset: lance.LanceDataset, objects: Sequence[CommitObject]) -> None:
    """What plain Lance reads of one version, whole and by index."""
    dataset.validate()
    rows = dataset.to_table(columns=["object_id", "object_type", "seq"]).to_pylist()
    assert len({row["object_id"] for row in rows}) == len(rows)
    assert rows[-1]["object_type"] == "graph_head"
    seqs = [row["seq"] for row in rows]
    assert seqs == sorted(seqs)
    folded = [one.commit_id for obj in objects if obj.seq <= seqs[-1] for one in obj.commits]
    assert [row["object_id"] for row in rows if row["object_type"] == "graph_commit"] == folded
    for commit_id in folded[:: max(1, len(folded) // 7)]:
        assert dataset.count_rows(f"object_id = '{commit_id}'") == 1
    for seq in seqs[:: max(1, len(seqs) // 7)]:
        assert dataset.count_rows(f"seq = {seq}") == seqs.count(seq)


@pytest.mark.parametrize("seed", range(8))
def test_merged_and_indexed_lineage_answers_as_the_line_does(store: DirectoryStore, seed: int) -> None:
    rng = random.Random(seed)
    objects = random_line(rng, rng.choice((30, 90, 160)))
    fold_all(store, objects, rng)
    check(store, objects, rng)
    dataset = plain(store)
    assert len(dataset.get_fragments()) <= 2 * lineage_levels.LEVEL_MAX + 4
    assert sum(map(len, segments(dataset).values())) >= 2
    assert "ScalarIndexQuery" in dataset.scanner(filter="object_id = 'commit-000003'").explain_plan()


def test_the_answers_are_the_same_on_any_store(any_root: Root) -> None:
    store = open_store(f"{any_root.uri}/graph", any_root.storage_options)
    rng = random.Random(99)
    objects = random_line(rng, 50)
    fold_all(store, objects, rng)
    check(store, objects, rng)
    assert is_kept_up(store)


def test_every_version_on_the_way_is_right_for_a_plain_reader(store: DirectoryStore) -> None:
    objects = random_line(random.Random(5), 60)
    fold_all(store, objects)
    newest = plain(store)
    for version in range(3, newest.version + 1):
        check_plain(lance.dataset(newest.uri, version=version), objects)


def test_a_reader_of_an_old_version_goes_on_while_it_is_merged(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions are deleted, their files are not: a handle that was opened before a merge reads to its end."""
    monkeypatch.setattr(cas_table, "KEPT_VERSIONS", 2)
    objects = random_line(random.Random(6), 120)
    folder = fold_all(store, objects[:40])
    reader = plain(store)
    walking = Manifest(store, BRANCH).commits()
    first = next(walking)
    for end in range(41, 121):
        folder.fold(objects[:end], named_through=0)
        folder.discard_old_versions()
        folder.keep_up()
    assert not (store.root / "__manifest" / "_versions" / f"{2**64 - 1 - reader.version:020}.manifest").exists()
    check_plain(reader, objects)
    seen = [first, *walking]
    assert [e.commit_id for e in seen] == [c.commit_id for o in objects[:40] for c in o.commits][::-1]


# Killed


def fold_one_by_one(folder: Manifest, objects: Sequence[CommitObject], start: int) -> None:
    for end in range(start, len(objects) + 1):
        folder.fold(objects[:end], named_through=0)
        folder.keep_up()


@pytest.mark.parametrize("point", UPKEEP)
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_kill_at_any_point_leaves_a_table_that_is_right_and_the_next_one_finishes(
    store: DirectoryStore, point: Point, nth: int
) -> None:
    """Oracle: the objects themselves. The third time is an index of merged fragments whose segments are dropped."""
    objects = random_line(random.Random(nth), 90)
    folder = Manifest(store, BRANCH)
    folder.fold(objects[:60], named_through=0)
    with armed({point: Action(fail, nth)}), pytest.raises(FailpointHit):
        fold_one_by_one(folder, objects, 60)
    folded = Manifest(store, BRANCH).folded_through()
    check(store, objects[:folded], random.Random(1))
    later = Manifest(store, BRANCH)
    later.fold(objects, named_through=0)
    lineage_upkeep.keep_up(later._table)
    check(store, objects, random.Random(2))
    assert is_kept_up(store)


def test_a_store_that_fails_is_named_and_the_next_fold_begins_from_what_is_there(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = random_line(random.Random(3), 60)
    folder = Manifest(store, BRANCH)
    for end in range(5, 30):
        folder.fold(objects[:end], named_through=0)
    with monkeypatch.context() as patch:
        patch.setattr(lineage_upkeep, "write_fragments", _failing)
        with pytest.raises(StorageError, match="merge lineage"):
            folder.keep_up()
    fold_all(store, objects)
    check(store, objects, random.Random(4))


def _failing(*_: object, **__: object) -> None:
    raise OSError("connection lost")


# Beside others


def test_any_number_fold_and_keep_up_at_once(store: DirectoryStore) -> None:
    objects = random_line(random.Random(7), 150)
    folders = [Manifest(store, BRANCH) for _ in range(3)]
    barrier = threading.Barrier(len(folders))

    def run(folder: Manifest) -> None:
        barrier.wait()
        for end in range(5, 151, 3):
            folder.fold(objects[:end], named_through=0)
            folder.keep_up()

    with ThreadPoolExecutor(len(folders)) as pool:
        list(pool.map(run, folders))
    folders[0].fold(objects, named_through=0)
    check(store, objects, random.Random(8))


def fold_as_another_process(uri: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        fold_one_by_one(Manifest(DirectoryStore(Path(uri)), BRANCH), random_line(random.Random(7), 60), 5)


def test_processes_fold_and_keep_up_at_once(store: DirectoryStore) -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in [pool.submit(fold_as_another_process, str(store.root)) for _ in range(2)]:
            done.result()
    objects = random_line(random.Random(7), 60)
    check(store, objects, random.Random(8))
    assert any(segments(plain(store)).values())


def overtaken(store: ObjectStore, objects: Sequence[CommitObject], point: Point) -> Manifest:
    """A merge during which another process folds everything, once."""
    folder = Manifest(store, BRANCH)
    for end in range(5, 20):
        folder.fold(objects[:end], named_through=0)
    others = iter([lambda: Manifest(store, BRANCH).fold(objects, named_through=0)])
    with armed({point: Action(lambda: next(others, lambda: None)())}):
        folder.keep_up()
    return folder


@pytest.mark.parametrize("point", UPKEEP[:2])
def test_a_step_that_is_overtaken_by_a_fold_is_void(store: DirectoryStore, point: Point) -> None:
    objects = random_line(random.Random(9), 40)
    folder = overtaken(store, objects, point)
    assert not any(segments(plain(store)).values())
    check(store, objects, random.Random(10))
    folder.fold(objects, named_through=0)
    folder.folded_through()
    folder.keep_up()
    assert any(segments(plain(store)).values())
    check(store, objects, random.Random(11))


def test_twin_a_step_put_over_the_fold_that_overtook_it_loses_what_was_folded(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard is that the step's version number is put if absent; without it the fold is gone."""

    def put_over(self: cas_table.SwapTable, staged: cas_table.StagedSwap) -> lance.LanceDataset:
        data = store.get(staged.staging)
        assert data is not None
        store.put(final_path("__manifest", staged.dataset.version), data)
        return staged.dataset

    class PutsOver(cas_table.SwapTable):
        publish = put_over

    objects = random_line(random.Random(9), 40)
    keep_up = lineage_upkeep.keep_up
    monkeypatch.setattr(manifest, "keep_up", lambda table: keep_up(PutsOver(store, "__manifest", SCHEMA)))
    overtaken(store, objects, Point.D_UPKEEP_STAGED)
    assert Manifest(store, BRANCH).folded_through() < objects[-1].seq


def test_twin_merged_fragments_at_the_end_break_the_order_of_the_line(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard is that what follows a merged fragment gets new ids; without it the head is no longer last."""
    monkeypatch.setattr(lineage_upkeep, "_with_new_id", lambda fragment: fragment)
    merge = lineage_upkeep._merge

    def only_sources(dataset: lance.LanceDataset, places: range) -> lance.LanceOperation.BaseOperation:
        made = merge(dataset, places)
        sources = [f.fragment_id for f in dataset.get_fragments()[places.start : places.stop]]
        return replace(made, removed_fragment_ids=sources, new_fragments=made.new_fragments[:1])

    monkeypatch.setattr(lineage_upkeep, "_merge", only_sources)
    store.put(graph_identity.PATH, graph_identity.encode(graph_identity.GraphIdentity(BRANCH.ulid)))
    with pytest.raises(InvariantViolation, match="does not end in the head"):
        fold_all(store, random_line(random.Random(1), 60))


# Folding on


def test_a_fold_builds_on_its_own_last_one_although_there_are_indexes_and_its_staging_name_is_gone(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = random_line(random.Random(12), 80)
    folder = fold_all(store, objects[:60])
    folder.fold(objects[:61], named_through=0)
    opened: list[None] = []
    monkeypatch.setattr(cas_table.SwapTable, "open", lambda self: opened.append(None))
    for end in range(62, 70):
        folder.fold(objects[:end], named_through=0)
        store.delete_all(folder.take_leftovers())
    assert opened == []
    monkeypatch.undo()
    make_small(monkeypatch)
    assert any(segments(plain(store)).values())
    check(store, objects[:69], random.Random(13))


def test_pins_that_should_be_written_out_and_are_not_are_noticed(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written_pins, "PINS_EVERY", 1000)
    fold_all(store, line(20))
    monkeypatch.setattr(written_pins, "PINS_EVERY", 4)
    found = Manifest(store, BRANCH)
    with pytest.raises(InvariantViolation, match="something other than omniray wrote to it"):
        found.pins_at(9)
