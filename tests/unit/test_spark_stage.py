"""Workers that stage: the graph is opened once, and one that can't be opened is told of when rows come."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import omniray
from omniray.workers.spark import stage
from omniray.workers.spark.options import Target


def test_rows_that_come_while_the_graph_is_being_opened_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    begun = threading.Event()

    def slow(uri: str, **_: object) -> object:
        opened.append(uri)
        begun.set()
        time.sleep(0.1)
        return object()

    monkeypatch.setattr(omniray, "open", slow, raising=False)
    ticket = stage.begin(Target("opened-once"), "append")
    with ThreadPoolExecutor() as pool:
        pool.submit(stage.prepare, ticket)
        assert begun.wait(10)
        graphs = list(pool.map(stage._target_graph, [ticket] * 3))
    assert (opened, len(set(map(id, graphs)))) == (["opened-once"], 1)


def test_a_graph_that_is_not_there_is_an_error_of_the_rows_and_not_of_the_start(tmp_path: object) -> None:
    ticket = stage.begin(Target(f"{tmp_path}/nothing"), "append")
    stage.prepare(ticket)
    with pytest.raises(omniray.OmnirayError):
        stage.stage_batches(ticket, "Person", [], "partition 0")
