"""A branch's line in the store: find the newest object, read objects, put the next one.

Names are inverted numbers, so that the newest object is the first in listing order: on S3 one request finds it when a
graph is opened. On a disk a hint file says where to start. A reader that knows an object probes the number above it.
"""

from __future__ import annotations

import contextlib
import threading

from omniray.engine.base.errors import InvariantViolation, StorageError
from omniray.engine.line.branch_id import BranchId
from omniray.engine.line.commit_json import decode, encode
from omniray.engine.line.commit_object import SEQ_MAX, CommitObject, belonging
from omniray.engine.store.object_store import Answer, ObjectStore

FOLDER = "__commits"
HINT = "newest"  # sorts behind every number
HINT_EVERY = 16
_HINT_DIGITS_MAX = 20
CACHE_OBJECTS_MAX = 256
_BEGIN_TRIES_MAX = 4
PROBES_MAX = 8  # one after another; a listing of S3 costs as much as a few of them, however long the line is


class CommitLog:
    """One branch's line. Objects never change, so a bounded number of them is cached."""

    def __init__(self, store: ObjectStore, branch: BranchId) -> None:
        self._store = store
        self.branch = branch
        self._folder = f"{FOLDER}/{branch.ulid}"
        self._cache: dict[int, CommitObject] = {}
        self._keeping = threading.Lock()

    def path(self, seq: int) -> str:
        return f"{self._folder}/{SEQ_MAX - seq:020}.json"

    def newest(self) -> CommitObject | None:
        """The newest object, or None if the line has none."""
        if self._store.lists_newest_first:
            return self.newest_listed()
        hinted = self._hinted()
        found = None if hinted is None else self.newest_from(hinted)
        # Nothing above the hint may also mean that the hint is old and the objects above it are pruned.
        return self.newest_listed() if found is hinted else found

    def newest_listed(self) -> CommitObject | None:
        """The newest object by listing alone, which is also right for a paused writer."""
        name = self._store.first_name(self._folder)
        return None if name is None or name == HINT else self._require(_seq_of(name))

    def newest_from(self, known: CommitObject) -> CommitObject:
        """The newest object for a reader that knows an object of the line and has not paused for long."""
        probes = PROBES_MAX if self._store.lists_newest_first else SEQ_MAX
        for _ in range(probes):
            above = self.read(known.seq + 1)
            if above is None:
                return known
            known = above
        return self.newest_listed() or known

    def read(self, seq: int) -> CommitObject | None:
        if (kept := self._cache.get(seq)) is not None:
            return kept
        data = self._store.get(self.path(seq))
        return None if data is None else self.keep(self._checked(decode(data, where=self.path(seq)), seq))

    def _checked(self, obj: CommitObject, seq: int) -> CommitObject:
        if (obj.line, obj.seq) != (self.branch.ulid, seq):
            raise InvariantViolation(
                f"{self.path(seq)} holds object {obj.seq} of line {obj.line}; if it was copied there by hand, "
                "put the original back",
                path=self.path(seq),
            )
        return obj

    def put(self, obj: CommitObject) -> Answer:
        """Phase C: one put-if-absent. Raises only if it is clear that nothing was written."""
        answer = self._store.put_if_absent(self.path(obj.seq), encode(obj))
        if answer is Answer.CREATED:
            self.keep(obj)
        return answer

    def begin(self, first: CommitObject) -> None:
        """Put a branch's first object if it is not there; all processes put the same bytes, so any put will do.

        Raises if the line was begun as another one: then no branch may go on there.
        """
        for _ in range(_BEGIN_TRIES_MAX):
            if self.put(first) is Answer.CREATED:
                return
            if (there := self.read(first.seq)) is not None:
                if there.op_id != first.op_id:
                    raise InvariantViolation(
                        f"{self.path(first.seq)} is the first object of another line, begun by {there.op_id}: nothing "
                        "was written to it; if it was copied there by hand, delete it",
                        path=self.path(first.seq), op_id=there.op_id,
                    )  # fmt: skip
                return
        raise StorageError(f"no clear answer to putting {self.path(first.seq)}; try again", path=self.path(first.seq))

    def hint(self, landed: CommitObject) -> None:
        """Write the hint where readers on a disk may start; only for objects known to be in the line."""
        if landed.seq % HINT_EVERY == 0:
            with contextlib.suppress(StorageError):  # only a hint: a reader probes upward, or lists
                self._store.put_hint(f"{self._folder}/{HINT}", str(landed.seq).encode())

    def down_to(self, newest: CommitObject, seq: int) -> tuple[CommitObject, ...]:
        """The line from `newest` down to `seq` or to where it was pruned, newest first; strays are left out."""
        found = [newest]
        while found[-1].seq > seq:
            older = self.read(found[-1].seq - 1)
            if older is None:
                break
            found.append(older)
        return belonging(found)

    def keep(self, obj: CommitObject) -> CommitObject:
        """Cache an object that is known to be in the line, so that this process need not read it."""
        with self._keeping:  # readers, the writer and Phase D share it
            while len(self._cache) >= CACHE_OBJECTS_MAX:
                del self._cache[next(iter(self._cache))]
            self._cache[obj.seq] = obj
        return obj

    def _require(self, seq: int) -> CommitObject:
        obj = self.read(seq)
        if obj is None:
            raise InvariantViolation(
                f"{self.path(seq)} was listed and is not there; if it was deleted by hand, restore it from a backup",
                seq=seq,
            )
        return obj

    def _hinted(self) -> CommitObject | None:
        hint = self._store.get(f"{self._folder}/{HINT}")
        is_number = hint is not None and hint.isdigit() and len(hint) < _HINT_DIGITS_MAX
        if hint is not None and is_number and (obj := self.read(int(hint))) is not None:
            return obj
        return self.newest_listed()


def _seq_of(name: str) -> int:
    return SEQ_MAX - int(name.removesuffix(".json"))
