"""Plain Lance: every writer appends to, or merges into, its open datasets."""

from __future__ import annotations

import lance
import pyarrow as pa

from bench.peers.rows import Batch, Workload, base
from bench.peers.systems import Place, System

STORAGE_VERSION = "2.1"


class Pylance(System):
    """`lance.write_dataset` on an open dataset; several tables are several appends, not atomic."""

    def prepare(self, place: Place, work: Workload) -> None:
        for table in work.tables:
            uri = dataset_uri(place, table)
            created = lance.write_dataset(
                base(work), uri, storage_options=place.options, data_storage_version=STORAGE_VERSION
            )
            if work.merge:
                created.create_scalar_index("id", "BTREE")

    def writer(self, place: Place, work: Workload) -> PylanceWriter:
        return PylanceWriter(place, work)

    def ids(self, place: Place, table: str) -> pa.ChunkedArray:
        return scanned_ids(place, table)


class PylanceWriter:
    """Open datasets, one for each table."""

    def __init__(self, place: Place, work: Workload) -> None:
        self._datasets = {
            table: lance.dataset(dataset_uri(place, table), storage_options=place.options) for table in work.tables
        }

    def write(self, batch: Batch) -> None:
        for table in batch.tables:
            if batch.merge:
                self._merge(table, batch.rows)
            else:
                self._datasets[table] = lance.write_dataset(batch.rows, self._datasets[table], mode="append")

    def _merge(self, table: str, rows: pa.Table) -> None:
        upsert = self._datasets[table].merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        upsert.execute(rows)

    def close(self) -> None:
        self._datasets.clear()


def dataset_uri(place: Place, table: str) -> str:
    return f"{place.uri}/{table}.lance"


def scanned_ids(place: Place, table: str) -> pa.ChunkedArray:
    """The ids in a Lance dataset, whichever system wrote it."""
    dataset = lance.dataset(dataset_uri(place, table), storage_options=place.options)
    return dataset.to_table(columns=["id"]).column("id")
