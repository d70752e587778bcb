"""Bulk load: a million nodes and three million edges from Parquet, beside `lance.write_dataset` of the same tables.

    python -m bench.bulk generate|ours|bare DIRECTORY [--nodes N]      one step, in a process of its own

Plain Lance gets Parquet files of the physical rows, ids included, so that both write the same data; omniray has to
derive the ids of nodes, mint those of edges, and check keys and ends.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import omniray
from bench.measure import (
    Figure,
    Section,
    Spent,
    Target,
    in_fresh_process,
    milliseconds,
    peak_memory_bytes,
    spent,
    times,
)
from omniray.engine.rows.row_ids import mint_ulids

SCHEMA = """\
node Person { email: String @key  city: String  age: I32  score: F64  born: Date }
edge Knows: Person -> Person { weight: I32  since: Date }
"""
NODES = 1_000_000
EDGES_PER_NODE = 3
SEED = 20_240_531
DAYS = 20_000
STORAGE_VERSION = "2.1"
BATCH_ROWS = 65_536
TABLES = ("Person", "Knows")


def bulk(*, quick: bool) -> Section:
    """Load into a fresh graph and write bare tables, in turns, each in a process of its own."""
    nodes = NODES // 500 if quick else NODES
    rounds = 1 if quick else 5
    with TemporaryDirectory(prefix="omniray-bench-") as directory:
        in_fresh_process("bench.bulk", "generate", directory, "--nodes", str(nodes))
        runs = [
            (in_fresh_process("bench.bulk", "ours", directory), in_fresh_process("bench.bulk", "bare", directory))
            for _ in range(rounds)
        ]
    return Section(
        "bulk",
        f"Bulk load, {nodes:,} nodes and {nodes * EDGES_PER_NODE:,} edges from Parquet",
        f"{rounds} rounds in turns, each load in a process of its own, imports aside; times are medians, memory is the "
        "peak. Ours ends when plain Lance readers see the rows too.",
        tuple(_figures(runs)),
    )


def _figures(runs: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[Figure]:
    wall = [median(run[side]["seconds"] for run in runs) for side in (0, 1)]
    cpu = [median(run[side]["cpu_seconds"] for run in runs) for side in (0, 1)]
    memory = [max(run[side]["memory_bytes"] for run in runs) / (1 << 30) for side in (0, 1)]
    ratio = median(ours["seconds"] / bare["seconds"] for ours, bare in runs)
    return [
        Figure("time", milliseconds(wall[0]), milliseconds(wall[1]), ratio, times(2.5)),
        Figure("processor time", milliseconds(cpu[0]), milliseconds(cpu[1]), cpu[0] / cpu[1]),
        Figure("memory", f"{memory[0]:.2f} GiB", f"{memory[1]:.2f} GiB", memory[0], Target(2, unit=" GiB")),
    ]


def generate(directory: Path, nodes: int) -> None:
    """Write the Parquet files: the user's rows, and the same rows as the tables hold them."""
    random = np.random.default_rng(SEED)
    emails = pa.array([f"user-{number:08}@example.org" for number in range(nodes)])
    cities = pa.array([f"City {number}" for number in range(1000)])
    people = pa.table(
        {
            "email": emails,
            "city": cities.take(pa.array(random.integers(0, len(cities), nodes))),
            "age": pa.array(random.integers(0, 100, nodes), pa.int32()),
            "score": pa.array(random.random(nodes)),
            "born": _days(random, nodes),
        }
    )
    edges = nodes * EDGES_PER_NODE
    knows = pa.table(
        {
            "from": emails.take(pa.array(random.integers(0, nodes, edges))),
            "to": emails.take(pa.array(random.integers(0, nodes, edges))),
            "weight": pa.array(random.integers(0, 100, edges), pa.int32()),
            "since": _days(random, edges),
        }
    )
    pq.write_table(people, directory / "Person.parquet")
    pq.write_table(knows, directory / "Knows.parquet")
    pq.write_table(people.add_column(0, "id", emails), _physical(directory, "Person"))
    ends = knows.rename_columns(["src", "dst", "weight", "since"])
    pq.write_table(ends.add_column(0, "id", mint_ulids(edges, timestamp_ms=0)), _physical(directory, "Knows"))


def _days(random: np.random.Generator, count: int) -> pa.Array:
    return pa.array(random.integers(0, DAYS, count), pa.int32()).view(pa.date32())


def _physical(directory: Path, table: str) -> Path:
    return directory / f"{table}-physical.parquet"


def load_ours(directory: Path) -> Spent:
    """Load both files in one commit into a fresh graph, and wait until plain Lance sees it too."""
    with omniray.init(str(directory / "graph"), schema=SCHEMA) as graph:

        def load() -> None:
            graph.load([directory / f"{table}.parquet" for table in TABLES], mode="append")
            graph.flush()

        return spent(load)


def write_bare(directory: Path) -> Spent:
    """Stream both physical files into two Lance datasets."""

    def write() -> None:
        for table in TABLES:
            with pq.ParquetFile(_physical(directory, table)) as file:
                rows = pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches(BATCH_ROWS))
                lance.write_dataset(rows, str(directory / "bare" / table), data_storage_version=STORAGE_VERSION)

    return spent(write)


def main() -> None:
    parser = argparse.ArgumentParser(description="One step of the bulk benchmark.")
    parser.add_argument("step", choices=["generate", "ours", "bare"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--nodes", type=int, default=NODES)
    args = parser.parse_args()
    if args.step == "generate":
        generate(args.directory, args.nodes)
        print(json.dumps({"nodes": args.nodes}))
        return
    os.sync()  # data of earlier steps must not be flushed to the disk during this one
    taken = load_ours(args.directory) if args.step == "ours" else write_bare(args.directory)
    print(json.dumps({**asdict(taken), "memory_bytes": peak_memory_bytes()}))
    shutil.rmtree(args.directory / ("graph" if args.step == "ours" else "bare"))


if __name__ == "__main__":
    main()
