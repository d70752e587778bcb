"""The life of a branch where others act at the same moment: every verb meets another one, a failure or a retry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

import omniray
from omniray.engine.base.errors import InvariantViolation
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
