"""The terms of a write, whatever it writes: its author, the versions that it expects, and its id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from omniray.engine.base.principal import Author, checked_message


@dataclass(frozen=True, slots=True)
class WriteTerms:
    """What a caller says about a write. A `txn_id` makes it safe to repeat; without one it gets a new id."""

    author: Author
    expected_versions: Mapping[str, int] = field(default_factory=dict)
    txn_id: str | None = None
    message: str = ""

    def __post_init__(self) -> None:
        checked_message(self.message)
