"""The recorder: what one writer sends and is told, written down before it goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from omniray.coordinator.stress.edn import edn_lines
from omniray.coordinator.stress.history import HistoryFile, named, text_of
from omniray.coordinator.stress.transactions import Append, Event, Key, Kind, Micro, Read, Value, read_transactions
from omniray.engine.base.errors import InputError

SUFFIX = ".jsonl"


@dataclass(slots=True)
class Recorded:
    """A transaction under way, to which its caller tells what it reads."""

    ops: list[Micro]

    def saw(self, key: Key, values: Sequence[Value]) -> None:
        """The values of a list that the transaction reads; of one that it reads twice, those of the next read."""
        for place, op in enumerate(self.ops):
            if op == Read(key):
                self.ops[place] = Read(key, tuple(values))
                return
        raise InputError(f"the transaction has no read of list {key!r} left: begin it with Read({key!r})")


@dataclass(slots=True)
class Recorder:
    """Records the transactions of one writer in a file of its own; every writer of a run has its own number.

    Not for several threads: give each its recorder. Times are those of the machine's monotonic clock, which all of
    its processes share.
    """

    path: str | os.PathLike[str]
    writer: int
    clock_ns: Callable[[], int] = time.monotonic_ns
    _file: HistoryFile = field(init=False)
    _under_way: tuple[Micro, ...] | None = field(init=False, default=None)
    _last_ns: int = field(init=False, default=-1)

    def __post_init__(self) -> None:
        if self.writer < 0:
            raise InputError(f"writer {self.writer}: number the writers from 0")
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        self._file = HistoryFile(self.path)

    # Around a call

    @contextmanager
    def transaction(self, *ops: Micro) -> Iterator[Recorded]:
        """Record a transaction around the calls that carry it out; an error is recorded and raised on.

        An error of omniray that rules out a commit is recorded as `fail`, `OutcomeUnknown` and every other one as
        `info`. So is any error of a transaction that appends and reads: it may have come after the write.
        """
        self.invoke(*ops)
        recorded = Recorded(list(ops))
        try:
            yield recorded
        except BaseException as error:
            if named(error)[1] == "unknown" or len({type(op) for op in ops}) > 1:
                self.info(error)
            else:
                self.fail(error)
            raise
        if unread := [op.key for op in recorded.ops if isinstance(op, Read) and op.values is None]:
            forgotten = InputError(f"the transaction did not say what it saw in list {unread[0]!r}: call saw()")
            self.info(forgotten)
            raise forgotten
        self.ok(*recorded.ops)

    # Event by event

    def invoke(self, *ops: Micro) -> None:
        """The transaction is about to be sent."""
        if self._under_way is not None:
            raise InputError(f"writer {self.writer} has a transaction under way: record how it ended first")
        if not ops or not all(isinstance(op, Append | Read) for op in ops):
            raise InputError(f"a transaction consists of Append and Read, not of {ops!r}")
        asked = tuple(Read(op.key) if isinstance(op, Read) else op for op in ops)
        self._write("invoke", asked)
        self._under_way = asked

    def ok(self, *ops: Micro) -> None:
        """It has taken effect; `ops` repeats it with the lists that were read, and may be left out if none was."""
        self._complete("ok", ops)

    def fail(self, error: BaseException | str = "") -> None:
        """It has not taken effect, and never will."""
        self._complete("fail", (), error)

    def info(self, error: BaseException | str = "") -> None:
        """Nobody knows whether it has, or will, take effect."""
        self._complete("info", (), error)

    def close(self) -> None:
        """Close the file; a transaction under way stays one of unknown outcome."""
        self._file.__exit__(None, None, None)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _complete(self, event: Kind, ops: tuple[Micro, ...], error: BaseException | str = "") -> None:
        if self._under_way is None:
            raise InputError(f"writer {self.writer} has no transaction under way: call invoke() before the call")
        self._write(event, ops or self._under_way, error)
        self._under_way = None

    def _write(self, event: Kind, ops: tuple[Micro, ...], error: BaseException | str = "") -> None:
        # Two events of a writer never share a moment, so that their order follows from their times.
        self._last_ns = max(self.clock_ns(), self._last_ns + 1)
        kind, retry, message = ("", "", error) if isinstance(error, str) else (*named(error), text_of(error))
        self._file.append(
            Event(
                event=event, at_ns=self._last_ns, writer=self.writer, ops=ops, kind=kind, retry=retry, message=message
            )
        )  # fmt: skip


def read_recorded(folder: str | os.PathLike[str]) -> list[Event]:
    """The events of all writers that recorded into files `*.jsonl` of a folder."""
    paths = sorted(Path(folder).glob(f"*{SUFFIX}"))
    if not paths:
        raise InputError(f"nothing was recorded in {os.fspath(folder)}: there is no file *{SUFFIX}")
    return [event for path in paths for event in read_transactions(path)]


def export_edn(events: Sequence[Event], path: str | os.PathLike[str]) -> None:
    """Write a history as EDN; a file that is there is replaced."""
    Path(path).write_text("".join(f"{line}\n" for line in edn_lines(events)), encoding="utf-8")
