"""Names read from storage that become parts of paths: a path made of them lies below the graph.

Every writer of the storage can choose these texts, and a reader joins them to paths that it reads, copies and deletes.
They are types of the stored values, so they are checked where an object is decoded, and nowhere else. What is allowed
is a list, because stores read paths by rules of their own: for some `%2e%2e` or a backslash leads out, too.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from msgspec import Meta

NAME_CHARS_MAX = 128
PATH_CHARS_MAX = 512
_SEGMENT = r"[A-Za-z0-9_-][A-Za-z0-9_.-]*"
_NAME = r"\A[A-Za-z0-9_-]*\Z"

StoredPath: TypeAlias = Annotated[str, Meta(pattern=rf"\A{_SEGMENT}(?:/{_SEGMENT})*\Z", max_length=PATH_CHARS_MAX)]
"""A path below the graph: neither absolute nor empty, and no segment of it is empty or begins with a dot."""

StoredName: TypeAlias = Annotated[str, Meta(pattern=_NAME, max_length=NAME_CHARS_MAX)]
"""One segment of a path, or a part of one; empty where there is none."""

StoredVersion: TypeAlias = Annotated[int, Meta(ge=0)]
"""A number that is part of a file's name."""


def is_stored_name(text: str) -> bool:
    """Whether a text of another writer can be stored as a `StoredName`."""
    return len(text) <= NAME_CHARS_MAX and re.match(_NAME, text) is not None
