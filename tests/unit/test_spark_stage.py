"""Workers that stage: the graph is opened once, and one that can't be opened is told of when rows come."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from omniray.engine.base.errors import InputError
from omniray.engine.history import open_branch as open_branch_module
from omniray.engine.history.open_branch import OpenBranch, open_line
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.parser import parse_schema
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.writes.part_message import decode_part
from omniray.workers.spark import stage
from omniray.workers.spark.options import Target
from tests.coordination import TIMEOUT_S, Gate
from tests.graphs import SCHEMA, new_graph
from tests.stores import Root


def test_rows_that_come_while_the_graph_is_being_opened_wait_for_it(
    disk: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_graph(disk) as graph:
        ticket = stage.begin(Target(graph.uri), graph.graph_id, Mode.APPEND)
    opened, gate = [], Gate()

    def slow(store: ObjectStore, line: str) -> OpenBranch:
        opened.append(store.uri)
        gate.hold()
        return open_line(store, line)

    monkeypatch.setattr(open_branch_module, "open_line", slow)
    with ThreadPoolExecutor() as pool:
        pool.submit(stage.prepare, ticket)
        gate.wait_until_reached()
        waiting = [pool.submit(stage._target_graph, ticket) for _ in range(3)]
        gate.open()
        graphs = [one.result(TIMEOUT_S) for one in waiting]
    assert (opened, len(set(map(id, graphs)))) == ([ticket.target.uri], 1)


def test_a_graph_that_is_not_there_is_an_error_of_the_rows_and_not_of_the_start(tmp_path: Path) -> None:
    ticket = stage.begin(Target(f"{tmp_path}/nothing"), "this one", Mode.APPEND)
    stage.prepare(ticket)
    error = decode_part(stage.stage_batches(ticket, "Person", [], "partition 0"), parse_schema(SCHEMA))
    assert isinstance(error, InputError), "a value: it would be the same the next time"
