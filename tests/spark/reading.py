"""The reading half of the data source, under a name of its own."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from omniray.workers.spark.read import GraphReader, PinnedRead, ReadOptions, reads_changes
from omniray.workers.spark.stream_read import ChangeOptions, ChangeStreamReader, change_schema

FORMAT = "omniray_reading"


class ReadingSource(DataSource):
    _pinned: PinnedRead | None = None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        if reads_changes(self.options):
            return change_schema(ChangeOptions.checked(self.options))
        self._pinned = PinnedRead.of(ReadOptions.checked(self.options))
        return self._pinned.schema

    def reader(self, schema: StructType) -> GraphReader:
        return GraphReader(self._pinned or PinnedRead.of(ReadOptions.checked(self.options)), schema)

    def streamReader(self, schema: StructType) -> ChangeStreamReader:
        return ChangeStreamReader(ChangeOptions.checked(self.options), schema)
