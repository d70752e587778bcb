"""Sets of rows that are Arrow while they are few and lie in DuckDB when they are many; the same SQL reads both.

Set-level rules ask small questions of small writes and large ones of large writes. DuckDB answers both, and spills to
disk rather than outgrow its memory limit, but each statement costs it about a millisecond. So `Sets` connects only when
the first SQL runs, and the rules put cheap Arrow proofs before their SQL.
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
    """A database in memory that spills into the directory, which is made when that first happens."""
    config = {"memory_limit": f"{memory_limit_mb}MB", "temp_directory": str(temp_directory)}
    return duckdb.connect(":memory:", config=config)


@cache
def _warm_database(pid: int) -> duckdb.DuckDBPyConnection:
    # Opening a database takes 25 ms, a connection to an open one 10 µs. The process id is the key since threads and
    # locks of a database do not survive a fork.
    return open_database(WARM_MEMORY_LIMIT_MB, scratch_folder("sets"))


def connect_warm() -> duckdb.DuckDBPyConnection:
    """A connection of the caller's own to the database that this process keeps open."""
    return _warm_database(os.getpid()).cursor()


class Sets:
    """The relations of one judgement; what it derives is gone when it is closed."""

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
        """The rows that the statement selects; `{name}` in it stands for a relation. A reader is read once."""
        named = self._named(sql, relations)
        return self._open().sql(named).to_arrow_table()

    def derive(self, sql: str, *, small: bool, **relations: Relation | pa.RecordBatchReader) -> Relation:
        """What the statement selects as a new relation: Arrow if `small`, else a table in DuckDB."""
        if small:
            return Relation.of(self.query(sql, **relations))
        name = next(self._fresh)
        named = self._named(sql, relations)
        self._open().execute(f"create temp table {name} as {named}")
        # All of them: a result that is not read to its end keeps the connection busy.
        ((rows,),) = self._open().execute(f"select count(*) from {name}").fetchall()
        return Relation(rows, table=name)

    def may_repeat(self, relation: Relation, *columns: str) -> bool:
        """Whether two rows may agree in the columns, none of them null. False is proven; True is for SQL to say."""
        if relation.rows < 2:
            return False
        if relation.arrow is None:
            with closing(self._hashes(relation, columns)) as hashes:  # a result that is left open keeps it busy
                return distinct.may_repeat(hashes, relation.rows)
        if len(columns) > 1 or not pa.types.is_string(relation.arrow[columns[0]].type):
            return True
        values = relation.arrow[columns[0]]
        return bool(pc.count_distinct(values).as_py() < len(values) - values.null_count)

    def passes(self, rows: int) -> int:
        """In how many passes to look keys up in so many rows, so that the rows of each fit into memory.

        A join that spills takes several times as long as one that reads its other side again.
        """
        return min(PASSES_MAX, 1 + rows * JOINED_ROW_BYTES // (self._memory_limit_mb << 20))

    def _hashes(self, relation: Relation, columns: Sequence[str]) -> Generator[distinct.Hashes]:
        """Of each row whose columns are not null, the hash of them."""
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
            self._names[id(relation)] = name, relation  # held, so that no other relation gets its id
        return name

    def _open(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection


def text(value: str) -> str:
    """The value as a literal of a statement for `Sets`."""
    return "'" + value.replace("'", "''").replace("{", "{{").replace("}", "}}") + "'"


def shown(column: str, *, quoted: bool = True, chars_max: int = 80) -> str:
    """The expression that shows a column's value in a message, cut to a length that a terminal bears."""
    value = f"{column}::varchar"
    cut = f"(case when length({value}) > {chars_max} then left({value}, {chars_max}) || '…' else {value} end)"
    return f"'''' || {cut} || ''''" if quoted else cut


def repeating(columns: str, where: str) -> str:
    """The statement for the rows of `{r}` that may agree with another one in the columns.

    By hash, and so perhaps a few too many: grouping hashes takes half the time of grouping texts, and almost always
    finds that there is nothing to look at more closely.
    """
    twice = f"select hash({columns}) as h from {{r}} where {where} group by h having count(*) > 1"
    return f"select * from {{r}} where {where} and hash({columns}) in (select h from ({twice}))"
