"""Credentials of the environment stay in it: what is handed to workers has only those that somebody gave."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest

import omniray
from omniray.engine.base.errors import StorageError
from omniray.engine.base.principal import Author
from omniray.engine.base.ulids import new_ulid
from omniray.engine.rows.mode import Mode
from omniray.engine.store.open_store import open_store
from omniray.engine.writes.part import Part
from omniray.workers import kept_graphs
from omniray.workers.spark import stage
from tests.graphs import SCHEMA
from tests.stores import Root

KEY = ("aws_access_key_id", "aws_secret_access_key")


@pytest.fixture(autouse=True)
def _forgetful() -> Iterator[None]:
    """A worker keeps graphs open; these tests open them as a new one does."""
    yield
    kept_graphs._opened.cache_clear()


@pytest.fixture
def canary(s3: Root, monkeypatch: pytest.MonkeyPatch) -> str:
    """The secret of a key that is in the environment alone."""
    secret = f"canary-{new_ulid()}"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"key-{new_ulid()}")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.storage_options["aws_endpoint"])
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    return secret


def _ticket(graph: omniray.Graph) -> bytes:
    """What is sent to a worker that stages a part of a load."""
    ticket, _ = stage.begin_on(graph, None, Author("ann"), Mode.APPEND, None)
    return pickle.dumps(ticket)


def _staged(ticket: bytes) -> object:
    batch = pa.record_batch({"name": ["ann"]})
    return stage.stage_rows(pickle.loads(ticket), "Person", [batch], "partition 0")


def test_a_ticket_has_no_credentials_of_the_environment_and_a_worker_finds_its_own(
    s3: Root, canary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: the resolved options travel. Oracle: a search in what is pickled, and a worker with no environment."""
    with omniray.init(f"{s3.uri}/graph", schema=SCHEMA) as graph:
        ticket = _ticket(graph)
        assert canary.encode() not in ticket
        assert "aws_access_key_id" not in graph.storage_options
        assert isinstance(_staged(ticket), Part), "with its own environment"
        kept_graphs._opened.cache_clear()
        for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(variable)
        with pytest.raises(StorageError, match="no credentials"):
            _staged(ticket)


def test_endpoint_and_region_of_the_environment_travel(s3: Root, canary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no secrets, and a worker elsewhere would look for the graph in another store."""
    with omniray.init(f"{s3.uri}/graph", schema=SCHEMA) as graph:
        ticket = _ticket(graph)
        for variable in ("AWS_ENDPOINT_URL", "AWS_REGION"):
            monkeypatch.delenv(variable)
        assert graph.storage_options["aws_region"] == "eu-north-1"
        assert isinstance(_staged(ticket), Part)


def test_credentials_that_were_given_travel(s3: Root, canary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever name they were given."""
    key = {"ACCESS_KEY_ID": s3.storage_options[KEY[0]], "secret_access_key": s3.storage_options[KEY[1]]}
    assert open_store(f"{s3.uri}/graph", key).shared_options.items() >= {
        (name, s3.storage_options[name]) for name in KEY
    }
    with omniray.init(f"{s3.uri}/graph", schema=SCHEMA, storage_options=key) as graph:
        ticket = _ticket(graph)
        assert canary.encode() not in ticket
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        assert isinstance(_staged(ticket), Part)
