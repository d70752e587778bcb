"""A graph on disk against a plain model of it: random schemas, loads and mutations, and every commit read back."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import omniray
import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from omniray.engine.schema import ID, ElementType, Schema
from omniray.engine.schema_printer import print_schema
from tests.model.graph_model import GraphModel, Minted, Outcome, Refused, Row, Tables
from tests.model.graph_writes import loads, mutations
from tests.strategies import schemas

# A long run: GRAPH_MODEL_EXAMPLES=5000 pytest tests/model/test_graph.py
EXAMPLES = int(os.environ.get("GRAPH_MODEL_EXAMPLES", "25"))
STEPS = int(os.environ.get("GRAPH_MODEL_STEPS", "12"))


class GraphAgainstModel(RuleBasedStateMachine):
    """Two handles on one graph write in turns, so that each meets commits that it does not know of yet."""

    @initialize(schema=schemas(annotations=False).map(print_schema))
    def create(self, schema: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="omniray-model-"))
        self.uri = str(self.folder / "graph")
        self.graphs = [omniray.init(self.uri, schema=schema), omniray.open(self.uri)]
        self.model = GraphModel.empty(self.graphs[0].schema)
        self.commits = [(self.graphs[0].snapshot().commit_id, self.model.tables)]

    @rule(handle=st.integers(0, 1), data=st.data())
    def load(self, handle: int, data: st.DataObject) -> None:
        call = data.draw(loads(self.model), label="load")
        graph = self.graphs[handle]
        self._expect(
            lambda: self.model.load(call.mode, call.records, call.types),
            lambda: graph.load(call.source, mode=call.mode, type=call.type),
        )

    @rule(handle=st.integers(0, 1), data=st.data())
    def mutate(self, handle: int, data: st.DataObject) -> None:
        call = data.draw(mutations(self.model), label="mutate")
        graph = self.graphs[handle]
        self._expect(lambda: self.model.mutate(call.statements), lambda: graph.mutate(call.text, call.params))

    @rule(handle=st.integers(0, 1))
    def open_again(self, handle: int) -> None:
        self.graphs[handle].close()
        self.graphs[handle] = omniray.open(self.uri)

    def teardown(self) -> None:
        if not hasattr(self, "graphs"):
            return
        try:
            for graph in self.graphs:
                self._check_history(graph)
                graph.close()
            with omniray.open(self.uri, read_only=True) as graph:
                self._check_history(graph)
            for type in self.model.schema:
                plain = lance.dataset(str(Path(self.uri, type.path))).to_table()
                assert rows_of(plain) == comparable(self.model.tables[type.name]), f"plain Lance reads {type.name}"
        finally:
            for graph in self.graphs:
                graph.close()
            shutil.rmtree(self.folder)

    def _expect(self, foretell: Callable[[], Outcome], write: Callable[[], omniray.WriteResult]) -> None:
        """Do to the graph what was done to the model: the same outcome, or the same error."""
        try:
            expected = foretell()
        except Refused as refused:
            expected = refused
        try:
            result = write()
        except omniray.OmnirayError as error:
            assert isinstance(expected, Refused) and type(error) is expected.error, f"{expected!r}, got {error!r}"
            return
        assert isinstance(expected, Outcome), f"{expected!r}, but it was accepted: {result}"
        assert (result.affected_nodes, result.affected_edges) == (expected.affected_nodes, expected.affected_edges)
        assert (result.commit_id is not None) == expected.commits
        if result.commit_id is not None:
            named = self._with_ids(expected.tables, result.commit_id)
            self.model = replace(self.model, tables=named)
            self.commits.append((result.commit_id, named))

    def _with_ids(self, tables: Tables, commit_id: str) -> Tables:
        """The tables with the ids that the engine has made, told by the values of their rows."""
        named = dict(tables)
        for name, table in tables.items():
            if not any(isinstance(id, Minted) for id in table):
                continue
            held = rows_of(self.graphs[0].snapshot(at=commit_id).table(name))
            made = [(id, row) for id, row in held.items() if id not in table]
            named[name] = {}
            for id, row in table.items():
                if isinstance(id, Minted):
                    match = next((n for n, (_, other) in enumerate(made) if other == comparable_row(row)), None)
                    assert match is not None, f"no row of {name} is {row}; there are {made}"
                    id, _ = made.pop(match)
                named[name][id] = row
        return named

    def _check_history(self, graph: omniray.Graph) -> None:
        """Every commit is in the history once, in order, and holds what the model held then."""
        assert [entry.commit_id for entry in reversed(graph.history())] == [id for id, _ in self.commits]
        for commit_id, tables in self.commits:
            snapshot = graph.snapshot(at=commit_id)
            for name, table in tables.items():
                assert rows_of(snapshot.table(name)) == comparable(table), f"{name} at {commit_id}"
                assert snapshot.count(name) == len(table)
        assert graph.snapshot().commit_id == self.commits[-1][0]


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


TestGraphAgainstModel = GraphAgainstModel.TestCase
TestGraphAgainstModel.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
