"""The lease of a load: there before its files are, gone when it ends, and never what a load fails of."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest

from omniray.engine.base.errors import StorageError
from omniray.engine.base.process import this_process
from omniray.engine.line.commit_object import EMBEDDED
from omniray.engine.line.sidecar import STAGING, Sidecar, SidecarIntent, Sidecars, SidecarTable
from omniray.engine.store.open_store import open_store
from omniray.engine.tables.table import Table
from omniray.engine.writes.lease import Lease
from tests.graphs import new_graph, opened
from tests.lines import BRANCH, birth
from tests.stores import Root

NEWEST = replace(birth(), seq=5, epoch=7)
ANN = SidecarIntent("01J00000000000000000000000", "ann")


@pytest.fixture
def sidecars(disk: Root) -> Sidecars:
    new_graph(disk).close()
    return Sidecars(open_store(f"{disk.uri}/graph"))


def table(disk: Root, name: str) -> Table:
    branch = opened(open_store(f"{disk.uri}/graph"))
    return branch.open_newest(branch.schema.type(name).table_key)


def test_a_lease_names_who_stages_what(sidecars: Sidecars, disk: Root) -> None:
    lease = Lease(sidecars, NEWEST)
    lease.take(ANN, table(disk, "Person"))
    lease.take(ANN, table(disk, "Knows"))
    person, knows = sidecars.read_all(sidecars.listed())
    assert (person.kind, person.line, person.epoch, person.owner) == (STAGING, BRANCH.ulid, 7, EMBEDDED)
    assert (person.process, person.intents) == (this_process(), (ANN,))
    assert person.tables == (SidecarTable("node:Person", "nodes/Person.lance", 1, ""),)
    assert knows.tables == (SidecarTable("edge:Knows", "edges/Knows.lance", 1, ""),)
    lease.release()
    assert sidecars.listed() == []


def test_a_lease_that_was_never_taken_costs_no_request(
    sidecars: Sidecars, disk: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecars, "delete", _down)
    Lease(sidecars, NEWEST).release()


def test_a_lease_that_can_t_be_released_is_left_to_recovery_with_a_warning(
    sidecars: Sidecars, disk: Root, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lease = Lease(sidecars, NEWEST)
    lease.take(ANN, table(disk, "Person"))
    monkeypatch.setattr(sidecars, "delete", _down)
    with caplog.at_level(logging.WARNING, logger="omniray"):
        lease.release()
    (left,) = sidecars.listed()
    (warning,) = caplog.messages
    assert warning == f"event=lease_kept line={BRANCH.ulid} ops={left} error=the store is down"


class LosingAnswers(Sidecars):
    def put(self, sidecar: Sidecar) -> None:
        super().put(sidecar)
        raise StorageError("no answer")


def test_a_put_that_seems_to_have_failed_is_cleared_away_too(disk: Root, sidecars: Sidecars) -> None:
    lease = Lease(LosingAnswers(open_store(f"{disk.uri}/graph")), NEWEST)
    with pytest.raises(StorageError, match="no answer"):
        lease.take(ANN, table(disk, "Person"))
    assert len(sidecars.listed()) == 1
    lease.release()
    assert sidecars.listed() == []


def _down(operation_ids: Sequence[str]) -> None:
    raise StorageError("the store is down")
