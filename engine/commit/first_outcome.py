"""The first outcome of a write, for a caller that sends it again."""

from __future__ import annotations

from collections.abc import Mapping

from omniray.engine.base.errors import PayloadMismatch
from omniray.engine.history.lineage_entry import LineageEntry
from omniray.engine.judge.resolution import WriteResult


def first_outcome(entry: LineageEntry, versions: Mapping[str, int], payload_hash: str) -> WriteResult:
    """The first outcome of a write, by its lineage entry; raises `PayloadMismatch` if that was another write.

    An entry without a hash is of a write whose id the caller did not choose, but was told when no clear answer came.
    There is nothing to compare then, and no other caller can know the id.
    """
    if entry.payload_hash not in ("", payload_hash):
        raise PayloadMismatch(
            f"transaction {entry.commit_id} was committed with other data; use a new id for another write",
            txn_id=entry.commit_id,
        )
    return WriteResult(entry.commit_id, entry.nodes, entry.edges, entry.rejected, versions, repeated=True)
