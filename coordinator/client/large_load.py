"""Has the files of a large load read, checked and staged by the coordinator's workers, each as a part of the load."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from os import PathLike
from typing import Any

from omniray.coordinator.client.link import Link
from omniray.coordinator.door.calls import StageTerms
from omniray.engine.base.errors import NotFound, OmnirayError
from omniray.engine.load_stager import LoadStager
from omniray.engine.rows.source_files import find_file, proof_of
from omniray.engine.schema.types import Schema
from omniray.engine.writes.load import LoadIntent
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.part import Part
from omniray.engine.writes.part_message import decode_part

STAGE_TIMEOUT_S = 3600.0
STAGED_AT_ONCE = 8
WORKERS_BYTES_MIN = 32 << 20


def large_files(source: Any) -> list[str]:
    """The files of a load that workers should stage: several large ones; empty for any other source."""
    if not isinstance(source, list | tuple) or len(source) < 2:
        return []
    if not all(isinstance(one, str | PathLike) for one in source):
        return []
    files = [find_file(one) for one in source]
    is_large = sum(file.size or 0 for file in files) >= WORKERS_BYTES_MIN and all(file.replayable for file in files)
    return [file.path if file.remote else os.path.abspath(file.path) for file in files] if is_large else []


def stage_by_workers(
    files: Sequence[str],
    intent: LoadIntent,
    link: Link,
    stager: LoadStager,
    schema: Schema,
    options: LoadOptions,
    type: str | None,
    format: str | None,
) -> None:
    """Add each file to the load, as a worker has staged it; if that fails, the load is closed."""
    try:
        concerned = [schema.type(type)] if type is not None else list(schema)
        since_us = intent.announce(one.table_key for one in concerned)
        terms = partial(
            StageTerms, mode=options.mode, on_error=options.on_error, since_us=since_us, type=type, format=format
        )

        def stage(file: str) -> Part:
            """A part that a worker stages; a file that is not there for the workers is staged here."""
            asked = terms(file, proof_of(find_file(file)))
            part = decode_part(link.stage(asked, STAGE_TIMEOUT_S), schema)
            if isinstance(part, NotFound) and part.facts.get("source") == file:
                return stager.stage_part(file, options, since_us, type=type, format=format)
            if isinstance(part, OmnirayError):
                raise part
            return part

        asking = ThreadPoolExecutor(STAGED_AT_ONCE, thread_name_prefix="omniray-stage")
        try:
            for part in asking.map(stage, files):
                intent.take_part(part)
        finally:
            asking.shutdown(wait=False)
    except BaseException:
        intent.close(used=False)
        raise
