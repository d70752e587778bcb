"""Staging workers: Ray tasks that read, check and stage the parts of a large load in parallel, a file each.

A worker is stateless, and only its result counts: a task that dies is run again from its source, since a file can be
read any number of times, and the sweep deletes the data files of the first try.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from omniray.engine.base.errors import OmnirayError, StorageError
from omniray.engine.schema.types import Schema
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.part import Part
from omniray.engine.writes.part_message import decode_part, encode_part
from omniray.workers.kept_graphs import kept_open

TRIES_MAX = 4

Staged = TypeVar("Staged")


def staged_parts(
    schema: Schema,
    uri: str,
    storage_options: Mapping[str, str] | None,
    graph_id: str,
    sources: Sequence[str],
    options: LoadOptions,
    since_us: int,
    *,
    type: str | None,
    format: str | None,
) -> Iterator[Part]:
    """Stage each source in its own task, a few at a time; parts come in the order of the sources."""
    import ray

    at_once = 1 + int(ray.cluster_resources().get("CPU", 1))
    graph = (uri, storage_options, graph_id)
    each = [(graph, source, options, since_us, type, format) for source in sources]
    for message in staged_by_tasks(_stage, each, at_once=at_once):
        part = decode_part(message, schema)
        if isinstance(part, OmnirayError):
            raise part
        yield part


def staged_by_tasks(
    stage: Callable[..., Staged], each: Sequence[tuple[Any, ...]], *, at_once: int, retry_errors: bool = False
) -> Iterator[Staged]:
    """Stage with each of the arguments in a Ray task of its own; results come in their order.

    A task whose worker dies is run again, and with `retry_errors` one that raises, too.
    """
    import ray

    task = ray.remote(num_cpus=1, max_retries=TRIES_MAX - 1, retry_exceptions=retry_errors)(stage)
    waiting = deque(each)
    under_way: deque[Any] = deque()
    while waiting or under_way:
        while waiting and len(under_way) < at_once:
            under_way.append(task.remote(*waiting.popleft()))
        try:
            staged: Staged = ray.get(under_way.popleft())
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", error)
            if isinstance(cause, OmnirayError):
                raise cause from error
            raise StorageError(f"a staging worker failed {TRIES_MAX} times; nothing was written: {cause}") from error
        yield staged


def _stage(
    graph: tuple[str, Mapping[str, str] | None, str],
    source: str,
    options: LoadOptions,
    since_us: int,
    type: str | None,
    format: str | None,
) -> bytes:
    """Runs in the worker; omniray's errors are returned, so that they keep their type."""
    try:
        return encode_part(kept_open(*graph).stage_part(source, options, since_us, type=type, format=format))
    except OmnirayError as error:
        return encode_part(error)
