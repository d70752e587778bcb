"""Staging workers: Ray tasks that read, check and stage the parts of a large load in parallel, a file each.

A worker is stateless, and only its result counts: a task that dies is run again from its source, since a file can be
read any number of times, and the sweep deletes the data files of the first try.
"""

from __future__ import annotations

import hmac
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from omniray.engine.base.errors import InputError, NotFound, OmnirayError, StorageError
from omniray.engine.rows.source_files import find_file, proof_of
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.part_message import encode_part
from omniray.workers.kept_graphs import kept_open

TRIES_MAX = 4

Staged = TypeVar("Staged")


@dataclass(frozen=True, slots=True)
class FileTerms:
    """A file to stage as a part of a load. `proof`: that whoever asks for it may read it (`proof_of`)."""

    source: str
    proof: str
    options: LoadOptions
    since_us: int
    type: str | None
    format: str | None


def stage_file(
    uri: str, storage_options: Mapping[str, str] | None, graph_id: str, line: str, terms: FileTerms
) -> bytes:
    """Stage a file for a branch in a task of its own; returns the part, or the error of its rows, as a message."""
    branch = (uri, storage_options, graph_id, line)
    (message,) = staged_by_tasks(_stage, [(branch, terms)], at_once=1)
    return message


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


def _stage(branch: tuple[str, Mapping[str, str] | None, str, str], terms: FileTerms) -> bytes:
    """Runs in the worker; omniray's errors are returned, so that they keep their type."""
    try:
        _refuse_unproven(terms)
        staged = kept_open(*branch).stage_part(
            terms.source, terms.options, terms.since_us, type=terms.type, format=terms.format
        )
        return encode_part(staged)
    except OmnirayError as error:
        return encode_part(error)


def _refuse_unproven(terms: FileTerms) -> None:
    """Refuse a file that the client may not read, or that is another one here than where the client is."""
    try:
        file = find_file(terms.source)  # a pipe might keep its reader waiting for ever
        is_proven = file.replayable and hmac.compare_digest(proof_of(file).encode(), terms.proof.encode())
    except InputError as error:
        raise _not_here(terms.source) from error
    if not is_proven:
        raise _not_here(terms.source)


def _not_here(source: str) -> NotFound:
    return NotFound(f"{source} is not there for the staging workers, or is another file there", source=source)
