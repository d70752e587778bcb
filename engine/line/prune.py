"""Pruning: deletes old objects of a line that are folded.

The content of a folded object is in `__manifest`, so a line needs its newest objects only. The others stay for a long
retention because of paused writers: one that resumes after it finds its number free again, puts its object beside the
line, and has to read the line before it believes the put (`line_end.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from omniray.engine.base.failpoints import Point, reach
from omniray.engine.line.commit_log import HINT, CommitLog
from omniray.engine.line.commit_object import SEQ_MAX, CommitObject
from omniray.engine.line.line_end import RETENTION_S
from omniray.engine.store.object_store import ObjectStore, StoredFile

log = logging.getLogger("omniray")

KEEP_OBJECTS = 1024
_BIRTH = 1
_SUFFIX = ".json"


def prune(
    store: ObjectStore,
    commit_log: CommitLog,
    newest: CommitObject,
    finalised_through: int,
    *,
    now_us: int,
    retention_s: float = RETENTION_S,
    keep: int = KEEP_OBJECTS,
) -> int:
    """Delete the objects that are folded, older than the retention and behind the newest `keep`; returns how many.

    The oldest are deleted first, so that after a kill, or with two prunings at once, the line has no gap. Within one
    batch S3 deletes in any order, and a kill may leave objects below a gap. They are harmless: readers come from above
    and stop at the gap, and everything at or below it is folded, which is as far down as readers go. The next pruning
    deletes them. The first object stays, so that no late put can create it again.
    """
    if newest.seq <= keep:
        return 0
    before_us = now_us - int(retention_s * 1e6)

    def prunable(file: StoredFile) -> int | None:
        return _prunable(file, finalised_through, before_us)

    border = newest.seq - keep
    if store.lists_newest_first:  # elsewhere the bisection costs more than the listing: each probe lists the folder
        border = _border(store, commit_log, border, prunable)
    doomed = sorted(seq for file in _files_from(store, commit_log, border) if (seq := prunable(file)) is not None)
    if not doomed:
        return 0
    reach(Point.D_BEFORE_PRUNE)
    _forget_hint_below(store, commit_log, doomed[-1])
    store.delete_all([commit_log.path(seq) for seq in doomed])
    reach(Point.D_AFTER_PRUNE)
    log.info("event=prune branch=%s objects=%d through=%d", commit_log.branch.name, len(doomed), doomed[-1])
    return len(doomed)


def _border(
    store: ObjectStore, commit_log: CommitLog, highest: int, prunable: Callable[[StoredFile], int | None]
) -> int:
    """A number at or above every prunable object up to `highest`, and not far above, with few probes.

    Prunable objects are at the end of the listing, behind all that the retention keeps. The lower a number, the older
    its object, so the border is found by bisection. A paused writer's stray is the exception: while it is young,
    objects above it may be taken for young as well, and are deleted one retention later.
    """
    low, high = _BIRTH, highest
    while low < high:
        middle = (low + high + 1) // 2
        found = next(_files_from(store, commit_log, middle), None)
        seq = None if found is None else _seq_of(found)
        if found is None or seq is None or seq <= _BIRTH or prunable(found) is not None:
            low = middle
        else:
            high = seq - 1
    return low


def _files_from(store: ObjectStore, commit_log: CommitLog, seq: int) -> Iterator[StoredFile]:
    """The files from an object's number downward, as listed (names are inverted), including any that are no object."""
    folder, _, above = commit_log.path(seq + 1).rpartition("/")
    return store.files(folder, after=above)


def _seq_of(file: StoredFile) -> int | None:
    """The number of an object; None for any other file."""
    digits = file.path.rpartition("/")[2].removesuffix(_SUFFIX)
    return SEQ_MAX - int(digits) if len(digits) == 20 and digits.isdigit() else None


def _prunable(file: StoredFile, finalised_through: int, before_us: int) -> int | None:
    """The number of a prunable object; None for any other file."""
    seq = _seq_of(file)
    if seq is None or not (_BIRTH < seq <= finalised_through):
        return None
    return seq if file.modified_us < before_us else None


def _forget_hint_below(store: ObjectStore, commit_log: CommitLog, seq: int) -> None:
    """Delete a hint that a late writer left at a pruned number: a paused writer's stray may come to lie there."""
    if store.lists_newest_first:
        return
    path = f"{commit_log.path(seq).rpartition('/')[0]}/{HINT}"
    hint = store.get(path)
    if hint is not None and hint.isdigit() and int(hint) <= seq:
        store.delete(path)
