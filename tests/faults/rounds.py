"""One write under one fault, what its caller was told, and the oracle that says whether that was true.

A write has a number, and each of its rows carries it: two people, a city and an edge between the people. So it shows in
every table whether the write is there, once, and as one. A round breaks one request of a write, heals the graph by
opening it afresh, compares the caller's answer with the truth, and then does what the caller would: asks again with the
same id. So after each round every write so far is to be there exactly once.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import lance
import pyarrow as pa

from omniray.coordinator.stress.fault_proxy import FaultProxy
from omniray.coordinator.stress.request_faults import RequestFault, Seen
from omniray.engine.base.errors import OutcomeUnknown, StorageError
from omniray.engine.base.ulids import new_ulid
from omniray.engine.graph import Graph
from omniray.engine.history.open_branch import open_branch
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from omniray.engine.tables import table as tables
from tests.faults.clients import impatience, impatient
from tests.graphs import new_graph
from tests.stores import new_bucket

AT_ONCE_S = 1e-6  # a grace period that has passed, since the writer lives in this very process
TABLES = {"Person": "nodes/Person.lance", "City": "nodes/City.lance", "Knows": "edges/Knows.lance"}
ROWS = {"Person": 2, "City": 1, "Knows": 1}
_NUMBER = re.compile(r"write-(\d+)")
_CHANGING = re.compile(
    r"[0-9a-f]{50}"  # Lance's data files
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"  # Lance's transactions
    r"|[0-9A-HJKMNP-TV-Z]{26}"  # ULIDs
    r"|\d{20}"  # versions, and numbers of the line
    r"|(?<=/)\d+(?=-)"  # the version that a transaction read
)


def records(number: int) -> list[dict[str, Any]]:
    """A write to three tables."""
    one, other = f"write-{number}-one", f"write-{number}-other"
    return [
        {"type": "Person", "data": {"name": one, "age": number}},
        {"type": "Person", "data": {"name": other, "age": number}},
        {"type": "City", "data": {"name": one}},
        {"edge": "Knows", "from": one, "to": other},
    ]


@dataclass(frozen=True, slots=True)
class Step:
    """A request that a write makes: what stays the same about it each time, and the how-manieth of its like it is."""

    line: str
    nth: int

    def __str__(self) -> str:
        return f"{self.line} #{self.nth}"

    @property
    def pattern(self) -> str:
        return f"^{'[^/]*'.join(map(re.escape, self.line.split('*')))}$"

    @property
    def role(self) -> str:
        """The same for requests that are alike: those to all tables of the graph, and reads of the same files."""
        is_read = self.line.startswith(("GET", "HEAD"))
        return re.sub("|".join(TABLES.values()), "TABLE", self.line if is_read else str(self))

    @property
    def commits(self) -> bool:
        """Whether this is Phase C."""
        return self.line.startswith("PUT") and "/__commits/" in self.line


def steps_of(log: list[Seen]) -> list[Step]:
    """The requests of a log, each under a name that the same request of another write has too."""
    met: Counter[str] = Counter()
    steps = []
    for seen in log:
        line = _CHANGING.sub("*", str(seen))
        met[line] += 1
        steps.append(Step(line, met[line]))
    return steps


class Told(StrEnum):
    """What the caller of a write was told."""

    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Answer:
    told: Told
    error: BaseException | None = None

    def __str__(self) -> str:
        return f"{self.told} ({self.error!r})" if self.error else str(self.told)


@dataclass(slots=True)
class Field:
    """A graph behind a proxy, and how many writes it has.

    Its stores are kept over all rounds, since making an S3 client takes longer than a round does otherwise; every
    handle is a new one.
    """

    proxy: FaultProxy
    patient: ObjectStore
    hasty: ObjectStore
    writes: int = 0

    @classmethod
    def behind(cls, proxy: FaultProxy) -> Field:
        root = new_bucket(proxy.endpoint)
        with new_graph(root) as graph:
            graph.load(records(0))
        patient = open_store(graph.uri, root.storage_options)
        with impatience():
            return cls(proxy, patient, open_store(graph.uri, impatient(root).storage_options), writes=1)

    @property
    def is_worn(self) -> bool:
        """Whether a table may have lost its tail: a write would not read it, as the one did that was learned."""
        return self.writes * max(ROWS.values()) >= tables.TAIL_ROWS_MAX

    def learn(self) -> list[Step]:
        """The requests of a write that nothing stands in the way of, Phase D included."""
        with Graph(open_branch(self.patient), read_only=False) as graph:
            self.proxy.watch()
            _ask(graph, self.writes, new_ulid())
            self.writes += 1
        return steps_of(self.proxy.log())

    def round(self, fault: RequestFault) -> Answer:
        """Break one request of one write, heal, and compare what was told with what is true."""
        number, txn_id = self.writes, new_ulid()
        answer = self._under(fault, number, txn_id)
        with Graph(open_branch(self.patient), read_only=False, grace_s=AT_ONCE_S) as graph:
            there = self._judge(graph, answer, number, txn_id)
            graph.load(records(number), txn_id=txn_id)
            self.writes += 1
            if there:  # then nothing was written just now, and the next write is still to be tried
                graph.load(records(self.writes))
                self.writes += 1
            self._check_settled(graph)
        self._check_left_behind()
        return answer

    def go_on(self, fault: RequestFault) -> None:
        """Break one request of one write, then ask again and write on with the same handle, as a caller that lives."""
        number, txn_id = self.writes, new_ulid()
        with impatience(), Graph(open_branch(self.hasty), read_only=False) as graph:
            self.proxy.arm(fault)
            _ask(graph, number, txn_id)
            with contextlib.suppress(StorageError):
                graph.flush()
            self.proxy.disarm()
            graph.load(records(number), txn_id=txn_id)
            graph.load(records(number + 1))
        self.writes += 2
        with Graph(open_branch(self.patient), read_only=False, grace_s=AT_ONCE_S) as healed:
            self._check_settled(healed)
        self._check_left_behind()

    def was_met(self) -> bool:
        """Whether the last round's request was made at all."""
        return any(seen.fault for seen in self.proxy.log())

    def _under(self, fault: RequestFault, number: int, txn_id: str) -> Answer:
        with impatience():
            graph = Graph(open_branch(self.hasty), read_only=False)
            self.proxy.arm(fault)
            try:
                return _ask(graph, number, txn_id)
            finally:
                _close(graph)
                self.proxy.disarm()

    # The oracle

    def _judge(self, graph: Graph, answer: Answer, number: int, txn_id: str) -> bool:
        """Whether the write is there: what its caller was told does not contradict it, nor what the graph says."""
        present = _numbers(graph)
        there = number in present
        if isinstance(answer.error, OutcomeUnknown):
            assert answer.error.facts["txn_id"] == txn_id
        assert present == set(range(number + there)), f"writes {present} are there, {number} was under way"
        assert answer.told is not Told.DONE or there, f"told {answer}, and the write is not there"
        assert answer.told is not Told.FAILED or not there, f"told {answer}, and the write is there"
        outcome = graph.outcome(txn_id)
        assert outcome.committed is there, f"{outcome} contradicts the tables"
        return there

    def _check_settled(self, graph: Graph) -> None:
        """Every write is there exactly once, and no operation was recorded as recovered twice."""
        assert _numbers(graph) == set(range(self.writes))
        operations = [recovery.operation_id for recovery in graph.recoveries()]
        assert len(operations) == len(set(operations)), f"recorded more than once: {operations}"

    def _check_left_behind(self) -> None:
        """Nothing is left to recover, and a plain Lance reader sees every write exactly once too."""
        assert list(self.patient.names("__recovery")) == []
        assert _agreed({name: _counts(self._plain(path)) for name, path in TABLES.items()}) == set(range(self.writes))

    def _plain(self, path: str) -> pa.Table:
        return lance.dataset(f"{self.patient.uri}/{path}", storage_options=self.patient.lance_options).to_table()


def _ask(graph: Graph, number: int, txn_id: str) -> Answer:
    """Write, and say what the caller was told; any other error than of the store is none that a fault may cause."""
    try:
        result = graph.load(records(number), txn_id=txn_id)
    except OutcomeUnknown as error:
        return Answer(Told.UNKNOWN, error)
    except StorageError as error:
        return Answer(Told.FAILED, error)
    assert result.commit_id == txn_id
    return Answer(Told.DONE)


def _close(graph: Graph) -> None:
    """Let Phase D run; if the store stands in its way, the caller has its answer already."""
    with contextlib.suppress(StorageError):
        graph.close()


def _numbers(graph: Graph) -> set[int]:
    """The writes that a snapshot shows."""
    snapshot = graph.snapshot()
    return _agreed({name: _counts(snapshot.table(name)) for name in TABLES})


def _counts(table: pa.Table) -> Counter[int]:
    """How many rows of each write a table has."""
    column = "src" if "src" in table.column_names else "name"
    return Counter(int(found[1]) for value in table[column].to_pylist() if (found := _NUMBER.search(value)))


def _agreed(seen: dict[str, Counter[int]]) -> set[int]:
    """The writes that all tables have; each in all of them with all of its rows, or in none."""
    numbers = set().union(*seen.values())
    expected = {name: Counter(dict.fromkeys(numbers, ROWS[name])) for name in seen}
    assert seen == expected, f"a write is there in part, or more than once: {seen}"
    return numbers
