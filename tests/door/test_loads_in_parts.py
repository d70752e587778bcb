"""Loads whose parts are staged elsewhere, as by Spark's executors, and committed on a branch by a coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import omniray
from omniray.coordinator.client.client import connect_to_serving
from omniray.engine.base.errors import BranchGone
from omniray.engine.base.principal import Author
from omniray.engine.rows.mode import Mode
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.part import INLINE_ROWS_MAX
from omniray.engine.writes.terms import WriteTerms
from omniray.workers.spark.commit import commit_on, commit_parts
from omniray.workers.spark.options import Target
from omniray.workers.spark.stage import Ticket, begin, begin_on, stage_batches
from tests.graphs import create_store
from tests.housing import housed
from tests.stores import Root

SIZES = [3, INLINE_ROWS_MAX + 1]  # few rows are sent to the coordinator, many are staged as data files


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[omniray.Client]:
    """A client of a coordinator, which serves a graph with a branch."""
    store = create_store(Root(str(tmp_path), {}))
    with omniray.open(store.uri) as graph:
        graph.create_branch("trial")
    with housed(store, monkeypatch), connect_to_serving(store.uri, None) as client:
        yield client


def on_trial(client: omniray.Client) -> Ticket:
    ticket, _ = begin_on(client, "trial", Author("etl", "acme"), Mode.APPEND, None)
    return ticket


def part(ticket: Ticket, count: int) -> bytes:
    rows = pa.RecordBatch.from_pydict({"name": [f"p{n:04}" for n in range(count)]})
    return stage_batches(ticket, "Person", [rows], "partition 0")


def count(client: omniray.Client, branch: str) -> int:
    return client.snapshot(branch=branch).count("Person")


@pytest.mark.parametrize("rows", SIZES)
def test_parts_are_committed_on_their_branch(client: omniray.Client, rows: int) -> None:
    ticket = on_trial(client)
    result = commit_on(client, ticket, ["Person"], [part(ticket, rows)])
    assert (result.affected_nodes, count(client, "trial"), count(client, "main")) == (rows, rows, 0)
    (landed,) = client.history(1, branch="trial")
    assert (landed.commit_id, landed.actor, landed.tenant) == (ticket.txn_id, "etl", "acme")
    assert commit_on(client, ticket, ["Person"], []).repeated


@pytest.mark.parametrize("rows", SIZES)
def test_the_driver_of_a_frame_finds_the_coordinator_of_its_branch(client: omniray.Client, rows: int) -> None:
    line = client.snapshot(branch="trial").line
    ticket = begin(Target(client.uri, branch="trial", line=line, connect=omniray.connect), client.graph_id, Mode.APPEND)
    made = part(ticket, rows)
    client.rename_branch("trial", "other")
    commit_parts(ticket, ["Person"], [made])
    assert (count(client, "other"), count(client, "main")) == (rows, 0)


@pytest.mark.parametrize("rows", SIZES)
def test_parts_for_a_branch_that_was_deleted_land_on_no_namesake(client: omniray.Client, rows: int) -> None:
    ticket = on_trial(client)
    made = part(ticket, rows)
    client.delete_branch("trial")
    client.create_branch("trial")
    for _ in range(2):  # by the handle that knew the branch, and by the one that knows its namesake
        with pytest.raises(BranchGone):
            commit_on(client, ticket, ["Person"], [made])
    assert (count(client, "trial"), count(client, "main")) == (0, 0)


@pytest.mark.parametrize("branch", ["main", None])
def test_a_load_that_was_begun_for_another_branch_is_refused(client: omniray.Client, branch: str | None) -> None:
    intent = client.begin_load(LoadOptions.checked("append", "fail", None), WriteTerms(Author("ann")), branch="trial")
    intent.take_parts(["Person"], [])
    with pytest.raises(BranchGone, match="the load was begun for the branch with the id"):
        client.commit_load(intent, branch=branch)
