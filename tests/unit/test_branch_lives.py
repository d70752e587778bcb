"""The life of a branch where others act at the same moment: every verb meets another one, a failure or a retry."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NoReturn

import pytest

import omniray
from omniray.engine import branch_handles
from omniray.engine.base.errors import (
    BranchGone,
    InputError,
    InvariantViolation,
    NotFound,
    PayloadMismatch,
    StorageError,
    Withdrawn,
)
from omniray.engine.base.failpoints import Action, FailpointHit, Point, armed
from omniray.engine.base.ulids import new_ulid
from omniray.engine.branches import branches
from omniray.engine.branches.bases import Place
from omniray.engine.branches.states import States
from omniray.engine.history.ancestry import Ancestry
from omniray.engine.history.lineage import Lineage
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.branch_id import BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.owner import Incarnation, release, take_over
from omniray.engine.recovery.elsewhere import left_on_branches
from omniray.engine.store.open_store import open_store
from tests.kit.faulty_store import ALWAYS, CallFault, Effect, FaultyStore
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


# Handles of other branches


def test_a_name_leads_a_handle_to_the_branch_that_has_it_after_its_own_verbs(graph: omniray.Graph) -> None:
    graph.create_branch("trial")
    add(graph, "bob", "trial")
    graph.rename_branch("trial", "probe")
    graph.create_branch("trial")
    assert (people(graph, "trial"), people(graph, "probe")) == (["ann"], ["ann", "bob"])
    add(graph, "cid", "trial")
    graph.delete_branch("trial")
    graph.create_branch("trial")
    assert people(graph, "trial") == ["ann"], "at once, though the handle of the deleted one is known"


def test_a_name_leads_to_another_branch_once_main_is_known_to_say_so(graph: omniray.Graph) -> None:
    """A rename elsewhere is seen with the next look at main; until then the name means what it meant."""
    graph.create_branch("trial")
    add(graph, "bob", "trial")
    with again(graph) as other:
        other.rename_branch("trial", "probe")
        other.create_branch("trial")
    add(graph, "cid", "trial")
    people(graph)
    assert (people(graph, "trial"), people(graph, "probe")) == (["ann"], ["ann", "bob", "cid"])


def test_the_name_that_a_handle_was_opened_by_leads_on_to_the_branch_that_has_it(graph: omniray.Graph) -> None:
    graph.create_branch("trial")
    with again(graph, branch="trial") as trial:
        add(trial, "bob")
        trial.rename_branch("trial", "probe")
        trial.create_branch("trial")
        assert people(trial) == people(trial, "probe") == ["ann", "bob"]
        assert people(trial, "trial") == ["ann"]


def test_a_handle_of_a_deleted_branch_stays_open_under_the_writes_that_use_it(graph: omniray.Graph) -> None:
    """Another thread finds the branch gone while a write to it is under way: both are told so, and nothing else."""
    graph.create_branch("trial")
    told: list[str] = []
    paused, go = threading.Event(), threading.Event()

    def pause() -> None:
        paused.set()
        assert go.wait(60)

    def write() -> None:
        try:
            add(holder, "bob", "trial")
        except BranchGone as gone:
            told.append(gone.kind)

    with again(graph) as holder, armed({Point.C_BEFORE_PUT: Action(pause, nth=1)}):
        people(holder, "trial")
        writing = threading.Thread(target=write)
        writing.start()
        assert paused.wait(60)
        graph.delete_branch("trial")
        graph.create_branch("trial")
        with pytest.raises(BranchGone):
            people(holder, "trial")
        assert people(holder, "trial") == ["ann"], "named anew, it is the new one"
        add(holder, "cid", "trial")
        go.set()
        writing.join(60)
        assert told == ["branch_gone"]
        assert people(holder, "trial") == ["ann", "cid"]


def test_a_branch_that_is_slow_to_open_holds_up_those_who_want_it_and_no_others(graph: omniray.Graph) -> None:
    graph.create_branch("slow")
    graph.create_branch("other")
    with again(graph, branch="slow") as dead, armed({Point.C_AFTER_PUT: Action(die)}), pytest.raises(FailpointHit):
        add(dead, "bob")
    opening, go = threading.Event(), threading.Event()

    def pause() -> None:
        opening.set()
        assert go.wait(60)

    with (
        again(graph, grace_s=1e-6) as holder,
        armed({Point.RECOVERY_BEFORE_RECORD: Action(pause, nth=1)}),
        ThreadPoolExecutor(2) as pool,
    ):
        first = pool.submit(people, holder, "slow")
        assert opening.wait(60)
        second = pool.submit(people, holder, "slow")
        assert people(holder, "other") == ["ann"], "this does not wait"
        assert [first.done(), second.done()] == [False, False]
        go.set()
        assert first.result(60) == second.result(60) == ["ann", "bob"]
        assert len(holder._others.open) == 2


def test_a_branch_that_can_t_be_opened_is_opened_by_the_next_who_asks(
    graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph.create_branch("trial")
    with again(graph) as holder:
        with monkeypatch.context() as patched:
            patched.setattr("omniray.engine.graph.open_line", lambda *_, **__: fail())
            with pytest.raises(StorageError):
                people(holder, "trial")
        assert people(holder, "trial") == ["ann"]


def test_a_closed_graph_opens_no_branch(graph: omniray.Graph) -> None:
    graph.create_branch("trial")
    graph.create_branch("other")
    with again(graph) as holder:
        people(holder, "trial")
    for branch in ("trial", "other"):
        with pytest.raises(InputError, match="the graph is closed"):
            people(holder, branch)
    assert holder._others.open == ()


def test_recovery_goes_by_the_branches_whatever_they_are_called_by_then(
    graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: of the branches on which a dead writer left something one is renamed and one deleted before it is opened.

    Expectation: the renamed one is recovered, and the deleted one is passed over.
    """
    for name in ("trial", "gone"):
        graph.create_branch(name)
        with again(graph, branch=name) as dead, armed({Point.C_AFTER_PUT: Action(die)}), pytest.raises(FailpointHit):
            add(dead, "bob")

    def found(main: OpenBranch, *, take_over: bool) -> Iterator[str]:
        lines = list(left_on_branches(main, take_over=take_over))
        with again(graph) as other:
            other.rename_branch("trial", "probe")
            other.delete_branch("gone")
        return iter(lines)

    with again(graph, grace_s=1e-6) as healer:
        monkeypatch.setattr("omniray.engine.graph.left_on_branches", found)
        assert len(healer.recover().rolled_forward) == 1
        assert [one.recovery_kind for one in healer.recoveries(branch="probe")] == ["RolledForward"]


def fail() -> NoReturn:
    raise StorageError("the store is down")


# Exactly once


@pytest.mark.parametrize("verb", ["create", "rename", "delete"])
def test_a_verb_that_was_reported_as_not_carried_out_is_not(graph: omniray.Graph, verb: str) -> None:
    graph.create_branch("old")
    txn_id = new_ulid()
    ask = {
        "create": lambda: graph.create_branch("new", txn_id=txn_id),
        "rename": lambda: graph.rename_branch("old", "new", txn_id=txn_id),
        "delete": lambda: graph.delete_branch("old", txn_id=txn_id),
    }[verb]
    with again(graph) as other:
        said: list[bool] = []
        telling = Action(lambda: said.append(other.outcome(txn_id).committed), nth=1)
        with armed({Point.BRANCH_BEFORE_PUT: telling}), pytest.raises(Withdrawn, match="submit it again"):
            ask()
        assert said == [False]
        assert [branch.name for branch in other.branches()] == ["main", "old"]
        assert not ask().repeated, "a new try is welcome"
        assert other.outcome(txn_id).committed


@pytest.mark.parametrize("verb", ["create", "rename", "delete"])
def test_a_verb_that_landed_is_a_success_though_the_graph_s_identity_could_not_be_read(
    disk: Root, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The look at `__graph.json` beside the put fails: told so, the caller would ask again, and be refused."""
    with on_faulty_store(disk, monkeypatch) as (graph, store):
        graph.create_branch("old")
        ask = {
            "create": lambda: graph.create_branch("new"),
            "rename": lambda: graph.rename_branch("old", "new"),
            "delete": lambda: graph.delete_branch("old"),
        }[verb]
        wanted = {"create": ["main", "new", "old"], "rename": ["main", "new"], "delete": ["main"]}[verb]
        fault = store.arm(CallFault(Effect.FAIL, frozenset({"get"}), "__graph.json"))
        ask()
        assert fault.met >= 1
        store.disarm()
        assert [branch.name for branch in graph.branches()] == wanted


def test_a_branch_whose_first_object_could_not_be_put_is_created_all_the_same(
    disk: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_faulty_store(disk, monkeypatch) as (graph, store):
        txn_id = new_ulid()
        fault = store.arm(CallFault(Effect.FAIL, frozenset({"put_if_absent"}), f"__commits/{txn_id}/", times=ALWAYS))
        assert graph.create_branch("trial", txn_id=txn_id).branch_id == txn_id
        assert fault.met > 0
        store.disarm()
        add(graph, "bob", "trial")
        assert people(graph, "trial") == ["ann", "bob"]


@contextlib.contextmanager
def on_faulty_store(disk: Root, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[omniray.Graph, FaultyStore]]:
    """A graph with ann, and its store, which fails on demand."""
    omniray.init(f"{disk.uri}/graph", schema=SCHEMA).close()
    store = FaultyStore(open_store(f"{disk.uri}/graph"))
    with monkeypatch.context() as patched:
        patched.setattr("omniray.engine.graph.open_store", lambda *_, **__: store)
        graph = omniray.open(f"{disk.uri}/graph")
    with graph:
        add(graph, "ann")
        yield graph, store


def test_whoever_deletes_a_branch_that_is_being_deleted_finishes_it(graph: omniray.Graph) -> None:
    """The first one died after the mark: until the line is closed the branch's writers know nothing of it."""
    made = graph.create_branch("trial")
    with again(graph, branch="trial") as writer:
        with armed({Point.BRANCH_AFTER_MARK: Action(die)}), pytest.raises(FailpointHit):
            graph.delete_branch("trial")
        gone = graph.delete_branch("trial")
        assert (gone.branch_id, gone.repeated) == (made.branch_id, False)
        with pytest.raises(BranchGone):
            add(writer, "bob")
    assert graph._branch.newest().bindings == {}
    with pytest.raises(NotFound, match="no branch 'trial'"):
        graph.delete_branch("trial")


def test_a_deletion_drops_the_condition_under_which_another_one_was_begun(graph: omniray.Graph) -> None:
    graph.create_branch("trial")
    add(graph, "bob", "trial")
    with again(graph, branch="trial") as writer:
        with armed({Point.BRANCH_AFTER_MARK: Action(die)}), pytest.raises(FailpointHit):
            graph.merge("trial", delete_source=True)
        add(writer, "late")
    graph.delete_branch("trial")
    assert [branch.name for branch in graph.branches()] == ["main"]


def test_an_id_that_a_line_has_already_is_refused_as_that_of_a_new_branch(graph: omniray.Graph) -> None:
    """The branch would be bound to main's own line, or to a deleted branch's: its writes would land there."""
    gone = graph.create_branch("gone").branch_id
    made = graph.create_branch("trial").branch_id
    graph.delete_branch("gone")
    with pytest.raises(InputError, match=f"{graph.graph_id} is the id of this graph"):
        graph.create_branch("evil", txn_id=graph.graph_id)
    for txn_id in (gone, made):
        assert graph.create_branch("evil", txn_id=txn_id).repeated, "it was a creation, and is none now"
    assert [branch.name for branch in graph.branches()] == ["main", "trial"]


def test_a_line_that_was_begun_as_another_one_is_not_gone_on_with(graph: omniray.Graph) -> None:
    graph.create_branch("trial")
    branch = graph._on("trial")._branch
    first = branch.log.read(1)
    assert first is not None
    branch.log.begin(first)
    with pytest.raises(InvariantViolation, match="of another line, begun by"):
        CommitLog(branch.store, branch.branch).begin(replace(first, op_id=new_ulid()))


def test_bindings_that_refer_to_each_other_end(graph: omniray.Graph) -> None:
    made = [graph.create_branch(name, from_) for name, from_ in (("a", None), ("b", "a"), ("c", "b"))]
    newest = graph._branch.newest()
    ring = {**newest.bindings, "a": replace(newest.bindings["a"], parent=made[2].branch_id)}
    assert branches._below(replace(newest, bindings=ring), "b") == ["c", "a"]


def test_an_id_that_was_told_with_an_unclear_answer_repeats_the_verb_that_had_it(graph: omniray.Graph) -> None:
    """Its caller gave none, and got `OutcomeUnknown` with the id that the verb had been given here."""
    made = graph.create_branch("trial")
    assert graph.create_branch("trial", txn_id=made.commit_id).repeated
    renamed = graph.rename_branch("trial", "probe")
    assert graph.rename_branch("trial", "probe", txn_id=renamed.commit_id).repeated
    add(graph, "bob", "probe")
    merged = graph.merge("probe")
    assert merged.commit_id is not None
    told = graph.merge("probe", txn_id=merged.commit_id)
    assert (told.repeated, told.outcome, told.versions) == (True, merged.outcome, merged.versions)
    reverted = graph.revert(merged.commit_id)
    assert graph.revert(merged.commit_id, txn_id=reverted.commit_id).repeated
    gone = graph.delete_branch("probe")
    assert graph.delete_branch("probe", txn_id=gone.commit_id).repeated
    load = add(graph, "cid").commit_id
    graph.create_branch("new")
    for another in (
        lambda: graph.create_branch("newer", txn_id=load),
        lambda: graph.merge("new", txn_id=load),
        lambda: graph.rename_branch("new", "newer", txn_id=made.commit_id),
    ):
        with pytest.raises(PayloadMismatch):
            another()


# Branches that nobody has begun


def test_a_branch_that_nobody_has_begun_is_read_in_full_and_nothing_is_written(graph: omniray.Graph) -> None:
    add(graph, "bob")
    first = graph.history()[1]
    with armed({Point.BRANCH_AFTER_BIND: Action(die)}), pytest.raises(FailpointHit):
        graph.create_branch("trial")
    with again(graph, read_only=True) as reader:
        assert [entry.kind for entry in reader.history(branch="trial")] == ["Load", "Load", "Init"]
        assert people(reader, "trial", at=first.commit_id) == people(reader, "trial", at=first.at) == ["ann"]
        assert people(reader, "trial") == ["ann", "bob"]
        assert [branch.ahead for branch in reader.branches()] == [0, 0]
        assert list(reader.diff("main", "trial").types) == []
        assert reader._on("trial")._branch.log.read(1) is None


def test_a_deletion_is_done_though_main_was_taken_over_before_the_name_was_freed(graph: omniray.Graph) -> None:
    graph.create_branch("trial")
    owner = str(Incarnation.new("here:1"))
    with again(graph) as other:
        taking = Action(lambda: (take_over(other._branch.tip.another(), owner), None)[1], nth=1)
        with armed({Point.BRANCH_AFTER_CLOSE: taking}):
            assert not graph.delete_branch("trial").repeated
        assert [branch.name for branch in other.branches()] == ["main"]
        release(other._branch.tip.another(), owner)
    again(graph).close()
    assert graph._branch.newest().bindings == {}, "whoever comes next frees the name"


# What bindings cost


def test_bindings_carry_what_a_branch_began_with_only_until_it_has_begun(graph: omniray.Graph) -> None:
    """Every object of main's line repeats all bindings: their size must not grow with the tables of the graph."""
    for number in range(4):
        graph.create_branch(f"b{number}", f"b{number - 1}" if number else None)
        add(graph, f"row{number}", f"b{number}")
    bindings = graph._branch.newest().bindings
    assert [name for name, one in bindings.items() if one.pins or one.contains] == ["b3"]
    assert [one.is_begun for one in bindings.values()] == [True, True, True, False]
    graph.rename_branch("b3", "last")
    assert all(one.is_begun for one in graph._branch.newest().bindings.values())
    with again(graph, grace_s=1e-6) as other:
        assert people(other, "last") == ["ann", "row0", "row1", "row2", "row3"]
        assert [(one.name, one.ahead) for one in other.branches()][1:] == [("b0", 1), ("b1", 1), ("b2", 1), ("last", 1)]
        other.merge("last")
        other.delete_branch("b0", force=True)
        assert people(other) == ["ann", "row0", "row1", "row2", "row3"]
        assert [branch.name for branch in other.branches()] == ["main"]


def test_a_line_that_nobody_has_begun_is_bound_in_full_through_all_verbs(graph: omniray.Graph) -> None:
    with armed({Point.BRANCH_AFTER_BIND: Action(die)}), pytest.raises(FailpointHit):
        graph.create_branch("trial")
    graph.create_branch("other")
    graph.rename_branch("trial", "probe")
    graph.delete_branch("other")
    (binding,) = graph._branch.newest().bindings.values()
    assert binding.pins
    assert not binding.is_begun
    with again(graph) as other:
        add(other, "bob", "probe")
        other.create_branch("more")
        assert other._branch.newest().bindings["probe"].is_begun, "by another process"
        assert people(other, "probe") == ["ann", "bob"]


def test_a_line_that_was_begun_and_is_lost_is_not_begun_again(graph: omniray.Graph) -> None:
    made = graph.create_branch("trial")
    graph.create_branch("other")
    path = CommitLog(graph._branch.store, BranchId("trial", made.branch_id)).path(1)
    graph._branch.store.delete(path)
    with again(graph) as other, pytest.raises(InvariantViolation, match=r"'trial' is gone: .* from a backup"):
        people(other, "trial")
    assert graph._branch.store.get(path) is None


def test_only_so_many_handles_of_branches_stay_open_and_none_that_is_used_is_closed(
    graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branch_handles, "OPEN_MAX", 2)
    names = ["a", "b", "c", "d"]
    for name in names:
        graph.create_branch(name)
    snapshot = graph.snapshot(branch="a")
    with graph._using("a") as used, graph._using("b") as also:
        for name in ("c", "d"):
            add(graph, "bob", name)
        assert {one.branch for one in graph._others.open} == {"a", "b", "d"}, "c was the last that nobody used"
        assert (used._closed, also._closed) == (False, False)
        add(graph, "bob", "a")
    first = graph._on("d")
    for name in (*names, *reversed(names)):
        people(graph, name)
    assert {one.branch for one in graph._others.open} == {"a", "b"}
    assert first._closed
    assert snapshot.table("Person").num_rows == 1, "a snapshot of a handle that was closed stays readable"
    assert "bob" in people(graph, "d")


def test_a_branch_that_may_yet_be_kept_is_open_to_its_writers(graph: omniray.Graph) -> None:
    """Between the mark and the close of a source that was merged nobody is told that it is gone: it may stay."""
    graph.create_branch("trial")
    add(graph, "bob", "trial")

    def write() -> None:
        add(other, "late", "trial")
        with pytest.raises(BranchGone):
            other.create_branch("child", "trial")

    with again(graph) as other, armed({Point.BRANCH_AFTER_MARK: Action(write, nth=1)}):
        assert graph.merge("trial", delete_source=True).source_kept
    assert people(graph, "trial") == ["ann", "bob", "late"]
    assert not graph._branch.newest().bindings["trial"].deleting
