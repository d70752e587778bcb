"""Groups of fragments of a snapshot's table, each of which any process may read on its own.

A group names the pinned version and its fragments, so it is small and picklable, and gives the same rows wherever and
whenever it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.line.commit_object import Pin
from omniray.engine.schema.types import ElementType
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables.storage import TableStorage
from omniray.engine.tables.table import Fragment, Table

GROUP_ROWS = 1 << 18


@dataclass(frozen=True, slots=True)
class FragmentGroup:
    """Some fragments of a table at a pinned version, in their order."""

    table_key: str
    pin: Pin
    is_final: bool
    fragments: tuple[int, ...]


def cut(table: Table, pin: Pin, *, is_final: bool = False, group_rows: int = GROUP_ROWS) -> list[FragmentGroup]:
    """Cut an open table into groups of about `group_rows` rows; a larger fragment is a group of its own."""
    groups = grouped(table.fragments(), group_rows)
    return [FragmentGroup(table.type.table_key, pin, is_final, tuple(f.id for f in group)) for group in groups]


def grouped(fragments: Sequence[Fragment], group_rows: int) -> Iterator[list[Fragment]]:
    """Group neighbouring fragments up to `group_rows` rows; only a single larger fragment exceeds them."""
    group: list[Fragment] = []
    for fragment in fragments:
        if group and sum(f.rows for f in group) + fragment.rows > group_rows:
            yield group
            group = []
        group.append(fragment)
    if group:
        yield group


class GroupReader:
    """Reads groups of one type, in a process that writes nothing and opens no branch.

    A pin says all that is needed: a group is read as it was cut, whatever has become of its branch.
    """

    def __init__(self, store: ObjectStore, graph_id: str, type: ElementType) -> None:
        self._store, self._graph_id, self._type = store, graph_id, type

    def read(
        self, group: FragmentGroup, columns: Sequence[str] | None = None, where: pc.Expression | str | None = None
    ) -> pa.RecordBatchReader:
        """The rows of a group as a stream; only the requested columns and rows are read."""
        tables = TableStorage(self._store, group.pin.line, self._graph_id)
        table = tables.open(self._type, group.pin, is_final=group.is_final)
        return table.scan(columns, where, fragments=group.fragments)
