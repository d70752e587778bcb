"""The names of branches: texts of users, which never become part of a path."""

from __future__ import annotations

import re

from omniray.engine.base.errors import InputError
from omniray.engine.base.ulids import is_ulid
from omniray.engine.line.branch_id import MAIN

NAME_CHARS_MAX = 128
_NAME = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")


def checked_name(name: str) -> str:
    """The name of a branch to be made, if it may have it."""
    if (reason := _unfit(name)) is not None:
        shown = repr(name)[: NAME_CHARS_MAX + 2]
        raise InputError(f"invalid branch name {shown}: {reason}", branch=shown)
    return name


def _unfit(name: str) -> str | None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return "give letters, digits and . - _, in parts that are joined by /"
    if len(name) > NAME_CHARS_MAX:
        return f"it has {len(name)} characters, and at most {NAME_CHARS_MAX} are allowed"
    if is_ulid(name.upper()):
        return "it has the form of an id, and would be taken for that of a commit"
    if name == MAIN:
        return "every graph has its main branch"
    if ".." in name or any(part.endswith(".lock") for part in name.split("/")):
        return "it may not contain '..', and no part of it may end in '.lock'"
    return None
