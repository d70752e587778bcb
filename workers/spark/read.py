"""`spark.read.format("omniray")`: one type of a pinned snapshot, each group of its fragments a partition.

The driver chooses the snapshot once, when the frame is made: every action on the frame sees the same rows, whatever is
written meanwhile. Executors open the graph read-only and read exactly the chosen version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from omniray.engine.base.errors import InputError
from omniray.engine.schema.types import ElementType
from omniray.workers.spark.options import Target, known, needed
from omniray.workers.spark.pushdown import pushed
from omniray.workers.spark.types import as_spark, spark_schema

if TYPE_CHECKING:
    from omniray.engine.reading.fragment_groups import FragmentGroup

COMMIT_ID = "_commit_id"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of `spark.read.format("omniray")`."""

    target: Target
    type: str
    at: str | None = None
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    with_commit_id: bool = False

    KNOWN = ("uri", "type", "branch", "at", "columns", "filter", "with_commit_id", "changes")

    @classmethod
    def checked(cls, given: Mapping[str, str], line: str = "") -> ReadOptions:
        """The options of a read; `line` is the branch if it was resolved before."""
        options = known(given, cls.KNOWN)
        if reads_changes(options):
            raise InputError("changes are a stream: read them with spark.readStream, or leave the option 'changes' out")
        return cls(
            Target.of(options, line=line),
            needed(options, "type", "Person"),
            options.get("at"),
            _names(options["columns"]) if "columns" in options else None,
            options.get("filter"),
            _flag(options, "with_commit_id"),
        )


def reads_changes(options: Mapping[str, str]) -> bool:
    """Whether the options are of a change stream: Spark asks for the columns before it says which kind it reads."""
    return _flag(options, "changes")


def _flag(options: Mapping[str, str], name: str) -> bool:
    value = options.get(name, "false").lower()
    if value not in ("true", "false"):
        raise InputError(f"option {name!r} is {options[name]!r}: give true or false")
    return value == "true"


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if len(set(names)) < len(names) or not all(names):
        raise InputError(f"option 'columns' is {text!r}: give names with commas between them, each once")
    return names


@dataclass(frozen=True, slots=True)
class PinnedRead:
    """A read with a chosen snapshot: picklable, and always gives the same rows."""

    options: ReadOptions
    graph_id: str
    type: ElementType
    commit_id: str
    groups: tuple[FragmentGroup, ...]

    @classmethod
    def of(cls, options: ReadOptions) -> PinnedRead:
        """Choose the snapshot, on the driver; invalid columns and filters are refused here, before any task runs."""
        from omniray.engine.reader import GraphReader as Reader

        with closing(options.target.store()) as store:
            graph = Reader(options.target.opened_to_read(store))
            snapshot = graph.snapshot(at=options.at)
            type = snapshot.schema.type(options.type)
            spark_schema(type, options.columns)
            if options.filter is not None:
                snapshot.reader(options.type, options.columns, options.filter).close()
            return cls(options, graph.graph_id, type, snapshot.commit_id, tuple(snapshot.groups(options.type)))

    @property
    def schema(self) -> StructType:
        """The columns of the frame."""
        commit_id = [StructField(COMMIT_ID, StringType(), nullable=False)] if self.options.with_commit_id else []
        return StructType([*spark_schema(self.type, self.options.columns).fields, *commit_id])


class _WhereSwitchedOn:
    """The method `pushFilters` of a reader that works with push-down on or off.

    With push-down off, Spark refuses a reader that overrides the method, and a reader can't know the setting. Spark
    compares the function behind the method, so this one shows that of the base class.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: GraphReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        return self._reader.push(filters)


class GraphReader(DataSourceReader):
    """Reads the groups of a pinned read, one task per group."""

    def __init__(self, read: PinnedRead, schema: StructType) -> None:
        if schema.simpleString() != read.schema.simpleString():
            raise InputError(
                f"{read.type.name} is read as {read.schema.simpleString()}, not as {schema.simpleString()}; leave "
                ".schema(…) out, and choose columns by .option('columns', 'a,b')"
            )
        self._read, self._schema = read, schema
        self._where: pc.Expression | str | None = read.options.filter

    @property
    def pushFilters(self) -> Any:
        return _WhereSwitchedOn(self)

    def push(self, filters: list[Filter]) -> list[Filter]:
        """Take the filters that the store applies as Spark would, and return the others.

        If the user gave a filter, all are left to Spark: the store takes a text or an expression, not both.
        """
        if self._where is not None:
            return filters
        found = [(filter, pushed(filter, self._read.type)) for filter in filters]
        for _, where in found:
            if where is not None:
                self._where = where if self._where is None else self._where & where
        return [filter for filter, where in found if where is None]

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(group) for group in self._read.groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: the rows of one group; a read without groups still has one empty partition.

        The branch is not opened: a frame shows what it pinned, also after its branch was deleted.
        """
        if partition.value is None:
            return
        # Imported here, since these import Lance, which must not be loaded when Spark forks its workers.
        from pyspark.sql.pandas.types import to_arrow_schema

        from omniray.engine.reading.fragment_groups import GroupReader

        options = self._read.options
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        with closing(options.target.store()) as store:
            groups = GroupReader(store, self._read.graph_id, self._read.type)
            for batch in groups.read(partition.value, options.columns, self._where):
                yield as_spark(self._marked(batch), arrow)

    def _marked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._read.options.with_commit_id:
            return batch
        return batch.append_column(COMMIT_ID, pa.repeat(self._read.commit_id, len(batch)))
