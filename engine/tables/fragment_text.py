"""Staged fragments as text, for a message to another process, and what is checked of them where they arrive."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from lance.fragment import FragmentMetadata

from omniray.engine.base.errors import InputError
from omniray.engine.tables.storage import StagedRows

_FILE = re.compile(r"[A-Za-z0-9_-]{1,128}\.lance")
_ROWS_MAX = 1 << 32
_NOT_OF_NEW_ROWS = (
    "deletion_file", "overlays", "row_id_meta", "created_at_version_meta", "last_updated_at_version_meta"
)  # fmt: skip


def fragment_text(fragment: FragmentMetadata) -> str:
    return json.dumps(fragment.to_json())


def read_fragment(text: str) -> FragmentMetadata:
    """The fragment, if it has nothing but new rows in a data file of its table, which is named without a folder.

    Raises `ValueError` for anything else: a path could lead out of the table.
    """
    try:
        given = json.loads(text)
        fragment = FragmentMetadata.from_json(text)
        is_plain = not any(given.get(name) for name in _NOT_OF_NEW_ROWS)
        paths = [file["path"] for file in given["files"] if file.get("base_id") is None]
        is_bare = len(paths) == len(given["files"]) and all(_FILE.fullmatch(path) for path in paths)
        is_sized = all(isinstance(size := file["file_size_bytes"], int) and size > 0 for file in given["files"])
        rows = given["physical_rows"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        raise ValueError("it is not described as Lance describes a fragment") from error
    if not (is_plain and is_bare and is_sized and len(paths) == 1 and isinstance(rows, int) and 0 < rows < _ROWS_MAX):
        raise ValueError("it must have rows in one data file of its own, named without a folder and with its size")
    return fragment


def read_staged(texts: Sequence[str], rows: int, since_us: int, table_key: str) -> StagedRows:
    """The staged files of a table, each named by its bare name and with nothing in it but new rows."""
    try:
        fragments = tuple(map(read_fragment, texts))
    except ValueError as error:
        raise InputError(f"a staged fragment of {table_key}: {error}") from error
    counted = sum(fragment.physical_rows for fragment in fragments)
    if counted != rows:
        raise InputError(f"the files of {table_key} hold {counted} rows, and {rows} are claimed")
    files = [file.path for fragment in fragments for file in fragment.files]
    if len(set(files)) < len(files):
        raise InputError(f"a staged file of {table_key} is named twice: its rows would be there twice")
    if since_us < 0:
        raise InputError(f"the time of staging can't be negative, got {since_us}")
    return StagedRows(fragments, rows, since_us)
