"""The sink of a stream: each micro-batch is one commit, made once however often Spark runs it.

Its id derives from the query id, which a checkpoint keeps, and the number of the batch. A batch that runs again after a
crash between our commit and Spark's record of it gets the result of the first commit.

A query writes to the branch that has the name when it starts, and ends with `BranchGone` when that is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from omniray.engine.base.errors import BranchGone, InputError
from omniray.workers.spark.stage import Ticket, stage_batches
from omniray.workers.spark.write import this_partition

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY_ID = "sql.streaming.queryId"


@dataclass
class BatchMessage(WriterCommitMessage):
    """The part of a task, its branch by ULID, and the query id, which Spark gives to tasks only."""

    part: bytes
    line: str
    query_id: str


class GraphStreamWriter(DataSourceStreamArrowWriter):
    """All micro-batches of one stream."""

    def __init__(self, ticket: Ticket, type_name: str) -> None:
        self._ticket, self._type_name = ticket, type_name

    def write(self, iterator: Iterator[pa.RecordBatch]) -> BatchMessage:
        context = TaskContext.get()
        query_id = context.getLocalProperty(_QUERY_ID) if context is not None else None
        if not query_id:
            raise InputError("Spark does not say which query this is, so that no batch could be told from another")
        part = stage_batches(self._ticket, self._type_name, iterator, this_partition())
        return BatchMessage(part, self._ticket.line, query_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        from omniray.workers.spark.commit import commit_parts, txn_id_of

        found = [message for message in messages if isinstance(message, BatchMessage)]
        if not found:
            return
        self._refuse_others(found)
        ticket = replace(self._ticket, txn_id=txn_id_of("stream", found[0].query_id, self._type_name, batchId))
        commit_parts(ticket, [self._type_name], [message.part for message in found])

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing, as in a batch write: the commit may have landed."""

    def _refuse_others(self, messages: Sequence[BatchMessage]) -> None:
        """Refuse parts for another branch than the one that the query began with.

        Spark has tasks look for the branch anew in each batch, and sends the driver's side what it found at the start.
        """
        ours = self._ticket.line
        if other := next((message.line for message in messages if message.line != ours), None):
            name = self._ticket.target.branch
            raise BranchGone(
                f"this stream writes to the branch with the id {ours}, and {name!r} is now that with the id {other}: "
                "the first was deleted or renamed; nothing was written. A query that starts now writes to the new one",
                branch=name, line=ours, found=other,
            )  # fmt: skip


class EndedStreamWriter(DataSourceStreamArrowWriter):
    """Stands for the writer of a stream whose branch was deleted, until Spark calls it.

    Spark makes a writer to abort, too, and hides the first error behind one of its own if that fails.
    """

    def __init__(self, gone: BranchGone) -> None:
        self._gone = gone

    def write(self, iterator: Iterator[pa.RecordBatch]) -> BatchMessage:
        raise self._gone

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        raise self._gone

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: nothing was written."""
