"""The handoff to Ray: workers on Ray, which have the credentials of the store, check and stage Spark's rows.

There are two ways. By Flight, Spark tasks stream their rows to servers in Ray actors, and the result of each task is
the part that was staged: Spark passes on the result of one successful try of each partition, so that the files of other
tries never count. By files, Spark writes Parquet to shared storage, and Ray tasks stage one file each: slower to start,
but the work of a dead worker is repeated from its file, without Spark.

Either way, the driver commits all parts as one write with one id.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from omniray.engine.base.errors import InputError, OutcomeUnknown, StorageError, Unreachable
from omniray.engine.writes.options import LoadOptions
from omniray.workers.flight_client import Route, first_line
from omniray.workers.graphs import ServedGraph
from omniray.workers.spark.commit import commit_on
from omniray.workers.spark.handoff_crew import CREW, START_TIMEOUT_S, all_counted
from omniray.workers.spark.handoff_task import RESULT, hand_over_partition
from omniray.workers.spark.handoff_workers import Seal, stage_file
from omniray.workers.spark.own_errors import own_errors
from omniray.workers.spark.stage import Ticket, begin_on
from omniray.workers.staging import staged_by_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from omniray.engine.judge.resolution import WriteResult

log = logging.getLogger("omniray")

Commit = Callable[[Iterable[bytes]], "WriteResult"]
"""Commits parts as one write."""

FLIGHT, FILES = "flight", "files"
SERVERS_PER_NODE = 2
CORES_PER_SERVER = 2
SERVERS_MAX = 16
STREAM_TIMEOUT_S = 3600.0


def to_ray(
    df: DataFrame,
    graph: ServedGraph,
    type: str,
    *,
    branch: str | None = None,
    mode: str = "append",
    txn_id: str | None = None,
    via: str = FLIGHT,
    shared_path: str | None = None,
    actor: str | None = None,
    tenant: str | None = None,
    timeout_s: float = STREAM_TIMEOUT_S,
) -> WriteResult:
    """Stage the rows of a frame on a Ray cluster, and commit them in one atomic commit.

    The cluster is the one that this process has joined, else the one at the `address` that was given to `connect`.
    Spark's hosts need neither Ray nor credentials of the store: only this process has both. `via="flight"` streams the
    rows, and each partition may take `timeout_s`; `via="files"` first writes them to `shared_path`, which both can
    reach. `txn_id`: a ULID that makes the write safe to repeat, as in `load`.
    """
    from omniray.workers.spark.types import check_frame

    _refuse_options(graph, via, shared_path, timeout_s)
    options = LoadOptions.checked(mode, "fail", None)
    ticket, schema = begin_on(graph, branch, graph.written_by(actor, tenant), options.mode, txn_id)
    check_frame(df.schema, schema.type(type))
    commit = partial(commit_on, graph, ticket, [type])
    if txn_id is not None and _is_committed(graph, ticket):
        return commit([])  # returns its first outcome
    graph.join_ray()
    if shared_path is None:
        return _by_flight(df, ticket, type, timeout_s, commit)
    return _by_files(df, ticket, type, shared_path, commit)


def _refuse_options(graph: object, via: str, shared_path: str | None, timeout_s: float) -> None:
    if not isinstance(graph, ServedGraph):
        raise InputError("a handoff is committed by a coordinator: connect to it with omniray.connect(uri)")
    if via not in (FLIGHT, FILES):
        raise InputError(f"invalid via {via!r}: use {FLIGHT!r} or {FILES!r}")
    if (via == FILES) != (shared_path is not None):
        raise InputError(f"shared_path is where via={FILES!r} writes its files: give both or neither")
    if not timeout_s > 0:
        raise InputError(f"timeout_s is {timeout_s}: give seconds, more than 0")


def _is_committed(graph: ServedGraph, ticket: Ticket) -> bool:
    with suppress(OutcomeUnknown):
        return graph.outcome(ticket.txn_id, branch=ticket.target.branch).committed
    return False


# By Flight


def _by_flight(df: DataFrame, ticket: Ticket, type: str, timeout_s: float, commit: Commit) -> WriteResult:
    token, seal = secrets.token_urlsafe(), Seal(secrets.token_bytes())
    used, count = _servers()
    with CREW.hired(count) as workers:
        locations = _locations(workers, ticket, token, seal, used)
        route = Route(ticket.txn_id, locations[:used], token, timeout_s, locations[used:])
        task = partial(hand_over_partition, route, type)
        with own_errors():
            rows = df.mapInArrow(task, RESULT).collect()
        # Committed while the servers live: their staged files must not be swept as those of dead writers.
        result = commit(one_part_each((row.partition, seal.opened(bytes(row.part))) for row in rows))
        if not all_counted(workers, len(rows)):
            workers.clear()
        return result


def _servers() -> tuple[int, int]:
    """How many staging servers to use on the nodes of the cluster, and how many to start, with spares.

    With more servers than the processors can feed, their preparation would slow down the staging. But if the only
    server dies, there must be a spare.
    """
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    count = min(SERVERS_PER_NODE * len(nodes), SERVERS_MAX)
    cores = sum(node["Resources"].get("CPU", 0) for node in nodes)
    used = max(1, min(count, int(cores) // CORES_PER_SERVER))
    return used, count


def _locations(workers: Sequence[Any], ticket: Ticket, token: str, seal: Seal, used: int) -> tuple[str, ...]:
    import ray

    serving = [worker.serve.remote(ticket, token, seal, spare=number >= used) for number, worker in enumerate(workers)]
    try:
        return tuple(ray.get(serving, timeout=START_TIMEOUT_S))
    except ray.exceptions.RayError as error:
        raise Unreachable(f"a staging server on Ray failed; nothing was written: {first_line(error)}") from error


def one_part_each(handed: Iterable[tuple[int, bytes]]) -> list[bytes]:
    """The parts in partition order; raises if a partition has two, which would double its rows."""
    parts: dict[int, bytes] = {}
    for partition, part in handed:
        if partition in parts:
            raise StorageError(f"Spark gave two results for partition {partition}; nothing was written: try again")
        parts[partition] = part
    return [part for _, part in sorted(parts.items())]


# By files


def _by_files(df: DataFrame, ticket: Ticket, type: str, shared_path: str, commit: Commit) -> WriteResult:
    """Hand over by files. Each try has a folder of its own; after a success the folders of all tries are deleted."""
    import fsspec

    write_folder = f"{shared_path.rstrip('/')}/omniray-handoff-{ticket.txn_id}"
    folder = f"{write_folder}/{secrets.token_hex(8)}"
    df.write.parquet(folder)
    result = commit(_staged_files(ticket, type, folder))
    files, path = fsspec.core.url_to_fs(write_folder)
    try:
        files.rm(path, recursive=True)
    except OSError as error:  # the write has landed, and the files are not needed any more
        log.warning("event=handoff_files_kept folder=%s error=%s", write_folder, error)
    return result


def _staged_files(ticket: Ticket, type: str, folder: str) -> list[bytes]:
    each = [(ticket, type, path) for path in _written(folder)]
    # The store may fail for a while, and a file can be read any number of times.
    return list(staged_by_tasks(stage_file, each, at_once=len(each), retry_errors=True))


def _written(folder: str) -> list[str]:
    """The files of a folder that Spark has committed; Spark writes one for a frame without rows, too."""
    import fsspec

    files, path = fsspec.core.url_to_fs(folder)
    names = sorted(name for name in files.ls(path, detail=False) if _is_data(name.rpartition("/")[2]))
    if not names:
        raise StorageError(f"Spark wrote no Parquet file to {folder}; nothing was written: look at its settings")
    return [files.unstrip_protocol(name) for name in names]


def _is_data(name: str) -> bool:
    return name.endswith(".parquet") and not name.startswith(("_", "."))
