"""The writes of the random world as requests: of one row, so that the real judgement of a round costs little."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from omniray.engine.base.errors import KeyConflict
from omniray.engine.base.principal import Author
from omniray.engine.judge.overlay import Overlay
from omniray.engine.judge.pinned import ROWADDR, State
from omniray.engine.judge.resolution import Affected, Resolution, TableWrite
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import ID, Schema
from omniray.engine.tables.storage import NOTHING_REPLACED
from omniray.engine.writes.write_requests import Header, PreparedRequest, Request
from tests.model.round_terms import BYTES_PER_ROW, SCHEMA, SCHEMA_HASH, Write

_TYPE = next(iter(SCHEMA.by_table_key.values()))
_NO_ROWS = _TYPE.arrow.empty_table()


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """An append, merge or delete of one key in some tables."""

    header: Header
    write: Write

    @property
    def rows(self) -> int:
        """Of a delete nobody knows how many rows it meets before it is judged."""
        return 1 if self.write.verb == "delete" else self.write.rows

    @property
    def size_bytes(self) -> int:
        return BYTES_PER_ROW * self.write.rows

    @property
    def alone(self) -> bool:
        return self.write.alone

    @property
    def touched(self) -> frozenset[str] | None:
        return None if self.write.verb == "delete" else frozenset(self.write.tables)

    def ids_asked(self, schema: Schema) -> Iterator[tuple[str, pa.Array]]:
        """A delete says nothing before it is judged, as a mutation does."""
        for table in self.touched or ():
            yield table, _ids(self.write.key)

    def resolve(self, state: State, schema: Schema) -> Resolution:
        if self.write.verb == "delete" and isinstance(state, Overlay):  # as if its condition had met so many
            state.matched += self.write.rows
        writes = {table: self._on(table, state) for table in self.write.tables}
        found = {table: write for table, write in writes.items() if write is not None}
        return Resolution(found, Affected(nodes=len(found)))

    def _on(self, table: str, state: State) -> TableWrite | None:
        ids = _ids(self.write.key)
        if self.write.verb == "append":
            if len(state.existing(table, ids)):
                raise KeyConflict(table, self.write.key)
            return TableWrite(Mode.APPEND, _row(self.write.key, self.write.write_id), NOTHING_REPLACED)
        there = state.matching(table, ID, ids, (ID,)) if state.count(table) else NOTHING_REPLACED
        if self.write.verb == "merge":
            return TableWrite(Mode.MERGE, _row(self.write.key, self.write.write_id), there)
        return TableWrite(Mode.DELETE, _NO_ROWS, there) if there.num_rows else None


def request_of(write: Write, state: State) -> Request:
    """A write as its client sends it; one that is prepared is judged on the state that the client reads."""
    kind = "Mutation" if write.verb == "delete" else "Load"
    expected = write.versions if write.strict else {}
    header = Header(write.write_id, kind, Author("ann", write.tenant), expected, write.write_id, SCHEMA_HASH)
    request = KeyedRequest(header, write)
    if not write.prepared:
        return request
    return PreparedRequest(header, request.resolve(state, SCHEMA), write.versions, write.rows, request.size_bytes)


@cache
def _ids(key: str) -> pa.Array:
    return pa.array([key], pa.string())


def _row(key: str, by: str) -> pa.Table:
    return pa.table([[key], [key], [by]], schema=_TYPE.arrow)


def rows_of(write: TableWrite) -> list[tuple[str, str]]:
    """The keys that a write brings, and by whom."""
    assert isinstance(write.rows, pa.Table)
    return list(zip(write.rows[ID].to_pylist(), write.rows["by"].to_pylist(), strict=True))


def located(rows: list[tuple[str, str, int]], ids: pa.Array) -> pa.Table:
    """Those of the rows that have one of the ids, as a state gives them: id and address."""
    wanted = set(ids.to_pylist())
    found = [(id, address) for id, _, address in rows if id in wanted]
    columns = [pa.array([id for id, _ in found], pa.string()), pa.array([place for _, place in found], pa.uint64())]
    return pa.table(columns, names=[ID, ROWADDR])
