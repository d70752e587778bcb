"""Graphs that a worker keeps open from one piece of work to the next, since opening one takes longer than most of them.

A worker may outlive a graph: one that was deleted and created anew at the same place is another graph, with another
schema perhaps, and is known by its id. So whoever has work done says which graph it is for.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from omniray.engine.base.errors import InputError
from omniray.engine.store.open_store import open_store
from omniray.workers.graphs import IdentifiedGraph

if TYPE_CHECKING:
    from omniray.engine.graph import Graph

GRAPHS_MAX = 4


def kept_open(uri: str, storage_options: Mapping[str, str] | None, graph_id: str) -> Graph:
    """The graph, to read and to stage for; who comes while it is being opened waits, and does not open it again."""
    with _opening:
        return _opened(uri, tuple(sorted((storage_options or {}).items())), graph_id)


def check_same(graph: IdentifiedGraph, graph_id: str) -> None:
    """Refuse a graph that is not the one that some work was begun for."""
    if graph.graph_id != graph_id:
        raise InputError(
            f"the graph at {graph.uri} was deleted and created anew since this write began; nothing was written: "
            "begin it again",
            expected=graph_id, found=graph.graph_id,
        )  # fmt: skip


_opening = threading.Lock()


@lru_cache(maxsize=GRAPHS_MAX)
def _opened(uri: str, storage_options: tuple[tuple[str, str], ...], graph_id: str) -> Graph:
    from omniray.engine.graph import Graph  # and with it Lance, which whoever forks must not have

    graph = Graph(open_store(uri, dict(storage_options) or None), read_only=True)
    check_same(graph, graph_id)
    return graph
