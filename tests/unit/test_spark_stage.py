"""Workers that stage: the graph is opened once, and one that can't be opened is told of when rows come."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from omniray.engine import graph as graph_module
from omniray.engine.base.errors import InputError
from omniray.engine.rows.mode import Mode
from omniray.engine.store.object_store import ObjectStore
from omniray.workers.spark import stage
from omniray.workers.spark.options import Target


def test_rows_that_come_while_the_graph_is_being_opened_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    begun = threading.Event()

    def slow(store: ObjectStore, *, read_only: bool) -> object:
        opened.append(store.uri)
        begun.set()
        time.sleep(0.1)
        return SimpleNamespace(uri=store.uri, graph_id="this one")

    monkeypatch.setattr(graph_module, "Graph", slow)
    ticket = stage.begin(Target(str(tmp_path)), "this one", Mode.APPEND)
    with ThreadPoolExecutor() as pool:
        pool.submit(stage.prepare, ticket)
        assert begun.wait(10)
        graphs = list(pool.map(stage._target_graph, [ticket] * 3))
    assert (opened, len(set(map(id, graphs)))) == ([str(tmp_path)], 1)


def test_a_graph_that_is_not_there_is_an_error_of_the_rows_and_not_of_the_start(tmp_path: Path) -> None:
    ticket = stage.begin(Target(f"{tmp_path}/nothing"), "this one", Mode.APPEND)
    stage.prepare(ticket)
    error = stage.unpacked(stage.stage_batches(ticket, "Person", [], "partition 0"))
    assert isinstance(error, InputError), "a value: it would be the same the next time"
