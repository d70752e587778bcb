"""Bulk load: nodes and edges from many Parquet files, beside `lance.write_dataset` of the same rows.

    python -m bench.peers.bulk generate|pylance|embedded|omniray DIRECTORY --parts N      one step, in its own process

A part is a directory with a file of each type. Plain Lance gets files of the physical rows, ids included; omniray
derives the ids of nodes, mints those of edges, and checks keys and ends, all in one commit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import omniray
from bench.bulk import BATCH_ROWS, DAYS, EDGES_PER_NODE, SCHEMA, SEED, STORAGE_VERSION, TABLES
from bench.measure import Figure, Section, in_fresh_process, milliseconds, timed, times
from bench.peers.alone import ours_among
from bench.peers.goals import times_at_least
from bench.peers.memory import PeakMemory
from bench.peers.systems import EMBEDDED, OURS, PYLANCE, Place, serving
from omniray.engine.rows.row_ids import mint_ulids

PART_ROWS = 1_000_000
LOAD_TIMEOUT_S = 3_600.0
MODULE = "bench.peers.bulk"


def bulk(systems: Sequence[str], rows: int) -> Section:
    """Load all parts, and a quarter of them, into fresh graphs; stream the same rows into bare datasets."""
    system = ours_among(systems)
    part_rows = min(PART_ROWS, rows // 4)
    parts = rows // part_rows
    with TemporaryDirectory(prefix="omniray-bench-") as directory:
        in_fresh_process(MODULE, "generate", directory, "--parts", str(parts), "--part-rows", str(part_rows))
        bare, quarter, ours = (
            in_fresh_process(MODULE, step, directory, "--parts", str(count))
            for step, count in ((PYLANCE, parts), (system, max(1, parts // 4)), (system, parts))
        )
    return Section(
        "bulk",
        f"Bulk load, {rows:,} rows of nodes and edges from {parts * len(TABLES)} Parquet files, {system}",
        "Each load in a process of its own, imports aside. Memory is the peak over all processes that took part, what "
        "they share counted once.",
        _figures(bare, quarter, ours),
    )


def _figures(bare: dict[str, Any], quarter: dict[str, Any], ours: dict[str, Any]) -> tuple[Figure, ...]:
    def gibibytes(run: dict[str, Any]) -> str:
        return f"{run['memory_bytes'] / (1 << 30):.2f} GiB"

    rate = bare["seconds"] / ours["seconds"]
    growth = ours["memory_bytes"] / quarter["memory_bytes"]
    return (
        Figure("rate", milliseconds(ours["seconds"]), milliseconds(bare["seconds"]), rate, times_at_least(0.5)),
        Figure("memory", gibibytes(ours), gibibytes(bare), ours["memory_bytes"] / bare["memory_bytes"]),
        Figure("memory, beside that of a quarter of the rows", gibibytes(ours), "", growth, times(1.25)),
    )


def generate(directory: Path, parts: int, part_rows: int) -> None:
    """Write the parts, one at a time. An edge joins nodes of its part or earlier ones, so any first parts load."""
    random = np.random.default_rng(SEED)
    nodes = part_rows // (1 + EDGES_PER_NODE)
    for part in range(parts):
        folder = directory / f"part-{part:03}"
        folder.mkdir()
        people = _people(random, range(part * nodes, (part + 1) * nodes))
        knows = _knows(random, nodes * EDGES_PER_NODE, among=(part + 1) * nodes)
        pq.write_table(people, folder / "Person.parquet")
        pq.write_table(knows, folder / "Knows.parquet")
        pq.write_table(people.add_column(0, "id", people.column("email")), folder / "Person-physical.parquet")
        ends = knows.rename_columns(["src", "dst", "weight", "since"])
        ids = mint_ulids(len(knows), timestamp_ms=0)
        pq.write_table(ends.add_column(0, "id", ids), folder / "Knows-physical.parquet")


def _people(random: np.random.Generator, numbers: range) -> pa.Table:
    count = len(numbers)
    return pa.table(
        {
            "email": _emails(np.arange(numbers.start, numbers.stop)),
            "city": pa.array([f"City {number}" for number in range(1000)]).take(
                pa.array(random.integers(0, 1000, count))
            ),
            "age": pa.array(random.integers(0, 100, count), pa.int32()),
            "score": pa.array(random.random(count)),
            "born": _days(random, count),
        }
    )


def _knows(random: np.random.Generator, count: int, *, among: int) -> pa.Table:
    return pa.table(
        {
            "from": _emails(random.integers(0, among, count)),
            "to": _emails(random.integers(0, among, count)),
            "weight": pa.array(random.integers(0, 100, count), pa.int32()),
            "since": _days(random, count),
        }
    )


def _emails(numbers: np.ndarray[Any, Any]) -> pa.Array:
    padded = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 9, "0")
    return pc.binary_join_element_wise("user-", padded, "@example.org", "")


def _days(random: np.random.Generator, count: int) -> pa.Array:
    return pa.array(random.integers(0, DAYS, count), pa.int32()).view(pa.date32())


def write_bare(directory: Path, parts: Sequence[Path]) -> float:
    """Stream the physical files of each table into a dataset."""

    def write() -> None:
        for table in TABLES:
            files = [pq.ParquetFile(part / f"{table}-physical.parquet") for part in parts]
            batches = (batch for file in files for batch in file.iter_batches(BATCH_ROWS))
            rows = pa.RecordBatchReader.from_batches(files[0].schema_arrow, batches)
            lance.write_dataset(rows, str(directory / PYLANCE / table), data_storage_version=STORAGE_VERSION)

    return timed(write)


def load_ours(directory: Path, parts: Sequence[Path], system: str) -> float:
    """Load all files in one commit into a fresh graph."""
    uri = str(directory / system)
    files = [part / f"{table}.parquet" for table in TABLES for part in parts]
    with omniray.init(uri, schema=SCHEMA) as graph:
        if system == EMBEDDED:
            return timed(lambda: graph.load(files))
    with serving(system, Place(uri)), omniray.connect(uri) as client:
        return timed(lambda: client.load(files, timeout_s=LOAD_TIMEOUT_S))


def main() -> None:
    parser = argparse.ArgumentParser(description="One step of the bulk benchmark.")
    parser.add_argument("step", choices=["generate", PYLANCE, EMBEDDED, OURS])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--parts", type=int, required=True, help="how many parts to make, or to load")
    parser.add_argument("--part-rows", type=int, default=PART_ROWS)
    args = parser.parse_args()
    if args.step == "generate":
        generate(args.directory, args.parts, args.part_rows)
        print(json.dumps({"parts": args.parts}))
        return
    os.sync()  # data of earlier steps must not be flushed to the disk during this one
    parts = sorted(args.directory.glob("part-*"))[: args.parts]
    with PeakMemory() as memory:
        bare = args.step == PYLANCE
        seconds = write_bare(args.directory, parts) if bare else load_ours(args.directory, parts, args.step)
    shutil.rmtree(args.directory / args.step)
    print(json.dumps({"seconds": seconds, "memory_bytes": memory.peak_bytes}))


if __name__ == "__main__":
    main()
