"""History as manifest and line together: nothing is missed in between, and "not found" holds at the object asked of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from omniray.engine.base.errors import InputError, InvariantViolation
from omniray.engine.history.ancestry import Ancestry
from omniray.engine.history.lineage import Lineage
from omniray.engine.history.manifest import Manifest
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.store.directory import DirectoryStore
from tests.lines import BRANCH, CITY, KNOWS, PERSON, line, recovered
from tests.stores import Root

FOLDS = [0, 1, 4, 8, 10]


@pytest.fixture
def store(disk: Root) -> DirectoryStore:
    return DirectoryStore(Path(disk.uri))


def history(store: DirectoryStore, objects: Sequence[CommitObject], *, folded: int) -> Lineage:
    """A line that is folded through a number."""
    log, manifest = CommitLog(store, BRANCH), Manifest(store, BRANCH)
    for obj in objects:
        log.put(obj)
    manifest.fold(objects[:folded], named_through=folded)
    return Lineage(CommitLog(store, BRANCH), Manifest(store, BRANCH), lambda: objects[-1])


@pytest.mark.parametrize("folded", FOLDS)
def test_a_commit_is_found_wherever_the_fold_has_come_to(store: DirectoryStore, folded: int) -> None:
    objects = line(10)
    lineage = history(store, objects, folded=folded)
    for obj in objects:
        found = lineage.commit(f"commit-{obj.seq:06}")
        assert found is not None
        assert (found.entry.seq, found.entry.op_id, found.entry.nodes) == (obj.seq, obj.op_id, obj.seq)
        assert found.versions == {key: pin.version for key, pin in obj.introduced().items()}
    assert lineage.commit("commit-000099") is None


@pytest.mark.parametrize("folded", FOLDS)
def test_every_pin_that_the_line_has_had_is_found_by_its_version(store: DirectoryStore, folded: int) -> None:
    objects = line(10)
    lineage = history(store, objects, folded=folded)
    had = {(key, pin.version): pin for obj in objects for key, pin in obj.pins.items()}
    for wanted in ({(PERSON, 1), (PERSON, 4), (CITY, 3)}, set(had)):
        assert set(lineage.pins_of(wanted, objects[-1])) == {had[one] for one in wanted}
    assert lineage.pins_of({(PERSON, 99)}, objects[-1]) == []


def test_the_versions_of_a_commit_are_those_that_its_object_brought_in(store: DirectoryStore) -> None:
    lineage = history(store, line(10), folded=5)
    found = [lineage.commit(f"commit-{seq:06}") for seq in (1, 3, 4, 10)]
    assert [one.versions for one in found if one is not None] == [
        {PERSON: 1, CITY: 1, KNOWS: 1},
        {},
        {PERSON: 3},
        {PERSON: 6, CITY: 3},
    ]


@pytest.mark.parametrize("folded", FOLDS)
def test_as_of_an_older_object_a_later_commit_is_not_found(store: DirectoryStore, folded: int) -> None:
    objects = line(10)
    lineage = history(store, objects, folded=folded)
    assert lineage.find("commit-000007", objects[5]) is None
    assert lineage.find("commit-000007", objects[6]) is not None
    assert lineage.find("commit-000002", objects[5]) is not None


@pytest.mark.parametrize("folded", FOLDS)
def test_many_commits_are_found_at_once_as_each_of_them_is(store: DirectoryStore, folded: int) -> None:
    objects = line(10)
    lineage = history(store, objects, folded=folded)
    ids = [f"commit-{seq:06}" for seq in (1, 2, 5, 6, 7, 10, 99)]
    for newest in objects:
        each = {one: found.entry for one in ids if (found := lineage.find(one, newest)) is not None}
        assert lineage.find_all(ids, newest) == each
    assert lineage.find_all([], objects[-1]) == {}


class FoldsAndPrunes(Manifest):
    """Right after it was asked how far it is folded, somebody folds the rest and prunes the line."""

    def __init__(self, store: DirectoryStore, prune: Callable[[], None]) -> None:
        super().__init__(store, BRANCH)
        self._prune = prune

    def folded_through(self) -> int:
        found = super().folded_through()
        self._prune()
        return found


def test_a_commit_that_is_folded_and_pruned_between_the_two_reads_is_found(store: DirectoryStore) -> None:
    objects = recovered(line(6), "op-x")
    history(store, objects, folded=2)
    log = CommitLog(store, BRANCH)

    def prune() -> None:
        Manifest(store, BRANCH).fold(objects, named_through=objects[-1].seq)
        store.delete_all([log.path(seq) for seq in range(1, 7)])

    lineage = Lineage(log, FoldsAndPrunes(store, prune), lambda: objects[-1])
    found = lineage.find("commit-000004", objects[-1])
    assert found is not None
    assert found.versions == {PERSON: 3}
    assert lineage.find_all(["commit-000004"], objects[-1]) == {"commit-000004": found.entry}
    assert [entry.seq for entry in lineage.entries(objects[-1])] == [6, 5, 4, 3, 2, 1]


def test_a_line_with_a_hole_is_refused_rather_than_answered_with_not_found(store: DirectoryStore) -> None:
    objects = line(6)
    lineage = history(store, objects, folded=2)
    store.delete(CommitLog(store, BRANCH).path(4))
    for ask in (
        lambda: lineage.find("commit-000004", objects[-1]),
        lambda: lineage.find_all(["commit-000004"], objects[-1]),
        lambda: lineage.recorded(["op"], objects[-1]),
    ):
        with pytest.raises(InvariantViolation, match="does not reach down"):
            ask()


def test_a_stray_beside_the_line_proves_nothing(store: DirectoryStore) -> None:
    objects = line(6)
    stray = replace(objects[3], op_id="stray")
    lineage = history(store, [*objects[:3], stray, *objects[4:]], folded=3)
    with pytest.raises(InvariantViolation):
        lineage.find("commit-000004", objects[-1])


@pytest.mark.parametrize("folded", [0, 3, 4, 6])
def test_recoveries_come_newest_first_wherever_the_fold_has_come_to(store: DirectoryStore, folded: int) -> None:
    objects = recovered(recovered(recovered(line(3), "op-a"), "op-b", "op-c"), "op-d")
    lineage = history(store, objects, folded=folded)
    assert [r.operation_id for r in lineage.recoveries(None)] == ["op-d", "op-c", "op-b", "op-a"]
    assert [r.operation_id for r in lineage.recoveries(2)] == ["op-d", "op-c"]
    told = {r.operation_id: r for obj in objects for r in obj.recoveries}
    assert lineage.recorded([*told, "op-z"], objects[-1]) == set(told)


def test_a_limit_that_shows_nothing_is_refused(store: DirectoryStore) -> None:
    lineage = history(store, line(2), folded=1)
    for ask in (Ancestry(store, BRANCH.ulid, CommitLog(store, BRANCH), lineage).entries, lineage.recoveries):
        with pytest.raises(InputError, match="shows nothing"):
            ask(0)
