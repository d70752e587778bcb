"""The events that `rounds/machine.py` takes, and the instructions that it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from omniray.coordinator.rounds.fairness import Ticket
from omniray.engine.base.errors import OmnirayError

# Events


@dataclass(frozen=True, slots=True)
class Submitted:
    """A write has arrived."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The caller of a write has stopped waiting; a queued write is dropped, one in a round goes on."""

    intent_id: str


@dataclass(frozen=True, slots=True)
class Judged:
    """A round's writes are resolved; `changes` says whether there is anything to commit.

    `matched` are the rows that the conditions of a write have met. `unjudged` are the writes that the round had no room
    for, because those before them met so many.
    """

    round_no: int
    changes: bool
    matched: Mapping[str, int] = field(default_factory=dict)
    unjudged: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Staged:
    """Phases A and B of a round are done."""

    round_no: int


@dataclass(frozen=True, slots=True)
class Landed:
    """A round's object is in the line, or a read has shown that nothing followed what it was judged on."""

    round_no: int


@dataclass(frozen=True, slots=True)
class Overtaken:
    """A round's number belongs to another object, which does not end our ownership."""

    round_no: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A round could not be judged, staged or put; nothing was committed. `blamed` are the writes to refuse."""

    round_no: int
    error: OmnirayError
    blamed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Ended:
    """The publisher ends: it was fenced, an outcome is unknown, or it was told to stop.

    `settled` is a round whose object is known to have landed, or to be lost for good (`landed`).
    """

    error: OmnirayError
    settled: int | None = None
    landed: bool = False


@dataclass(frozen=True, slots=True)
class Resumed:
    """A pause is over."""


@dataclass(frozen=True, slots=True)
class Held:
    """No round may begin until `Freed`: somebody else is about to extend the line for this owner."""


@dataclass(frozen=True, slots=True)
class Freed:
    """Rounds may begin again."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """The time is over in which writers that a round answered may have sent their next write."""

    round_no: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """Some tables are reserved for a prepared load that the client judges again."""

    intent_id: str
    tables: frozenset[str]


@dataclass(frozen=True, slots=True)
class Unreserved:
    """A reservation is used or has expired."""

    intent_id: str


Event = (
    Submitted | Abandoned | Judged | Staged | Landed | Overtaken | Failed | Ended | Resumed | Gathered | Reserved
    | Unreserved | Held | Freed
)  # fmt: skip


# Instructions


@dataclass(frozen=True, slots=True)
class Judge:
    """Judge these writes on top of round `on`, or on the newest object of the line if `on` is None."""

    round_no: int
    tickets: tuple[Ticket, ...]
    on: int | None


@dataclass(frozen=True, slots=True)
class Stage:
    round_no: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Phase C: put the round's object."""

    round_no: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """Read the line: is the object that the round was judged on still the newest?"""

    round_no: int


@dataclass(frozen=True, slots=True)
class Release:
    """Answer every write of a round."""

    round_no: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop what a void round staged."""

    round_no: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer one write with an error; `overload` says why it was not taken."""

    intent_id: str
    error: OmnirayError | None
    overload: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """Send `Resumed` after a while: the store is in trouble."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Gather:
    """Send `Gathered` after a fraction of a round's time, in which answered writers send more writes."""

    round_no: int


Instruction = Judge | Stage | Commit | Confirm | Release | Discard | Refuse | Pause | Gather
