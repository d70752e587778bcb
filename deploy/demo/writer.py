"""A writer that joins the coordinator of a graph, makes a few commits and tells what it did.

It may be run again and again: the records are merged by their keys.
"""

from __future__ import annotations

import os
import socket
from itertools import pairwise
from typing import Any

import omniray

COMMITS = 10
PEOPLE_PER_COMMIT = 100


def people(batch: int) -> list[dict[str, Any]]:
    """One batch: people, each of whom knows the one before, so that two tables are written in one commit."""
    names = [f"person-{batch:03}-{number:03}" for number in range(PEOPLE_PER_COMMIT)]
    nodes = [{"type": "Person", "data": {"name": name, "age": 20 + batch}} for name in names]
    edges = [{"edge": "Knows", "from": name, "to": before, "data": {}} for before, name in pairwise(names)]
    return [*nodes, *edges]


def main() -> None:
    uri = os.environ["OMNIRAY_URI"]
    with omniray.connect(uri, actor=f"demo@{socket.gethostname()}", tenant="demo", address="auto") as graph:
        for batch in range(COMMITS):
            result = graph.load(people(batch), mode="merge")
            print(f"commit {result.commit_id}: {result.affected_nodes} nodes and {result.affected_edges} edges")
        now = graph.snapshot()
        print(f"{uri} has {now.count('Person')} people who know {now.count('Knows')} others")


if __name__ == "__main__":
    main()
