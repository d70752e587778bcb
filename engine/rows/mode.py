"""The mode of a write: append, merge or overwrite."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """How the rows of a write are combined with the existing rows of a table."""

    APPEND = "append"
    MERGE = "merge"
    OVERWRITE = "overwrite"
    DELETE = "delete"
