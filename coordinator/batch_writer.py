"""Writes many small records as fewer, larger loads: for producers that have them one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from omniray.engine.errors import InputError
from omniray.engine.write import WriteResult

ROWS = 1_000
IN_FLIGHT = 8


class BatchWriter:
    """Gathers records and sends each batch as one atomic load, a few of them at a time; not shared by threads.

    A batch that is refused is raised by the next call, and ends the writer: batches before it may have landed, those
    after it are not sent. `close()`, or leaving the `with`, waits for all of them.
    """

    def __init__(
        self,
        submit: Callable[..., Future[WriteResult]],
        options: Mapping[str, Any],
        *,
        rows: int = ROWS,
        in_flight: int = IN_FLIGHT,
    ) -> None:
        if rows < 1 or in_flight < 1:
            raise InputError(f"a writer with {rows} rows per batch and {in_flight} batches at a time never sends one")
        self._submit, self._options = submit, options
        self._rows, self._in_flight = rows, in_flight
        self._records: list[Mapping[str, Any]] = []
        self._sent: deque[Future[WriteResult]] = deque()
        self._closed = False
        self.results: list[WriteResult] = []

    def __enter__(self) -> BatchWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        self._closed = True

    def write(self, record: Mapping[str, Any]) -> None:
        """Add a record, as `load` takes it; waits while too many batches are under way."""
        if self._closed:
            raise InputError("the writer is closed, or one of its batches was refused; make a new one")
        self._records.append(record)
        if len(self._records) >= self._rows:
            self._send()

    def flush(self) -> None:
        """Send what has gathered, and wait until everything has landed."""
        if self._records:
            self._send()
        self._wait_for(0)

    def close(self) -> None:
        """Flush, and take no more; safe to call twice."""
        if not self._closed:
            self.flush()
            self._closed = True

    def _send(self) -> None:
        self._wait_for(self._in_flight - 1)
        batch, self._records = self._records, []
        self._sent.append(self._submit(batch, **self._options))

    def _wait_for(self, left: int) -> None:
        while len(self._sent) > left:
            try:
                self.results.append(self._sent.popleft().result())
            except BaseException:
                self._closed = True
                raise
