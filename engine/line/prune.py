"""Pruning: old objects of a line are deleted once nobody needs them.

What an object said is in `__manifest` once it is folded, so a line needs its newest objects only. The others stay for a
long retention all the same, because of writers that sleep: one that wakes after it finds its number free again, puts
its object beside the line, and has to read the line before it believes that (`line_end.py`).
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
    """Delete the objects that are folded, older than the retention and behind the newest `keep`; says how many.

    The oldest go first, so that whoever is killed here leaves a line without a hole, and two who prune at once do too.
    Within one batch S3 deletes in an order of its own, and a kill may leave objects below a hole. They mislead nobody:
    readers come from above and stop at the hole, and everything at or below it is folded, which is as far down as
    anybody reads. The next pruning lists and deletes them. The first object stays, so that nobody who comes late puts
    it again.
    """
    if newest.seq <= keep:
        return 0
    before_us = now_us - int(retention_s * 1e6)

    def prunable(file: StoredFile) -> int | None:
        return _prunable(file, finalised_through, before_us)

    border = newest.seq - keep
    if store.lists_newest_first:  # elsewhere the bisection costs more than the listing: each look lists the folder
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
    """A number at or above every object up to `highest` that may go, and not far above; a few looks find it.

    What may go is at the end of the listing, behind all that is kept for the retention. The lower a number, the older
    its object, so the border is found by halving. A sleeper's stray is the exception: while it is young, what lies
    above it may be taken for young as well, and goes a retention later.
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
    """The object of a number, those below it and what is no object, as they are listed: names are inverted."""
    folder, _, above = commit_log.path(seq + 1).rpartition("/")
    return store.files(folder, after=above)


def _seq_of(file: StoredFile) -> int | None:
    """The number of an object; None for what is no object."""
    digits = file.path.rpartition("/")[2].removesuffix(_SUFFIX)
    return SEQ_MAX - int(digits) if len(digits) == 20 and digits.isdigit() else None


def _prunable(file: StoredFile, finalised_through: int, before_us: int) -> int | None:
    """The number of an object that may go; None for one that stays, and for what is no object."""
    seq = _seq_of(file)
    if seq is None or not (_BIRTH < seq <= finalised_through):
        return None
    return seq if file.modified_us < before_us else None


def _forget_hint_below(store: ObjectStore, commit_log: CommitLog, seq: int) -> None:
    """Delete a hint that a writer left long after its time: a sleeper's stray may come to lie where it points."""
    if store.lists_newest_first:
        return
    path = f"{commit_log.path(seq).rpartition('/')[0]}/{HINT}"
    hint = store.get(path)
    if hint is not None and hint.isdigit() and int(hint) <= seq:
        store.delete(path)
