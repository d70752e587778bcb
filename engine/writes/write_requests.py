"""A write as a client sends it to the process that commits it: plain values, resolved on arrival.

    LoadRequest       few rows: it carries them, checked already, with their keys
    MutationRequest   a query and its parameters
    PreparedRequest   a large load: its rows are staged, and it was judged on a state that must not have moved since

A client checks everything that needs no state before it sends a request, so a refusal by the receiver is about the
graph and not about the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

import pyarrow as pa

from omniray.engine.base.errors import Moved
from omniray.engine.base.principal import Author
from omniray.engine.judge.claims import refuse_unfounded
from omniray.engine.judge.constraints import LOOKUP_KEYS_MAX, judge
from omniray.engine.judge.keylog import KeyLog, PackedKeys
from omniray.engine.judge.pinned import State
from omniray.engine.judge.resolution import Affected, Resolution, TableWrite, as_rejection
from omniray.engine.judge.verdict import TableVerdict
from omniray.engine.rows.mode import Mode
from omniray.engine.rows.records import as_error
from omniray.engine.schema.types import DST, ID, SRC, EdgeType, Schema
from omniray.engine.tables.storage import NOTHING_REPLACED, StagedRows
from omniray.engine.writes.mutate import MutationIntent, Scope
from omniray.engine.writes.options import LoadOptions, OnError
from omniray.engine.writes.row_sink import INLINE_ROWS_MAX, edited
from omniray.engine.writes.terms import WriteTerms

_MUTATION_BYTES = 1024  # the assumed size of a query that has not been sent


@dataclass(frozen=True, slots=True)
class Header:
    """The common fields of all requests. The commit id is also the idempotency key.

    `fresh`: the client has minted the id for this request and sends it for the first time, so it can't be committed
    yet, and need not be looked up in the history. `began`: the newest number of the line that the caller knew when it
    began to write; 0 if it does not say. A try that began before its write was reported as not committed can't land.
    """

    commit_id: str
    kind: str
    author: Author
    expected_versions: Mapping[str, int]
    payload_hash: str
    schema_hash: str
    fresh: bool = False
    began: int = 0
    message: str = ""


class Request(Protocol):
    """A write that a client sent."""

    @property
    def header(self) -> Header: ...

    @property
    def rows(self) -> int:
        """How many rows it carries."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def alone(self) -> bool:
        """Whether it needs a round of its own."""

    @property
    def touched(self) -> frozenset[str] | None:
        """The tables that it may touch; None if that is known only when it is judged."""

    def ids_asked(self, schema: Schema) -> Iterator[tuple[str, pa.Array]]:
        """For each table the ids that its judgement will look up, as far as known in advance."""

    def resolve(self, state: State, schema: Schema) -> Resolution: ...


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A load that carries its rows."""

    header: Header
    options: LoadOptions
    rejected: int  # records that were refused during reading
    keys: PackedKeys
    tables: Mapping[str, pa.Table]
    alone: bool = False

    @property
    def touched(self) -> frozenset[str]:
        return frozenset(self.tables)

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self.tables.values())

    @property
    def size_bytes(self) -> int:
        return sum(table.nbytes for table in self.tables.values())

    def ids_asked(self, schema: Schema) -> Iterator[tuple[str, pa.Array]]:
        for key, (mode, keys) in self.keys.tables.items():
            if mode is not Mode.OVERWRITE:
                yield key, keys[ID].combine_chunks().drop_null()
            type = schema.by_table_key[key]
            if isinstance(type, EdgeType):
                yield schema.type(type.source).table_key, keys[SRC].combine_chunks()
                yield schema.type(type.target).table_key, keys[DST].combine_chunks()

    def resolve(self, state: State, schema: Schema) -> Resolution:
        with KeyLog(schema) as log:
            log.extend(self.keys)
            return resolve_load(
                log, schema, state, self.options, self.rejected, self._rows_left, lookup_keys_max=INLINE_ROWS_MAX
            )

    def _rows_left(self, table_key: str, verdict: TableVerdict) -> pa.Table:
        return edited(self.tables[table_key], 0, verdict.dropped.to_numpy(), verdict.adopted)


@dataclass(frozen=True, slots=True)
class MutationRequest:
    """A query with its parameters; `now` is the client's time.

    Its receiver parses it before it is queued (`scoped`): until then it counts as one row, and may touch any table.
    """

    header: Header
    text: str
    params: Mapping[str, Any]
    name: str | None
    now: datetime
    size_bytes: int = _MUTATION_BYTES  # as it arrived, parameters included
    rows: int = 1
    alone: bool = False
    touched: frozenset[str] | None = None

    def scoped(self, schema: Schema) -> MutationRequest:
        """The request with what its text says: a row for each statement, and its tables; raises if it does not fit."""
        scope = Scope.of(self.text, self.name, schema)
        return replace(self, rows=scope.statements, touched=scope.tables)

    def ids_asked(self, schema: Schema) -> Iterator[tuple[str, pa.Array]]:
        yield from ()

    def resolve(self, state: State, schema: Schema) -> Resolution:
        header = self.header
        terms = WriteTerms(header.author, header.expected_versions, header.commit_id)
        intent = MutationIntent.of(self.text, self.params, schema, terms, name=self.name, now=self.now)
        return intent.resolve(state)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A load whose rows are staged already. Its resolution is valid until a table that it was judged on moves.

    The rows that it replaces, and those that it carries, are compared with the state all the same.
    """

    header: Header
    resolution: Resolution
    judged_on: Mapping[str, int]  # the version of each table that was consulted or is touched
    rows: int = 1
    size_bytes: int = 0
    alone: bool = True

    @property
    def touched(self) -> frozenset[str]:
        return frozenset(self.resolution.tables)

    def ids_asked(self, schema: Schema) -> Iterator[tuple[str, pa.Array]]:
        yield from ()

    def resolve(self, state: State, schema: Schema) -> Resolution:
        for table_key, version in self.judged_on.items():
            if state.version(table_key) != version:
                raise Moved(f"{table_key} has moved since the load was judged", table_key=table_key)
        refuse_unfounded(self.resolution.tables, state)
        return self.resolution


def sent_again(request: Request) -> Request:
    """The request for another try. Its id is no longer fresh: the last try may have been applied."""
    one: Any = request
    again: Request = replace(one, header=replace(request.header, fresh=False))
    return again


def resolve_load(
    log: KeyLog,
    schema: Schema,
    state: State,
    options: LoadOptions,
    rejected: int,
    rows_of: Callable[[str, TableVerdict], pa.Table | StagedRows],
    *,
    lookup_keys_max: int = LOOKUP_KEYS_MAX,
) -> Resolution:
    """Judge a load on a state; `rows_of` gives the rows of a table that the verdict keeps."""
    verdict = judge(log, schema, state, reject=options.on_error is OnError.REJECT, lookup_keys_max=lookup_keys_max)
    if verdict.refusal is not None:
        raise as_error(as_rejection(verdict.refusal))
    overwrites = options.mode is Mode.OVERWRITE
    tables = {
        key: TableWrite(options.mode, rows_of(key, found), NOTHING_REPLACED if overwrites else found.replaced)
        for key, found in verdict.tables.items()
    }
    changed = {key: write for key, write in tables.items() if overwrites or _row_count(write.rows)}
    strictly = frozenset(changed) if overwrites else frozenset()
    unfit = verdict.violations
    return Resolution(changed, Affected.by(verdict), strictly, rejected + len(unfit), unfit)


def _row_count(rows: pa.Table | StagedRows) -> int:
    return rows.rows if isinstance(rows, StagedRows) else int(rows.num_rows)
