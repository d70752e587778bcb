"""The data source with faults: tasks that are killed, commits whose answer is lost; each of them happens once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from omniray.workers.spark.options import WriteOptions
from omniray.workers.spark.source import GraphSource, _begun
from omniray.workers.spark.stream_write import GraphStreamWriter
from omniray.workers.spark.write import GraphWriter, PartMessage

FORMAT = "omniray-faulty"


class FaultySource(GraphSource):
    """Takes two more options: `fault` is what happens, `notes` a folder in which it is noted that it has."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._fault, self._notes = options.pop("fault"), options.pop("notes")
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> FaultyWriter:
        options = WriteOptions.checked(self.options, overwrite=overwrite)
        return FaultyWriter(_begun(options, schema), options.type, self._fault, self._notes)

    def streamWriter(self, schema: StructType, overwrite: bool) -> FaultyStreamWriter:
        options = WriteOptions.checked(self.options, overwrite=overwrite)
        return FaultyStreamWriter(_begun(options, schema), options.type, self._fault, self._notes)


class FaultyWriter(GraphWriter):
    def __init__(self, ticket, type_name: str, fault: str, notes: str) -> None:
        super().__init__(ticket, type_name)
        self._fault, self._notes = fault, notes

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartMessage:
        if self._fault == "killed while staging":
            return super().write(self._deadly(iterator))
        made = super().write(iterator)
        if self._fault == "killed after staging":
            self._die()
        return made

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        super().commit(messages)
        if self._fault == "answer lost" and first_time(self._notes, "answer lost"):
            raise ConnectionError("the answer to the commit was lost")
        if self._fault == "driver stops after the commit" and first_time(self._notes, "stopped"):
            signal.pause()

    def _deadly(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 1:
                self._die()
            yield batch

    def _die(self) -> None:
        if first_time(self._notes, "killed"):
            os.kill(os.getpid(), signal.SIGKILL)


class FaultyStreamWriter(GraphStreamWriter):
    """`fault` lists batches whose commit fails once: `before 3` our commit, or `after 5`, commas between."""

    def __init__(self, ticket, type_name: str, fault: str, notes: str) -> None:
        super().__init__(ticket, type_name)
        self._faults, self._notes = fault.split(","), notes

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._fail(f"before {batchId}")
        super().commit(messages, batchId)
        self._fail(f"after {batchId}")

    def _fail(self, when: str) -> None:
        if when in self._faults and first_time(self._notes, when):
            raise ConnectionError(f"a fault {when}")


def first_time(notes: str, what: str) -> bool:
    """Whether this has never happened before, which is noted."""
    try:
        Path(notes, what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
