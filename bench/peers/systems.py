"""The systems that are compared, behind one small interface; each is imported only in the processes that run it."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any, Protocol

import pyarrow as pa

from bench.peers.rows import Batch, Workload

OURS = "omniray"
EMBEDDED = "embedded"
PYLANCE = "pylance"
LANCEDB = "lancedb"
DUCKLAKE = "ducklake"
_HOMES: Mapping[str, str] = {
    OURS: "with_omniray:Coordinated",
    EMBEDDED: "with_omniray:Embedded",
    PYLANCE: "with_pylance:Pylance",
    LANCEDB: "with_lancedb:Lancedb",
    DUCKLAKE: "with_ducklake:Ducklake",
}
NAMES = tuple(_HOMES)
DUCKLAKE_PYTHON = "BENCH_DUCKLAKE_PYTHON"


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a run's tables, and their storage options."""

    uri: str
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def options(self) -> dict[str, str] | None:
        return None if self.storage_options is None else dict(self.storage_options)


class Writer(Protocol):
    """One writer's open handles."""

    def write(self, batch: Batch) -> None:
        """Return once the batch is committed; raise the system's error if it is not."""

    def close(self) -> None:
        """Finish the background work."""


class System(ABC):
    """A way to write tables."""

    def missing(self) -> str:
        """Why it can't run here; empty if it can."""
        return ""

    @abstractmethod
    def prepare(self, place: Place, work: Workload) -> None:
        """Create the tables, with the rows and the index that the workload starts from."""

    @abstractmethod
    def writer(self, place: Place, work: Workload) -> Writer:
        """Connect a writer, as a separate process would."""

    @abstractmethod
    def ids(self, place: Place, table: str) -> pa.ChunkedArray:
        """The ids of all rows of a table, by a full scan."""


def load(name: str) -> System:
    """Import a system; only processes that run it call this."""
    module, _, cls = _HOMES[name].partition(":")
    system: System = getattr(import_module(f"bench.peers.{module}"), cls)()
    return system


def interpreter(name: str) -> str:
    """The Python that runs a system's processes: DuckLake's extensions may need a DuckDB of another version."""
    return os.environ.get(DUCKLAKE_PYTHON, sys.executable) if name == DUCKLAKE else sys.executable


def serving(name: str, place: Place) -> AbstractContextManager[None]:
    """Run the server that a system's writers need, if any; they find it by the tables."""
    if name != OURS:
        return nullcontext()
    from bench.cluster import service

    return service(place.uri, place.options)
