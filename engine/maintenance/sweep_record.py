"""The time up to which each table has been swept, so that a sweep costs in proportion to new files only.

A file that survived a sweep of its table was referred to, and still is: versions stay. And a version refers to files
that are older than its manifest, unless they were restored or copied since. So in a table that was swept up to a time,
the next sweep examines only younger files, and reads older manifests only if the younger ones do not refer to all of
those files. The record is only an optimisation: without it, everything is examined.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from omniray.engine.store.object_store import ObjectStore

PATH = "__swept.json"
MARGIN_US = 60 * 10**6  # stores date files by the second, and a large file by the start of its upload


class _Record(msgspec.Struct, frozen=True):
    before_us: dict[str, int]


_read = msgspec.json.Decoder(_Record).decode  # made here, by one thread: see `commit_object.py`


def swept_before(store: ObjectStore) -> Mapping[str, int]:
    """By table: the time before which all files have been examined."""
    data = store.get(PATH)
    if data is None:
        return {}
    try:
        return _read(data).before_us
    except msgspec.DecodeError:
        return {}


def record(store: ObjectStore, before_us: Mapping[str, int]) -> None:
    store.put(PATH, msgspec.json.encode(_Record(dict(before_us))))
