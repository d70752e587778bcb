"""The change feed: for each step of the line, the rows that were inserted, updated and deleted.

The stream follows the numbers of the line. An object of the line is one step, however many commits a coordinator put
into it: there is no state of the graph between them, so their changes come together and carry the id of the last one.
A step is the difference between the versions of a table that two objects pin (`table_diff.py`), and the contents of
objects outlive them in `__manifest`: the stream may begin at any commit of the history.

Replayed from the beginning, in order, it gives the graph as of every step. The first step of a branch brings the rows
that it began with: they lie in versions of its parents, which no object of its own line introduced.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pyarrow as pa

from omniray.engine.base.errors import InputError, NotFound
from omniray.engine.base.ulids import is_ulid
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.commit_object import CommitObject, Pin
from omniray.engine.reading.table_diff import Kind, difference
from omniray.engine.tables.table import Table

BEGINNING, FIRST = 0, 1
"""The number before the first object of a line, and that object's."""


@dataclass(frozen=True, slots=True)
class TableStep:
    """One table in one step: small and picklable, so that any process may read the rows."""

    seq: int
    commit_ids: tuple[str, ...]
    table_key: str
    before: Pin | None  # None: the table comes with its rows, as a branch begins
    after: Pin
    is_final: bool  # whether both versions have their final names

    @property
    def commit_id(self) -> str:
        """The commit whose snapshot shows the table after the step."""
        return self.commit_ids[-1]


@dataclass(frozen=True, slots=True)
class Change:
    """Rows of one table with the same kind of change in one step: the new rows, or the old ones of a delete."""

    seq: int
    commit_ids: tuple[str, ...]
    table_key: str
    kind: Kind
    rows: pa.Table


class Changes:
    """Reads the change feed of a branch; nothing is ever written."""

    def __init__(self, branch: OpenBranch) -> None:
        self._lineage, self._newest, self._cache = branch.lineage, branch.newest, branch.cache
        self._log = branch.log
        self.schema = branch.schema
        self.line = branch.branch.ulid  # which a later branch of the same name does not share
        self._last: dict[str, Table] = {}  # the version after a step is the version before the next one

    def newest_seq(self, reached: int = BEGINNING) -> int:
        """The number of the newest step, for a reader that has read up to `reached`."""
        newest = self._newest()
        _check_range(reached, reached, newest)
        return newest.seq

    def seq_of(self, commit_id: str) -> int:
        """The number of a commit's step; a reader of its snapshot continues after it.

        On a branch, that is a commit of its own, or the one of its parent that it began with.
        """
        newest = self._newest()
        if newest.parent and self._first(newest).head == commit_id.upper():
            return FIRST
        if not is_ulid(commit_id.upper()):
            raise InputError(f"{commit_id!r} is not a commit id; 'omniray history' shows them")
        wanted = commit_id.upper()
        found = self._lineage.landed_here([wanted], newest).get(wanted)
        if found is None:
            raise self._unknown(commit_id, newest)
        return found.entry.seq

    def between(self, after: int, through: int, types: Collection[str] | None = None) -> Iterator[Change]:
        """The changes of the steps after one number through another, in order; of all types, or of some."""
        for step in self.steps(after, through, types):
            yield from (Change(step.seq, step.commit_ids, step.table_key, *found) for found in self.read(step))

    def steps(self, after: int, through: int, types: Collection[str] | None = None) -> Iterator[TableStep]:
        """Which tables changed in these steps, and from which version to which; no row is read."""
        newest = self._newest()
        _check_range(after, through, newest)
        keys = {t.table_key for t in self.schema} if types is None else {self.schema.type(t).table_key for t in types}
        pins = self._lineage.pins_at(after, newest)
        if newest.parent and after < FIRST <= through:
            first = self._first(newest)
            after, pins = FIRST, dict(first.pins)
            for key in sorted(pins.keys() & keys):
                if pins[key].rows:
                    yield TableStep(FIRST, (first.head,), key, None, pins[key], newest.is_final(pins[key]))
        for step in itertools.takewhile(lambda step: step.seq <= through, self._lineage.steps(after, newest)):
            for key in sorted(step.pins.keys() & pins.keys() & keys):
                is_final = newest.is_final(pins[key]) and newest.is_final(step.pins[key])
                yield TableStep(step.seq, step.commit_ids, key, pins[key], step.pins[key], is_final)
            pins |= step.pins

    def read(self, step: TableStep) -> Iterator[tuple[Kind, pa.Table]]:
        """The changed rows of a step, a bounded number at a time; each id comes once."""
        before = None if step.before is None else self._open(step.table_key, step.before, step.is_final)
        after = self._open(step.table_key, step.after, step.is_final)
        if before is None:
            yield from ((Kind.INSERT, pa.Table.from_batches([batch])) for batch in after.scan() if batch.num_rows)
        else:
            yield from difference(before, after)

    def _first(self, newest: CommitObject) -> CommitObject:
        """The first object of the line, which is never pruned; of a branch that nobody wrote to, it is the newest."""
        first = newest if newest.seq == FIRST else self._log.read(FIRST)
        assert first is not None, "the first object of a line always stays"
        return first

    def _unknown(self, commit_id: str, newest: CommitObject) -> NotFound:
        if not newest.parent:
            said = f"no commit {commit_id} in the history; 'omniray history' shows what there is"
        else:
            said = (
                f"no commit {commit_id} was made on this branch; its changes begin with the rows that it began with "
                f"('beginning'), or after the commit {self._first(newest).head}, at which it began"
            )
        return NotFound(said, wanted=commit_id)

    def _open(self, table_key: str, pin: Pin, is_final: bool) -> Table:
        last = self._last.get(table_key)
        if last is None or last.identity != pin.identity:
            last = self._last[table_key] = self._cache.open(table_key, pin, is_final=is_final)
        return last


def _check_range(after: int, through: int, newest: CommitObject) -> None:
    if not BEGINNING <= after <= through:
        raise InputError(f"no steps after {after} through {through}: the first number may not be above the second")
    if through > newest.seq:
        raise InputError(
            f"the line ends at {newest.seq}, and a reader has been at {through}: the graph was created anew, or set "
            "back; read a snapshot, and go on from its commit",
            seq=through, newest=newest.seq,
        )  # fmt: skip
