"""Checks and stages the rows of one partition as a part of a load, in an executor or a worker on Ray.

An error of the rows is returned, so that they are not tried again; an error of the store is raised, so that they are.
Lance is imported only when the first rows come: it must not be loaded before a fork.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omniray.engine.base.errors import Conflict, InputError
from omniray.engine.base.ulids import checked_txn_id, new_ulid
from omniray.engine.rows.mode import Mode
from omniray.workers.kept_graphs import kept_open
from omniray.workers.spark.options import Target

if TYPE_CHECKING:
    import pyarrow as pa

    from omniray.engine.load_stager import LoadStager
    from omniray.engine.writes.part import Part


@dataclass(frozen=True, slots=True)
class Ticket:
    """One load that many workers stage: its target, its mode, and the id under which it is committed once."""

    target: Target
    graph_id: str
    mode: Mode
    txn_id: str


def begin(target: Target, graph_id: str, mode: Mode, txn_id: str | None = None) -> Ticket:
    """Begin a load that executors stage; its id, given or new, makes the commit safe to repeat."""
    return Ticket(target, graph_id, mode, new_ulid() if txn_id is None else checked_txn_id(txn_id))


def prepare(ticket: Ticket) -> None:
    """Open the graph before the first rows come; errors are ignored, since staging the rows will raise them."""
    with suppress(Exception):
        _target_graph(ticket)


def stage_rows(
    ticket: Ticket, type_name: str, batches: Iterable[pa.RecordBatch], source: str
) -> Part | InputError | Conflict:
    """Check and stage rows; returns the part, or the error of a row."""
    from omniray.engine.line.sidecar import SidecarIntent

    try:
        graph = _target_graph(ticket)
        return graph.read_part(batches, type_name, source, SidecarIntent(ticket.txn_id, ticket.target.actor))
    except (InputError, Conflict) as error:
        return error


def stage_batches(ticket: Ticket, type_name: str, batches: Iterable[pa.RecordBatch], source: str) -> bytes:
    """Like `stage_rows`, with the result as a message."""
    made = stage_rows(ticket, type_name, batches, source)
    from omniray.engine.writes.part_message import encode_part  # only now: Lance was loaded with the graph

    return encode_part(made)


def _target_graph(ticket: Ticket) -> LoadStager:
    return kept_open(ticket.target.uri, ticket.target.storage_options, ticket.graph_id)
