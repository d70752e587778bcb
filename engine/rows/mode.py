"""What a write means to do to the tables it touches."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """How the rows of a write meet the rows that a table has already."""

    APPEND = "append"
    MERGE = "merge"
    OVERWRITE = "overwrite"
    DELETE = "delete"
