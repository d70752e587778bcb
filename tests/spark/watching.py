"""The data source, which notes for each process that wrote, committed or read whether Ray was ever imported there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from omniray.workers.spark.options import WriteOptions
from omniray.workers.spark.read import GraphReader, PinnedRead
from omniray.workers.spark.source import GraphSource, _begun
from omniray.workers.spark.stage import Ticket
from omniray.workers.spark.write import GraphWriter, PartMessage

FORMAT = "omniray-watching"


class WatchingSource(GraphSource):
    """Takes one more option: `notes` is a folder, where each process leaves a file after what it did."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._notes = options.pop("notes")
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> WatchingWriter:
        options = WriteOptions.checked(self.options, overwrite=overwrite, connect=self.connect, line=self._line)
        return WatchingWriter(_begun(options, schema), options.type, self._notes)

    def reader(self, schema: StructType) -> WatchingReader:
        return WatchingReader(self._pinned, schema, self._notes)


class WatchingWriter(GraphWriter):
    def __init__(self, ticket: Ticket, type_name: str, notes: str) -> None:
        super().__init__(ticket, type_name)
        self._notes = notes

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartMessage:
        made = super().write(iterator)
        _note(self._notes, "wrote")
        return made

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        super().commit(messages)
        _note(self._notes, "committed")


class WatchingReader(GraphReader):
    def __init__(self, read: PinnedRead, schema: StructType, notes: str) -> None:
        super().__init__(read, schema)
        self._notes = notes

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from super().read(partition)
        _note(self._notes, "read")


def _note(folder: str, what: str) -> None:
    Path(folder, f"{what}-{os.getpid()}").write_text("with Ray" if "ray" in sys.modules else "without Ray")
