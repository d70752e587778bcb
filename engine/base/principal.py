"""The author of a write: actor and tenant."""

from __future__ import annotations

from dataclasses import dataclass

from omniray.engine.base.errors import InputError

NAME_CHARS_MAX = 256
MESSAGE_CHARS_MAX = 4096
_NAME_SHOWN_MAX = 80


@dataclass(frozen=True, slots=True)
class Author:
    """In whose name a write is made. Names go into the history and to terminals, so each is one printable line."""

    actor: str = ""
    tenant: str = ""

    def __post_init__(self) -> None:
        for what, name in (("actor", self.actor), ("tenant", self.tenant)):
            if not (isinstance(name, str) and name.isprintable() and len(name) <= NAME_CHARS_MAX):
                shown = repr(name)[:_NAME_SHOWN_MAX]
                raise InputError(
                    f"invalid {what} {shown}: must be one line of at most {NAME_CHARS_MAX} printable characters"
                )


def checked_message(message: str) -> str:
    """What an author says about a write."""
    if not isinstance(message, str) or len(message) > MESSAGE_CHARS_MAX:
        raise InputError(f"invalid message: must be text of at most {MESSAGE_CHARS_MAX} characters")
    return message
