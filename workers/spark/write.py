"""The batch writer of the data source: executors stage their partitions, and the driver commits them as one write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from omniray.workers.spark.stage import Ticket, stage_batches

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class PartMessage(WriterCommitMessage):
    """The part of a task. Of several tries of one partition, Spark passes on the message of one."""

    part: bytes


class GraphWriter(DataSourceArrowWriter):
    """One load of one frame."""

    def __init__(self, ticket: Ticket, type_name: str) -> None:
        self._ticket, self._type_name = ticket, type_name

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartMessage:
        return PartMessage(stage_batches(self._ticket, self._type_name, iterator, this_partition()))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        from omniray.workers.spark.commit import commit_parts

        parts = [message.part for message in messages if isinstance(message, PartMessage)]
        commit_parts(self._ticket, [self._type_name], parts)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: Spark also calls this when the commit has landed and only its answer was lost.

        Unused staged files are left to the sweep, which checks whether anything refers to them.
        """


def this_partition() -> str:
    """The partition of this task, as a message names it."""
    context = TaskContext.get()
    return f"partition {context.partitionId()}" if context is not None else ""
