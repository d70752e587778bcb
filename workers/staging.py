"""Staging workers: Ray tasks that read, check and stage the parts of a large load in parallel.

A worker is stateless, and only its result counts: a task that dies is run again from its source, since a file can be
read any number of times, and the sweep deletes the data files of the first try.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omniray.engine.base.errors import OmnirayError, StorageError
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.part import StagedPart
from omniray.workers.kept_graphs import kept_open

TRIES_MAX = 4


def staged_parts(
    uri: str,
    storage_options: Mapping[str, str] | None,
    graph_id: str,
    sources: Sequence[str],
    options: LoadOptions,
    since_us: int,
    *,
    type: str | None,
    format: str | None,
) -> Iterator[StagedPart]:
    """Stage each source in its own task, a few at a time; parts come in the order of the sources."""
    import ray

    at_once = 1 + int(ray.cluster_resources().get("CPU", 1))
    task = ray.remote(num_cpus=1, max_retries=TRIES_MAX - 1)(_stage)
    graph = (uri, storage_options, graph_id)
    waiting = deque(sources)
    under_way: deque[Any] = deque()
    while waiting or under_way:
        while waiting and len(under_way) < at_once:
            under_way.append(task.remote(graph, waiting.popleft(), options, since_us, type, format))
        try:
            part = ray.get(under_way.popleft())
        except ray.exceptions.RayError as error:
            raise StorageError(
                f"a staging worker failed {TRIES_MAX} times, and nothing was written: {error}"
            ) from error
        if isinstance(part, OmnirayError):
            raise part
        yield part


def _stage(
    graph: tuple[str, Mapping[str, str] | None, str],
    source: str,
    options: LoadOptions,
    since_us: int,
    type: str | None,
    format: str | None,
) -> StagedPart | OmnirayError:
    """Runs in the worker; omniray's errors are returned, so that they keep their type."""
    try:
        return kept_open(*graph).stage_part(source, options, since_us, type=type, format=format)
    except OmnirayError as error:
        return error
