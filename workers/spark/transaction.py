"""Several frames in one commit: each is staged when written, and all become visible when the block ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from omniray.engine.base.errors import InputError, OmnirayError
from omniray.engine.base.principal import Author
from omniray.engine.writes.options import LoadOptions
from omniray.workers.graphs import ServedGraph, WritableGraph
from omniray.workers.spark.commit import commit_on
from omniray.workers.spark.own_errors import own_errors
from omniray.workers.spark.stage import Ticket, begin_on, stage_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from omniray.engine.judge.resolution import WriteResult
    from omniray.engine.schema.types import Schema

PART = "part"
ACTOR = "spark"


class SparkTransaction:
    """A context manager that commits at the end of its block, unless the block raises."""

    def __init__(self, graph: WritableGraph, ticket: Ticket, schema: Schema) -> None:
        self._graph, self._ticket, self._schema = graph, ticket, schema
        self._types: list[str] = []
        self._parts: list[bytes] = []
        self._result: WriteResult | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._result = self._commit()

    @property
    def txn_id(self) -> str:
        """The id of its commit: transactions with the same id are applied once."""
        return self._ticket.txn_id

    @property
    def result(self) -> WriteResult:
        """The result of the commit."""
        if self._result is None:
            raise InputError("the transaction is not committed: its result is there when its block has ended")
        return self._result

    def write(self, frame: DataFrame, type: str) -> int:
        """Stage the rows of a frame in its executors and return their number; raises the error of an invalid row."""
        from omniray.engine.writes.part_message import decode_part
        from omniray.workers.spark.types import check_frame

        if self._result is not None:
            raise InputError("the transaction is committed: begin another one")
        check_frame(frame.schema, self._schema.type(type))
        with own_errors():
            found = frame.mapInArrow(_staging(self._ticket, type), f"{PART} binary").collect()
        parts = [bytes(row[PART]) for row in found]
        self._types.append(type)
        self._parts += parts
        made = [decode_part(part, self._schema) for part in parts]
        staged = [part for part in made if not isinstance(part, OmnirayError)]
        if len(staged) < len(made):
            self._commit()  # raises the error, and releases the leases of the other parts
        return sum(part.row_count for part in staged)

    def _commit(self) -> WriteResult:
        return commit_on(self._graph, self._ticket, self._types, self._parts)


def transaction(
    graph: WritableGraph,
    *,
    branch: str | None = None,
    mode: str = "append",
    txn_id: str | None = None,
    actor: str | None = None,
    tenant: str | None = None,
) -> SparkTransaction:
    """Several Spark frames in one atomic commit: `with transaction(graph) as tx: tx.write(df, "Person")`.

    It is committed to the branch that has the name when it begins, and to no later one of that name.
    """
    checked = LoadOptions.checked(mode, "fail", None)
    if isinstance(graph, ServedGraph):
        author = graph.written_by(actor, tenant)
    else:
        author = Author(ACTOR if actor is None else actor, tenant or "")
    ticket, schema = begin_on(graph, branch, author, checked.mode, txn_id)
    return SparkTransaction(graph, ticket, schema)


def _staging(ticket: Ticket, type_name: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that a task applies to its partition: it returns one row with the part."""

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from omniray.workers.spark.write import this_partition

        part = stage_batches(ticket, type_name, batches, this_partition())
        yield pa.RecordBatch.from_pydict({PART: [part]})

    return stage
