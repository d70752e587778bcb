"""A graph on disk against a plain model of it: random schemas, loads and mutations, and every commit read back."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import omniray
from omniray import Snapshot
from omniray.engine.judge import constraints, keylog
from omniray.engine.rows import source_arrow, source_json, source_parquet
from omniray.engine.schema.printer import print_schema
from omniray.engine.schema.types import DST, ID, SRC, Schema
from omniray.engine.tables import cache
from omniray.engine.tables import storage as tables
from omniray.engine.writes import load, row_sink
from tests.model.graph_model import Delete, GraphModel, Id, Minted, Outcome, Predicate, Record, Refused, Row, Tables
from tests.model.graph_writes import LoadCall, MutateCall, first_loads, loads, mutations
from tests.strategies import schemas

# A long run: GRAPH_MODEL_EXAMPLES=5000 pytest tests/model/test_graph.py
EXAMPLES = int(os.environ.get("GRAPH_MODEL_EXAMPLES", "12"))
STEPS = int(os.environ.get("GRAPH_MODEL_STEPS", "10"))

# The first is what a step shrinks to.
_STEP = st.sampled_from(("nothing", "load", "load", "load", "mutate", "mutate", "mutate", "open again"))
_FIRST_STEP = st.sampled_from(("load", "load", "load", "nothing"))
_HANDLE = st.sampled_from((0, 1))


def _everything_is_large(patch: pytest.MonkeyPatch) -> None:
    """Take a few rows for many: read by the row, staged in files, keys spilled and joined, tails never folded."""
    for module in (source_arrow, source_json, source_parquet):
        patch.setattr(module, "BLOCK_ROWS_MAX", 1)
    patch.setattr(row_sink, "INLINE_ROWS_MAX", 1)
    patch.setattr(cache, "KNOWN_IDS_ROWS_MAX", 0)
    patch.setattr(tables, "TAIL_ROWS_MAX", 2)
    patch.setattr(tables, "_RANGES_MAX", 0)
    little = keylog.KeyMemory(0, 64)
    patch.setattr(keylog.KeyLog.__init__, "__kwdefaults__", {"memory_rows": 1, "memory": little})
    patch.setitem(load.LoadIntent.__init__.__kwdefaults__, "memory", little)
    patch.setattr(constraints.judge, "__kwdefaults__", {"reject": False, "lookup_keys_max": 1})


@pytest.mark.parametrize("limits", [lambda patch: None, _everything_is_large], ids=["as they are", "all exceeded"])
@settings(max_examples=EXAMPLES, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
@given(schema=schemas(edges=(1, 3), annotations=False).map(print_schema), data=st.data())
def test_every_commit_of_a_random_graph_holds_what_the_model_held_then(
    limits: Callable[[pytest.MonkeyPatch], None], schema: str, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        limits(patch)
        _run(schema, data)


def _run(schema: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(prefix="omniray-model-") as folder:
        pair = GraphAndModel(str(Path(folder, "graph")), schema)
        try:
            for type in pair.model.schema:
                if data.draw(_FIRST_STEP) == "load":
                    pair.load(data.draw(first_loads(pair.model, type)), handle=0)
            for _ in range(STEPS):
                step, handle = data.draw(_STEP), data.draw(_HANDLE)
                if step == "load":
                    pair.load(data.draw(loads(pair.model)), handle)
                elif step == "mutate":
                    pair.mutate(data.draw(mutations(pair.model)), handle)
                elif step == "open again":
                    pair.open_again(handle)
            pair.check()
        finally:
            pair.close()


class GraphAndModel:
    """A graph and its model, side by side.

    Two handles write in turns, so that each meets commits that it does not know of yet.
    """

    def __init__(self, uri: str, schema: str) -> None:
        self.uri = uri
        self.graphs = [omniray.init(uri, schema=schema), omniray.open(uri)]
        self.model = GraphModel.empty(self.graphs[0].schema)
        self.commits = [(self.graphs[0].snapshot().commit_id, self.model.tables)]

    def load(self, call: LoadCall, handle: int) -> None:
        self._expect(
            lambda: self.model.load(call.mode, call.records, call.types),
            lambda: self.graphs[handle].load(call.source, mode=call.mode, type=call.type),
        )

    def mutate(self, call: MutateCall, handle: int) -> None:
        self._expect(
            lambda: self.model.mutate(call.statements),
            lambda: self.graphs[handle].mutate(call.text, call.params),
        )

    def open_again(self, handle: int) -> None:
        self.graphs[handle].close()
        self.graphs[handle] = omniray.open(self.uri)

    def close(self) -> None:
        for graph in self.graphs:
            graph.close()

    def check(self) -> None:
        """Read every commit back: through the handles that wrote, through a new one, and the last with plain Lance."""
        for graph in self.graphs:
            self._check_history(graph)
        self.close()
        with omniray.open(self.uri, read_only=True) as graph:
            self._check_history(graph)
        for type in self.model.schema:
            plain = lance.dataset(str(Path(self.uri, type.first_path))).to_table()
            assert rows_of(plain) == comparable(self.model.tables[type.name]), f"plain Lance reads {type.name}"

    def _expect(self, foretell: Callable[[], Outcome], write: Callable[[], omniray.WriteResult]) -> None:
        """Do to the graph what was done to the model: the same outcome, or the same error."""
        try:
            expected: Outcome | type[omniray.OmnirayError] = foretell()
        except Refused as refused:
            expected = refused.error
        try:
            result = write()
        except omniray.OmnirayError as error:
            if type(error) is not expected:
                raise AssertionError(f"expected {expected}") from error
            return
        assert isinstance(expected, Outcome), f"expected {expected}, but it was accepted: {result}"
        assert (result.affected_nodes, result.affected_edges) == (expected.affected_nodes, expected.affected_edges)
        assert (result.commit_id is not None) == expected.commits
        if result.commit_id is not None:
            named = self._with_ids(expected.tables, result.commit_id)
            self.model = replace(self.model, tables=named)
            self.commits.append((result.commit_id, named))

    def _with_ids(self, expected: Tables, commit_id: str) -> Tables:
        """The tables with the ids that the engine has made, told by the values of their rows."""
        named = dict(expected)
        for name, table in expected.items():
            if not any(isinstance(id, Minted) for id in table):
                continue
            held = rows_of(self.graphs[0].snapshot(at=commit_id).table(name))
            made = [(id, row) for id, row in held.items() if id not in table]
            named[name] = {_taken(id, row, made): row for id, row in table.items()}
        return named

    def _check_history(self, graph: omniray.Graph) -> None:
        """Every commit is in the history once, in order, and holds what the model held then."""
        assert [entry.commit_id for entry in reversed(graph.history())] == [id for id, _ in self.commits]
        assert graph.snapshot().commit_id == self.commits[-1][0]
        read: dict[tuple[str, int], dict[str, Row]] = {}  # a version never changes: once is enough
        for commit_id, held in self.commits:
            snapshot = graph.snapshot(at=commit_id)
            for type in self.model.schema:
                version = (type.name, snapshot.versions[type.table_key])
                if version not in read:
                    read[version] = rows_of(snapshot.table(type.name))
                assert read[version] == comparable(held[type.name]), f"{type.name} at {commit_id}"
                assert snapshot.count(type.name) == len(held[type.name])


def _taken(id: Id, row: Row, made: list[tuple[str, Row]]) -> str:
    """The id of a row; one that was made is taken from the rows that nobody has named yet."""
    if isinstance(id, str):
        return id
    equal = [one for one in made if one[1] == comparable_row(row)]
    assert equal, f"no new row holds {row}, but there are {made}"
    made.remove(equal[0])
    return equal[0][0]


def rows_of(table: pa.Table) -> dict[str, Row]:
    """The rows of a table by id; an id that is there twice is a fault."""
    rows = {row.pop(ID): comparable_row(row) for row in table.to_pylist()}
    assert len(rows) == table.num_rows, "an id is there twice"
    return rows


def comparable(table: Mapping[Any, Row]) -> dict[Any, Row]:
    return {id: comparable_row(row) for id, row in table.items()}


def comparable_row(row: Row) -> Row:
    return {name: _comparable(value) for name, value in row.items()}


def _comparable(value: Any) -> Any:
    """The value such that == means that nothing was lost: NaN is itself, and -0.0 is not 0.0."""
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value.hex()
    return value


SCHEMA = """
node Person { name: String @key }
edge Knows: Person -> Person @card(0..1)
"""


def _write_and_check(uri: str) -> None:
    """Two people, an edge, another that is one too many, and a delete that takes the first along."""
    pair = GraphAndModel(uri, SCHEMA)
    person, knows = pair.model.schema.node("Person"), pair.model.schema.edge("Knows")
    people = tuple(Record(person, {"name": name}) for name in ("Ada", "Bob"))
    edge = Record(knows, {SRC: "Ada", DST: "Bob"})
    deletes = Delete(person, Predicate("name", "=", "Ada"))
    try:
        pair.load(LoadCall([{"name": "Ada"}, {"name": "Bob"}], "Person", "append", people, (person,)), 0)
        pair.load(LoadCall([{"from": "Ada", "to": "Bob"}], "Knows", "append", (edge,), (knows,)), 1)
        pair.load(LoadCall([{"from": "Ada", "to": "Bob"}], "Knows", "append", (edge,), (knows,)), 0)
        pair.mutate(MutateCall('query q() { delete Person where name = "Ada" }', {}, (deletes,)), 1)
        pair.check()
    finally:
        pair.close()


def test_the_model_agrees_with_an_engine_that_is_whole(tmp_path: Path) -> None:
    _write_and_check(str(tmp_path / "graph"))


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        pytest.param(constraints, "_rules", lambda *_: [], id="no rule over several rows is checked"),
        pytest.param(Schema, "edges_at", lambda *_: (), id="a delete does not cascade"),
        pytest.param(Snapshot, "table", lambda self, name: self.reader(name).read_all()[1:], id="a row is not shown"),
    ],
)
def test_the_model_notices_when_the_engine_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, broken: object
) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        _write_and_check(str(tmp_path / "graph"))
