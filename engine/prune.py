"""Pruning: old objects of a line are deleted once nobody needs them.

What an object said is in `__manifest` once it is folded, so a line needs its newest objects only. The others stay for a
long retention all the same, because of writers that sleep: one that wakes after it finds its number free again, puts
its object beside the line, and has to read the line before it believes that (`tip.py`).
"""

from __future__ import annotations

import logging

from omniray.engine.commit_log import HINT, CommitLog
from omniray.engine.failpoints import Point, reach
from omniray.engine.line import SEQ_MAX, CommitObject
from omniray.engine.store import ObjectStore, StoredFile
from omniray.engine.tip import RETENTION_S

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
    anybody reads. The next pruning lists and deletes them. The first object stays: it has the schema of the birth.
    """
    if newest.seq <= keep:
        return 0
    folder, _, oldest_kept = commit_log.path(newest.seq - keep + 1).rpartition("/")
    before_us = now_us - int(retention_s * 1e6)
    listed = store.files(folder, after=oldest_kept)  # names are inverted: older objects come later
    doomed = sorted(seq for file in listed if (seq := _prunable(file, finalised_through, before_us)) is not None)
    if not doomed:
        return 0
    reach(Point.D_BEFORE_PRUNE)
    _forget_hint_below(store, folder, doomed[-1])
    store.delete_all([commit_log.path(seq) for seq in doomed])
    reach(Point.D_AFTER_PRUNE)
    log.info("event=prune branch=%s objects=%d through=%d", commit_log.branch.name, len(doomed), doomed[-1])
    return len(doomed)


def _prunable(file: StoredFile, finalised_through: int, before_us: int) -> int | None:
    """The number of an object that may go; None for one that stays, and for what is no object."""
    digits = file.path.rpartition("/")[2].removesuffix(_SUFFIX)
    if not (len(digits) == 20 and digits.isdigit()):
        return None
    seq = SEQ_MAX - int(digits)
    return seq if _BIRTH < seq <= finalised_through and file.modified_us < before_us else None


def _forget_hint_below(store: ObjectStore, folder: str, seq: int) -> None:
    """Delete a hint that a writer left long after its time: a sleeper's stray may come to lie where it points."""
    if store.lists_newest_first:
        return
    hint = store.get(f"{folder}/{HINT}")
    if hint is not None and hint.isdigit() and int(hint) <= seq:
        store.delete(f"{folder}/{HINT}")
