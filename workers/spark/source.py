"""The data source `omniray`: `spark.read` and `spark.readStream`, `df.write` and `df.writeStream`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from omniray.engine.base.errors import BranchGone, InputError
from omniray.engine.history.accepted_schema import read_schema
from omniray.engine.rows.mode import Mode
from omniray.workers.graphs import Connect
from omniray.workers.spark.options import WriteOptions, line_of
from omniray.workers.spark.read import GraphReader, PinnedRead, ReadOptions, reads_changes
from omniray.workers.spark.stage import Ticket, begin
from omniray.workers.spark.types import check_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from omniray.workers.spark.stream_read import ChangeStreamReader
    from omniray.workers.spark.stream_write import EndedStreamWriter, GraphStreamWriter
    from omniray.workers.spark.write import GraphWriter

FORMAT = "omniray"
_REGISTERED = "omniray.registered"


def register(spark: SparkSession, connect: Connect) -> None:
    """Register the data source with a session, once: Spark warns of a second time, and can't list its data sources."""
    if spark.conf.get(_REGISTERED, None) is None:
        spark.dataSource.register(type("GraphSource", (GraphSource,), {"connect": staticmethod(connect)}))
        spark.conf.set(_REGISTERED, "true")


class GraphSource(DataSource):
    """The data source; Spark creates it in planning processes of its own, beside the driver."""

    connect: Connect

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # The name is resolved once: Spark sends this very instance to the processes that plan and commit later.
        self._line = line_of(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        if not reads_changes(self.options):
            return self._pinned.schema
        from omniray.workers.spark.stream_read import ChangeOptions, change_schema

        return change_schema(ChangeOptions.checked(self.options, self._line))

    def reader(self, schema: StructType) -> GraphReader:
        return GraphReader(self._pinned, schema)

    @cached_property
    def _pinned(self) -> PinnedRead:
        """The snapshot of a frame: chosen when Spark asks for the columns, and used again when it plans the read."""
        return PinnedRead.of(ReadOptions.checked(self.options, self._line))

    def streamReader(self, schema: StructType) -> ChangeStreamReader:
        from omniray.workers.spark.stream_read import ChangeOptions, ChangeStreamReader

        return ChangeStreamReader(ChangeOptions.checked(self.options, self._line), schema)

    def writer(self, schema: StructType, overwrite: bool) -> GraphWriter:
        from omniray.workers.spark.write import GraphWriter

        options = WriteOptions.checked(self.options, overwrite=overwrite, connect=self.connect, line=self._line)
        return GraphWriter(_begun(options, schema), options.type)

    def streamWriter(self, schema: StructType, overwrite: bool) -> GraphStreamWriter | EndedStreamWriter:
        from omniray.workers.spark.stream_write import EndedStreamWriter, GraphStreamWriter

        options = WriteOptions.checked(self.options, overwrite=overwrite, connect=self.connect, line=self._line)
        if options.mode is Mode.OVERWRITE:
            raise InputError("a stream can't overwrite: each batch would undo the last one; use append or merge")
        if options.txn_id is not None:
            raise InputError("each batch of a stream has an id of its own: leave out the option 'txn_id'")
        try:
            return GraphStreamWriter(_begun(options, schema), options.type)
        except BranchGone as gone:
            return EndedStreamWriter(gone)


def _begun(options: WriteOptions, schema: StructType) -> Ticket:
    """Begin the load, after checking that the frame fits its type.

    Spark plans in a new process each time, so no graph is opened: importing Lance takes longer than all of this.
    """
    with closing(options.target.store()) as store:
        head = options.target.found(store)
        accepted = read_schema(store, head.newest.schema)
    check_frame(schema, accepted.schema.type(options.type))
    target = replace(options.target, line=head.branch.ulid)
    return begin(target, head.graph_id, options.mode, options.txn_id)
