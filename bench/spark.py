"""The Spark benchmark: writes a frame to a graph, beside the same frame as Parquet, in the same run.

    python -m bench.spark [--rows N] [--rounds N] [--json PATH]

Every key is checked to be new and every constraint to hold. It always exits with 0: read the verdicts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.console import Console

import omniray
from bench.cluster import DOWN_TIMEOUT_S
from bench.measure import Figure, Section, in_fresh_process, milliseconds, print_section, timed, times, write_json
from bench.peers.goals import times_at_least
from bench.peers.memory import PeakMemory
from omniray.coordinator.actors.cluster import LOCAL
from omniray.coordinator.actors.hosting import host
from omniray.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = """node Person {
    email: String @key
    city: String
    age: I32
    score: F64
    born: Date
    @range(age, 0..150)
}"""
SETTINGS = {"spark.master": "local[2]", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
FIRST = {"type": "Person", "data": {"email": "first", "city": "", "age": 0, "score": 0.0, "born": "1970-01-01"}}
WARM_ROWS = 100_000
FLAT_TIMES = 1.1
LOOK_EVERY_S = 0.03  # the peak is in the commit, which takes a third of a second for few rows
WIDTH_MIN = 120


def people(spark: SparkSession, rows: int) -> DataFrame:
    """Rows that Spark generates while it writes them."""
    return spark.range(rows, numPartitions=max(2, rows // 1_000_000)).selectExpr(
        "concat('user-', lpad(id, 9, '0'), '@example.org') as email",
        "concat('City ', id % 1000) as city",
        "cast(id % 100 as int) as age",
        "id / 7 as score",
        "date_add(date'1970-01-01', cast(id % 18000 as int)) as born",
    )


class Arena:
    """A session, and a fresh target for each write: a folder, or a table of a graph that a coordinator serves."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark, self._directory = spark, directory
        self._count = 0

    def parquet(self, rows: int) -> float:
        frame, path = people(self._spark, rows), self._fresh()
        return timed(lambda: frame.write.parquet(str(path)))

    def direct(self, rows: int) -> float:
        frame, path = people(self._spark, rows), self._fresh()
        omniray.init(path, schema=SCHEMA).close()
        writer = frame.write.format("omniray").options(uri=str(path), type="Person").mode("append")
        return timed(writer.save)

    def handoff(self, client: omniray.Client, type_name: str, rows: int) -> float:
        from omniray.spark import to_ray

        frame = people(self._spark, rows)
        client.load([{**FIRST, "type": type_name}])  # the first write starts processes, which is not timed
        return timed(lambda: to_ray(frame, client, type_name))

    @contextmanager
    def served(self, types: int) -> Iterator[tuple[omniray.Client, list[str]]]:
        """A graph with `types` tables and a coordinator, on a Ray of this process; yields client and type names."""
        path, names = self._fresh(), [f"Person{number}" for number in range(types)]
        with omniray.init(path, schema="\n".join(SCHEMA.replace("Person", name) for name in names)) as graph:
            hosted = host(graph, str(path), None, LOCAL)
        with omniray.connect(path) as client:
            yield client, names
        hosted.down(DOWN_TIMEOUT_S)

    def _fresh(self) -> Path:
        self._count += 1
        return self._directory / f"place-{self._count}"


def rates(rows: int, rounds: int) -> Section:
    """Time the three ways to write in turns, by medians, after small writes that are not counted.

    The small writes start the Python workers: those of Spark, and those on Ray at a process's first handoff.
    """
    with TemporaryDirectory(prefix="omniray-bench-") as directory:
        arena = Arena(session("omniray-bench", SETTINGS), Path(directory))
        for way in (arena.parquet, arena.direct):
            way(WARM_ROWS)
        with arena.served(rounds + 2) as (client, types):
            first, second = (arena.handoff(client, type_name, WARM_ROWS) for type_name in types[:2])
            taken = [
                (arena.parquet(rows), arena.direct(rows), arena.handoff(client, type_name, rows))
                for type_name in types[2:]
            ]
    parquet, direct, handoff = (median(column) for column in zip(*taken, strict=True))
    return Section(
        "rates",
        f"{rows:,} rows of 5 columns in one commit, keys and constraints checked",
        f"Two cores for everything; medians of {rounds} rounds, in turns. The handoff finds coordinator and workers "
        f"started; the first one of a process starts them, which took {first - second:.1f} s more.",
        (
            Figure(
                "direct, beside Parquet",
                milliseconds(direct),
                milliseconds(parquet),
                parquet / direct,
                times_at_least(0.5),
            ),
            Figure(
                "handoff, beside direct",
                milliseconds(handoff),
                milliseconds(direct),
                direct / handoff,
                times_at_least(0.8),
            ),
        ),
    )


def memory(rows: int, rounds: int) -> Section:
    """The peak memory of a write of ten times the rows, beside that of one time; medians, since Java's varies."""
    held = [[_held_bytes(count) for count in (rows, 10 * rows)] for _ in range(rounds)]
    small, large = (median(column) for column in zip(*held, strict=True))

    def gibibytes(held: float) -> str:
        return f"{held / (1 << 30):.2f} GiB"

    figure = Figure("memory", gibibytes(large), gibibytes(small), large / small, times(FLAT_TIMES))
    return Section(
        "memory",
        f"Memory of a direct write of {10 * rows:,} rows, beside {rows:,}",
        "The peak over the driver, its JVM and its workers, what they share counted once; medians of "
        f"{rounds} processes each.",
        (figure,),
    )


def _held_bytes(rows: int) -> int:
    return int(in_fresh_process("bench.spark", "--held", str(rows))["held_bytes"])


def held(rows: int) -> dict[str, Any]:
    """The peak memory of one write, measured in this process, which is started for it."""
    with TemporaryDirectory(prefix="omniray-bench-") as directory:
        arena = Arena(session("omniray-bench", {**SETTINGS, "spark.driver.memory": "1g"}), Path(directory))
        arena.direct(WARM_ROWS)
        with PeakMemory(LOOK_EVERY_S) as memory:
            seconds = arena.direct(rows)
        return {"seconds": seconds, "held_bytes": memory.peak_bytes}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Frames into a graph, beside Spark's own Parquet.")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there, too")
    parser.add_argument("--held", type=int, metavar="ROWS", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.held is not None:
        print(json.dumps(held(args.held)))
        return
    console = Console()
    if console.width < WIDTH_MIN:
        console = Console(width=WIDTH_MIN)
    done = [rates(args.rows, args.rounds), memory(args.rows // 5, args.rounds)]
    for section in done:
        print_section(console, section)
    if args.json is not None:
        write_json(args.json, done)


if __name__ == "__main__":
    main()
