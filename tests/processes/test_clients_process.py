"""A client's process has none of what a coordinator runs on: neither Ray nor a server is ever imported there."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from omniray.coordinator.client.client import connect_to_serving
from omniray.engine.store.object_store import ObjectStore
from tests.commands import TIMEOUT_S, environment
from tests.graphs import PERSON, create_store, parts_of
from tests.housing import Housed, housed
from tests.processes.writing import written
from tests.stores import Root

_OF_A_COORDINATOR = ("ray", "uvicorn", "httptools", "uvloop", "cryptography", "omniray.coordinator.actors")
_CLIENT = """
import contextlib, json, sys
import omniray
from omniray.coordinator.client import client, starting

starting.find_spec = lambda name: None  # as where Ray is not installed
outcome = "nothing"
try:
    with omniray.connect(sys.argv[1], timeout_s=60) as graph:
        graph.load([{"name": "ann"}], type="Person")
        graph.status(), graph.flush(), graph.recover(), graph.outcome("01K9ZQ5T7Z0000000000000000")
        outcome = graph.snapshot().table("Person", ["name"])["name"].to_pylist()
except omniray.OmnirayError as error:
    outcome = error.as_json()
print(json.dumps({"outcome": outcome, "imported": [name for name in sys.argv[2:] if name in sys.modules]}))
"""


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    (tmp_path / "root").mkdir()
    return create_store(Root(str(tmp_path / "root"), {}))


@pytest.fixture
def coordinator(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Housed]:
    with housed(store, monkeypatch) as coordinator:
        yield coordinator


def run_client(uri: str, tmp_path: Path) -> dict[str, object]:
    command = [sys.executable, "-c", _CLIENT, uri, *_OF_A_COORDINATOR]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment(XDG_CACHE_HOME=str(tmp_path))
    )
    assert ended.returncode == 0, ended.stderr
    said: dict[str, object] = json.loads(ended.stdout)
    return said


@pytest.mark.usefixtures("coordinator")
def test_a_client_connects_and_writes_without_importing_ray_or_a_server(store: ObjectStore, tmp_path: Path) -> None:
    assert run_client(store.uri, tmp_path) == {"outcome": ["ann"], "imported": []}
    assert parts_of(store).rows(PERSON) == ["ann"]


def test_a_client_is_sent_to_a_pool_of_processes_which_write_without_ray(
    store: ObjectStore, coordinator: Housed
) -> None:
    context = multiprocessing.get_context("spawn")
    with connect_to_serving(store.uri, None) as client, ProcessPoolExecutor(2, mp_context=context) as pool:
        futures = [pool.submit(written, client, f"person{number}", _OF_A_COORDINATOR) for number in range(6)]
        told = [future.result(TIMEOUT_S) for future in futures]
        assert client.load([{"name": "here"}], type="Person").affected_nodes == 1, "its own process goes on"
    assert [(result.affected_nodes, imported) for result, imported in told] == [(1, [])] * 6
    assert parts_of(store).rows(PERSON) == ["here", *(f"person{number}" for number in range(6))]


def test_a_client_that_finds_no_coordinator_and_no_ray_says_how_to_install_it(
    store: ObjectStore, tmp_path: Path
) -> None:
    said = run_client(store.uri, tmp_path)
    error = said["outcome"]
    assert isinstance(error, dict)
    assert (error["kind"], said["imported"]) == ("unreachable", [])
    assert "pip install 'omniray[ray]'" in error["message"]
