"""The file of rejected records: one JSON object per line with the record, its place and the reason."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from omniray.engine.base.errors import InputError
from omniray.engine.rows.export import plain_value
from omniray.engine.rows.records import Rejection


class RejectFile:
    """Collects rejections while a load runs, and moves the file to its path when the load has ended.

    It is opened at once, so that a path that can't be written stops a load before it begins. A file of an earlier load
    is replaced, or deleted if nothing was rejected, since it describes another load.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        try:
            self._file = tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False)  # noqa: SIM115
        except OSError as error:
            raise InputError(f"can't write rejected records to {path}: {error.strerror}", path=str(path)) from error

    def write(self, rejections: Iterable[Rejection]) -> None:
        for rejection in rejections:
            self._file.write(_line(rejection))
            self.count += 1

    def finish(self) -> None:
        """Move the file to its path; if it is empty, leave no file there."""
        self._file.close()
        if self.count:
            Path(self._file.name).replace(self.path)
        else:
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Delete the temporary file if `finish` has not moved it."""
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            Path(self._file.name).unlink()


def _line(rejection: Rejection) -> bytes:
    fields = {
        "source": rejection.source,
        "line": rejection.record,
        "kind": rejection.kind,
        "reason": rejection.reason,
        "record": {name: _plain(value) for name, value in rejection.values.items()},
    }
    return msgspec.json.encode(fields, enc_hook=_shown) + b"\n"


def _plain(value: Any) -> Any:
    try:
        plain = plain_value(value)
        msgspec.json.encode(plain, enc_hook=_shown)
    except RecursionError:
        return "nested too deeply to be shown"
    return plain


def _shown(value: Any) -> str:
    return str(value)
