"""A mutation: the statements of one query, run in order on a pinned state, as one atomic write.

Later statements see the effects of earlier ones: every read covers committed and pending rows, with the same filter on
both, and a pending row hides the committed row of the same id. Values reach a filter as typed Arrow scalars, never as
text. A mutation can be run again on a newer state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.base.errors import ConstraintViolation, NotFound, QueryError, RecordError
from omniray.engine.base.ulids import checked_txn_id, new_ulid
from omniray.engine.judge.condition import Condition
from omniray.engine.judge.constraints import judge
from omniray.engine.judge.keylog import KeyLog
from omniray.engine.judge.pinned import State
from omniray.engine.judge.resolution import Affected, Resolution, TableWrite
from omniray.engine.judge.room import BYTES_MAX, ROWS_MAX, Room
from omniray.engine.judge.verdict import Verdict
from omniray.engine.query.check import bind, type_of
from omniray.engine.query.parser import parse_queries
from omniray.engine.query.payload import mutation_hash
from omniray.engine.query.statements import (
    BoundDelete,
    BoundInsert,
    BoundPredicate,
    BoundQuery,
    BoundUpdate,
    Delete,
    Query,
    Statement,
    Value,
)
from omniray.engine.rows.mode import Mode
from omniray.engine.rows.records import RawBatch, numbered, raw_from_dicts
from omniray.engine.rows.row_validation import conform
from omniray.engine.schema.types import DST, ID, SRC, ElementType, NodeType, Schema
from omniray.engine.writes.terms import WriteTerms

STATEMENTS_MAX = 1_000
MATCHED_ROWS_MAX = ROWS_MAX
"""How many rows the statements of one mutation may match together, the edges that go with deleted nodes included."""

MATCHED_BYTES_MAX = BYTES_MAX
"""What the matched rows and the values that are set may take; a value counts once for each row that gets it."""

_SCALAR_BYTES = 8
_CACHED_CHARS_MAX = 16 << 10


class MutationIntent:
    """One query with its parameters bound and its new ids minted, so that every attempt is the same."""

    kind = "Mutation"

    def __init__(
        self,
        query: BoundQuery,
        schema: Schema,
        terms: WriteTerms,
        payload_hash: str,
    ) -> None:
        self.commit_id = new_ulid() if terms.txn_id is None else checked_txn_id(terms.txn_id)
        self.resubmittable = terms.txn_id is not None
        self.payload_hash = payload_hash
        self.author, self.message = terms.author, terms.message
        self.expected_versions = terms.expected_versions
        self._query = query
        self._schema = schema
        self._minted = {
            n: new_ulid() for n, s in enumerate(query.statements) if isinstance(s, BoundInsert) and not _keyed(s.type)
        }

    @classmethod
    def of(
        cls,
        text: str,
        params: Mapping[str, Any],
        schema: Schema,
        terms: WriteTerms,
        *,
        name: str | None,
        now: datetime,
    ) -> MutationIntent:
        """Parse, check and bind; every fault of a query is found here, before any I/O."""
        query = _chosen(text, name)
        bound = bind(query, params, schema, now)
        payload_hash = "" if terms.txn_id is None else mutation_hash(text, query, params)
        return cls(bound, schema, terms, payload_hash)

    @property
    def strict(self) -> bool:
        return any(not isinstance(s, BoundInsert) for s in self._query.statements)

    def resolve(self, state: State) -> Resolution:
        work = _Deletion(self._schema, state) if self._query.destructive else _Construction(state)
        for number, statement in enumerate(self._query.statements):
            with _naming(number + 1):
                match statement:
                    case BoundInsert():
                        work.insert(statement, number + 1, self._minted.get(number))
                    case BoundUpdate():
                        work.update(statement, number + 1)
                    case BoundDelete():
                        work.delete(statement)
        with KeyLog(self._schema) as log:
            work.log(log)
            verdict = judge(log, self._schema, state)
        if verdict.refusal is not None:
            raise ConstraintViolation(verdict.refusal.reason, table_key=verdict.refusal.table_key)
        return Resolution(work.writes(verdict), Affected.by(verdict), frozenset(work.read))


class _Construction:
    """The pending rows of a query that inserts and updates, by table, only the last one of each id."""

    def __init__(self, state: State) -> None:
        self._state, self._allowance = state, _Allowance()
        self._pending: dict[str, tuple[ElementType, pa.Table]] = {}
        self.read: set[str] = set()

    def insert(self, statement: BoundInsert, number: int, minted: str | None) -> None:
        self._allowance.take(0, sum(map(_size_of, statement.values.values())))
        values = {**statement.values, ID: minted} if minted is not None else statement.values
        self._put(raw_from_dicts(statement.type, [values]), number)

    def update(self, statement: BoundUpdate, number: int) -> None:
        type = statement.type
        self.read.add(type.table_key)
        rows = self.scan_with_pending(type, statement.predicate)
        if rows.num_rows == 0:
            return
        self._allowance.take(0, rows.num_rows * sum(map(_size_of, statement.values.values())))
        columns = {name: rows[name].combine_chunks() for name in type.arrow.names}
        for name, value in statement.values.items():
            columns[name] = pa.repeat(pa.scalar(value, type.arrow.field(name).type), rows.num_rows)
        self._put(RawBatch(type, columns, numbered(1, rows.num_rows)), number)

    def delete(self, statement: BoundDelete) -> None:
        raise AssertionError("a query that inserts or updates has no delete: the parser refuses it")

    def scan_with_pending(self, type: ElementType, predicate: BoundPredicate) -> pa.Table:
        """The committed and pending rows that satisfy the predicate; a pending row hides the committed one."""
        where = _condition(type, predicate)
        committed = self._allowance.select(self._state, type, type.arrow.names, where)
        pending = self._pending.get(type.table_key)
        if pending is None:
            return committed
        hidden = pc.is_in(committed[ID], value_set=pending[1][ID].combine_chunks())
        found = pending[1].filter(where.expression)
        self._allowance.take(found.num_rows, found.nbytes)
        return pa.concat_tables([committed.filter(pc.invert(hidden)), found])

    def _put(self, raw: RawBatch, number: int) -> None:
        batch, rejections = conform(raw)
        if rejections:
            raise RecordError(f"statement {number}: {rejections[0].reason}", statement=number)
        rows = pa.Table.from_batches([batch.rows])
        if raw.type.table_key in self._pending:
            before = self._pending[raw.type.table_key][1]
            kept = before.filter(pc.invert(pc.is_in(before[ID], value_set=rows[ID].combine_chunks())))
            rows = pa.concat_tables([kept, rows]).combine_chunks()
        self._pending[raw.type.table_key] = (raw.type, rows)

    def log(self, log: KeyLog) -> None:
        for type, rows in self._pending.values():
            log.begin(type, Mode.MERGE)
            log.add(type, rows, numbered(1, rows.num_rows), "")

    def writes(self, verdict: Verdict) -> dict[str, TableWrite]:
        return {
            key: TableWrite(Mode.MERGE, rows, verdict.tables[key].replaced) for key, (_, rows) in self._pending.items()
        }


class _Deletion:
    """The ids that a query deletes, by table, cascades included."""

    def __init__(self, schema: Schema, state: State) -> None:
        self._schema, self._state, self._allowance = schema, state, _Allowance()
        self._doomed: dict[str, tuple[ElementType, pa.Array]] = {}
        self.read: set[str] = set()

    def delete(self, statement: BoundDelete) -> None:
        ids = self._doom(statement.type, _condition(statement.type, statement.predicate))
        if not isinstance(statement.type, NodeType) or len(ids) == 0:
            return
        for edge in self._schema.edges_at(statement.type.name):
            if edge.source == statement.type.name:
                self._doom(edge, Condition(SRC, "in", ids))
            if edge.target == statement.type.name:
                self._doom(edge, Condition(DST, "in", ids))

    def _doom(self, type: ElementType, where: Condition) -> pa.Array:
        self.read.add(type.table_key)
        found = self._allowance.select(self._state, type, [ID], where)[ID].combine_chunks()
        if len(found):
            before = self._doomed.get(type.table_key, (type, found))[1]
            self._doomed[type.table_key] = (type, pa.concat_arrays([before, found]).unique())
        return found

    def insert(self, statement: BoundInsert, number: int, minted: str | None) -> None:
        raise AssertionError("a query that deletes has no insert: the parser refuses it")

    def update(self, statement: BoundUpdate, number: int) -> None:
        raise AssertionError("a query that deletes has no update: the parser refuses it")

    def log(self, log: KeyLog) -> None:
        for type, ids in self._doomed.values():
            log.begin(type, Mode.DELETE)
            log.delete(type, ids)

    def writes(self, verdict: Verdict) -> dict[str, TableWrite]:
        return {
            key: TableWrite(Mode.DELETE, type.arrow.empty_table(), verdict.tables[key].replaced)
            for key, (type, _) in self._doomed.items()
        }


class _Allowance:
    """What is left of what one mutation may match and set."""

    def __init__(self) -> None:
        self._left = Room(MATCHED_ROWS_MAX, MATCHED_BYTES_MAX)

    def take(self, rows: int, size_bytes: int) -> None:
        """Take room before something is made, or refuse it."""
        self._left = self._left.after(rows, size_bytes)

    def select(self, state: State, type: ElementType, columns: list[str], where: Condition) -> pa.Table:
        """The rows of a state that satisfy a condition, as far as there is room for them."""
        if state.count(type.table_key) == 0:
            return pa.schema([type.arrow.field(name) for name in columns]).empty_table()
        found = state.select(type.table_key, columns, where, self._left)
        self.take(found.num_rows, found.nbytes)
        return found


@contextlib.contextmanager
def _naming(number: int) -> Iterator[None]:
    """Name the statement for which there was no room."""
    try:
        yield
    except QueryError as error:
        raise QueryError(
            f"statement {number}: {error.message}; one mutation may match {MATCHED_ROWS_MAX} rows, and take "
            f"{MATCHED_BYTES_MAX} bytes for them and for the values that it sets: narrow its 'where', split the query, "
            "or load the rows",
            statement=number,
        ) from error


def _parsed(text: str) -> tuple[Query, ...]:
    return _parsed_once(text) if len(text) <= _CACHED_CHARS_MAX else parse_queries(text)


@lru_cache(maxsize=256)
def _parsed_once(text: str) -> tuple[Query, ...]:
    """Cached, since callers run the same few texts with other parameters."""
    return parse_queries(text)


@dataclass(frozen=True, slots=True)
class Scope:
    """What is known of a mutation by its text: how many statements it has, and the tables that it may write to."""

    statements: int
    tables: frozenset[str]

    @classmethod
    def of(cls, text: str, name: str | None, schema: Schema) -> Scope:
        """Parse a text; raises if it can't be read, or names a type that there is not. All else is checked later."""
        query = _chosen(text, name)
        tables = (_tables_of(statement, type_of(query, statement, schema), schema) for statement in query.statements)
        return cls(len(query.statements), frozenset().union(*tables))


def _tables_of(statement: Statement, type: ElementType, schema: Schema) -> set[str]:
    """The statement's own table; of deleted nodes those of the edges that go with them, too."""
    at = schema.edges_at(type.name) if isinstance(statement, Delete) and isinstance(type, NodeType) else ()
    return {type.table_key, *(edge.table_key for edge in at)}


def _chosen(text: str, name: str | None) -> Query:
    query = _choose(_parsed(text), name)
    if len(query.statements) > STATEMENTS_MAX:
        raise QueryError(
            f"query {query.name} has {len(query.statements)} statements: at most {STATEMENTS_MAX} are taken; split "
            "it, or load the rows"
        )
    return query


def _choose(queries: tuple[Query, ...], name: str | None) -> Query:
    names = ", ".join(q.name for q in queries)
    if name is None:
        if len(queries) != 1:
            raise QueryError(f"the text has {len(queries)} queries ({names}): say which one by its name")
        return queries[0]
    found = next((q for q in queries if q.name == name), None)
    if found is None:
        raise NotFound(f"no query {name!r} in the text; it has {names}", name=name)
    return found


def _size_of(value: Value) -> int:
    """The size of a value in memory, about."""
    match value:
        case str() | bytes():
            return len(value)
        case list():
            return sum(map(_size_of, value))
        case _:
            return _SCALAR_BYTES


def _keyed(type: ElementType) -> bool:
    return isinstance(type, NodeType) and bool(type.key)


def _condition(type: ElementType, predicate: BoundPredicate) -> Condition:
    kind = type.arrow.field(predicate.column).type
    return Condition(predicate.column, predicate.op, pa.array([predicate.value], kind))
