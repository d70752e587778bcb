"""A staged fragment as text, for a message to another process, and what is checked of it where it arrives."""

from __future__ import annotations

import json
import re

from lance.fragment import FragmentMetadata

_FILE = re.compile(r"[A-Za-z0-9_-]{1,128}\.lance")
_ROWS_MAX = 1 << 32
_NOT_OF_NEW_ROWS = ("deletion_file", "overlays", "row_id_meta")


def fragment_text(fragment: FragmentMetadata) -> str:
    return json.dumps(fragment.to_json())


def read_fragment(text: str) -> FragmentMetadata:
    """The fragment, if it has nothing but new rows in data files of its table, each named without a folder.

    Raises `ValueError` for anything else: a path could lead out of the table.
    """
    try:
        given = json.loads(text)
        fragment = FragmentMetadata.from_json(text)
        is_plain = not any(given.get(name) for name in _NOT_OF_NEW_ROWS)
        paths = [file["path"] for file in given["files"] if file.get("base_id") is None]
        is_bare = len(paths) == len(given["files"]) and all(_FILE.fullmatch(path) for path in paths)
        rows = given["physical_rows"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        raise ValueError("it is not described as Lance describes a fragment") from error
    if not (is_plain and is_bare and paths and isinstance(rows, int) and 0 < rows < _ROWS_MAX):
        raise ValueError("it must have rows, and data files of its own that are named without a folder")
    return fragment
