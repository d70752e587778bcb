"""The lease of a load: there before its files are, gone when it ends, and never what a load fails of."""

from __future__ import annotations

import logging
from typing import cast

import pytest

from omniray.engine.base.errors import StorageError
from omniray.engine.base.process import this_process
from omniray.engine.line.commit_object import EMBEDDED, CommitObject
from omniray.engine.line.sidecar import STAGING, SidecarIntent, Sidecars, SidecarTable
from omniray.engine.schema.parser import parse_schema
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from omniray.engine.tables.storage import TableStorage
from omniray.engine.tables.table import Table
from omniray.engine.writes.lease import Lease
from tests.graphs import SCHEMA, new_graph
from tests.kit.faulty_store import CallFault, Effect, FaultyStore
from tests.stores import Root

TYPES = parse_schema(SCHEMA)
NEWEST = CommitObject(5, "before", "newest", 7, EMBEDDED, {}, ())
ANN = SidecarIntent("01J00000000000000000000000", "ann")


@pytest.fixture
def faulty(disk: Root) -> FaultyStore:
    """The store of a new graph."""
    new_graph(disk).close()
    return FaultyStore(open_store(f"{disk.uri}/graph"))


@pytest.fixture
def sidecars(faulty: FaultyStore) -> Sidecars:
    return Sidecars(cast(ObjectStore, faulty))


def table(disk: Root, name: str) -> Table:
    return TableStorage(open_store(f"{disk.uri}/graph")).open(TYPES.type(name), 1, "", 0)


def test_a_lease_names_who_stages_what(sidecars: Sidecars, disk: Root) -> None:
    lease = Lease(sidecars, "main", NEWEST)
    lease.take(ANN, table(disk, "Person"))
    lease.take(ANN, table(disk, "Knows"))
    person, knows = sidecars.read_all(sidecars.listed())
    assert (person.kind, person.branch, person.epoch, person.owner) == (STAGING, "main", 7, EMBEDDED)
    assert (person.process, person.intents) == (this_process(), (ANN,))
    assert person.tables == (SidecarTable("node:Person", "nodes/Person.lance", 1, ""),)
    assert knows.tables == (SidecarTable("edge:Knows", "edges/Knows.lance", 1, ""),)
    lease.release()
    assert sidecars.listed() == []


def test_a_lease_that_was_never_taken_costs_no_request(sidecars: Sidecars, faulty: FaultyStore) -> None:
    Lease(sidecars, "main", NEWEST).release()
    assert faulty.calls == []


def test_a_lease_that_can_t_be_released_is_left_to_recovery_with_a_warning(
    sidecars: Sidecars, faulty: FaultyStore, disk: Root, caplog: pytest.LogCaptureFixture
) -> None:
    lease = Lease(sidecars, "main", NEWEST)
    lease.take(ANN, table(disk, "Person"))
    faulty.arm(CallFault(Effect.FAIL, frozenset({"delete_all"})))
    with caplog.at_level(logging.WARNING, logger="omniray"):
        lease.release()
    (left,) = sidecars.listed()
    (warning,) = caplog.messages
    assert warning == f"event=lease_kept branch=main ops={left} error=delete_all {sidecars.path(left)} was made to fail"


def test_a_put_that_seems_to_have_failed_is_cleared_away_too(
    disk: Root, sidecars: Sidecars, faulty: FaultyStore
) -> None:
    lease = Lease(sidecars, "main", NEWEST)
    faulty.arm(CallFault(Effect.LOSE, frozenset({"put_if_absent"})))
    faulty.arm(CallFault(Effect.FAIL, frozenset({"get"})))
    with pytest.raises(StorageError, match="was made to fail"):
        lease.take(ANN, table(disk, "Person"))
    assert len(sidecars.listed()) == 1
    lease.release()
    assert sidecars.listed() == []
