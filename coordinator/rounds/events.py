"""What happens to rounds, and what is to be done about it: the values that go into `rounds.py` and come out of it."""

from __future__ import annotations

from dataclasses import dataclass

from omniray.coordinator.rounds.fairness import Ticket
from omniray.engine.base.errors import OmnirayError

# Events


@dataclass(frozen=True, slots=True)
class Submitted:
    """A write has arrived."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Abandoned:
    """Nobody waits for a write any more; one that still waits for its turn is let go of, one in a round goes on."""

    intent_id: str


@dataclass(frozen=True, slots=True)
class Judged:
    """A round's writes are resolved; `changes` says whether there is anything to commit."""

    round_no: int
    changes: bool


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
    """A round's number belongs to another object, put by nobody who ends our ownership."""

    round_no: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A round could not be judged, staged or put, and nothing was committed; `blamed` are the writes to refuse."""

    round_no: int
    error: OmnirayError
    blamed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Ended:
    """The publisher's life ends: it was fenced, an outcome stays unclear, or it was told to stop."""

    error: OmnirayError


@dataclass(frozen=True, slots=True)
class Resumed:
    """A pause is over."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """A moment has passed in which writers that were answered with a round may have come back."""

    round_no: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """Some tables shall stand still until a write has come that was judged on them elsewhere."""

    intent_id: str
    tables: frozenset[str]


@dataclass(frozen=True, slots=True)
class Unreserved:
    """A reservation is used up, or its time is over."""

    intent_id: str


Event = (
    Submitted | Abandoned | Judged | Staged | Landed | Overtaken | Failed | Ended | Resumed | Gathered | Reserved
    | Unreserved
)  # fmt: skip


# Instructions


@dataclass(frozen=True, slots=True)
class Judge:
    """Resolve these writes on top of round `on`, or of the newest object of the line if there is none."""

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
    """Read the line: is what the round was judged on still the newest?"""

    round_no: int


@dataclass(frozen=True, slots=True)
class Release:
    """Answer every write of a round."""

    round_no: int


@dataclass(frozen=True, slots=True)
class Discard:
    """A round came to nothing: drop what it staged."""

    round_no: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer one write with an error; `overload` if it was not even taken."""

    intent_id: str
    error: OmnirayError | None
    overload: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """Come back with `Resumed` after a while: the store is in trouble."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Gather:
    """Come back with `Gathered` after a small part of what a round takes: writers that were answered send more."""

    round_no: int


Instruction = Judge | Stage | Commit | Confirm | Release | Discard | Refuse | Pause | Gather
