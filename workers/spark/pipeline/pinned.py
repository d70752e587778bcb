"""The graph that a run is judged against: one snapshot, read by Spark's executors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from omniray.engine.rows.mode import Mode
from omniray.workers.spark.options import STORAGE
from omniray.workers.spark.source import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from omniray.engine.reading.snapshot import Snapshot


@dataclass(frozen=True)
class PinnedGraph:
    """The rows of the graph that may remain after the run: in an overwrite, none of the written types."""

    spark: SparkSession
    uri: str
    storage_options: Mapping[str, str] = field(repr=False)
    snapshot: Snapshot
    mode: Mode
    written: Collection[str]
    _frames: dict[tuple[str, tuple[str, ...]], DataFrame] = field(default_factory=dict, init=False)

    def has(self, type: str) -> bool:
        """Whether rows of a type may remain."""
        gone = self.mode is Mode.OVERWRITE and type in self.written
        return not gone and self.snapshot.count(type) > 0

    def rows(self, type: str, columns: Sequence[str]) -> DataFrame:
        """Columns of all rows of a type; frames are cached, since Spark starts a process to plan each new one."""
        key = (type, tuple(columns))
        if key not in self._frames:
            self._frames[key] = self._read(*key)
        return self._frames[key]

    def _read(self, type: str, columns: tuple[str, ...]) -> DataFrame:
        reader = self.spark.read.format(FORMAT).option("uri", self.uri).option("type", type)
        for name, value in self.storage_options.items():
            reader = reader.option(f"{STORAGE}{name}", value)
        reader = reader.option("branch", self.snapshot.branch).option("at", self.snapshot.commit_id)
        return reader.option("columns", ",".join(columns)).load()
