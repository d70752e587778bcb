"""Writes many small records as fewer, larger loads: for producers that produce them one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from omniray.engine.base.errors import InputError
from omniray.engine.judge.resolution import WriteResult
from omniray.engine.rows.mode import Mode

ROWS = 1_000
IN_FLIGHT = 8


class BatchWriter:
    """Gathers records and sends each batch as one atomic load, a few of them at a time; not shared by threads.

    Only batches of appends are under way at the same time. Batches of any other mode are sent one by one, in the order
    in which they were written: of two records with one key, the later one wins.

    The error of a batch is raised by the call that waits for it, and ends the writer. Nothing more is sent; the other
    batches under way are waited for first, and may have landed: `results` has those that did. `close()`, or leaving
    the `with` without an error, sends the gathered records and waits for all batches.
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
            raise InputError(
                f"a writer with {rows} rows per batch and {in_flight} batches at a time never sends one: give 1 or more"
            )
        self._submit, self._options = submit, options
        self._rows = rows
        self._in_flight = in_flight if options.get("mode", Mode.APPEND) == Mode.APPEND else 1
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
        """Add a record in the form that `load` takes; waits while too many batches are under way."""
        if self._closed:
            raise InputError("the writer is closed, or one of its batches was refused; make a new one")
        self._records.append(record)
        if len(self._records) >= self._rows:
            self._send()

    def flush(self) -> None:
        """Send the gathered records, and wait until all batches have landed."""
        if self._records:
            self._send()
        self._wait_for(0)

    def close(self) -> None:
        """Flush, and take no more records; safe to call twice."""
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
            except BaseException as error:
                self._closed = True
                if isinstance(error, Exception):  # after an interrupt the user does not want to wait
                    self._wait_for_the_rest(error)
                raise

    def _wait_for_the_rest(self, first: Exception) -> None:
        while self._sent:
            try:
                self.results.append(self._sent.popleft().result())
            except Exception as error:  # its outcome may be unknown, and then its id is needed
                first.add_note(f"another batch failed too: {error}")
