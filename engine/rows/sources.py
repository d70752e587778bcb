"""All sources of a load behind one `Source`.

Paths of JSONL, Parquet and CSV files, Arrow tables, batches and readers, pandas frames, dicts (a list, or any iterable
of them), lists of all these, and mappings of types to all these. A source is a stream of `Block`s and holds one of them
at a time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import PurePath
from typing import Any

import pyarrow as pa

from omniray.engine.base.errors import InputError
from omniray.engine.rows.records import Block, Progress, ReadBlocks
from omniray.engine.rows.source_arrow import arrow_blocks, pandas_blocks
from omniray.engine.rows.source_csv import csv_blocks
from omniray.engine.rows.source_files import SourceFile, find_file
from omniray.engine.rows.source_json import dict_blocks, jsonl_blocks
from omniray.engine.rows.source_parquet import parquet_blocks
from omniray.engine.schema.types import ElementType, Schema

_FORMAT_OF_SUFFIX: Mapping[str, str] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
_FORMATS = ("jsonl", "csv", "parquet")


class Source:
    """A stream of blocks; each iteration starts at the beginning if it is `replayable`."""

    def __init__(self, name: str, read: ReadBlocks, *, replayable: bool, bytes_total: int | None = None) -> None:
        self.name = name
        self.replayable = replayable
        self.bytes_total = bytes_total
        self._read = read
        self._progress: Progress | None = None

    @property
    def bytes_done(self) -> int:
        return self._progress.bytes_done if self._progress else 0

    def __iter__(self) -> Iterator[Block]:
        if self._progress is not None and not self.replayable:
            raise InputError("the source is a stream that has been read already; load it from a list or a file instead")
        self._progress = Progress(bytes_total=self.bytes_total)
        return iter(self._read(self._progress))


def open_source(source: Any, schema: Schema, *, type_name: str | None = None, format: str | None = None) -> Source:
    """Open a source of any supported kind.

    `type_name` is the type of rows that don't name one; `format` overrides a file's suffix.
    """
    type = schema.type(type_name) if type_name is not None else None
    if isinstance(source, str | os.PathLike):
        return _open_file(find_file(source), schema, type, format)
    if isinstance(source, pa.Table | pa.RecordBatch):
        of = _needed(type, schema, "an Arrow table")
        batches = source.to_batches() if isinstance(source, pa.Table) else [source]
        return Source("", partial(arrow_blocks, batches, source.schema, of), replayable=True, bytes_total=source.nbytes)
    if (pandas := sys.modules.get("pandas")) and isinstance(source, pandas.DataFrame):
        return Source("", partial(pandas_blocks, source, _needed(type, schema, "a pandas frame")), replayable=True)
    if isinstance(source, pa.RecordBatchReader) or hasattr(source, "__arrow_c_stream__"):
        of, reader = _needed(type, schema, "an Arrow stream"), pa.RecordBatchReader.from_stream(source)
        return Source("", partial(arrow_blocks, reader, reader.schema, of), replayable=False)
    if isinstance(source, list | tuple) and not all(isinstance(item, Mapping) for item in source):
        return _several([open_source(item, schema, type_name=type_name, format=format) for item in source])
    if isinstance(source, Mapping):
        return _several(
            [open_source(of, schema, type_name=name, format=format) for name, of in _by_type(source, schema, type)]
        )
    if isinstance(source, Iterable) and not isinstance(source, bytes):
        replayable = not isinstance(source, Iterator)
        return Source("", partial(dict_blocks, source, schema, type), replayable=replayable)
    kinds = "a path, an Arrow table or reader, a pandas frame, dicts, a list of these, or a mapping of types to these"
    raise InputError(f"can't load from {source.__class__.__name__}; give {kinds}")


def _by_type(source: Mapping[str, Any], schema: Schema, type: ElementType | None) -> Iterable[tuple[str, Any]]:
    """The sources of a mapping, by type; a single record passed by mistake is recognised by its keys."""
    names = [element.name for element in schema]
    strange = next((name for name in source if name not in names), None)
    if strange is not None:
        raise InputError(
            f"can't load from this mapping: it gives rows by type, and {strange!r} is none of {', '.join(names)}; "
            "put a single record into a list"
        )
    if type is not None:
        raise InputError(f"a mapping gives rows by type: leave out type={type.name!r} (--type), or give its rows alone")
    return source.items()


def _open_file(file: SourceFile, schema: Schema, type: ElementType | None, format: str | None) -> Source:
    path = PurePath(file.path)
    format = format or _FORMAT_OF_SUFFIX.get(path.suffix.lower())
    if format not in _FORMATS:
        hint = "name it .jsonl, .csv or .parquet, or say it with format= (--format)"
        problem = "can't tell its format" if format is None else f"invalid format {format!r}"
        raise InputError(f"{file.name}: {problem}; {hint}", source=file.name)
    if format == "jsonl":
        read: ReadBlocks = partial(jsonl_blocks, file, schema, type)
    else:
        named = next((t for t in schema if t.name == path.stem), None)
        blocks = csv_blocks if format == "csv" else parquet_blocks
        hint = f", or name the file after it, such as {next(iter(schema)).name}.{format}"
        read = partial(blocks, file, type or named or _needed(None, schema, file.name, hint))
    return Source(file.name, read, replayable=file.replayable, bytes_total=file.size)


def _needed(type: ElementType | None, schema: Schema, what: str, hint: str = "") -> ElementType:
    if type is None:
        names = ", ".join(t.name for t in schema)
        raise InputError(f"{what} holds rows of one type: say which one ({names}) with type= (--type){hint}")
    return type


def _several(sources: list[Source]) -> Source:
    """The sources one after the other. Records are numbered within each, under its own name."""
    sizes = [source.bytes_total for source in sources]
    total = sum(size for size in sizes if size is not None) if None not in sizes else None

    def read(progress: Progress) -> Iterator[Block]:
        before = 0
        for source in sources:
            for block in source:
                progress.bytes_done = before + source.bytes_done
                yield block
            before += source.bytes_done

    name = ", ".join(source.name for source in sources if source.name)
    return Source(name, read, replayable=all(source.replayable for source in sources), bytes_total=total)
