"""A social graph through the pipeline: are as many rows rejected for each reason as were planted, in one commit?

`python -m bench.social --nodes 2000000 --edges 10000000`
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

import omniray
from bench.social_graph import SCHEMA, SocialGraph
from omniray.spark import run_pipeline, session
from omniray.workers.spark.pipeline.report import Report

DRIVER_MEMORY = "3g"

Row = tuple[str, str, int, int]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--edges", type=int, default=100_000)
    given = parser.parse_args()
    social, console = SocialGraph(given.nodes, given.edges), Console()
    with tempfile.TemporaryDirectory(prefix="omniray-social-") as folder:
        rows = measured(social, Path(folder), console)
    table = Table("type", "what", "planted", "found")
    for type, what, planted, found in rows:
        table.add_row(type, what, f"{planted:,}", f"{found:,}", style="" if planted == found else "red")
    console.print(table)
    return int(any(planted != found for *_, planted, found in rows))


def measured(social: SocialGraph, folder: Path, console: Console) -> list[Row]:
    """Make the sources, run the pipeline, and compare each planted number with the result."""
    spark = session("omniray social", {"spark.driver.memory": DRIVER_MEMORY})
    omniray.init(str(folder / "graph"), schema=SCHEMA).close()
    file = social.write(spark, folder)
    began = time.monotonic()
    report = run_pipeline(file, spark, tell=console.print)
    took_s = time.monotonic() - began
    console.print(f"{social.people + social.acquaintances:,} rows in {took_s:.0f} s")
    return list(compared(social, report, folder / "graph"))


def compared(social: SocialGraph, report: Report, graph_uri: Path) -> Iterator[Row]:
    """Each known number beside the one found, in the report and by a scan of all rows."""
    with omniray.open(str(graph_uri), read_only=True) as graph:
        snapshot, commits = graph.snapshot(), [entry for entry in graph.history() if entry.kind != "Init"]
        for counts in report.types:
            planted = social.planted[counts.type]
            for reason in {**planted, **counts.rejected}:
                yield counts.type, reason, planted.get(reason, 0), counts.rejected.get(reason, 0)
            good = social.good[counts.type]
            yield counts.type, "accepted", good, counts.accepted
            yield counts.type, "committed", good, counts.committed
            yield counts.type, "scanned", good, sum(len(batch) for batch in snapshot.reader(counts.type))
        yield "", "commits", 1, len(commits)


if __name__ == "__main__":
    sys.exit(main())
