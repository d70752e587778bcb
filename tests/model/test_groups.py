"""Writes in groups against the same writes one by one: the same answers, the same rows, the same history.

One graph takes random writes through an embedded handle, each as a commit of its own; the other takes them in the same
order through a publisher, in rounds of random sizes. Whoever reads the two must not be able to tell them apart, but for
the numbers of table versions: a round makes one of each table.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import omniray
from omniray.coordinator.rounds import conflicts
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine import graph
from omniray.engine.base.ulids import new_ulid
from omniray.engine.judge import constraints, keylog, overlay
from omniray.engine.judge.overlay import Overlay, _PendingTable
from omniray.engine.rows import row_ids as identity
from omniray.engine.schema.printer import print_schema
from omniray.engine.schema.types import ID, Schema
from omniray.engine.store.open_store import open_store
from omniray.engine.tables import cache
from omniray.engine.tables import storage as tables
from omniray.engine.writes import write_requests as request
from omniray.engine.writes.mutate import MutationIntent
from omniray.engine.writes.write_requests import Request
from tests.coordination import Service, Told, serving
from tests.model.graph_model import GraphModel, Row
from tests.model.graph_writes import LoadCall, MutateCall, first_loads, loads, mutations
from tests.model.test_graph import rows_of
from tests.strategies import schemas

# A long run: GROUPS_EXAMPLES=2000 pytest tests/model/test_groups.py
EXAMPLES = int(os.environ.get("GROUPS_EXAMPLES", "4"))
GROUPS = int(os.environ.get("GROUPS_PER_EXAMPLE", "3"))

_SIZES = st.sampled_from((1, 2, 3, 5, 8))
_MODE = st.sampled_from(("append", "append", "merge"))
_KIND = st.sampled_from(("load", "load", "mutate", "mutate"))
_EXPECTED = st.sampled_from((None,) * 6 + ("now", "older"))
_ON_ERROR = st.sampled_from(("fail", "fail", "fail", "reject"))

Call = LoadCall | MutateCall


@dataclass(frozen=True)
class Write:
    """A call, what it says of the version of one table, and what it does with records that are refused."""

    call: Call
    on_error: str = "fail"
    expects: tuple[str, str] | None = None  # a table, and whether it is said to be as it is now or as it was before

    def expected(self, now: Mapping[str, int]) -> dict[str, int]:
        """The expectation in numbers: versions count rounds here and writes there."""
        if self.expects is None:
            return {}
        table_key, which = self.expects
        return {table_key: now[table_key] - (which == "older")}


@dataclass(frozen=True)
class Answer:
    """What a write is told, as far as it does not depend on who else is in its round."""

    error: str = ""
    committed: bool = False
    affected: tuple[int, int] = (0, 0)
    rejected: int = 0

    @classmethod
    def of(cls, told: omniray.WriteResult | Told) -> Answer:
        if isinstance(told, omniray.OmnirayError):
            return cls(error=told.kind)
        result = told.result if isinstance(told, WriteAnswer) else told
        affected = (result.affected_nodes, result.affected_edges)
        return cls("", result.commit_id is not None, affected, result.rejected)


class TwoGraphs:
    """The same schema twice: one graph that is written to one by one, one in rounds."""

    def __init__(self, folder: Path, schema: str, things: ExitStack) -> None:
        self._rejects = folder / "rejects.jsonl"
        self.alone = things.enter_context(omniray.init(folder / "alone", schema=schema))
        omniray.init(folder / "grouped", schema=schema).close()
        self._grouped_uri = str(folder / "grouped")
        self.service: Service = things.enter_context(serving(open_store(self._grouped_uri)))
        self._group = 0

    @property
    def model(self) -> GraphModel:
        """What there is now, for those who draw the next write."""
        snapshot = self.alone.snapshot()
        held = {type.name: _by_id(snapshot.table(type.name).to_pylist()) for type in self.schema}
        return GraphModel(self.schema, held)

    @property
    def schema(self) -> Schema:
        return self.alone.schema

    def write_group(self, draw_writes: Iterator[Write]) -> None:
        """Write one by one, then all of it as one round, and compare everything that anybody can see."""
        self._group += 1
        began = self._versions()
        grouped_versions = self._grouped_versions()
        ids: list[str] = []
        answers: list[Answer] = []
        versions: list[dict[str, int]] = []
        writes: list[Write] = []
        with _same_ids(self._group):
            for write in draw_writes:
                now = self._versions()
                moved = {key: int(now[key] > began[key]) for key in now}
                versions.append({key: grouped_versions[key] + moved[key] for key in now})
                writes.append(write)
                ids.append(new_ulid())
                answers.append(self._write_alone(write, ids[-1], write.expected(now)))
        with _same_ids(self._group):
            prepared = [self._prepared(*each) for each in zip(writes, ids, versions, strict=True)]
            sent = [one for one in prepared if not isinstance(one, omniray.OmnirayError)]
            judged = iter(self.service.in_one_round(sent))
            told = [one if isinstance(one, omniray.OmnirayError) else next(judged) for one in prepared]
        assert [Answer.of(one) for one in told] == answers
        self.compare()

    def _write_alone(self, write: Write, txn_id: str, expected: dict[str, int]) -> Answer:
        try:
            return Answer.of(self._call_alone(write, txn_id, expected))
        except omniray.OmnirayError as error:
            return Answer.of(error)

    def _call_alone(self, write: Write, txn_id: str, expected: dict[str, int]) -> omniray.WriteResult:
        call = write.call
        if isinstance(call, MutateCall):
            return self.alone.mutate(call.text, call.params, txn_id=txn_id, expected_versions=expected)
        return self.alone.load(
            call.source, mode=call.mode, type=call.type, txn_id=txn_id, expected_versions=expected, **self._how(write)
        )

    def _prepared(self, write: Write, txn_id: str, now: Mapping[str, int]) -> Request | omniray.OmnirayError:
        """The write as a client sends it, or what keeps it from being sent."""
        call, expected = write.call, write.expected(now)
        try:
            if isinstance(call, MutateCall):
                return self.service.mutation(call.text, call.params, txn_id=txn_id, expected_versions=expected)
            return self.service.load_request(
                call.source, mode=call.mode, type=call.type, txn_id=txn_id, expected_versions=expected,
                **self._how(write),
            )  # fmt: skip
        except omniray.OmnirayError as error:
            return error

    def _how(self, write: Write) -> dict[str, Any]:
        return {"on_error": "reject", "rejects": self._rejects} if write.on_error == "reject" else {}

    def compare(self) -> None:
        """The same commits in the same order, and the same rows."""
        with omniray.open(self._grouped_uri, read_only=True) as grouped:
            mine, theirs = (
                [(e.commit_id, e.nodes, e.edges, e.rejected) for e in handle.history()[:-1]]
                for handle in (grouped, self.alone)
            )
            assert mine == theirs, "the history differs"
            snapshots = (grouped.snapshot(), self.alone.snapshot())
            for type in self.schema:
                in_rounds, one_by_one = (rows_of(snapshot.table(type.name)) for snapshot in snapshots)
                assert in_rounds == one_by_one, f"{type.name} differs"
                assert snapshots[0].count(type.name) == len(one_by_one)

    def _versions(self) -> dict[str, int]:
        return dict(self.alone.snapshot().versions)

    def _grouped_versions(self) -> dict[str, int]:
        return {key: pin.version for key, pin in self.service.newest.pins.items()}


def _by_id(rows: Sequence[dict[str, Any]]) -> dict[str, Row]:
    return {row.pop(ID): row for row in rows}


@contextmanager
def _same_ids(group: int) -> Iterator[None]:
    """Rows without a key get the same ids whichever way a group is written, since later writes speak of them."""
    counted = itertools.count()

    def randomness(size: int) -> bytes:
        return hashlib.sha256(f"{group} {next(counted)}".encode()).digest()[:size]

    class Minting(MutationIntent):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._minted = {number: f"{self.commit_id}-{number}" for number in self._minted}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity.fill_ids, "__kwdefaults__", {"clock": lambda: 1.0, "randomness": randomness})
        for module in (graph, request):
            patch.setattr(module, "MutationIntent", Minting)
        yield


def _small_limits(patch: pytest.MonkeyPatch) -> None:
    """Take a few rows for many: no ids in memory, keys judged by SQL, tails never folded."""
    patch.setattr(cache, "KNOWN_IDS_ROWS_MAX", 0)
    patch.setattr(tables, "TAIL_ROWS_MAX", 2)
    patch.setattr(tables, "_RANGES_MAX", 0)
    patch.setattr(keylog.KeyLog.__init__, "__kwdefaults__", {"memory_rows": 1, "memory": keylog.ROOMY})
    patch.setattr(constraints.judge, "__kwdefaults__", {"reject": False, "lookup_keys_max": 1})


_LIMITS = pytest.mark.parametrize("limits", [lambda patch: None, _small_limits], ids=["as they are", "all exceeded"])
_SETTINGS = settings(
    max_examples=EXAMPLES, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a failure is small already, and shrinking takes minutes
)  # fmt: skip


@_LIMITS
@_SETTINGS
@given(schema=schemas(edges=(1, 2), annotations=False).map(print_schema), data=st.data())
def test_writes_in_rounds_are_answered_and_applied_as_if_they_came_one_by_one(
    limits: Callable[[pytest.MonkeyPatch], None], schema: str, data: st.DataObject
) -> None:
    with _two_graphs(limits, schema) as graphs:
        graphs.write_group(_first_writes(data, graphs))
        for _ in range(GROUPS):
            graphs.write_group(_drawn(data, graphs, data.draw(_SIZES)))


@_LIMITS
@_SETTINGS
@given(schema=schemas(constraints=False, edges=(1, 2), annotations=False).map(print_schema), data=st.data())
def test_loads_of_one_mode_in_a_row_are_answered_and_applied_as_if_they_came_one_by_one(
    limits: Callable[[pytest.MonkeyPatch], None], schema: str, data: st.DataObject
) -> None:
    """Most rounds are such a row, and most of it need not be judged one by one."""
    with _two_graphs(limits, schema) as graphs:
        for _ in range(1 + GROUPS):
            mode, count = data.draw(_MODE), data.draw(_SIZES)
            graphs.write_group(Write(replace(data.draw(loads(graphs.model)), mode=mode)) for _ in range(count))


@contextmanager
def _two_graphs(limits: Callable[[pytest.MonkeyPatch], None], schema: str) -> Iterator[TwoGraphs]:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder, ExitStack() as things:
        limits(patch)
        yield TwoGraphs(Path(folder), schema, things)


def _first_writes(data: st.DataObject, graphs: TwoGraphs) -> Iterator[Write]:
    for type in graphs.schema:
        yield Write(data.draw(first_loads(graphs.model, type)))


def _drawn(data: st.DataObject, graphs: TwoGraphs, count: int) -> Iterator[Write]:
    """Each is drawn when those before it are through, so that it speaks of what they left."""
    for _ in range(count):
        model = graphs.model
        is_load = data.draw(_KIND) == "load"
        call = data.draw(loads(model) if is_load else mutations(model))
        which = data.draw(_EXPECTED)
        table_key = data.draw(st.sampled_from([type.table_key for type in graphs.schema])) if which else ""
        yield Write(call, data.draw(_ON_ERROR), (table_key, which) if which else None)


SCHEMA = """
node Person {
    name: String @key
    age: I32?
    mail: String? @unique
}
edge Knows: Person -> Person @card(0..1)
"""
PERSON, KNOWS = "node:Person", "edge:Knows"


def _load(mode: str, type: str, *records: dict[str, Any], **how: Any) -> Write:
    return Write(LoadCall(list(records), type, mode, (), ()), **how)


def _mutate(statement: str, **how: Any) -> Write:
    return Write(MutateCall(f"query q() {{ {statement} }}", {}, ()), **how)


def _one_round_of_everything() -> Iterator[Write]:
    yield _load("append", "Person", {"name": "Ada"})
    yield _load("append", "Person", {"name": "Eve", "mail": "e"})
    yield _load("append", "Person", {"name": "Eve"})
    yield _load("append", "Person", {"name": "Fay", "mail": "e"}, {"name": "Gil"}, on_error="reject")
    yield _load("merge", "Person", {"name": "Ada", "age": 1}, {"name": "Eve", "mail": "f"})
    yield _mutate("delete Person where age = 0")
    yield _load("append", "Knows", {"from": "Eve", "to": "Bob"})
    yield _load("append", "Knows", {"from": "Eve", "to": "Ada"})
    yield _load("append", "Knows", {"from": "Eve", "to": "Gil"})
    yield _mutate("update Person set { age: 2 } where age = 1")
    yield _mutate('insert Person { name: "Hal" }', expects=(PERSON, "now"))
    yield _mutate('insert Person { name: "Ida" }', expects=(PERSON, "older"))
    yield _mutate('delete Person where name = "Ada"')
    yield _load("overwrite", "Knows", {"from": "Eve", "to": "Hal"}, expects=(KNOWS, "now"))
    yield _load("merge", "Knows", {"from": "Hal", "to": "Eve"})
    yield _mutate('insert Knows { from: "Gil", to: "Eve" }')


def _write_everything(folder: Path) -> None:
    with ExitStack() as things:
        graphs = TwoGraphs(folder, SCHEMA, things)
        graphs.write_group(iter([_load("append", "Person", {"name": "Ada"}, {"name": "Bob", "age": 0})]))
        graphs.write_group(_one_round_of_everything())


def test_one_round_of_everything_is_as_good_as_its_writes_one_by_one(tmp_path: Path) -> None:
    _write_everything(tmp_path)


def _nothing_found(pending: _PendingTable, column: str, values: pa.Array, columns: Sequence[str]) -> pa.Table:
    return pending.located(columns).slice(0, 0)


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        pytest.param(overlay, "_left", lambda pinned, pending: pinned, id="rows that went are still there"),
        pytest.param(Overlay, "version", lambda self, key: self._state.version(key), id="a round moves no version"),
        pytest.param(Overlay, "count", lambda self, key: self._state.count(key), id="pending rows don't count"),
        pytest.param(_PendingTable, "matching", _nothing_found, id="pending rows are not found"),
        pytest.param(_PendingTable, "rows", lambda self: pa.concat_tables(self._chunks), id="pending rows stay"),
        pytest.param(conflicts, "_check_versions", lambda *_: None, id="versions are not compared"),
    ],
)
def test_the_comparison_notices_when_rounds_are_judged_wrongly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, broken: object
) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        _write_everything(tmp_path)
