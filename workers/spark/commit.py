"""The driver's side of a load: commits the parts that executors staged, by the coordinator or in this process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ulid import ULID

from omniray.engine.base.errors import OmnirayError
from omniray.engine.base.principal import Author
from omniray.engine.judge.keylog import FRUGAL
from omniray.engine.writes.options import LoadOptions, OnError
from omniray.engine.writes.terms import WriteTerms
from omniray.workers.kept_graphs import check_same, check_same_branch
from omniray.workers.spark.stage import Ticket

if TYPE_CHECKING:
    from omniray.engine.judge.resolution import WriteResult
    from omniray.workers.graphs import WritableGraph

_ULID_BYTES = 16


def txn_id_of(*names: object) -> str:
    """The id of a write, derived from names: the same names give the same id, anywhere and at any time."""
    digest = hashlib.sha256("\n".join(map(str, names)).encode()).digest()
    return str(ULID.from_bytes(digest[:_ULID_BYTES]))


def commit_parts(ticket: Ticket, types: Sequence[str], parts: Iterable[bytes]) -> WriteResult:
    """Commit the staged parts of these types in one commit; raises the error of a row if a part holds one.

    Nothing is deleted when this fails: the staged files are left to the sweep, which knows what commits refer to.
    """
    ticket = ticket.renamed()
    with ticket.target.opened() as graph:
        return commit_on(graph, ticket, types, parts)


def commit_on(graph: WritableGraph, ticket: Ticket, types: Sequence[str], parts: Iterable[bytes]) -> WriteResult:
    """Like `commit_parts`, on an open graph."""
    from omniray.engine.writes.part_message import decode_part  # imports Lance, which executors do not need

    check_same(graph, ticket.graph_id)
    target = ticket.target
    found = graph.snapshot(branch=target.branch)
    check_same_branch(found, ticket.line)
    made = [decode_part(part, found.schema) for part in parts]
    staged = [part for part in made if not isinstance(part, OmnirayError)]
    refused = next((part for part in made if isinstance(part, OmnirayError)), None)
    intent = graph.begin_load(
        LoadOptions(ticket.mode, OnError.FAIL, None),
        WriteTerms(Author(target.actor, target.tenant), txn_id=ticket.txn_id),
        announced=[operation for part in staged for operation in part.announced],
        memory=FRUGAL,
        branch=target.branch,
    )
    try:
        if refused is not None:
            raise refused
        intent.take_parts(types, staged)
    except BaseException:
        intent.close(used=True)
        raise
    return graph.commit_load(intent, branch=target.branch)
