"""The file of rejected records: one JSON object per line, made only if there is something to write."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from omniray.engine.errors import InputError
from omniray.engine.records import Rejection


class RejectFile:
    """Writes rejections as `{"source", "line", "kind", "reason"}` to a path, and counts them.

    A file that is there already is replaced by the first rejection, and left alone if there is none.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.count = 0
        self._file: BinaryIO | None = None

    def write(self, rejections: Iterable[Rejection]) -> None:
        for rejection in rejections:
            self._opened().write(_line(rejection))
            self.count += 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self) -> BinaryIO:
        if self._file is None:
            try:
                # Once begun, the file is continued: a close between two writes must not lose the first one's lines.
                self._file = self.path.open("ab" if self.count else "wb")
            except OSError as error:
                reason = f"can't write rejected records to {self.path}: {error.strerror}"
                raise InputError(reason, path=str(self.path)) from error
        return self._file


def _line(rejection: Rejection) -> bytes:
    fields = {"source": rejection.source, "line": rejection.record, "kind": rejection.kind, "reason": rejection.reason}
    return msgspec.json.encode(fields) + b"\n"
