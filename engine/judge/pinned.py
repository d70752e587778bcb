"""Finds the pinned rows with a write's keys: by a look-up for few keys, by one streaming pass for many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from omniray.engine.judge.condition import Condition
from omniray.engine.judge.keylog import key_columns
from omniray.engine.judge.relations import Relation, Sets
from omniray.engine.judge.room import Room
from omniray.engine.schema.types import ID, SRC, ElementType

ROWADDR = "_rowaddr"


class State(Protocol):
    """The graph at the version that a write is judged against."""

    def count(self, table_key: str) -> int:
        """The number of rows of the table, known without I/O."""

    def version(self, table_key: str) -> int:
        """The version of the table."""

    def existing(self, table_key: str, ids: pa.Array) -> pa.Array:
        """The ids out of a few that exist in the table; cheaper than `matching`, since it returns no addresses."""

    def matching(self, table_key: str, column: str, values: pa.Array, columns: Sequence[str]) -> pa.Table:
        """The rows whose column is one of a few values: `columns`, and the row's address as `_rowaddr`."""

    def scan(self, table_key: str, columns: Sequence[str]) -> pa.RecordBatchReader:
        """All rows as a stream, with the same columns."""

    def select(self, table_key: str, columns: Sequence[str], where: Condition, room: Room) -> pa.Table:
        """The rows that satisfy a condition: `columns` alone; raises `QueryError` if there is no room for them."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """Queries of the pinned state by sets of keys. Columns have their names in the key log."""

    state: State
    sets: Sets
    lookup_keys_max: int

    def meeting(self, type: ElementType, keys: Relation, on: Mapping[str, str], columns: Sequence[str]) -> Relation:
        """The rows of a table that may match one of the keys; `on` maps each of its columns to a column of the keys.

        A look-up compares only one column of a key of several, so the caller must compare the returned rows again.
        """
        # Count last: a state notes each table that was consulted, and a judgement is void if one of them moved.
        if keys.rows == 0 or _without_a_key(keys, on) or self.state.count(type.table_key) == 0:
            return self.nothing(type, columns)
        column, values = self._most_telling(type, keys, on)
        if values is not None and len(values) == 0:
            return self.nothing(type, columns)
        # A scan of a table with fewer rows than keys is faster than a look-up.
        if values is not None and len(values) <= self.state.count(type.table_key):
            found = self.state.matching(type.table_key, column, values, columns)
            return Relation.of(_named_as_keys(type, found, columns))
        names = key_columns(type)
        equal = " and ".join(f"p.{names[mine]} = k.{theirs}" for mine, theirs in on.items())
        wanted = ", ".join(f"p.{name}" for name in (*(names[c] for c in columns), ROWADDR))
        sql = f"select {wanted} from {{rows}} p semi join {{keys}} k on {equal}"
        return self.sets.derive(sql, small=False, rows=self.all(type, columns), keys=keys)

    def present(self, type: ElementType, ids: Relation) -> Relation:
        """The ids (id) that exist in a table."""
        few = self._distinct(ids, ID) if ids.rows and self.state.count(type.table_key) else None
        if few is None or len(few) > self.state.count(type.table_key):
            return self.meeting(type, ids, {ID: ID}, (ID,))
        return Relation.of(pa.table({ID: self.state.existing(type.table_key, few)}))

    def all(self, type: ElementType, columns: Sequence[str]) -> pa.RecordBatchReader:
        """Every row of a table, to be read once."""
        reader = self.state.scan(type.table_key, columns)

        def renamed() -> Iterator[pa.RecordBatch]:
            for batch in reader:
                yield from _named_as_keys(type, pa.Table.from_batches([batch]), columns).to_batches()

        schema = _named_as_keys(type, reader.schema.empty_table(), columns).schema
        return pa.RecordBatchReader.from_batches(schema, renamed())

    def nothing(self, type: ElementType, columns: Sequence[str]) -> Relation:
        """The empty result of `meeting`."""
        names = key_columns(type)
        fields = {names[column]: type.arrow.field(column).type for column in columns}
        return Relation.of(pa.schema({**fields, ROWADDR: pa.uint64()}).empty_table())

    def _most_telling(self, type: ElementType, keys: Relation, on: Mapping[str, str]) -> tuple[str, pa.Array | None]:
        """The most selective column of the key, and its values; None if there are too many."""
        usable = {mine: theirs for mine, theirs in on.items() if _can_be_looked_up(type, mine)}
        found = {mine: self._distinct(keys, theirs) for mine, theirs in usable.items()}
        values = {mine: few for mine, few in found.items() if few is not None}
        if not values or len(values) < len(found):
            return "", None
        telling = max(values, key=lambda mine: (len(values[mine]), _telling_by_type(type, mine)))
        return telling, values[telling]

    def _distinct(self, keys: Relation, column: str) -> pa.Array | None:
        if keys.arrow is not None:
            values = keys.arrow[column].unique().drop_null()
        else:
            sql = f"select distinct {column} from {{keys}} where {column} is not null limit {self.lookup_keys_max + 1}"
            values = self.sets.query(sql, keys=keys)[column].combine_chunks()
        return values if len(values) <= self.lookup_keys_max else None


def _named_as_keys(type: ElementType, rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    names = key_columns(type)
    return rows.select([*columns, ROWADDR]).rename_columns([*(names[c] for c in columns), ROWADDR])


def _without_a_key(keys: Relation, on: Mapping[str, str]) -> bool:
    """Whether every key has a null, as far as known without SQL."""
    return keys.arrow is not None and any(keys.arrow[theirs].null_count == keys.rows for theirs in on.values())


def _can_be_looked_up(type: ElementType, column: str) -> bool:
    # An index compares floats bit by bit, while -0.0 equals 0.0 here; lists and blobs have no index.
    kind = type.arrow.field(column).type
    return not (pa.types.is_floating(kind) or pa.types.is_nested(kind) or pa.types.is_large_binary(kind))


def _telling_by_type(type: ElementType, column: str) -> int:
    """How selective one value of the column is likely to be."""
    if column in (ID, SRC):
        return 3
    kind = type.arrow.field(column).type
    named = type.property(column)
    if pa.types.is_boolean(kind) or (named is not None and hasattr(named.type, "values")):
        return 0
    return 2 if pa.types.is_string(kind) else 1
