"""ULIDs: the ids of commits, operations, branches and graphs."""

from __future__ import annotations

import re

from ulid import ULID

from omniray.engine.base.errors import InputError

_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")


def new_ulid() -> str:
    """A new ULID with the current time."""
    return str(ULID())


def is_ulid(text: str) -> bool:
    """Whether the text is a ULID in its canonical spelling."""
    return _ULID.fullmatch(text) is not None


def time_us_of(ulid: str) -> int:
    """The time in a ULID, as microseconds since 1970; 0 if the text is no ULID."""
    return ULID.from_str(ulid).milliseconds * 1000 if is_ulid(ulid) else 0


def checked_txn_id(txn_id: str) -> str:
    """The id that a caller gives to a write, in its canonical spelling; raises `InputError` if it is no ULID."""
    canonical = txn_id.upper() if isinstance(txn_id, str) else ""
    if not is_ulid(canonical):
        raise InputError(
            f"invalid txn_id {txn_id!r}: must be a ULID of 26 characters; make one with str(ulid.ULID()), keep it, and "
            "give it again when the same write is tried again"
        )
    return canonical


def checked_commit_id(commit_id: str) -> str:
    """The id of a commit in its canonical spelling; raises `InputError` if it is no ULID."""
    canonical = commit_id.upper() if isinstance(commit_id, str) else ""
    if not is_ulid(canonical):
        raise InputError(f"{commit_id!r} is not a commit id; 'omniray history' shows them")
    return canonical
