"""Checks and stages the rows of one partition as a part of a load, in an executor or a worker on Ray.

An error of the rows is returned, so that they are not tried again; an error of the store is raised, so that they are.
Lance is imported only when the first rows come: it must not be loaded before a fork.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from omniray.engine.base.errors import Conflict, InputError
from omniray.engine.base.ulids import checked_txn_id, new_ulid
from omniray.engine.line.graph_identity import refuse_gone
from omniray.engine.rows.mode import Mode
from omniray.workers.kept_graphs import kept_open
from omniray.workers.spark.options import Target

if TYPE_CHECKING:
    import pyarrow as pa

    from omniray.engine.base.principal import Author
    from omniray.engine.load_stager import LoadStager
    from omniray.engine.schema.types import Schema
    from omniray.engine.writes.part import Part
    from omniray.workers.graphs import WritableGraph


@dataclass(frozen=True, slots=True)
class Ticket:
    """One load that many workers stage: its target, its mode, and the id under which it is committed once."""

    target: Target
    graph_id: str
    mode: Mode
    txn_id: str

    @property
    def line(self) -> str:
        """The ULID of the branch; a later branch of the same name has another one."""
        return self.target.line or self.graph_id

    def renamed(self) -> Ticket:
        """The ticket with the name that its branch has by now; raises `BranchGone` if it was deleted."""
        if self.line == self.graph_id:
            return self
        with closing(self.target.store()) as store:
            refuse_gone(store, self.graph_id)
            return replace(self, target=replace(self.target, branch=self.target.found(store).branch.name))


def begin(target: Target, graph_id: str, mode: Mode, txn_id: str | None = None) -> Ticket:
    """Begin a load that executors stage; its id, given or new, makes the commit safe to repeat."""
    return Ticket(target, graph_id, mode, new_ulid() if txn_id is None else checked_txn_id(txn_id))


def begin_on(
    graph: WritableGraph, branch: str | None, author: Author, mode: Mode, txn_id: str | None
) -> tuple[Ticket, Schema]:
    """Begin a load on a branch of an open graph, and return the schema of that branch, too."""
    found = graph.snapshot(branch=branch)
    target = Target(
        graph.uri, dict(graph.storage_options), author.actor, author.tenant, branch=found.branch, line=found.line
    )
    return begin(target, graph.graph_id, mode, txn_id), found.schema


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
    return kept_open(ticket.target.uri, ticket.target.storage_options, ticket.graph_id, ticket.line)
