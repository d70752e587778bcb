"""The life of a branch where others act at the same moment: every verb meets another one, a failure or a retry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

import omniray
from omniray.engine.base.errors import InputError, InvariantViolation
from omniray.engine.base.failpoints import Action, FailpointHit, Point, armed
from omniray.engine.base.ulids import new_ulid
from omniray.engine.branches.bases import Place
from omniray.engine.branches.states import States
from omniray.engine.history.ancestry import Ancestry
from omniray.engine.history.lineage import Lineage
from tests.stores import Root

SCHEMA = """
node Person { name: String @key   age: I32? }
"""


@pytest.fixture
def graph(disk: Root) -> Iterator[omniray.Graph]:
    with omniray.init(f"{disk.uri}/graph", schema=SCHEMA) as graph:
        add(graph, "ann")
        yield graph


def again(graph: omniray.Graph, **options: object) -> omniray.Graph:
    """The same graph, as another process opens it."""
    return omniray.open(graph.uri, **options)  # type: ignore[arg-type]


def add(graph: omniray.Graph, name: str, branch: str | None = None, **options: object) -> omniray.WriteResult:
    return graph.load([{"type": "Person", "data": {"name": name}}], branch=branch, **options)  # type: ignore[arg-type]


def people(graph: omniray.Graph, branch: str | None = None, **options: object) -> list[str]:
    found: list[str] = sorted(graph.snapshot(branch=branch, **options).table("Person")["name"].to_pylist())  # type: ignore[arg-type]
    return found


# Where a branch begins


@pytest.mark.parametrize("folded", [True, False], ids=["folded", "not folded"])
def test_a_branch_of_a_time_begins_with_the_rows_of_its_commit_though_main_goes_on_meanwhile(
    graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch, folded: bool
) -> None:
    """Fault: a commit of another process lands, and may be folded, while the time is looked up.

    Expectation: the branch has the rows of a commit of main, all of them. Oracle: main's own history.
    """
    add(graph, "bob")
    graph.flush()
    add(graph, "cid")
    with again(graph) as other:
        meanwhile(monkeypatch, lambda: (add(other, "dan"), other.flush() if folded else None))
        made = graph.create_branch("trial", (datetime.now(UTC) + timedelta(hours=1)).isoformat())
    assert people(graph, "trial") == people(graph, at=made.start) == ["ann", "bob", "cid"]
    add(graph, "eve", "trial")
    graph.merge("trial")
    assert people(graph) == ["ann", "bob", "cid", "dan", "eve"], "a merge takes nothing back that main has"


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have something happen once, when a time or commit is looked up."""
    begun: list[bool] = []

    def meeting(at: Callable[..., object]) -> Callable[..., object]:
        def look_up(*arguments: object) -> object:
            if not begun:
                begun.append(True)
                act()
            return at(*arguments)

        return look_up

    for way in (Ancestry, Lineage):
        monkeypatch.setattr(way, "at", meeting(way.at))


def test_a_number_above_the_object_that_a_reader_knows_is_refused_and_no_older_state_taken_for_it(
    graph: omniray.Graph,
) -> None:
    lineage, known = graph._branch.lineage, graph._branch.newest()
    landed = add(graph, "bob")
    above = known.seq + 1
    for asked in (lineage.pins_at, lineage.contains_at, lineage.committed_at):
        with pytest.raises(InvariantViolation, match=f"number {above} .* as of {known.seq}"):
            asked(above, known)
    newest = graph._branch.newest()
    assert lineage.committed_at(above, newest) == (landed.commit_id,)


def test_a_state_that_came_after_a_line_was_first_looked_at_is_read_from_the_line_as_it_is_now(
    graph: omniray.Graph,
) -> None:
    """As of a commit that is looked for on one line after the other: the last one may include more of the first."""
    with closing(States(graph._branch)) as states:
        states.of_commit(graph.history(1)[0].commit_id)
        add(graph, "bob")
        newest = graph._branch.newest()
        assert states.at(Place(newest.line, newest.seq)).pins == newest.pins


# Merging and deleting


@pytest.mark.parametrize("point", [Point.MERGE_AFTER_LEASE, Point.BRANCH_AFTER_MARK], ids=["merging", "marked"])
def test_a_merge_that_deletes_its_source_keeps_it_if_it_was_written_to_since(
    graph: omniray.Graph, point: Point
) -> None:
    """Fault: a write to the source is acknowledged after the merge has taken its number, before its line is closed.

    Expectation: the merge stands, and the source is kept with the write. Oracle: the rows of both.
    """
    graph.create_branch("trial")
    add(graph, "bob", "trial")
    with again(graph, branch="trial") as writer:
        with armed({point: Action(lambda: (add(writer, "late"), None)[1], nth=1)}):
            merged = graph.merge("trial", delete_source=True)
        assert merged.commit_id is not None
        assert "'trial' was written to since" in merged.source_kept
        add(writer, "later")
    assert (people(graph), people(graph, "trial")) == (["ann", "bob"], ["ann", "bob", "late", "later"])
    taken = graph.merge("trial", delete_source=True)
    assert (taken.source_kept, people(graph)) == ("", ["ann", "bob", "late", "later"])
    assert [branch.name for branch in graph.branches()] == ["main"]


def test_a_source_that_was_renamed_while_it_was_merged_is_deleted_and_no_namesake(graph: omniray.Graph) -> None:
    graph.create_branch("trial")
    add(graph, "bob", "trial")

    def rename() -> None:
        with again(graph) as other:
            other.rename_branch("trial", "probe")
            other.create_branch("trial", "probe")

    with armed({Point.MERGE_AFTER_LEASE: Action(rename, nth=1)}):
        graph.merge("trial", delete_source=True)
    with again(graph, read_only=True) as reader:
        assert [branch.name for branch in reader.branches()] == ["main", "probe", "trial"], "it has a branch of its own"
        graph.delete_branch("trial")
        assert graph.merge("probe", delete_source=True).source_kept == ""
        assert [branch.name for branch in reader.branches()] == ["main"]


def test_a_merge_that_is_asked_for_again_deletes_only_what_it_had_merged(graph: omniray.Graph) -> None:
    txn_id = new_ulid()
    graph.create_branch("trial")
    add(graph, "bob", "trial")
    first = graph.merge("trial", txn_id=txn_id)
    add(graph, "late", "trial")
    again_ = graph.merge("trial", txn_id=txn_id, delete_source=True)
    assert (again_.repeated, again_.source_commit) == (True, first.source_commit)
    assert "written to since" in again_.source_kept
    assert people(graph, "trial") == ["ann", "bob", "late"]


def test_a_source_with_branches_of_its_own_is_kept_and_the_merge_stands(graph: omniray.Graph) -> None:
    graph.create_branch("trial")
    add(graph, "bob", "trial")
    graph.create_branch("deeper", "trial")
    assert "branches of its own: deeper" in graph.merge("trial", delete_source=True).source_kept
    assert people(graph) == ["ann", "bob"]


def test_a_source_that_can_t_be_deleted_is_refused_before_anything_is_merged(graph: omniray.Graph) -> None:
    graph.create_branch("trial")
    first = add(graph, "bob").commit_id
    for source in ("main", str(first).lower()):
        with pytest.raises(InputError, match="delete_source deletes a branch"):
            graph.merge(source, "trial", delete_source=True)
    assert people(graph, "trial") == ["ann"]


def test_whoever_finds_a_source_that_was_marked_keeps_it_if_it_was_written_to_since(graph: omniray.Graph) -> None:
    """The one that merged it dies after the mark; the next process to open the graph decides by the source's line."""
    for name, late in (("kept", True), ("gone", False)):
        graph.create_branch(name)
        with again(graph, branch=name) as writer:
            add(writer, f"bob of {name}")
            with armed({Point.BRANCH_AFTER_MARK: Action(die)}), pytest.raises(FailpointHit):
                graph.merge(name, delete_source=True)
            if late:
                add(writer, "late")
    again(graph).close()
    assert [branch.name for branch in graph.branches()] == ["main", "kept"]
    assert people(graph, "kept") == ["ann", "bob of kept", "late"]


def die() -> None:
    raise FailpointHit
