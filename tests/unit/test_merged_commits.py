"""What a line includes of other lines, as of each of its numbers; and the commits that came to it with merges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ulid import ULID

import omniray
from omniray.engine.base.errors import PayloadMismatch
from omniray.engine.base.ulids import new_ulid
from omniray.engine.history import merged_commits
from omniray.engine.history.ancestry import log_of
from omniray.engine.history.lineage import Lineage
from omniray.engine.history.manifest import Manifest
from omniray.engine.history.merged_commits import CLOCKS_US_MAX, OtherLines
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.history.recent_commits import RecentCommits
from omniray.engine.line.branch_id import BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject, MergedParent, follow
from omniray.engine.store.directory import DirectoryStore
from tests.graphs import insert, new_graph
from tests.lines import BRANCH, birth, commit
from tests.stores import Root

SIDE, OTHER = "01M0000000000000000000SIDE", "01M000000000000000000OTHER"
SECOND_US = 1_000_000


class Merging:
    """A line that merged others at some of its numbers: by number, what it took in."""

    def __init__(self, root: Path, merges: dict[int, dict[str, int]], count: int, *, folded: int) -> None:
        self.store = DirectoryStore(root)
        self.objects = [birth()]
        for seq in range(2, count + 1):
            taken = merges.get(seq, {})
            parents = tuple(MergedParent(line, number, f"{line}-{number}") for line, number in taken.items())
            made = replace(commit(seq), merged=parents)
            before = self.objects[-1]
            facts = {"changed": {}, "commits": (made,), "finalised_through": 0}
            self.objects.append(follow(before, op_id=f"op-{seq}", contains=taken, **facts))  # type: ignore[arg-type]
        log = CommitLog(self.store, BRANCH)
        for obj in self.objects:
            log.put(obj)
        manifest = Manifest(self.store, BRANCH)
        if folded:
            manifest.fold(self.objects[:folded], named_through=0)
        self.lineage = Lineage(log, manifest, lambda: self.newest)

    @property
    def newest(self) -> CommitObject:
        return self.objects[-1]


@pytest.mark.parametrize("folded", [0, 1, 5, 6, 12, 20])
def test_what_a_number_includes_is_known_for_ever(tmp_path: Path, folded: int) -> None:
    merges = {3: {SIDE: 4}, 6: {SIDE: 5, OTHER: 2}, 15: {OTHER: 7}}
    line = Merging(tmp_path, merges, 20, folded=folded)
    expected: dict[str, int] = {}
    for seq in range(1, 21):
        expected = {**expected, **merges.get(seq, {}), BRANCH.ulid: seq}
        assert line.lineage.contains_at(seq, line.newest) == expected
        assert line.objects[seq - 1].contains == expected
    times = [line.objects[seq - 1].head_at_us for seq in merges]
    assert line.lineage.vectors(line.newest) == list(zip(merges, times, strict=True))
    assert line.lineage.vectors(line.objects[5]) == list(zip(list(merges)[:2], times[:2], strict=True))


def test_it_is_known_without_the_objects_which_may_be_pruned(tmp_path: Path) -> None:
    line = Merging(tmp_path, {3: {SIDE: 4}}, 10, folded=9)
    log = CommitLog(line.store, BRANCH)
    for seq in range(2, 9):
        line.store.delete(log.path(seq))
    lineage = Lineage(CommitLog(line.store, BRANCH), Manifest(line.store, BRANCH), lambda: line.newest)
    assert lineage.contains_at(5, line.newest) == {BRANCH.ulid: 5, SIDE: 4}
    assert lineage.contains_at(2, line.newest) == {BRANCH.ulid: 2}


def test_a_branch_begins_with_what_its_parent_included(disk: Root) -> None:
    with new_graph(disk) as graph:
        insert(graph, "ann")
        graph.create_branch("side")
        insert(graph, "bob")
        graph.mutate(INSERT_EVE, branch="side")
        graph.flush()
        branch = graph._on("side")._branch
        newest = branch.newest()
        begun = branch.lineage.contains_at(1, newest)
        assert begun == {graph.graph_id: 2, newest.line: 1}
        assert branch.lineage.contains_at(2, newest) == {graph.graph_id: 2, newest.line: 2}
        assert [seq for seq, _ in branch.lineage.vectors(newest)] == [1]


INSERT_EVE = 'query q() { insert Person { name: "eve" } }'


# Ids that came with merges


@pytest.fixture
def graph(disk: Root) -> Iterator[omniray.Graph]:
    """A graph whose main branch has merged two branches, each of which had a write with an id of its caller."""
    with new_graph(disk) as graph:
        insert(graph, "ann")
        for name in ("one", "two"):
            graph.create_branch(name)
            graph.mutate(f'query q() {{ insert Person {{ name: "{name}" }} }}', branch=name, txn_id=ID_OF[name])
            insert(graph, f"beside-{name}")
            graph.merge(name)
        yield graph


ID_OF = {"one": new_ulid(), "two": new_ulid()}


def main(graph: omniray.Graph) -> OpenBranch:
    return graph._branch


def test_ids_of_all_merged_branches_are_known_and_no_others(graph: omniray.Graph) -> None:
    branch = main(graph)
    newest = branch.newest()
    found = branch.lineage.landed([*ID_OF.values(), new_ulid()], newest)
    assert set(found) == set(ID_OF.values())
    assert all(one.versions == {} for one in found.values()), "versions of another line mean nothing here"
    assert branch.lineage.landed_here(ID_OF.values(), newest) == {}
    merges = [obj for obj in branch.log.down_to(newest, 1) if obj.merges]
    before_second = branch.log.read(merges[0].seq - 1)
    assert before_second is not None
    assert set(branch.lineage.landed(ID_OF.values(), before_second)) == {ID_OF["one"]}


def test_an_id_that_landed_after_the_merge_is_not_known(graph: omniray.Graph) -> None:
    late = new_ulid()
    graph.mutate(INSERT_EVE, branch="one", txn_id=late)
    assert main(graph).lineage.find(late, main(graph).newest()) is None
    graph.merge("one")
    assert main(graph).lineage.find(late, main(graph).newest()) is not None


class Counted(OtherLines):
    """Counts how often another line is read."""

    def __init__(self, graph: omniray.Graph, *, now_us: int | None = None) -> None:
        branch = main(graph)
        given = {} if now_us is None else {"now_us": lambda: now_us}
        super().__init__(branch.store, branch.graph_id, **given)  # type: ignore[arg-type]
        self.reads = 0

    def _read(self, line: str, after: int, through: int, since_us: int) -> merged_commits._Known:
        self.reads += 1
        return super()._read(line, after, through, since_us)


def test_each_line_is_read_once_and_one_without_merges_not_at_all(graph: omniray.Graph) -> None:
    branch, lines = main(graph), Counted(graph)
    newest = branch.newest()
    for _ in range(3):
        assert lines.find([new_ulid()], newest, branch.lineage) == []
    assert lines.reads == 2
    on_side = graph._on("one")._branch
    lines = Counted(graph)
    for _ in range(3):
        assert lines.find([new_ulid()], on_side.newest(), on_side.lineage) == []
    assert lines.reads == 1, "what the branch began with"


def test_an_id_from_before_a_branch_is_known_on_it_and_is_not_applied_again(graph: omniray.Graph) -> None:
    """Its caller, who heard nothing, sends it again, to the branch that has begun meanwhile and has its rows."""
    txn_id = new_ulid()
    graph.mutate(INSERT_EVE, txn_id=txn_id)
    graph.create_branch("side")
    graph.create_branch("deeper", "side")
    late = new_ulid()
    graph.mutate('query q() { insert Person { name: "late" } }', txn_id=late)
    for branch in ("side", "deeper"):
        graph.mutate('query q() { delete Person where name = "eve" }', branch=branch)
        assert graph.mutate(INSERT_EVE, branch=branch, txn_id=txn_id).repeated
        assert graph.outcome(txn_id, branch=branch).committed
        assert not graph.outcome(late, branch=branch).committed
        with pytest.raises(PayloadMismatch):
            graph.mutate('query q() { insert Person { name: "zoe" } }', branch=branch, txn_id=txn_id)
        opened = graph._on(branch)._branch
        recent = RecentCommits(opened.lineage, opened.newest())
        assert set(recent.known({txn_id: False, late: False}, opened.newest())) == {txn_id}
        assert recent.is_committed(txn_id, opened.newest())


def test_what_a_line_began_with_is_read_only_as_far_back_as_an_id_may_be(graph: omniray.Graph) -> None:
    graph.create_branch("side")
    branch = graph._on("side")._branch
    newest = branch.newest()
    later_us = newest.head_at_us + CLOCKS_US_MAX + 60 * SECOND_US
    lines = Counted(graph, now_us=later_us)
    assert lines.find([str(ULID.from_timestamp(later_us / 1e6))], newest, branch.lineage) == []
    assert lines.reads == 0, "the branch began long before the id was made"
    whole, part = lines._read(graph.graph_id, 0, 9, 0), lines._read(graph.graph_id, 0, 9, newest.head_at_us)
    assert part.numbers.keys() < whole.numbers.keys()
    assert (whole.covers(0, 9, 5), part.covers(0, 9, 5), part.covers(0, 9, later_us)) == (True, False, True)


def test_lines_that_were_merged_long_before_an_id_was_made_are_not_read(graph: omniray.Graph) -> None:
    branch = main(graph)
    newest = branch.newest()
    later_us = newest.head_at_us + CLOCKS_US_MAX + 60 * SECOND_US
    late = str(ULID.from_timestamp(later_us / 1e6))
    lines = Counted(graph, now_us=later_us)
    assert lines.find([late], newest, branch.lineage) == []
    assert lines.reads == 0
    fast = Counted(graph, now_us=newest.head_at_us)
    assert fast.find([late], newest, branch.lineage) == []
    assert fast.reads == 2, "a clock that is ahead says nothing"


def test_a_line_that_is_gone_holds_nothing(graph: omniray.Graph) -> None:
    branch, newest = main(graph), main(graph).newest()
    for line in newest.contains.keys() - {newest.line}:
        log = log_of(branch.store, branch.graph_id, line)
        branch.store.delete_all([log.path(seq) for seq in range(1, 4)])
    lines = OtherLines(branch.store, branch.graph_id)
    assert lines.find(list(ID_OF.values()), newest, branch.lineage) == []


@pytest.mark.parametrize("size", [2, 8192])
@pytest.mark.parametrize("fresh", [True, False])
def test_the_owner_of_a_line_knows_what_came_with_merges(graph: omniray.Graph, size: int, *, fresh: bool) -> None:
    """However many commits it remembers: those of another line are not among them."""
    branch = main(graph)
    recent = RecentCommits(branch.lineage, branch.newest(), size=size)
    asked = {ID_OF["one"]: fresh, new_ulid(): True}
    assert set(recent.known(asked, branch.newest())) == {ID_OF["one"]}
    assert recent.is_committed(ID_OF["two"], branch.newest())
    assert not recent.is_committed(new_ulid(), branch.newest())


def test_the_owner_of_a_line_learns_of_a_merge_that_lands(graph: omniray.Graph) -> None:
    branch, late = main(graph), new_ulid()
    before = branch.newest()
    recent = RecentCommits(branch.lineage, before)
    graph.mutate(INSERT_EVE, branch="one", txn_id=late)
    assert recent.known({late: False}, before) == {}
    graph.merge("one")
    newest = branch.newest()
    for obj in reversed(branch.log.down_to(newest, before.seq + 1)):
        recent.advance(obj)
    assert set(recent.known({late: False}, newest)) == {late}


def test_a_line_s_own_ids_are_not_looked_for_elsewhere(tmp_path: Path) -> None:
    """A line that nobody merged into has no other lines, whatever it began with."""
    first = replace(birth(), contains={BRANCH.ulid: 1})
    lines = OtherLines(DirectoryStore(tmp_path), BRANCH.ulid)
    log = CommitLog(DirectoryStore(tmp_path), BranchId("main", BRANCH.ulid))
    lineage = Lineage(log, Manifest(DirectoryStore(tmp_path), BRANCH), lambda: first)
    assert lines.find(["commit-000009"], first, lineage) == []
