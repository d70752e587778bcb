"""The changed rows between two versions of a table.

Only differences between fragments are read: fragments whose files only one version has and, where the files are the
same, the rows that only one of the two has deleted. A row with the same values on both sides was merely moved, by the
fold of a tail or a compaction, and is no change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

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
_OFFSET = np.uint64((1 << 32) - 1)


class Kind(StrEnum):
    """The kind of change of a row."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


def difference(before: Table, after: Table) -> Iterator[tuple[Kind, pa.Table]]:
    """The changed rows, a bounded number at a time; each id comes once.

    An insert or an update gives the new row, a delete the old one.
    """
    gone, come = _only_in(before, after), _only_in(after, before)
    if not gone.rows:
        yield from ((Kind.INSERT, rows) for rows in come.read())
    elif not come.rows:
        yield from ((Kind.DELETE, rows) for rows in gone.read())
    else:
        for ids in _stretches(gone, come):
            yield from _compared(gone.read_all(ids), come.read_all(ids))


# Which rows


@dataclass(frozen=True, slots=True)
class _Ids:
    """The ids from `low`, inclusive, to `high`, exclusive; None is no bound."""

    low: str | None = None
    high: str | None = None

    def where(self) -> pc.Expression | None:
        bounds = [] if self.low is None else [pc.field(ID) >= pa.scalar(self.low)]
        bounds += [] if self.high is None else [pc.field(ID) < pa.scalar(self.high)]
        return None if not bounds else bounds[0] if len(bounds) == 1 else bounds[0] & bounds[1]


_ALL = _Ids()


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a version that another lacks: whole fragments, and single rows of other fragments by address."""

    table: Table
    fragments: tuple[int, ...]
    addresses: npt.NDArray[np.uint64]
    rows: int
    size_bytes: int

    def read(self, ids: _Ids = _ALL, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows within a range of ids, batch by batch."""
        where = ids.where()
        if self.fragments:
            for batch in self.table.scan(columns, where, fragments=self.fragments):
                yield pa.Table.from_batches([batch])
        for start in range(0, len(self.addresses), _TAKE_ROWS):
            rows = self.table.rows_at(pa.array(self.addresses[start : start + _TAKE_ROWS]))
            rows = rows if where is None else rows.filter(where)
            yield rows if columns is None else rows.select(list(columns))

    def read_all(self, ids: _Ids) -> pa.Table:
        schema = self.table.type.arrow
        return pa.concat_tables([schema.empty_table(), *(rows.cast(schema) for rows in self.read(ids))])

    def sample_ids(self, count: int) -> list[str]:
        """About `count` of its ids, evenly spread."""
        step = max(1, self.rows // count)
        return [id for rows in self.read(columns=[ID]) for id in rows[ID].to_pylist()[::step]]


def _only_in(table: Table, other: Table) -> _Part:
    """The rows of a version that are not at the same position of the same file in the other one."""
    elsewhere = {fragment.files: fragment for fragment in other.fragments()}
    whole: list[int] = []
    single: list[npt.NDArray[np.uint64]] = [np.array([], np.uint64)]
    rows, size_bytes = 0, 0
    for fragment in table.fragments():
        same = elsewhere.get(fragment.files)
        if same is not None and same.deletions == fragment.deletions:
            continue
        own = fragment.rows
        if same is None:
            whole.append(fragment.id)
        else:
            single.append(_missing_from(other, same, table, fragment))
            own = len(single[-1])
        rows += own
        size_bytes += fragment.size_bytes * own // max(1, fragment.rows)
    return _Part(table, tuple(whole), np.concatenate(single), rows, size_bytes)


def _missing_from(other: Table, same: Fragment, table: Table, fragment: Fragment) -> npt.NDArray[np.uint64]:
    """The addresses of a fragment's rows that the other version has deleted from the same files."""
    own, others = _live(table, fragment), _live(other, same)
    return own[~np.isin(own & _OFFSET, others & _OFFSET)]


def _live(table: Table, fragment: Fragment) -> npt.NDArray[np.uint64]:
    addresses = table.scan([], addresses=True, fragments=[fragment.id]).read_all()[ROWADDR]
    found: npt.NDArray[np.uint64] = addresses.to_numpy()
    return found


def _stretches(gone: _Part, come: _Part) -> list[_Ids]:
    """All ids, cut into ranges with few enough rows on both sides to hold in memory."""
    rows, size_bytes = gone.rows + come.rows, gone.size_bytes + come.size_bytes
    count = 1 + max(rows // ROWS_AT_ONCE, size_bytes // BYTES_AT_ONCE)
    if count == 1:
        return [_ALL]
    sample = sorted([*gone.sample_ids(_SAMPLE_IDS), *come.sample_ids(_SAMPLE_IDS)])
    bounds = sorted({sample[len(sample) * cut // count] for cut in range(1, count)})
    return [_Ids(low, high) for low, high in zip([None, *bounds], [*bounds, None], strict=True)]


# How they changed


def _compared(gone: pa.Table, come: pa.Table) -> Iterator[tuple[Kind, pa.Table]]:
    """Compare by id: which rows were inserted, deleted or updated."""
    old_ids, new_ids = gone[ID].combine_chunks(), come[ID].combine_chunks()
    found = pc.index_in(new_ids, value_set=old_ids)
    old, new = gone.take(found.drop_null()), come.filter(found.is_valid())
    changes = (
        (Kind.DELETE, gone.filter(pc.invert(pc.is_in(old_ids, value_set=new_ids)))),
        (Kind.UPDATE, new.filter(pa.array(_differing_rows(old, new)))),
        (Kind.INSERT, come.filter(found.is_null())),
    )
    yield from ((kind, rows) for kind, rows in changes if rows.num_rows)


def _differing_rows(old: pa.Table, new: pa.Table) -> Mask:
    differs: Mask = np.zeros(old.num_rows, np.bool_)
    for name in old.column_names:
        differs |= _differing(old[name].combine_chunks(), new[name].combine_chunks())
    return differs


def _differing(old: pa.Array, new: pa.Array) -> Mask:
    """Where two columns of one type differ; null equals null, and floats are compared bit by bit."""
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
