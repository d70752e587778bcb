"""The Ray side of a handoff: Ray actors with a staging server each, and tasks that stage a file.

A part that passes through a Spark task is sealed: it names files and operations of the graph, for which Spark's hosts
have no credentials, so the driver accepts only parts that the servers of its own run have made.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from omniray.engine.base.errors import OmnirayError, StorageError
from omniray.workers.flight import StagingServer
from omniray.workers.flight_messages import Answer, Stream
from omniray.workers.spark.stage import Ticket, prepare, stage_rows

_DIGEST = "sha256"
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Seal:
    """A key that only the driver and the servers of a run share."""

    key: bytes = field(repr=False)

    def on(self, part: bytes) -> bytes:
        return hmac.digest(self.key, part, _DIGEST) + part

    def opened(self, sealed: bytes) -> bytes:
        """The part; raises `StorageError` if its digest is wrong."""
        digest, part = sealed[:_DIGEST_BYTES], sealed[_DIGEST_BYTES:]
        if not hmac.compare_digest(digest, hmac.digest(self.key, part, _DIGEST)):
            raise StorageError(
                "a part was not made by the staging servers of this run; nothing was written: hand over again"
            )
        return part


class StagingWorker:
    """A Ray actor that serves one run after another, at its node's address in the cluster.

    Importing Lance and opening the graph is the longest part of its start: it happens while Spark starts, and in a
    spare only when needed.
    """

    def __init__(self) -> None:
        self._server: StagingServer | None = None
        self._streams: list[Stream] = []

    def is_ready(self) -> bool:
        return True

    def serve(self, ticket: Ticket, token: str, seal: Seal, *, spare: bool) -> str:
        """Serve the streams of a run; returns the server's address."""
        import ray

        streams = self._streams = []

        def stage(stream: Stream, batches: Iterator[pa.RecordBatch]) -> Answer:
            streams.append(stream)
            answer = staged(ticket, stream.type_name, batches, f"partition {stream.partition}")
            return replace(answer, part=seal.on(answer.part))

        self._server = StagingServer(ray.util.get_node_ip_address(), ticket.txn_id, token, stage)
        if not spare:
            threading.Thread(target=prepare, args=(ticket,), daemon=True).start()
        return self._server.location

    def streams(self) -> int:
        """The number of streams begun in this run, whatever their outcome."""
        return len(self._streams)

    def rest(self) -> None:
        """End the run: accept no more streams. Streams still under way end by themselves, and do not count."""
        if self._server is not None:
            threading.Thread(target=self._server.shutdown, daemon=True).start()
            self._server = None


def staged(ticket: Ticket, type_name: str, batches: Iterator[pa.RecordBatch], source: str) -> Answer:
    """Stage rows; the answer holds the part and its row count."""
    made = stage_rows(ticket, type_name, batches, source)
    # Only now: Lance is loaded with the graph, by one thread, and two that load it at once fail.
    from omniray.engine.writes.part_message import encode_part

    return Answer(None if isinstance(made, OmnirayError) else made.row_count, encode_part(made))


def stage_file(ticket: Ticket, type_name: str, path: str) -> bytes:
    """Stage a Parquet file that Spark wrote."""
    from omniray.engine.rows.source_files import find_file
    from omniray.engine.rows.source_parquet import BoundedParquet

    # Spark writes times as INT96, which Arrow would read as nanoseconds, and so not beyond the year 2262.
    with find_file(path).open() as data, BoundedParquet(data, path, coerce_int96_timestamp_unit="us") as file:
        answer = staged(ticket, type_name, file.batches(), path)
        if answer.rows not in (file.metadata.num_rows, None):
            raise StorageError(f"{path} has {file.metadata.num_rows} rows, and {answer.rows} were staged: try again")
    return answer.part
