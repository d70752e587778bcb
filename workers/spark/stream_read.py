"""`spark.readStream.format("omniray")`: the changes of one type, commit by commit.

An offset is a number of the line, and which line that is: a checkpoint is of one branch, and is refused for a later
branch of its name. A batch of steps is cut into runs of consecutive steps, one for each task, and a partition holds all
that its task needs: a query that restarts from its checkpoint reads the same steps as before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, StringType, StructField, StructType

from omniray.engine.base.errors import BranchGone, InputError
from omniray.workers.spark.options import Target, known, needed
from omniray.workers.spark.read import COMMIT_ID, reads_changes
from omniray.workers.spark.types import as_spark, spark_schema

if TYPE_CHECKING:
    from omniray.engine.reading.change_feed import Changes, TableStep
    from omniray.engine.store.object_store import ObjectStore

CHANGE, SEQ = "_change", "_seq"
BEGINNING = "beginning"
TASKS_MAX = 8
STEPS_PER_TASK = 16


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """The options of `spark.readStream.format("omniray")`."""

    target: Target
    type: str
    after: str | None = None  # a commit id, or `beginning`; without it, the head when the query starts
    steps_per_batch: int | None = None

    KNOWN = ("uri", "type", "branch", "changes", "from", "steps_per_batch")

    @classmethod
    def checked(cls, given: Mapping[str, str], line: str = "") -> ChangeOptions:
        """The options of a stream; `line` is the branch if it was resolved before."""
        options = known(given, cls.KNOWN)
        if not reads_changes(options):
            raise InputError("a stream reads the changes of a type: say so by .option('changes', 'true')")
        return cls(
            Target.of(options, line=line),
            needed(options, "type", "Person"),
            options.get("from"),
            _count(options, "steps_per_batch"),
        )

    def opened(self) -> tuple[ObjectStore, Changes]:
        """The changes of the branch; the caller closes the store."""
        from omniray.engine.reading.change_feed import Changes  # imports Lance: not when Spark forks its workers

        store = self.target.store()
        try:
            return store, Changes(self.target.opened_to_read(store))
        except BaseException:
            store.close()
            raise


def change_schema(options: ChangeOptions) -> StructType:
    """The columns of a change stream: the kind of change, its commit and step, and those of the type."""
    store, changes = options.opened()
    store.close()
    return StructType(
        [
            StructField(CHANGE, StringType(), nullable=False),
            StructField(COMMIT_ID, StringType(), nullable=False),
            StructField(SEQ, LongType(), nullable=False),
            *spark_schema(changes.schema.type(options.type)).fields,
        ]
    )


Offset = dict[str, Any]
"""`seq`, the number of the last step that was read, and `line`, the ULID of the branch."""


class ChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the line; the graph is opened on first use, and never in a pickled copy."""

    def __init__(self, options: ChangeOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._opened: tuple[ObjectStore, Changes] | None = None
        self._target: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def initialOffset(self) -> Offset:
        after = self._options.after
        if after == BEGINNING:
            return self._offset(0)
        return self._offset(self._changes.newest_seq() if after is None else self._changes.seq_of(after))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        reached = self._seq(start)
        ends = [self._changes.newest_seq(reached)]
        if self._target is not None:
            ends.append(self._target)
        if isinstance(limit, ReadMaxFiles):
            ends.append(reached + limit.max_files)
        return self._offset(max(min(ends), reached))

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of a batch; Spark has limits of files and rows, and an object of the line counts as a file."""
        steps = self._options.steps_per_batch
        return ReadAllAvailable() if steps is None else ReadMaxFiles(steps)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._changes.newest_seq()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        steps = list(self._changes.steps(self._seq(start), self._seq(end), [self._options.type]))
        return [InputPartition(run) for run in runs(steps)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: the changes of its steps, in their order."""
        from pyspark.sql.pandas.types import to_arrow_schema

        arrow = to_arrow_schema(self._schema, timezone="UTC")
        store, changes = self._options.opened()
        with closing(store):
            for step in partition.value:
                for kind, rows in changes.read(step):
                    for batch in rows.to_batches():
                        yield as_spark(_marked(batch, kind, step), arrow)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    @property
    def _changes(self) -> Changes:
        if self._opened is None:
            self._opened = self._options.opened()
        return self._opened[1]

    def _offset(self, seq: int) -> Offset:
        return {"line": self._changes.line, "seq": seq}

    def _seq(self, offset: Offset) -> int:
        """The number in an offset of this branch; raises `BranchGone` for one of another branch."""
        theirs, ours, name = offset.get("line", ""), self._changes.line, self._options.target.branch
        if theirs != ours:
            raise BranchGone(
                f"the checkpoint of this stream is of the branch with the id {theirs!r}, and {name!r} is now that with "
                f"the id {ours!r}: the first was deleted or renamed, or the graph created anew. Give the new name as "
                "option 'branch', or begin again with a new checkpoint",
                branch=name, line=theirs, found=ours,
            )  # fmt: skip
        seq: int = offset["seq"]
        return seq


def runs(steps: Sequence[TableStep]) -> list[tuple[TableStep, ...]]:
    """Runs of consecutive steps, one per task, and at most a few tasks."""
    size = max(STEPS_PER_TASK, math.ceil(len(steps) / TASKS_MAX))
    return [tuple(steps[first : first + size]) for first in range(0, len(steps), size)]


def _marked(batch: pa.RecordBatch, kind: str, step: TableStep) -> pa.RecordBatch:
    batch = batch.append_column(CHANGE, pa.repeat(str(kind), len(batch)))
    batch = batch.append_column(COMMIT_ID, pa.repeat(step.commit_id, len(batch)))
    return batch.append_column(SEQ, pa.repeat(pa.scalar(step.seq, pa.int64()), len(batch)))


def _count(options: Mapping[str, str], name: str) -> int | None:
    if name not in options:
        return None
    if not options[name].isdigit() or int(options[name]) == 0:
        raise InputError(f"option {name!r} is {options[name]!r}: give a number, 1 or more")
    return int(options[name])
