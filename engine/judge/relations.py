"""Sets of rows: Arrow if small, tables in DuckDB if large; the same SQL reads both.

DuckDB answers set-level rules for writes of any size, and spills to disk instead of exceeding its memory limit, but a
statement costs about a millisecond. So `Sets` connects only when the first SQL runs, and the rules try cheap proofs in
Arrow before their SQL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Self

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.base.scratch import scratch_folder
from omniray.engine.judge import distinct

WARM_MEMORY_LIMIT_MB = 512
JOINED_ROW_BYTES = 256
PASSES_MAX = 8
_HASHES_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Relation:
    """Rows that SQL can name: an Arrow table, or a table in DuckDB."""

    rows: int
    arrow: pa.Table | None = None
    table: str = ""

    @classmethod
    def of(cls, arrow: pa.Table) -> Relation:
        return cls(arrow.num_rows, arrow)


def open_database(memory_limit_mb: int, temp_directory: Path) -> duckdb.DuckDBPyConnection:
    """An in-memory database that spills into the directory, which it creates when it first spills."""
    config = {"memory_limit": f"{memory_limit_mb}MB", "temp_directory": str(temp_directory)}
    return duckdb.connect(":memory:", config=config)


@cache
def _warm_database(pid: int) -> duckdb.DuckDBPyConnection:
    # Opening a database takes 25 ms, a connection to an open one 10 µs. The key is the process id, since threads and
    # locks of a database do not survive a fork.
    return open_database(WARM_MEMORY_LIMIT_MB, scratch_folder("sets"))


def connect_warm() -> duckdb.DuckDBPyConnection:
    """A new connection to the database that this process keeps open."""
    return _warm_database(os.getpid()).cursor()


class Sets:
    """The relations of one judgement; derived ones are dropped on close."""

    def __init__(
        self,
        connect: Callable[[], duckdb.DuckDBPyConnection] = connect_warm,
        memory_limit_mb: int = WARM_MEMORY_LIMIT_MB,
    ) -> None:
        self._connect, self._memory_limit_mb = connect, memory_limit_mb
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._names: dict[int, tuple[str, Relation]] = {}
        self._fresh: Iterator[str] = (f"set_{n}" for n in count())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def query(self, sql: str, **relations: Relation | pa.RecordBatchReader) -> pa.Table:
        """The result of the statement; `{name}` in it stands for a relation. A reader is read once."""
        named = self._named(sql, relations)
        return self._open().sql(named).to_arrow_table()

    def derive(self, sql: str, *, small: bool, **relations: Relation | pa.RecordBatchReader) -> Relation:
        """The result of the statement as a new relation: Arrow if `small`, else a table in DuckDB."""
        if small:
            return Relation.of(self.query(sql, **relations))
        name = next(self._fresh)
        named = self._named(sql, relations)
        self._open().execute(f"create temp table {name} as {named}")
        # `fetchall`: a result that is not read to its end keeps the connection busy.
        ((rows,),) = self._open().execute(f"select count(*) from {name}").fetchall()
        return Relation(rows, table=name)

    def may_repeat(self, relation: Relation, *columns: str) -> bool:
        """Whether two rows may agree in the columns, none of them null. False is proven; True is for SQL to check."""
        if relation.rows < 2:
            return False
        if relation.arrow is None:
            with closing(self._hashes(relation, columns)) as hashes:  # an open result keeps the connection busy
                return distinct.may_repeat(hashes, relation.rows)
        if len(columns) > 1 or not pa.types.is_string(relation.arrow[columns[0]].type):
            return True
        values = relation.arrow[columns[0]]
        return bool(pc.count_distinct(values).as_py() < len(values) - values.null_count)

    def passes(self, rows: int) -> int:
        """In how many passes to look up keys in `rows` rows, so that the rows of each pass fit into memory.

        A join that spills takes several times as long as one that reads its other side again.
        """
        return min(PASSES_MAX, 1 + rows * JOINED_ROW_BYTES // (self._memory_limit_mb << 20))

    def _hashes(self, relation: Relation, columns: Sequence[str]) -> Generator[distinct.Hashes]:
        """The hash of the columns of each row in which none is null."""
        whole = " and ".join(f"{column} is not null" for column in columns)
        sql = self._named(f"select hash({', '.join(columns)}) as h from {{r}} where {whole}", {"r": relation})
        with self._open().sql(sql).to_arrow_reader(_HASHES_AT_ONCE) as reader:
            for batch in reader:
                yield batch.column(0).to_numpy()

    def _named(self, sql: str, relations: dict[str, Relation | pa.RecordBatchReader]) -> str:
        return sql.format(**{name: self._name(relation) for name, relation in relations.items()})

    def _name(self, relation: Relation | pa.RecordBatchReader) -> str:
        if isinstance(relation, Relation) and relation.table:
            return relation.table
        known = self._names.get(id(relation))
        if known is not None:
            return known[0]
        name = next(self._fresh)
        self._open().register(name, relation.arrow if isinstance(relation, Relation) else relation)
        if isinstance(relation, Relation):
            self._names[id(relation)] = name, relation  # keeps it alive, so that no other relation gets its id
        return name

    def _open(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection


def text(value: str) -> str:
    """The value as an SQL literal for a statement of `Sets`."""
    return "'" + value.replace("'", "''").replace("{", "{{").replace("}", "}}") + "'"


def shown(column: str, *, quoted: bool = True, chars_max: int = 80) -> str:
    """The SQL expression that shows a column's value in a message, truncated to `chars_max`."""
    value = f"{column}::varchar"
    cut = f"(case when length({value}) > {chars_max} then left({value}, {chars_max}) || '…' else {value} end)"
    return f"'''' || {cut} || ''''" if quoted else cut


def repeating(columns: str, where: str) -> str:
    """The statement for the rows of `{r}` that may agree with another row in the columns.

    It compares hashes, so it may select a few rows too many: grouping hashes takes half the time of grouping texts, and
    almost always finds none.
    """
    twice = f"select hash({columns}) as h from {{r}} where {where} group by h having count(*) > 1"
    return f"select * from {{r}} where {where} and hash({columns}) in (select h from ({twice}))"
