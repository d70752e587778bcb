"""omniray in both modes: each writer with an embedded engine, or all writers as clients of one coordinator."""

from __future__ import annotations

from abc import abstractmethod
from importlib.util import find_spec
from typing import Any

import pyarrow as pa

import omniray
from bench.peers.rows import Batch, Workload, base
from bench.peers.systems import Place, System
from bench.writers import SCHEMA


class OurSystem(System):
    """A graph whose node types are the tables; a batch is one `load`, atomic over all tables."""

    def prepare(self, place: Place, work: Workload) -> None:
        with omniray.init(place.uri, schema=SCHEMA, storage_options=place.options) as graph:
            if work.base_rows:
                for table in work.tables:
                    graph.load(_records(base(work)), type=table)

    def writer(self, place: Place, work: Workload) -> OurWriter:
        return OurWriter(self._open(place))

    @abstractmethod
    def _open(self, place: Place) -> Any:
        """Open a graph or connect a client."""

    def ids(self, place: Place, table: str) -> pa.ChunkedArray:
        with omniray.open(place.uri, read_only=True, storage_options=place.options) as graph:
            return graph.snapshot().table(table, columns=["id"]).column("id")


class Embedded(OurSystem):
    """`omniray.open` in each process; the processes share only the storage."""

    def _open(self, place: Place) -> Any:
        return omniray.open(place.uri, storage_options=place.options)


class Coordinated(OurSystem):
    """`omniray.connect` in each process; the coordinator commits in groups."""

    def missing(self) -> str:
        if find_spec("ray") is None:
            return "ray is not installed"
        return "" if "connect" in omniray.__all__ else "this omniray has no coordinator"

    def _open(self, place: Place) -> Any:
        return omniray.connect(place.uri, storage_options=place.storage_options)


class OurWriter:
    """An open graph, or a client of one."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def write(self, batch: Batch) -> None:
        self._graph.load(_source(batch), mode=_mode(batch), tenant=batch.tenant)

    async def write_async(self, batch: Batch) -> None:
        await self._graph.load_async(_source(batch), mode=_mode(batch), tenant=batch.tenant)

    def close(self) -> None:
        self._graph.close()


def _source(batch: Batch) -> dict[str, pa.Table]:
    return dict.fromkeys(batch.tables, _records(batch.rows))


def _mode(batch: Batch) -> str:
    return "merge" if batch.merge else "append"


def _records(rows: pa.Table) -> pa.Table:
    """The rows as a user has them, without the id, which omniray derives from the key."""
    return rows.drop_columns(["id"])
