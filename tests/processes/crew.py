"""Real processes for tests: each holds a graph open and does what it is told over a pipe.

They live as long as the crew, since a process takes a second to import everything; `doomed` is one that kills itself.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier, Condition
from typing import Any

import lance

import omniray
from omniray.engine.base.failpoints import Action, Point, armed, kill
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from tests.graphs import INSERT, PERSON, insert, main_of, people
from tests.stores import Root

STOP_TIMEOUT_S = 60
TABLES = ("nodes/Person.lance", "nodes/City.lance", "edges/Knows.lance")

_spawn = multiprocessing.get_context("spawn")


class Member:
    """One process of the crew, as the test holds it."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self._pipe, theirs = _spawn.Pipe()
        self.process: BaseProcess = _spawn.Process(target=target, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()

    def tell(self, verb: str, *arguments: Any) -> None:
        self._pipe.send((verb, arguments))

    def answer(self) -> Any:
        """What came of the last thing told; an error there is raised here."""
        found = self._pipe.recv()
        if isinstance(found, BaseException):
            raise found
        return found

    def ask(self, verb: str, *arguments: Any) -> Any:
        self.tell(verb, *arguments)
        return self.answer()

    def end(self) -> int | None:
        """Close the pipe, which ends the process; its exit code."""
        self._pipe.close()
        self.process.join(STOP_TIMEOUT_S)
        return self.process.exitcode


@contextmanager
def crew(count: int) -> Iterator[Sequence[Member]]:
    """So many processes, with barriers for two of them and for all."""
    barriers = {parties: _spawn.Barrier(parties) for parties in {2, count}}
    members = [Member(_serve, barriers) for _ in range(count)]
    try:
        yield members
    finally:
        codes = [member.end() for member in members]
        assert codes == [0] * count


def _serve(pipe: Connection, barriers: Mapping[int, Barrier]) -> None:
    obey(pipe, _Session(barriers))


def obey(pipe: Connection, session: Any) -> None:
    """Call the session's methods as the test tells, until the pipe is closed; then close the session."""
    while True:
        try:
            verb, arguments = pipe.recv()
        except EOFError:
            session.close()
            return
        try:
            pipe.send(getattr(session, verb)(*arguments))
        except Exception as error:
            pipe.send(error)


class _Session:
    """What a member of the crew can be told."""

    def __init__(self, barriers: Mapping[int, Barrier]) -> None:
        self._barriers = barriers
        self._graph: omniray.Graph | None = None

    def open(self, uri: str, options: dict[str, str]) -> None:
        self.close()
        self._graph = omniray.open(uri, storage_options=options)

    def close(self) -> None:
        if self._graph is not None:
            self._graph.close()
            self._graph = None

    def people(self) -> list[str]:
        return people(self._opened)

    def insert_strictly(self, name: str, version: int) -> str:
        """Insert a person if the table is at a version; two members do so at once."""
        self._barriers[2].wait(STOP_TIMEOUT_S)
        try:
            self._opened.mutate(INSERT, {"name": name}, expected_versions={PERSON: version})
        except omniray.ExpectedVersionMismatch as refusal:
            return f"expected {refusal.facts['expected']}, it is {refusal.facts['actual']}"
        return "won"

    def insert_many(self, prefix: str, count: int, parties: int) -> list[str | None]:
        """Insert people one by one, all members at once; the commit ids."""
        self._barriers[parties].wait(STOP_TIMEOUT_S)
        return [self._opened.mutate(INSERT, {"name": f"{prefix}-{n}"}).commit_id for n in range(count)]

    @property
    def _opened(self) -> omniray.Graph:
        assert self._graph is not None, "told to work before a graph was opened"
        return self._graph


# A process that dies in the middle of a write


def killed_between_b_and_c(root: Root, uri: str, name: str) -> int | None:
    """Insert a person in a process that is killed when all is staged and nothing is committed; its exit code."""
    return _run_doomed(root, uri, name, Point.C_BEFORE_PUT)


def killed_between_c_and_d(root: Root, uri: str, name: str) -> int | None:
    """Insert a person in a process that is killed when it is committed and has no final name; its exit code."""
    return _run_doomed(root, uri, name, Point.C_AFTER_PUT)


def _run_doomed(root: Root, uri: str, name: str, point: Point) -> int | None:
    process = _spawn.Process(target=_doomed, args=(uri, root.storage_options, name, point), daemon=True)
    process.start()
    process.join(STOP_TIMEOUT_S)
    return process.exitcode


def _doomed(uri: str, options: dict[str, str], name: str, point: Point) -> None:
    graph = omniray.open(uri, storage_options=options)
    with armed({point: Action(kill)}):
        insert(graph, name)


# A plain reader beside writers


def visible(store: ObjectStore) -> set[str]:
    """The writes of which plain Lance shows a row, in any table: each row's id tells its write."""
    found: set[str] = set()
    for table in TABLES:
        rows = lance.dataset(f"{store.uri}/{table}", storage_options=store.lance_options).to_table(columns=["id"])
        found.update(row.partition("@")[0] for row in rows["id"].to_pylist())
    return found


def committed(log: CommitLog, known: dict[int, CommitObject]) -> set[str]:
    """The writes in the line: each commit's actor tells its write. `known` saves reading objects twice."""
    newest = log.newest_listed()
    assert newest is not None
    for obj in log.down_to(newest, max(known, default=0)):
        known[obj.seq] = obj
    return {commit.actor for obj in known.values() for commit in obj.commits}


def poll(pipe: Connection, uri: str, polls: Any, polled: Condition) -> None:
    """Look at all tables with plain Lance until told to stop; what is visible must be in the line read afterwards."""
    store = open_store(uri)
    log = CommitLog(store, main_of(store))
    known: dict[int, CommitObject] = {}
    violations: set[str] = set()
    states: set[int] = set()
    while not pipe.poll():
        seen = visible(store)
        violations |= seen - committed(log, known)
        states.add(len(seen))
        with polled:
            polls.value += 1
            polled.notify_all()
    pipe.recv()
    pipe.send((sorted(violations), len(states)))


def write_watched(pipe: Connection, uri: str, count: int, polls: Any, polled: Condition) -> None:
    """Write to three tables at once, so often; each Phase C waits until the poller has looked at what is staged."""
    put = CommitLog.put

    def watched(self: CommitLog, obj: CommitObject) -> Any:
        with polled:
            full_poll = polls.value + 2
            assert polled.wait_for(lambda: polls.value >= full_poll, STOP_TIMEOUT_S)
        return put(self, obj)

    CommitLog.put = watched  # type: ignore[method-assign]
    with omniray.open(uri) as graph:
        for number in range(count):
            write = f"write-{number}"
            records = [
                {"type": "Person", "data": {"name": f"{write}@a"}},
                {"type": "Person", "data": {"name": f"{write}@b"}},
                {"type": "City", "data": {"name": f"{write}@c"}},
                {"edge": "Knows", "id": f"{write}@d", "from": f"{write}@a", "to": f"{write}@b"},
            ]
            graph.load(records, actor=write)
    pipe.send("done")


@contextmanager
def watched_writer(uri: str, count: int) -> Iterator[tuple[Member, Member]]:
    """A poller and a writer on one graph."""
    polls, polled = _spawn.Value("q", 0, lock=False), _spawn.Condition()
    poller = Member(poll, uri, polls, polled)
    writer = Member(write_watched, uri, count, polls, polled)
    try:
        yield poller, writer
    finally:
        assert [writer.end(), poller.end()] == [0, 0]
