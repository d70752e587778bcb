"""What a Spark task does in a handoff: its rows go to a staging server, and its result is the part that came of them.

Executors import this, Arrow Flight and Spark, and neither Ray nor Lance; they know a token, but no storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from omniray.workers.flight_client import Route, Stream, hand_over

RESULT = "partition int, part binary"
_RESULT_ARROW = pa.schema([("partition", pa.int32()), ("part", pa.binary())])


def hand_over_partition(route: Route, type_name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send the rows of this task; the one row that comes back is the part, and a task without rows has none.

    What goes wrong with a server is raised: Spark runs the task again, with its rows from their beginning. An error of
    the rows is a part too, for it would be the same the next time.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "runs in a Spark task"
    stream = Stream(route.run, type_name, context.partitionId(), context.attemptNumber())
    answer = hand_over(route, stream, batches)
    if answer is not None:
        yield pa.record_batch([[stream.partition], [answer.part]], schema=_RESULT_ARROW)
