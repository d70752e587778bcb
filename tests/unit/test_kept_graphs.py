"""A worker that outlives a graph: what is created anew at the same place is another graph."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pyarrow as pa
import pytest

import omniray
from omniray.engine.base.errors import InputError
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import Schema
from omniray.engine.writes.part_message import decode_part
from omniray.workers.kept_graphs import kept_open
from omniray.workers.spark.commit import commit_parts
from omniray.workers.spark.options import Target
from omniray.workers.spark.stage import Ticket, begin, stage_batches
from tests.stores import Root

ROWS = 5_000
Begun = Callable[[str], Ticket]


@pytest.fixture
def begun(disk: Root) -> Begun:
    """A load for a graph that is born anew, with these properties, at the same place each time."""
    uri = f"{disk.uri}/graph"

    def make(properties: str) -> Ticket:
        shutil.rmtree(uri, ignore_errors=True)
        with omniray.init(uri, schema=f"node Person {{ name: String @key  {properties} }}") as graph:
            return begin(Target(uri), graph.graph_id, Mode.APPEND)

    return make


def staged(ticket: Ticket) -> bytes:
    names = [f"p{n}" for n in range(ROWS)]
    rows = pa.RecordBatch.from_pydict({"name": names, "a": ["A"] * ROWS, "b": ["B"] * ROWS})
    return stage_batches(ticket, "Person", [rows], "here")


def test_a_graph_is_kept_open(begun: Begun) -> None:
    ticket = begun("a: String?")
    target = ticket.target
    assert kept_open(target.uri, None, ticket.graph_id) is kept_open(target.uri, {}, ticket.graph_id)


def test_rows_for_a_graph_that_was_created_anew_are_staged_by_its_own_schema(begun: Begun) -> None:
    former, latter = begun("a: String?  b: String?"), None
    staged(former)
    latter = begun("b: String?  a: String?")
    commit_parts(latter, ["Person"], [staged(latter)])
    with omniray.open(latter.target.uri, read_only=True) as graph:
        assert graph.snapshot().table("Person", ["a", "b"]).slice(0, 1).to_pylist() == [{"a": "A", "b": "B"}]


def test_work_for_a_graph_that_is_gone_is_refused_wherever_it_is(begun: Begun) -> None:
    former = begun("a: String?  b: String?")
    part = staged(former)
    latter = begun("b: String?  a: String?")
    with pytest.raises(InputError, match="was deleted and created anew since this write began; nothing was written"):
        commit_parts(former, ["Person"], [part])
    stale = Ticket(former.target, "another graph", former.mode, former.txn_id)
    error = decode_part(staged(stale), Schema((), ()))
    assert isinstance(error, InputError), "a value, so that Spark does not try again"
    with omniray.open(latter.target.uri, read_only=True) as graph:
        assert graph.snapshot().count("Person") == 0
