"""A staged fragment as Lance describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

FRAGMENT: Mapping[str, Any] = {
    "id": 0,
    "files": [
        {"path": "a.lance", "fields": [0], "column_indices": [0], "file_major_version": 2, "file_minor_version": 2,
         "file_size_bytes": 10, "base_id": None}
    ],
    "physical_rows": 2,
    "deletion_file": None,
    "row_id_meta": None,
}  # fmt: skip


def fragment_json(fragment: Mapping[str, Any]) -> str:
    return msgspec.json.encode(fragment).decode()
