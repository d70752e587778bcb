"""What differs between two states of a graph, by rows and properties, at a cost that follows the difference.

Each changed type is one Arrow table or stream: `kind` (insert, update, delete), `id`, `changed` (the properties that an
update changed), and `before` and `after`, each a struct of all columns beside the id, or null where there is no row.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from omniray.engine.branches.states import LineState, States
from omniray.engine.reading.table_diff import Changed, Kind, changes
from omniray.engine.schema.types import ID, ElementType, Schema

KIND, CHANGED, BEFORE, AFTER = "kind", "changed", "before", "after"


class GraphDiff:
    """The changes that lead from one state to another. It can be read any number of times until it is closed."""

    def __init__(self, states: States, schema: Schema, before: LineState, after: LineState) -> None:
        self._states, self._schema = states, schema
        self.before, self.after = before, after

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GraphDiff({self.before.commit_id!r}, {self.after.commit_id!r}, types={list(self.types)})"

    def close(self) -> None:
        self._states.close()

    @property
    def types(self) -> tuple[str, ...]:
        """The types whose tables differ, by their contents; in the order of the schema."""
        return tuple(type.name for type in self._schema if self._differs(type.table_key))

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The commits that landed with the named ones: no state lies between them, so they are shown together."""
        return {state.commit_id: state.group for state in (self.before, self.after) if state.is_named and state.group}

    def table(self, type_name: str) -> pa.Table:
        """The changes of a type."""
        return self.reader(type_name).read_all()

    def reader(self, type_name: str) -> pa.RecordBatchReader:
        """The changes of a type as a stream, a bounded number at a time; each id comes once."""
        type = self._schema.type(type_name)
        schema = diff_schema(type)
        return pa.RecordBatchReader.from_batches(schema, self._batches(type, schema))

    def counts(self) -> dict[str, dict[str, int]]:
        """How many rows of each changed type were inserted, updated and deleted; reads all of them."""
        found: dict[str, dict[str, int]] = {}
        for name in self.types:
            found[name] = {kind.value: 0 for kind in Kind}
            for batch in self.reader(name):
                for one in batch.column(KIND).value_counts().to_pylist():
                    found[name][one["values"]] += one["counts"]
        return found

    def as_json(self) -> dict[str, Any]:
        """The states that were compared, and the numbers of changed rows."""
        groups = {commit_id: list(group) for commit_id, group in self.groups.items()}
        return {
            "before": self.before.commit_id,
            "after": self.after.commit_id,
            "groups": groups,
            "types": self.counts(),
        }

    def _differs(self, table_key: str) -> bool:
        return self.before.pins[table_key].content != self.after.pins[table_key].content

    def _batches(self, type: ElementType, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if not self._differs(type.table_key):
            return
        before, after = (self._states.table(state, type.table_key) for state in (self.before, self.after))
        for found in changes(before, after):
            yield from described(found, schema)


def diff_schema(type: ElementType) -> pa.Schema:
    """The columns of a type's changes."""
    row = pa.struct([field.with_nullable(True) for field in type.arrow if field.name != ID])
    names = pa.list_(pa.field("item", pa.string()))
    return pa.schema({KIND: pa.string(), ID: pa.string(), CHANGED: names, BEFORE: row, AFTER: row})


def described(found: Changed, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Changed rows in the form of a diff, by kind."""
    of_kind: tuple[tuple[Kind, pa.Table | None, pa.Table | None], ...] = (
        (Kind.DELETE, found.deleted, None),
        (Kind.UPDATE, found.old, found.new),
        (Kind.INSERT, None, found.inserted),
    )
    for kind, before, after in of_kind:
        rows = after if after is not None else before
        assert rows is not None, "each kind has rows on one side"
        if not rows.num_rows:
            continue
        columns = [
            pa.array([kind.value] * rows.num_rows, pa.string()),
            rows[ID].combine_chunks(),
            _changed(found, rows.num_rows) if kind is Kind.UPDATE else pa.array([[]] * rows.num_rows, schema[2].type),
            _structs(before, rows.num_rows, schema[3].type),
            _structs(after, rows.num_rows, schema[4].type),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _changed(found: Changed, rows: int) -> pa.Array:
    """The names of the changed properties of each updated row."""
    names = [name for name in found.properties if name != ID]
    marks = np.array([found.properties[name] for name in names]).reshape(len(names), rows).T
    offsets = np.concatenate([[0], np.cumsum(marks.sum(axis=1))])
    values = pa.array(names, pa.string()).take(pa.array(np.nonzero(marks)[1]))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _structs(rows: pa.Table | None, count: int, type: pa.StructType) -> pa.Array:
    if rows is None:
        return pa.nulls(count, type)
    if type.num_fields == 0:
        return pa.array([{}] * count, type)
    return pa.StructArray.from_arrays([rows[field.name].combine_chunks() for field in type], fields=list(type))
