"""A graph with branches that a coordinator serves; a module whose tests need another one has fixtures of its own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import omniray
from omniray.coordinator.client.client import connect_to_serving
from omniray.engine.store.object_store import ObjectStore
from tests.door.hosting import A, B
from tests.graphs import create_store
from tests.housing import Housed, housed
from tests.stores import Root


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """A graph with ann, and two branches of it."""
    (tmp_path / "root").mkdir()
    store = create_store(Root(str(tmp_path / "root"), {}))
    with omniray.open(store.uri) as graph:
        graph.load([{"name": "ann"}], type="Person")
        graph.create_branch(A)
        graph.create_branch(B)
    return store


@pytest.fixture
def coordinator(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Housed]:
    with housed(store, monkeypatch) as coordinator:
        yield coordinator


@pytest.fixture
def client(store: ObjectStore, coordinator: Housed) -> Iterator[omniray.Client]:
    with connect_to_serving(store.uri, None) as client:
        yield client


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool
