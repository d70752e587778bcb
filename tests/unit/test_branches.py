"""Branches of an embedded graph: create, delete, rename, list; and every verb on one of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

import omniray
from omniray.engine.base.errors import (
    BranchExists,
    BranchGone,
    Conflict,
    ExpectedVersionMismatch,
    InputError,
    KeyConflict,
    NotFound,
    PayloadMismatch,
)
from omniray.engine.base.failpoints import Action, FailpointHit, Point, armed
from omniray.engine.base.ulids import new_ulid
from omniray.engine.branches import branches
from omniray.engine.history.branch_head import find_branch
from omniray.engine.line.branch_id import BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.store.open_store import open_store
from tests.stores import Root

SCHEMA = """
node Person { name: String @key   age: I32? }
node City { name: String @key }
edge Knows: Person -> Person
"""
AGED = "query aged($who: String, $age: I32) { update Person set { age: $age } where name = $who }"


@pytest.fixture
def graph(any_root: Root) -> Iterator[omniray.Graph]:
    with omniray.init(f"{any_root.uri}/graph", schema=SCHEMA, storage_options=any_root.storage_options) as graph:
        graph.load([{"type": "Person", "data": {"name": "ann", "age": 1}}], actor="init")
        yield graph


def again(graph: omniray.Graph, **options: object) -> omniray.Graph:
    """The same graph, as another process opens it."""
    return omniray.open(graph.uri, storage_options=graph.storage_options or None, **options)  # type: ignore[arg-type]


def add(graph: omniray.Graph, name: str, branch: str | None = None, **options: object) -> omniray.WriteResult:
    return graph.load([{"type": "Person", "data": {"name": name}}], branch=branch, **options)  # type: ignore[arg-type]


def people(graph: omniray.Graph, branch: str | None = None, **options: object) -> list[str]:
    found: list[str] = sorted(graph.snapshot(branch=branch, **options).table("Person")["name"].to_pylist())  # type: ignore[arg-type]
    return found


# Creating


def test_a_branch_begins_with_the_rows_of_its_parent_and_goes_its_own_way(graph: omniray.Graph) -> None:
    made = graph.create_branch("trial/a", actor="eve", message="to try something")
    add(graph, "bob", "trial/a")
    add(graph, "cid")
    graph.mutate(AGED, {"who": "ann", "age": 7}, branch="trial/a")
    assert (people(graph), people(graph, "trial/a")) == (["ann", "cid"], ["ann", "bob"])
    assert made.start == graph.history()[-2].commit_id
    noted = graph.history()[1]
    assert (noted.kind, noted.actor, noted.message, noted.commit_id) == (
        "BranchCreate", "eve", "to try something", made.branch_id,
    )  # fmt: skip
    with again(graph) as other:
        assert people(other, "trial/a") == ["ann", "bob"]


def test_creating_a_branch_touches_no_table_and_writes_two_objects(graph: omniray.Graph) -> None:
    store = open_store(graph.uri, graph.storage_options or None)
    graph.flush()
    before = {file.path for file in store.files("")}
    graph.create_branch("trial")
    graph.flush()
    new = {file.path for file in store.files("")} - before
    assert sorted(path.partition("/")[0] for path in new if not path.startswith("__manifest/")) == ["__commits"] * 2


def test_a_branch_begins_where_it_is_told_to(graph: omniray.Graph) -> None:
    first = graph.history()[0]
    add(graph, "bob")
    graph.create_branch("trial")
    add(graph, "cid", "trial")
    on_trial = graph.history(branch="trial")[0].commit_id
    add(graph, "dan", "trial")
    graph.create_branch("of-a-head", "trial")
    graph.create_branch("of-a-commit", first.commit_id)
    graph.create_branch("of-a-time", first.at.isoformat())
    graph.create_branch("of-another-s-commit", on_trial.lower())
    assert people(graph, "of-a-head") == ["ann", "bob", "cid", "dan"]
    assert people(graph, "of-a-commit") == people(graph, "of-a-time") == ["ann"]
    assert people(graph, "of-another-s-commit") == ["ann", "bob", "cid"]
    parents = {branch.name: branch.parent for branch in graph.branches()}
    assert parents == {
        "main": "", "trial": "main", "of-a-head": "trial", "of-a-commit": "main", "of-a-time": "main",
        "of-another-s-commit": "trial",
    }  # fmt: skip
    for name in parents:
        add(graph, "zoe", name)
        assert "zoe" in people(graph, name)


def test_a_branch_of_a_commit_that_changed_no_table_begins_with_it_and_not_with_the_next_one(
    graph: omniray.Graph,
) -> None:
    made = graph.create_branch("trial")
    add(graph, "later")
    assert graph.create_branch("then", made.commit_id).start == made.commit_id
    head = graph.snapshot(branch="then").commit_id
    assert (people(graph, "then"), people(graph, "then", at=head)) == (["ann"], ["ann"])


@pytest.mark.parametrize("folded", [True, False], ids=["folded", "not folded"])
def test_the_history_of_a_branch_goes_on_in_its_parent_s(graph: omniray.Graph, folded: bool) -> None:
    add(graph, "bob")
    graph.create_branch("trial")
    add(graph, "cid", "trial")
    graph.create_branch("deeper", "trial")
    later = add(graph, "late")
    add(graph, "later", "trial")
    add(graph, "dan", "deeper")
    if folded:
        graph.flush()
    found = graph.history(branch="deeper")
    assert [entry.kind for entry in found] == ["Load", "Load", "Load", "Load", "Init"]
    seen = [people(graph, "deeper", at=entry.commit_id) for entry in found]
    assert seen == [["ann", "bob", "cid", "dan"], ["ann", "bob", "cid"], ["ann", "bob"], ["ann"], []]
    assert [people(graph, "deeper", at=entry.at) for entry in found] == seen
    assert len(graph.history(2, branch="deeper")) == 2
    with pytest.raises(NotFound, match="no commit"):
        people(graph, "deeper", at=later.commit_id)


def test_a_time_between_two_commits_of_the_parent_shows_the_branch_as_it_was_then(graph: omniray.Graph) -> None:
    graph.create_branch("trial")
    add(graph, "late")
    now = datetime.now(UTC)
    assert people(graph, "trial", at=now) == ["ann"]
    assert people(graph, at=now) == ["ann", "late"]


def test_a_handle_is_opened_on_a_branch(graph: omniray.Graph) -> None:
    graph.create_branch("trial")
    with again(graph, branch="trial") as trial:
        assert trial.branch == "trial"
        add(trial, "bob")
        add(trial, "cid", "main")
        assert (people(trial), people(trial, "main")) == (["ann", "bob"], ["ann", "cid"])
        trial.create_branch("main-again")
        assert people(trial, "main-again") == ["ann", "cid"]
    assert people(graph) == ["ann", "cid"]


def test_a_read_only_handle_reads_every_branch_and_writes_none(graph: omniray.Graph) -> None:
    graph.create_branch("trial")
    add(graph, "bob", "trial")
    with again(graph, read_only=True) as reader:
        assert people(reader, "trial") == ["ann", "bob"]
        assert [branch.name for branch in reader.branches()] == ["main", "trial"]
        for write in (
            lambda: add(reader, "cid", "trial"),
            lambda: reader.create_branch("x"),
            lambda: reader.delete_branch("trial"),
            lambda: reader.rename_branch("trial", "x"),
        ):
            with pytest.raises(InputError, match="read-only"):
                write()


def test_strict_writes_and_ids_are_judged_on_their_own_branch(graph: omniray.Graph) -> None:
    graph.create_branch("trial")
    before = graph.snapshot(branch="trial").versions
    add(graph, "bob")
    add(graph, "bob", "trial", expected_versions=before)
    with pytest.raises(ExpectedVersionMismatch):
        add(graph, "cid", "trial", expected_versions=before)
    with pytest.raises(KeyConflict):
        add(graph, "bob", "trial")
    txn_id = new_ulid()
    first = add(graph, "dan", "trial", txn_id=txn_id, message="with an id")
    assert add(graph, "dan", "trial", txn_id=txn_id, message="with an id").repeated
    assert graph.outcome(txn_id, branch="trial").committed
    assert not graph.outcome(txn_id).committed
    assert first.commit_id == txn_id
    assert graph.history(1, branch="trial")[0].message == "with an id"


# Deleting


def test_a_deleted_branch_is_gone_for_whoever_has_it_open(graph: omniray.Graph) -> None:
    graph.create_branch("trial")
    with again(graph, branch="trial") as writer, again(graph, branch="trial", read_only=True) as reader:
        add(writer, "bob")
        old = reader.snapshot()
        graph.delete_branch("trial")
        for use in (
            lambda: add(writer, "cid"),
            lambda: writer.mutate(AGED, {"who": "ann", "age": 1}),
            lambda: writer.snapshot(),
            lambda: reader.snapshot(),
            lambda: reader.history(),
            lambda: writer.outcome(new_ulid()),
        ):
            with pytest.raises(BranchGone, match="was deleted"):
                use()
        assert old.table("Person").num_rows == 2, "a snapshot that was taken stays readable"
    with pytest.raises(NotFound, match="no branch 'trial'"):
        again(graph, branch="trial")


def test_a_branch_of_the_same_name_is_another_one(graph: omniray.Graph) -> None:
    graph.create_branch("trial")
    with again(graph) as holder:
        add(holder, "bob", "trial")
        graph.delete_branch("trial")
        graph.create_branch("trial")
        with pytest.raises(BranchGone):
            add(holder, "cid", "trial")
        assert people(graph, "trial") == ["ann"], "nothing landed on the namesake"
        add(holder, "dan", "trial")
        assert people(graph, "trial") == ["ann", "dan"], "named anew, it is the new one"


def test_a_branch_with_branches_is_deleted_only_with_them(graph: omniray.Graph) -> None:
    graph.create_branch("a")
    graph.create_branch("b", "a")
    graph.create_branch("c", "b")
    with pytest.raises(Conflict, match=r"has branches of its own: b, c") as refused:
        graph.delete_branch("a")
    assert refused.value.facts["children"] == ["b", "c"]
    graph.delete_branch("b", force=True)
    assert [branch.name for branch in graph.branches()] == ["main", "a"]
    graph.delete_branch("a")
    assert [branch.name for branch in graph.branches()] == ["main"]


def test_what_a_deleted_parent_had_is_still_its_branches_history(graph: omniray.Graph) -> None:
    graph.create_branch("a")
    add(graph, "bob", "a")
    graph.create_branch("b", "a")
    add(graph, "cid", "b")
    with pytest.MonkeyPatch.context() as patched:  # as a later omniray may do, which keeps what its branches need
        patched.setattr(branches, "_below", lambda newest, name: [])
        graph.delete_branch("a")
    assert [entry.kind for entry in graph.history(branch="b")] == ["Load", "Load", "Load", "Init"]
    (b,) = graph.branches()[1:]
    assert (b.parent, b.ahead, b.behind) == ("", 2, 0), "beside main, since its parent is gone"


@pytest.mark.parametrize("point", [Point.BRANCH_AFTER_MARK, Point.BRANCH_AFTER_CLOSE])
@pytest.mark.parametrize("who", ["an open", "a namesake"])
def test_a_deletion_that_was_not_finished_is_finished_by_whoever_finds_it(
    graph: omniray.Graph, point: Point, who: str
) -> None:
    graph.create_branch("trial")
    add(graph, "bob", "trial")
    with armed({point: Action(_die)}), pytest.raises(FailpointHit):
        graph.delete_branch("trial")
    with pytest.raises(NotFound, match="no branch"):
        people(again(graph, read_only=True), "trial")
    if who == "an open":
        with again(graph) as other:
            assert other._branch.tip.refresh().bindings == {}
    else:
        graph.create_branch("trial")
        assert people(again(graph, read_only=True), "trial") == ["ann"]


def test_a_branch_whose_creator_died_is_begun_by_whoever_opens_it(graph: omniray.Graph) -> None:
    with armed({Point.BRANCH_AFTER_BIND: Action(_die)}), pytest.raises(FailpointHit):
        graph.create_branch("trial")
    store = open_store(graph.uri, graph.storage_options or None)
    binding = find_branch(store).newest.bindings["trial"]
    line = CommitLog(store, BranchId("trial", binding.ulid))
    with again(graph, read_only=True) as reader:
        assert people(reader, "trial") == ["ann"]
    assert line.newest() is None, "who only reads writes nothing"
    add(graph, "bob", "trial")
    assert people(again(graph, read_only=True), "trial") == ["ann", "bob"]
    assert line.read(1) is not None


def test_a_branch_that_was_never_begun_is_closed_all_the_same(graph: omniray.Graph) -> None:
    with armed({Point.BRANCH_AFTER_BIND: Action(_die)}), pytest.raises(FailpointHit):
        graph.create_branch("trial")
    store = open_store(graph.uri, graph.storage_options or None)
    binding = find_branch(store).newest.bindings["trial"]
    graph.delete_branch("trial")
    newest = CommitLog(store, BranchId("trial", binding.ulid)).newest()
    assert newest is not None
    assert (newest.seq, newest.closed) == (2, True)


def test_a_write_that_was_staged_before_the_deletion_does_not_land_after_it(graph: omniray.Graph) -> None:
    graph.create_branch("trial")
    with again(graph) as slow:
        people(slow, "trial")
        slow._on("trial")
        deleting = Action(lambda: (graph.delete_branch("trial"), None)[1], nth=1)
        with armed({Point.C_BEFORE_PUT: deleting}), pytest.raises(BranchGone, match="nothing was written"):
            add(slow, "bob", "trial")


# Exactly once


def test_every_verb_is_carried_out_once_for_its_id(graph: omniray.Graph) -> None:
    create, rename, delete = new_ulid(), new_ulid(), new_ulid()
    made = graph.create_branch("trial", txn_id=create)
    assert (made.branch_id, made.repeated) == (create, False)
    assert graph.create_branch("trial", txn_id=create).repeated
    graph.rename_branch("trial", "probe", txn_id=rename)
    assert graph.rename_branch("trial", "probe", txn_id=rename).repeated
    assert graph.create_branch("trial", txn_id=create).repeated, "the first time counts, whatever it is called now"
    graph.delete_branch("probe", txn_id=delete)
    assert graph.delete_branch("probe", txn_id=delete).repeated
    assert [branch.name for branch in graph.branches()] == ["main"]
    with pytest.raises(PayloadMismatch):
        graph.create_branch("other", txn_id=create)
    with pytest.raises(PayloadMismatch):
        graph.delete_branch("other", txn_id=delete)
    assert graph.outcome(delete).committed


def test_of_sixteen_that_want_one_name_one_gets_it_and_each_other_is_told(graph: omniray.Graph) -> None:
    handles = [again(graph) for _ in range(16)]
    begin = threading.Barrier(len(handles))

    def create(handle: omniray.Graph) -> str:
        begin.wait()
        try:
            return handle.create_branch("trial").branch_id
        except BranchExists as error:
            return error.kind

    with ThreadPoolExecutor(len(handles)) as pool:
        answers = list(pool.map(create, handles))
    for handle in handles:
        handle.close()
    assert sorted(answers)[1:] == ["branch_exists"] * 15
    assert [branch.branch_id for branch in graph.branches()][1:] == sorted(answers)[:1]


def test_the_twin_that_does_not_look_at_the_name_makes_two_branches_of_it(
    graph: omniray.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second binding takes the first one's name: its writers' rows are not there any more."""
    graph.create_branch("trial")
    add(graph, "bob", "trial")
    monkeypatch.setattr(branches.Branches, "_refuse_taken", lambda self, wants, newest: None)
    graph.create_branch("trial")
    assert people(again(graph, read_only=True), "trial") == ["ann"]


# Renaming and listing


def test_a_renamed_branch_is_the_same_one(graph: omniray.Graph) -> None:
    made = graph.create_branch("trial")
    with again(graph, branch="trial") as holder:
        add(holder, "bob")
        assert graph.rename_branch("trial", "probe").branch_id == made.branch_id
        add(holder, "cid")
        assert people(graph, "probe") == ["ann", "bob", "cid"]
    with pytest.raises(NotFound, match="did you mean"):
        again(graph, branch="prob")
    graph.create_branch("trial")
    with pytest.raises(BranchExists):
        graph.rename_branch("trial", "probe")


def test_the_list_says_how_far_a_branch_has_gone_and_what_it_has_written(graph: omniray.Graph) -> None:
    graph.create_branch("a", actor="eve")
    graph.create_branch("b", "a")
    add(graph, "bob", "a")
    add(graph, "cid", "a")
    graph.load([{"type": "City", "data": {"name": "bonn"}}], branch="b")
    add(graph, "dan")
    main, a, b = graph.branches()
    assert (main.ahead, main.behind, main.parent) == (0, 0, "")
    assert (a.parent, a.ahead, a.behind, a.actor, a.tables) == ("main", 2, 1, "eve", ("node:Person",))
    assert (b.parent, b.ahead, b.behind, b.actor, b.tables) == ("a", 1, 2, "", ("node:City",))
    assert a.head == graph.history(1, branch="a")[0].commit_id
    graph.flush()
    assert graph.branches() == [main, a, b], "and says the same once all of it is folded"


# Recovery


def test_what_a_dead_writer_left_on_a_branch_is_recovered_there(any_root: Root) -> None:
    with omniray.init(f"{any_root.uri}/graph", schema=SCHEMA, storage_options=any_root.storage_options) as graph:
        graph.create_branch("trial")
        with armed({Point.C_AFTER_PUT: Action(_die)}), pytest.raises(FailpointHit):
            add(graph, "bob", "trial")
        assert people(graph, "trial") == ["bob"]
        with again(graph, grace_s=1e-6) as healer:
            report = healer.recover()
            assert len(report.rolled_forward) == 1
            assert [one.recovery_kind for one in healer.recoveries(branch="trial")] == ["RolledForward"]
            assert healer.recoveries() == []
        assert graph._branch.sidecars.listed() == []


@pytest.mark.parametrize("point", [Point.C_BEFORE_PUT, Point.C_AFTER_PUT])
def test_what_was_left_on_a_branch_that_was_deleted_is_discarded_and_recorded_on_main(
    graph: omniray.Graph, point: Point
) -> None:
    graph.create_branch("trial")
    with armed({point: Action(_die)}), pytest.raises(FailpointHit):
        add(graph, "bob", "trial", actor="eve")
    graph.delete_branch("trial")
    with again(graph, grace_s=1e-6) as healer:
        healer.recover()
        told = [
            (one.recovery_kind, one.sidecar_writer_kind)
            for one in healer.recoveries()
            if one.recovery_for_actor == "eve"
        ]
        assert told == [("OrphanedBranchDiscarded", "Load")]
    assert graph._branch.sidecars.listed() == []


# Bad input


@pytest.mark.parametrize(
    "name",
    [
        "",
        "main",
        "a b",
        "/a",
        "a/",
        "a//b",
        "..",
        "a..b",
        "a.lock",
        "a.lock/b",
        "ä",
        "a\n",
        "a" * 129,
        "a?b",
        "a\\b",
        "a:b",
        "01M7TY54Y4YY5GXA9F1CEBHWD2",
        "01m7ty54y4yy5gxa9f1cebhwd2",
        7,
    ],
)
def test_a_name_that_no_branch_may_have_is_refused_in_one_line(graph: omniray.Graph, name: str) -> None:
    with pytest.raises(InputError, match="invalid branch name") as refused:
        graph.create_branch(name)
    assert len(str(refused.value).splitlines()) == 1
    assert [branch.name for branch in graph.branches()] == ["main"]


@pytest.mark.parametrize("name", ["a", "a.b", "-", "a/b/c.d_e-f", "A9", "a" * 128, "lock"])
def test_a_name_may_have_letters_digits_and_parts(graph: omniray.Graph, name: str) -> None:
    graph.create_branch(name)
    add(graph, "bob", name)
    assert people(graph, name) == ["ann", "bob"]


def test_prefixes_of_each_other_are_names_of_their_own(graph: omniray.Graph) -> None:
    for name in ("a", "a/b", "a/b/c"):
        graph.create_branch(name)
    add(graph, "bob", "a/b")
    assert [people(graph, name) for name in ("a", "a/b", "a/b/c")] == [["ann"], ["ann", "bob"], ["ann"]]


def test_what_can_t_be_done_is_told_with_what_there_is(graph: omniray.Graph) -> None:
    graph.create_branch("trial")
    for use, told in (
        (lambda: graph.delete_branch("main"), "no branch 'main'"),
        (lambda: graph.rename_branch("main", "x"), "no branch 'main'"),
        (lambda: graph.delete_branch("trail"), "did you mean 'trial'"),
        (lambda: graph.create_branch("x", "trail"), "neither a commit id nor a time"),
        (lambda: graph.create_branch("x", new_ulid()), "no branch and no commit"),
        (lambda: people(graph, "nope"), "there are main, trial"),
        (lambda: graph.create_branch("x", message="m" * 4097), "invalid message"),
        (lambda: add(graph, "x", message="m" * 4097), "invalid message"),
    ):
        with pytest.raises(InputError, match=told):
            use()


def _die() -> None:
    raise FailpointHit
