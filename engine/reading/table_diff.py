"""The changed rows between two versions of a table.

Only differences between fragments are read: fragments whose files only one version has and, where the files are the
same, the rows that only one of the two has deleted. A row with the same values on both sides was merely moved, by the
fold of a tail or a compaction, and is no change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.rows.casts import Mask, mask_of
from omniray.engine.schema.types import ID
from omniray.engine.tables.table import ROWADDR, Fragment, Table

ROWS_AT_ONCE = 1 << 18
BYTES_AT_ONCE = 64 << 20
_SAMPLE_IDS = 1 << 14
_TAKE_ROWS = 1 << 14
_SCANNED_SHARE = 64  # a scan reads this many rows in the time that it takes to read one by its address
_KNOWN_IDS_MAX = 1 << 22
_OFFSET = np.uint64((1 << 32) - 1)


class Kind(StrEnum):
    """The kind of change of a row."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Changed:
    """The changed rows within a range of ids; `old` and `new` are those of updated rows, in one order."""

    inserted: pa.Table
    deleted: pa.Table
    old: pa.Table
    new: pa.Table
    properties: Mapping[str, Mask]  # by column: which of the updated rows have another value


def difference(before: Table, after: Table) -> Iterator[tuple[Kind, pa.Table]]:
    """The changed rows, a bounded number at a time; each id comes once.

    An insert or an update gives the new row, a delete the old one.
    """
    for found in changes(before, after):
        of_kind = ((Kind.DELETE, found.deleted), (Kind.UPDATE, found.new), (Kind.INSERT, found.inserted))
        yield from ((kind, rows) for kind, rows in of_kind if rows.num_rows)


def changes(before: Table, after: Table) -> Iterator[Changed]:
    """The changed rows, a bounded number at a time, updated ones as they were and as they are."""
    gone, come = apart(before, after)
    nothing = before.type.arrow.empty_table()
    if not gone.rows:
        yield from (Changed(rows, nothing, nothing, nothing, {}) for rows in come.read())
    elif not come.rows:
        yield from (Changed(nothing, rows, nothing, nothing, {}) for rows in gone.read())
    else:
        for ids in stretches(gone, come):
            yield _compared(gone.read_all(ids), come.read_all(ids))


def count_changed(before: Table, after: Table, *, read_rows_max: int = ROWS_AT_ONCE) -> int:
    """The number of changed rows; of very many, those that were merely moved are counted too, and none is read."""
    gone, come = apart(before, after)
    if not gone.rows or not come.rows or gone.rows + come.rows > read_rows_max:
        return max(gone.rows, come.rows)
    return sum(rows.num_rows for _, rows in difference(before, after))


# Which rows


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids from `low`, inclusive, to `high`, exclusive; None is no bound. With `among`, only those of these."""

    low: str | None = None
    high: str | None = None
    among: pa.Array | None = None

    def where(self) -> pc.Expression | None:
        bounds = [] if self.low is None else [pc.field(ID) >= pa.scalar(self.low)]
        bounds += [] if self.high is None else [pc.field(ID) < pa.scalar(self.high)]
        bounds += [] if self.among is None else [pc.field(ID).isin(self.among)]
        if not bounds:
            return None
        where = bounds[0]
        for bound in bounds[1:]:
            where &= bound
        return where


ALL = Ids()


@dataclass(frozen=True)
class Part:
    """Rows of a version that another lacks: whole fragments, and single rows of `others` by address, which rise."""

    table: Table
    fragments: tuple[int, ...]
    others: tuple[int, ...]
    addresses: npt.NDArray[np.uint64]
    rows: int
    size_bytes: int
    other_rows: int  # of the fragments that the single rows are in

    def read(
        self, ids: Ids = ALL, columns: Sequence[str] | None = None, *, addresses: bool = False
    ) -> Iterator[pa.Table]:
        """The rows within a range of ids, batch by batch; `addresses` adds `_rowaddr`."""
        where = ids.where()
        names = list(self.table.type.arrow.names if columns is None else columns)
        if fragments := self._meeting(self.fragments, ids):
            for batch in self.table.scan(names, where, addresses=addresses, fragments=fragments):
                yield pa.Table.from_batches([batch])
        wanted = [*names, ROWADDR] if addresses else names
        yield from (rows.select(wanted) for rows in self._single(ids, where, list(dict.fromkeys((*names, ID)))))

    def _single(self, ids: Ids, where: pc.Expression | None, names: list[str]) -> Iterator[pa.Table]:
        """The single rows, with their addresses: a few by address, many by a scan that leaves the others out."""
        if len(self.addresses) > _TAKE_ROWS and (
            len(self.addresses) * _SCANNED_SHARE > self.other_rows or len(self.addresses) > _KNOWN_IDS_MAX
        ):
            if not (fragments := self._meeting(self.others, ids)):
                return
            for batch in self.table.scan(names, where, addresses=True, fragments=fragments):
                rows = pa.Table.from_batches([batch])
                yield rows.filter(pa.array(_among(rows[ROWADDR].to_numpy(), self.addresses)))
            return
        at = self.addresses if where is None else self.addresses[self._within(ids)]
        for start in range(0, len(at), _TAKE_ROWS):
            some = pa.array(at[start : start + _TAKE_ROWS])
            yield self.table.rows_at(some, names).append_column(ROWADDR, some)

    def _meeting(self, fragments: Sequence[int], ids: Ids) -> Sequence[int]:
        """The fragments that may have ids of a range: of a table that was loaded in order, few have."""
        if ids.low is None and ids.high is None:
            return fragments
        known = self._bounds
        return [
            id
            for id in fragments
            if id in known
            and (ids.low is None or known[id][1] >= ids.low)
            and (ids.high is None or known[id][0] < ids.high)
        ]

    @cached_property
    def _bounds(self) -> Mapping[int, tuple[str, str]]:
        """The least and the greatest id of each fragment, which are read once, however many ranges are read."""
        found: dict[int, tuple[str, str]] = {}
        for batch in self.table.scan([ID], addresses=True, fragments=[*self.fragments, *self.others]):
            owners = batch[ROWADDR].to_numpy() >> np.uint64(32)
            cuts = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
            for start, end in pairwise(cuts):
                if start < end:
                    low, high = pc.min_max(batch[ID].slice(start, end - start)).as_py().values()
                    before = found.get(int(owners[start]), (low, high))
                    found[int(owners[start])] = min(low, before[0]), max(high, before[1])
        return found

    def _within(self, ids: Ids) -> Mask:
        """Which of the single rows are within a range of ids."""
        is_within = pa.array(np.ones(len(self.addresses), np.bool_))
        if ids.low is not None:
            is_within = pc.and_(is_within, pc.greater_equal(self._ids, pa.scalar(ids.low)))
        if ids.high is not None:
            is_within = pc.and_(is_within, pc.less(self._ids, pa.scalar(ids.high)))
        if ids.among is not None:
            is_within = pc.and_(is_within, pc.is_in(self._ids, value_set=ids.among))
        return mask_of(is_within)

    @cached_property
    def _ids(self) -> pa.Array:
        """The ids of the single rows, which are read once, however many ranges they are cut into."""
        starts = range(0, len(self.addresses), _TAKE_ROWS)
        found = [self.table.rows_at(pa.array(self.addresses[at : at + _TAKE_ROWS]), [ID])[ID] for at in starts]
        return pa.chunked_array([chunk for ids in found for chunk in ids.chunks], pa.string()).combine_chunks()

    def read_all(self, ids: Ids = ALL, columns: Sequence[str] | None = None, *, addresses: bool = False) -> pa.Table:
        of_type = self.table.type.arrow
        fields = list(of_type) if columns is None else [of_type.field(name) for name in columns]
        schema = pa.schema([*fields, *([pa.field(ROWADDR, pa.uint64())] if addresses else [])])
        read = (rows.select(schema.names).cast(schema) for rows in self.read(ids, columns, addresses=addresses))
        return pa.concat_tables([schema.empty_table(), *read])

    def holds(self, addresses: npt.NDArray[np.uint64]) -> Mask:
        """Which rows of the same version, by their addresses, belong to the part."""
        whole = np.isin(addresses >> np.uint64(32), np.array(self.fragments, np.uint64))
        found: Mask = whole | _among(addresses, self.addresses)
        return found

    def sample_ids(self, count: int) -> list[str]:
        """About `count` of its ids, evenly spread."""
        step = max(1, self.rows // count)
        return [id for rows in self.read(columns=[ID]) for id in rows[ID].to_pylist()[::step]]


def _among(values: npt.NDArray[np.uint64], known: npt.NDArray[np.uint64]) -> Mask:
    """Which values are among known ones, which rise."""
    if not len(known):
        return np.zeros(len(values), np.bool_)
    found: Mask = known[np.minimum(np.searchsorted(known, values), len(known) - 1)] == values
    return found


def apart(table: Table, other: Table) -> tuple[Part, Part]:
    """The rows of each of two versions that are not at the same position of the same file in the other one."""
    theirs = {fragment.files: fragment for fragment in other.fragments()}
    here, there = _Gathered(table), _Gathered(other)
    for fragment in table.fragments():
        same = theirs.pop(fragment.files, None)
        if same is None:
            here.take(fragment)
        elif same.deletions != fragment.deletions:
            own, others = _live(table, fragment), _live(other, same)
            here.take(fragment, _lacking(own, others))
            there.take(same, _lacking(others, own))
    for fragment in theirs.values():
        there.take(fragment)
    return here.part(), there.part()


def _lacking(own: npt.NDArray[np.uint64], others: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The addresses in one fragment at whose offsets another one of the same files has no row; both rise."""
    offsets, there = own & _OFFSET, others & _OFFSET
    is_there = np.zeros(max((int(one[-1]) + 1 for one in (offsets, there) if len(one)), default=0), np.bool_)
    is_there[there] = True
    left: npt.NDArray[np.uint64] = own[~is_there[offsets]]
    return left


class _Gathered:
    """A part while it is gathered, fragment by fragment."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._whole: list[int] = []
        self._others: dict[int, npt.NDArray[np.uint64]] = {}
        self._rows = self._size_bytes = self._other_rows = 0

    def take(self, fragment: Fragment, addresses: npt.NDArray[np.uint64] | None = None) -> None:
        """Add rows of a fragment by their addresses, or all of them."""
        rows = fragment.rows if addresses is None else len(addresses)
        if addresses is None:
            self._whole.append(fragment.id)
        elif rows:
            self._others[fragment.id] = addresses
            self._other_rows += fragment.rows
        self._rows += rows
        self._size_bytes += fragment.size_bytes * rows // max(1, fragment.rows)

    def part(self) -> Part:
        others = tuple(sorted(self._others))
        single = np.concatenate([np.array([], np.uint64), *(self._others[id] for id in others)])
        whole, rows = tuple(self._whole), self._rows
        return Part(self._table, whole, others, single, rows, self._size_bytes, self._other_rows)


def _live(table: Table, fragment: Fragment) -> npt.NDArray[np.uint64]:
    if fragment.deletions is None:
        return np.arange(fragment.rows, dtype=np.uint64) + np.uint64(fragment.id << 32)
    addresses = table.scan([], addresses=True, fragments=[fragment.id]).read_all()[ROWADDR]
    found: npt.NDArray[np.uint64] = addresses.to_numpy()
    return found


def moved_addresses(table: Table, other: Table) -> Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.uint64]]:
    """Where rows of one version, by their addresses, are in another one that has them in the same files."""
    theirs = {fragment.files: fragment.id for fragment in other.fragments()}
    same = sorted((f.id, theirs[f.files]) for f in table.fragments() if f.files in theirs)
    ids, others = (np.array([pair[n] for pair in same], np.uint64) for n in (0, 1))

    def moved(addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        if not len(addresses):
            return addresses
        found: npt.NDArray[np.uint64] = others[np.searchsorted(ids, addresses >> np.uint64(32))] << np.uint64(32)
        return found | (addresses & _OFFSET)

    return moved


def stretches(*parts: Part) -> list[Ids]:
    """All ids, cut into ranges with few enough rows of all parts together to hold in memory."""
    rows, size_bytes = sum(part.rows for part in parts), sum(part.size_bytes for part in parts)
    count = 1 + max(rows // ROWS_AT_ONCE, size_bytes // BYTES_AT_ONCE)
    if count == 1:
        return [ALL]
    sample = sorted(id for part in parts for id in part.sample_ids(_SAMPLE_IDS))
    bounds = sorted({sample[len(sample) * cut // count] for cut in range(1, count)})
    return [Ids(low, high) for low, high in zip([None, *bounds], [*bounds, None], strict=True)]


# How they changed


def _compared(gone: pa.Table, come: pa.Table) -> Changed:
    """Compare by id: which rows were inserted, deleted or updated."""
    old_ids, new_ids = gone[ID].combine_chunks(), come[ID].combine_chunks()
    found = pc.index_in(new_ids, value_set=old_ids)
    old, new = gone.take(found.drop_null()), come.filter(found.is_valid())
    properties = {name: differing(old[name], new[name]) for name in old.column_names}
    updated = np.logical_or.reduce([*properties.values(), np.zeros(old.num_rows, np.bool_)])
    return Changed(
        inserted=come.filter(found.is_null()),
        deleted=gone.filter(pc.invert(pc.is_in(old_ids, value_set=new_ids))),
        old=old.filter(pa.array(updated)),
        new=new.filter(pa.array(updated)),
        properties={name: differs[updated] for name, differs in properties.items()},
    )


def differing(old: pa.ChunkedArray, new: pa.ChunkedArray) -> Mask:
    """Where two columns of one type differ; null equals null, and floats are compared bit by bit."""
    return _differing(old.combine_chunks(), new.combine_chunks())


def _differing(old: pa.Array, new: pa.Array) -> Mask:
    if pa.types.is_list(old.type) or pa.types.is_fixed_size_list(old.type):
        return _differing_lists(old, new)
    if pa.types.is_floating(old.type):
        bits = pa.int32() if old.type.bit_width == 32 else pa.int64()
        old, new = old.view(bits), new.view(bits)
    return mask_of(pc.not_equal(old, new)) | mask_of(pc.not_equal(old.is_null(), new.is_null()))


def _differing_lists(old: pa.Array, new: pa.Array) -> Mask:
    lengths, new_lengths = pc.list_value_length(old), pc.list_value_length(new)
    differs = _differing(lengths, new_lengths)
    alike = np.flatnonzero(~differs & mask_of(lengths.is_valid()))
    counts = lengths.fill_null(0).to_numpy(zero_copy_only=False)[alike]
    old_items, new_items = (pc.list_flatten(lists.take(pa.array(alike))) for lists in (old, new))
    differs[np.repeat(alike, counts)[_differing(old_items, new_items)]] = True
    return differs
