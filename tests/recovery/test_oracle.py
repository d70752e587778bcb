"""The oracle of the kill matrix can fail: whatever is wrong with a graph that was healed, it says so."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import lance
import pytest

from omniray.engine.base.errors import InvariantViolation
from omniray.engine.base.process import this_process
from omniray.engine.graph import Graph
from omniray.engine.history import audit
from omniray.engine.history.open_branch import open_branch
from omniray.engine.line.sidecar import Sidecars
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from tests.foreign import PEOPLE, append, plain
from tests.recovery.matrix import Disk, Matrix
from tests.recovery.oracle import Evidence, check_healed, check_kill, observe
from tests.recovery.rows import Deed
from tests.recovery.scenarios import LOADED, SCENARIOS, uri_of
from tests.recovery.zygote import zygote

pytestmark = pytest.mark.xdist_group("oracle")  # so that a writer is killed once

Sabotage = Callable[[ObjectStore, Evidence], None]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, tuple[Deed, ...]]]:
    """A graph whose writer was killed right after its commit, and what has landed in it."""
    with zygote() as parent:
        matrix = Matrix(Disk(str(tmp_path_factory.mktemp("oracle"))), parent)
        template = matrix.template(SCENARIOS["recover_forward"])
        yield uri_of(template.root), template.landed


@pytest.fixture
def store(killed: tuple[str, tuple[Deed, ...]], tmp_path: Path) -> ObjectStore:
    shutil.copytree(killed[0], tmp_path / "graph")
    return open_store(tmp_path / "graph")


@pytest.fixture
def landed(killed: tuple[str, tuple[Deed, ...]]) -> tuple[Deed, ...]:
    return killed[1]


def heal(store: ObjectStore) -> Evidence:
    at_kill = observe(store)
    Graph(open_branch(store), read_only=False).close()
    return at_kill


def _lose_a_row(store: ObjectStore, at_kill: Evidence) -> None:
    plain(store).delete("id = 'w1@dan'")


def _add_a_row(store: ObjectStore, at_kill: Evidence) -> None:
    append(store, "mallory")


def _set_a_table_back(store: ObjectStore, at_kill: Evidence) -> None:
    newest = min((Path(store.uri) / PEOPLE / "_versions").glob("*.manifest"))
    newest.unlink()


def _leave_a_sidecar(store: ObjectStore, at_kill: Evidence) -> None:
    (sidecar,) = at_kill.sidecars
    Sidecars(store).put(replace(sidecar, process=this_process()))


def _leave_a_staged_manifest(store: ObjectStore, at_kill: Evidence) -> None:
    newest = min((Path(store.uri) / PEOPLE / "_versions").glob("*.manifest"))
    (table,) = (table for table in at_kill.sidecars[0].tables if table.table_path == PEOPLE)
    folder = Path(store.uri) / PEOPLE / "_staged" / table.transaction_uuid
    folder.mkdir(parents=True)
    shutil.copy(newest, folder)


def _record_twice(store: ObjectStore, at_kill: Evidence) -> None:
    table = f"{store.uri}/{audit.PATH}"
    lance.write_dataset(lance.dataset(table).to_table(), table, mode="append")


def _forget_the_audit(store: ObjectStore, at_kill: Evidence) -> None:
    shutil.rmtree(f"{store.uri}/{audit.PATH}")


SABOTAGES = (
    _lose_a_row,
    _add_a_row,
    _set_a_table_back,
    _leave_a_sidecar,
    _leave_a_staged_manifest,
    _record_twice,
    _forget_the_audit,
)


def test_the_oracle_is_content_with_a_graph_that_was_healed(store: ObjectStore, landed: tuple[Deed, ...]) -> None:
    check_healed(store, heal(store), landed)


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_the_oracle_notices(sabotage: Sabotage, store: ObjectStore, landed: tuple[Deed, ...]) -> None:
    at_kill = heal(store)
    sabotage(store, at_kill)
    with pytest.raises((AssertionError, InvariantViolation)):
        check_healed(store, at_kill, landed)


def test_the_oracle_notices_that_nobody_has_healed(store: ObjectStore, landed: tuple[Deed, ...]) -> None:
    with pytest.raises(AssertionError, match="one opening heals everything"):
        check_healed(store, observe(store), landed)


def test_the_oracle_notices_a_write_too_few_and_one_too_many(store: ObjectStore, landed: tuple[Deed, ...]) -> None:
    at_kill = heal(store)
    for other in (landed[:-1], (*landed, LOADED)):
        with pytest.raises(AssertionError):
            check_healed(store, at_kill, other)


def test_the_oracle_notices_an_operation_without_its_audit_row(store: ObjectStore, landed: tuple[Deed, ...]) -> None:
    at_kill = heal(store)
    (sidecar,) = at_kill.sidecars
    other = replace(sidecar, operation_id="0" * 26)
    with pytest.raises(AssertionError, match="one audit row"):
        check_healed(store, replace(at_kill, sidecars=(sidecar, other)), landed)


def test_the_oracle_notices_that_an_acknowledged_write_is_missing(store: ObjectStore, landed: tuple[Deed, ...]) -> None:
    at_kill = observe(store)
    check_kill(at_kill, [LOADED.actor], landed)
    with pytest.raises(AssertionError, match="acknowledged"):
        check_kill(replace(at_kill, actors=at_kill.actors[:-1]), [LOADED.actor], landed)
