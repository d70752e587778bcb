"""A synthetic line without tables, folded in large batches: a history of a million commits in minutes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from ulid import ULID

from omniray.engine.history.manifest import Manifest
from omniray.engine.line.branch_id import MAIN, BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import Commit, CommitObject, Pin, SchemaRef, before_first, follow
from omniray.engine.store.object_store import ObjectStore

BRANCH = BranchId(MAIN, "01M00000000000000000000000")
TABLES = tuple(f"node:Kind{number}" for number in range(8))
BEGIN_US = 1_700_000_000_000_000
EACH_US = 250_000
FOLD_OBJECTS = 512


def commit_id(seq: int) -> str:
    """The id of the one commit of an object: a ULID of its time, the same in every run."""
    return str(
        ULID.from_bytes(
            (at_us(seq) // 1000).to_bytes(6, "big") + (seq * 0x9E3779B97F4A7C15 % 2**80).to_bytes(10, "big")
        )
    )


def at_us(seq: int) -> int:
    return BEGIN_US + seq * EACH_US


def objects() -> Iterator[CommitObject]:
    """The objects of the line from the first on: each has one commit, which moves one table."""
    pins = {key: _pin(key, 1, f"tx-{_name(key)}-1", 0) for key in TABLES}
    nothing_yet = before_first(BRANCH.ulid, SchemaRef("file", "hash", 1))
    newest = follow(nothing_yet, op_id="op-1", changed=pins, commits=(_commit(1, *TABLES),), finalised_through=1)
    while True:
        yield newest
        seq = newest.seq + 1
        key = TABLES[seq % len(TABLES)]
        pin = _pin(key, newest.pins[key].version + 1, f"{seq:032x}", rows=seq)
        newest = follow(
            newest, op_id=f"op-{seq}", changed={key: pin}, commits=(_commit(seq, key),), finalised_through=newest.seq
        )


def _pin(key: str, version: int, transaction: str, rows: int) -> Pin:
    name = _name(key)
    return Pin(f"id-{name}", f"nodes/{name}.lance", version, transaction, rows, content=transaction)


def _name(key: str) -> str:
    return key.partition(":")[2]


def _commit(seq: int, *tables: str) -> Commit:
    return Commit(commit_id(seq), "Load", "bench", at_us(seq), tables, payload_hash=f"{seq:064x}", nodes=1)


class Grown:
    """A graph's history that consists only of `__manifest` and the newest object of the line."""

    def __init__(self, store: ObjectStore) -> None:
        self.store, self.manifest = store, Manifest(store, BRANCH)
        self._objects = objects()
        self.newest = next(self._objects)
        self.manifest.fold([self.newest], named_through=1)

    def grow(self, commits: int) -> None:
        """Fold up to a number of commits, merging and indexing as Phase D does."""
        while (missing := commits - self.newest.seq) > 0:
            self.fold(min(missing, FOLD_OBJECTS))
            self.tidy()
        CommitLog(self.store, BRANCH).put(self.newest)

    def fold(self, count: int) -> None:
        batch = list(islice(self._objects, count))
        self.manifest.fold(batch, named_through=batch[-1].seq)
        self.newest = batch[-1]

    def tidy(self) -> None:
        self.store.delete_all(self.manifest.take_leftovers())
        self.manifest.discard_old_versions()
        self.manifest.keep_up()
