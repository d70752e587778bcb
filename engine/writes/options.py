"""The options of a load: its mode, and how it treats refused records."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from omniray.engine.base.errors import InputError
from omniray.engine.rows.mode import Mode


class OnError(StrEnum):
    """Whether a refused record fails the load, or is set aside."""

    FAIL = "fail"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    mode: Mode
    on_error: OnError
    rejects: Path | None

    @classmethod
    def checked(cls, mode: str, on_error: str, rejects: str | Path | None) -> LoadOptions:
        if mode not in (Mode.APPEND, Mode.MERGE, Mode.OVERWRITE):
            raise InputError(f"invalid mode {mode!r}: use append, merge or overwrite")
        if on_error not in set(OnError):
            raise InputError(f"invalid on_error {on_error!r}: use fail or reject")
        if (on_error == OnError.REJECT) != (rejects is not None):
            raise InputError("on_error='reject' and a file for the rejected records go together: give rejects=PATH")
        return cls(Mode(mode), OnError(on_error), None if rejects is None else Path(rejects))

    @classmethod
    def sent(cls, mode: str, on_error: str) -> LoadOptions:
        """Options that another process sent: the file for rejected records stays there."""
        if mode not in (Mode.APPEND, Mode.MERGE, Mode.OVERWRITE) or on_error not in set(OnError):
            raise InputError(f"invalid mode {mode[:80]!r} or on_error {on_error[:80]!r} of a load")
        return cls(Mode(mode), OnError(on_error), None)
