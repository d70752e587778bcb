"""Branches of graphs that a worker keeps open between tasks, since opening one takes longer than most tasks.

A worker may outlive a graph: a graph that was deleted and created anew at the same place is another one, perhaps with
another schema, and has another id. So every task names the id of its graph. Likewise a branch is named by its ULID.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from omniray.engine.base.errors import BranchGone, GraphGone
from omniray.engine.line.graph_identity import refuse_gone
from omniray.engine.store.open_store import open_store
from omniray.workers.graphs import IdentifiedGraph

if TYPE_CHECKING:
    from omniray.engine.load_stager import LoadStager
    from omniray.engine.reading.snapshot import Snapshot

BRANCHES_MAX = 8


def kept_open(uri: str, storage_options: Mapping[str, str] | None, graph_id: str, line: str = "") -> LoadStager:
    """A branch of the graph, main if no line is given; concurrent callers wait while it is being opened."""
    with _opening:
        return _opened(uri, tuple(sorted((storage_options or {}).items())), graph_id, line or graph_id)


def check_same(graph: IdentifiedGraph, graph_id: str) -> None:
    """Refuse a graph other than the one that a task was begun for."""
    if graph.graph_id != graph_id:
        raise GraphGone(
            f"the graph at {graph.uri} was deleted and created anew since this write began; nothing was written: "
            "begin it again",
            uri=graph.uri, graph_id=graph_id, found=graph.graph_id,
        )  # fmt: skip


def check_same_branch(found: Snapshot, line: str) -> None:
    """Refuse a branch other than the one that a task was begun for, which had its name then."""
    if found.line != line:
        raise BranchGone(
            f"the branch {found.branch!r} was deleted and created anew since this write began; nothing was written: "
            "begin it again",
            branch=found.branch, line=line, found=found.line,
        )  # fmt: skip


_opening = threading.Lock()


@lru_cache(maxsize=BRANCHES_MAX)
def _opened(uri: str, storage_options: tuple[tuple[str, str], ...], graph_id: str, line: str) -> LoadStager:
    from omniray.engine.history.open_branch import open_line  # imports Lance, which must not be loaded before a fork
    from omniray.engine.load_stager import LoadStager

    store = open_store(uri, dict(storage_options) or None)
    refuse_gone(store, graph_id)
    return LoadStager(open_line(store, line))
