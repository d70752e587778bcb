"""What runs in an executor, or in a worker on Ray: rows of one partition are checked and become a part of a load.

An error of the rows is a value like any other, so that nobody tries them again; an error of the store is raised, so
that somebody does. Modules of Lance are imported here when the first rows come: whoever forks must not have them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omniray.engine.base.errors import Conflict, InputError, OmnirayError
from omniray.engine.base.ulids import checked_txn_id, new_ulid
from omniray.engine.rows.mode import Mode
from omniray.workers.kept_graphs import kept_open
from omniray.workers.spark.options import Target

if TYPE_CHECKING:
    import pyarrow as pa

    from omniray.engine.load_stager import LoadStager
    from omniray.engine.writes.table_part import TablePart


@dataclass(frozen=True, slots=True)
class Ticket:
    """One load that many stage for: where it goes, what it does there, and the id under which it is committed once."""

    target: Target
    graph_id: str
    mode: Mode
    txn_id: str


def begin(target: Target, graph_id: str, mode: Mode, txn_id: str | None = None) -> Ticket:
    """A load that executors stage for; its id makes the commit safe to repeat, whether the caller gave it or not."""
    return Ticket(target, graph_id, mode, new_ulid() if txn_id is None else checked_txn_id(txn_id))


def prepare(ticket: Ticket) -> None:
    """Open what rows will need before there are any; if that fails it will fail for them too, and they tell of it."""
    with suppress(Exception):
        _target_graph(ticket)


def stage_batches(ticket: Ticket, type_name: str, batches: Iterable[pa.RecordBatch], source: str) -> bytes:
    """Check and stage rows; what comes of it, or the error of a row, packed to travel."""
    from omniray.engine.line.sidecar import SidecarIntent

    try:
        graph = _target_graph(ticket)
        part = graph.read_part(batches, type_name, source, SidecarIntent(ticket.txn_id, ticket.target.actor))
    except (InputError, Conflict) as error:
        return pickle.dumps(error)
    return pickle.dumps(part)


def unpacked(part: bytes) -> TablePart | OmnirayError:
    """What a worker made, or the error of a row that it met instead."""
    made: TablePart | OmnirayError = pickle.loads(part)
    return made


def _target_graph(ticket: Ticket) -> LoadStager:
    return kept_open(ticket.target.uri, ticket.target.storage_options, ticket.graph_id)
