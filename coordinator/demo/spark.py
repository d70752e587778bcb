"""The demonstration behind `make demo-spark`: a small social graph with bad rows in it goes through the pipeline.

The demo fails if a claim that it prints is false.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import omniray
from omniray.coordinator.demo.narrator import Narrator
from omniray.engine.base.printable import printable
from omniray.spark import run_pipeline, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from omniray.workers.spark.pipeline.report import Report

PEOPLE, ACQUAINTANCES = 2_000, 10_000
SHOWN_ROWS = 8
SETTINGS = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"}
SCHEMA = """\
node Person { name: String @key  age: I32?  role: enum(dev, ops)?  @range(age, 0..150) }
edge Knows: Person -> Person { since: Date?  @unique(src, dst) }
"""
PIPELINE = """\
graph: {uri: graph}
actor: demo
rejects: rejects
sources:
  people: {format: csv, path: people.csv}
  acquaintances: {format: json, path: knows.json}
nodes:
  Person:
    from: people
    columns: {name: full_name, age: age, role: lower(role)}
    clean: [trim, empty-to-null]
    deduplicate: last by updated
edges:
  Knows:
    from: acquaintances
    columns: {from: a, to: b, since: since}
    deduplicate: first by since
"""

# By reason for rejection: a line of people.csv with that fault.
BAD_PEOPLE: Mapping[str, str] = {
    "bad_value": "Old Olaf,very old,dev,1",
    "null": ",33,dev,1",
    "enum": "Boss Bea,50,boss,1",
    "range": "Elder Eve,151,ops,1",
    "duplicate": "person 7,7,dev,0",
}
BAD_ACQUAINTANCES: tuple[tuple[str, dict[str, str]], ...] = (
    ("bad_value", {"a": "person 1", "b": "person 3", "since": "last summer"}),
    ("null", {"b": "person 3", "since": "2020-01-01"}),
    ("orphan", {"a": "person 1", "b": "nobody", "since": "2020-01-01"}),
    ("orphan", {"a": "Elder Eve", "b": "person 1", "since": "2020-01-01"}),
    ("unique", {"a": "person 1", "b": "person 2", "since": "2024-01-01"}),
)


def main() -> None:
    began = time.monotonic()
    tell = Narrator(Console(file=sys.stdout, highlight=False))
    with tempfile.TemporaryDirectory(prefix="omniray-demo-") as name:
        folder = Path(name)
        tell.step("A graph, two sources with bad rows among the good, and a pipeline")
        omniray.init(str(folder / "graph"), schema=SCHEMA).close()
        write_sources(folder)
        tell.console.print(PIPELINE, style="dim", markup=False)
        spark = session("demo of omniray", SETTINGS)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            report = run_and_count(tell, folder, spark)
            show_rejects(tell, folder, spark, report)
            run_again(tell, folder, spark, report)
        finally:
            spark.stop()
    tell.end(time.monotonic() - began)


def write_sources(folder: Path) -> None:
    (folder / "pipeline.yml").write_text(PIPELINE)
    good = [f" person {n} ,{n % 100},{'Dev' if n % 2 else 'OPS'},1" for n in range(PEOPLE)]
    (folder / "people.csv").write_text("\n".join(["full_name,age,role,updated", *good, *BAD_PEOPLE.values()]) + "\n")
    records = [*_acquaintances(), *(record for _, record in BAD_ACQUAINTANCES)]
    (folder / "knows.json").write_text("".join(f"{json.dumps(record)}\n" for record in records))


def _acquaintances() -> Iterator[dict[str, Any]]:
    for n in range(ACQUAINTANCES):
        a, hops = n % PEOPLE, 1 + n // PEOPLE
        yield {"a": f"person {a}", "b": f"person {(a + hops) % PEOPLE}", "since": f"20{10 + hops}-05-31"}


def run_and_count(tell: Narrator, folder: Path, spark: SparkSession) -> Report:
    """Run the pipeline, and compare its counts with the planted faults and with a scan of the graph."""
    tell.step("Run it")
    report = run_pipeline(folder / "pipeline.yml", spark, tell=tell.say)
    people, knows = report.types
    tell.show(
        people.rejected == dict.fromkeys(BAD_PEOPLE, 1),
        f"people rejected by reason, as planted: {dict(people.rejected)}",
    )
    planted = Counter(reason for reason, _ in BAD_ACQUAINTANCES)
    tell.show(knows.rejected == planted, f"acquaintances rejected by reason, as planted: {dict(knows.rejected)}")
    with omniray.open(str(folder / "graph"), read_only=True) as graph:
        snapshot, commits = graph.snapshot(), len(graph.history()) - 1
        scanned = [snapshot.table(one.type).num_rows for one in report.types]
    tell.show(
        scanned == [PEOPLE, ACQUAINTANCES], f"a scan finds all {scanned[0]:,} good people and {scanned[1]:,} edges"
    )
    tell.show(commits == 1, f"all of them in one commit, {report.commit_id}")
    return report


def show_rejects(tell: Narrator, folder: Path, spark: SparkSession, report: Report) -> None:
    tell.step("The table of rejects")
    rejects = spark.read.parquet(str(folder / "rejects"))
    rows = rejects.where(rejects.run_id == report.run_id).orderBy("type", "reason").collect()
    table = Table("type", "reason", "detail", "row", box=box.SIMPLE_HEAD)
    for row in rows[:SHOWN_ROWS]:
        table.add_row(*(escape(printable(row[name])) for name in ("type", "reason", "detail", "row")))
    tell.console.print(table)
    tell.show(len(rows) == sum(report.rejected.values()), f"all {len(rows)} of them, each with its reason")


def run_again(tell: Narrator, folder: Path, spark: SparkSession, report: Report) -> None:
    tell.step("Run it again under the same id")
    again = run_pipeline(folder / "pipeline.yml", spark, run_id=report.run_id)
    tell.say(str(again))
    with omniray.open(str(folder / "graph"), read_only=True) as graph:
        commits = len(graph.history()) - 1
    tell.show(again.repeated and commits == 1, "the same run commits once")


if __name__ == "__main__":
    main()
