"""The Spark task of a handoff: sends its rows to a staging server, and returns the staged part.

Executors import this module, Arrow Flight and Spark, and neither Ray nor Lance; they have a token, but no storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from omniray.workers.flight_client import Route, hand_over
from omniray.workers.flight_messages import Stream

RESULT = "partition int, part binary"
_RESULT_ARROW = pa.schema([("partition", pa.int32()), ("part", pa.binary())])


def hand_over_partition(route: Route, type_name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send the rows of this task; the result is one row with the part, or none for a task without rows.

    An error of a server is raised: Spark runs the task again, from its first row. An error of the rows is a part too,
    since it would be the same in the next try.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "runs in a Spark task"
    stream = Stream(route.run, type_name, context.partitionId(), context.attemptNumber())
    answer = hand_over(route, stream, batches)
    if answer is not None:
        yield pa.record_batch([[stream.partition], [answer.part]], schema=_RESULT_ARROW)
