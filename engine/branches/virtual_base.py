"""The base of a merge where there are several best ones: for each cell what a merge of the bases would have.

Where the bases agree, it is their value. Where they differ they are merged by the base of their own, found in the same
way for those rows alone; where that conflicts, the virtual base is unlike anything. So neither an edit is lost nor a
conflict made up, whatever was merged into what before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from omniray.engine.branches.bases import Place, Vector, best_common_ancestors, joined
from omniray.engine.branches.cells import Rows, any_of, changed_rows, chosen

Positions = npt.NDArray[np.int64]


def base_rows(
    places: Sequence[Place],
    positions: Positions,
    vector_of: Callable[[Place], Vector],
    rows_at: Callable[[Place, Positions], Rows],
) -> Rows:
    """The rows at some positions in the base that these places make; `rows_at` gives those of one place."""
    base, vector = rows_at(places[0], positions), vector_of(places[0])
    for place in places[1:]:
        other = rows_at(place, positions)
        apart = np.flatnonzero(changed_rows(base, other))
        if len(apart):
            common = best_common_ancestors(vector, vector_of(place), vector_of)
            some = base.take(apart)
            older = base_rows(common, positions[apart], vector_of, rows_at) if common else some.absent()
            base = base.patched(apart, _merged_bases(older, some, other.take(apart)))
        vector = joined(vector, vector_of(place))
    return base


def _merged_bases(older: Rows, one: Rows, other: Rows) -> Rows:
    """What a merge of two bases has, given the base of these; where they conflict it is unlike anything."""
    apart = one.differs_from(other)
    by_one, by_other = one.differs_from(older), other.differs_from(older)
    names = one.cells.column_names
    both = one.present & other.present
    unlike = {name: both & apart[name] & ((by_one[name] & by_other[name]) | ~older.present) for name in names}
    takes_other = {name: both & apart[name] & ~by_one[name] & older.present for name in names}
    lone = one.present ^ other.present
    is_edited = np.where(one.present, any_of(by_one, len(one)), any_of(by_other, len(one)))
    is_torn = one.torn | other.torn | (lone & older.present & (older.torn | is_edited))
    present = both | is_torn | (lone & ~older.present)
    everywhere = np.arange(len(one))
    is_other = {name: takes_other[name] | ~one.present for name in names}
    cells = pa.table(
        [chosen(other.cells[name], one.cells[name], everywhere, is_other[name]) for name in names],
        schema=one.cells.schema,
    )
    # A cell that was unlike anything before stays so, whatever the next base has.
    stays = {name: np.where(is_other[name], other.unlike_in(name), one.unlike_in(name)) for name in names}
    return Rows(cells, present, is_torn, {name: unlike[name] | is_torn | (present & stays[name]) for name in names})
