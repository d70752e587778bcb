"""The histories of all writers joined with the lineage: which writer sent what when, and where in the line it landed.

Positions count the entries of the lineage from 0, oldest first; state n is the graph after the first n of them. Time
bounds the states: a commit whose answer, or whose effect in a snapshot, was seen before a moment is in every state
after it, and a commit that was sent after the moment is in no state before it.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from omniray.coordinator.stress.final_graph import FinalGraph
from omniray.coordinator.stress.history import Event, Failed, Invoked, Outcome, Read, Succeeded, Unclear, line_of
from omniray.coordinator.stress.operation import Write

USER_KINDS = ("Load", "Mutation")
"""The kinds of commits that writers make; the system makes the others."""

EXCERPT_LINES_MAX = 16


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to send a write, and its outcome; None if its writer died first."""

    invoked: Invoked
    outcome: Outcome | None

    @property
    def write(self) -> Write:
        return self.invoked.write

    @property
    def began_ns(self) -> float:
        return self.invoked.at_ns

    @property
    def ended_ns(self) -> float:
        return math.inf if self.outcome is None else self.outcome.at_ns

    @property
    def committed(self) -> bool:
        """Whether the answer says that the write is committed."""
        return isinstance(self.outcome, Succeeded) and self.outcome.commit_id is not None

    @property
    def refused(self) -> bool:
        """Whether the answer says that nothing was committed."""
        return isinstance(self.outcome, Failed) or (isinstance(self.outcome, Succeeded) and not self.committed)


@dataclass(frozen=True, slots=True)
class Submission:
    """A write with all its attempts, which share its id."""

    write: Write
    attempts: tuple[Attempt, ...]

    @property
    def began_ns(self) -> float:
        """The earliest moment at which it can have been committed."""
        return min((a.began_ns for a in self.attempts if not a.refused), default=math.inf)

    @property
    def acknowledged_ns(self) -> float:
        """The moment of the first answer that it was committed."""
        return min((a.ended_ns for a in self.attempts if a.committed), default=math.inf)


class Evidence:
    """The facts about a run, which the rules query."""

    def __init__(self, events: Sequence[Event], final: FinalGraph) -> None:
        self.events, self.final, self.lineage = events, final, final.lineage
        self.submissions = submissions_of(events)
        self.reads = [event for event in events if isinstance(event, Read)]
        self.position = {entry.commit_id: n for n, entry in enumerate(self.lineage)}
        self._moved: defaultdict[str, list[int]] = defaultdict(list)
        self._states: dict[str, int] = {}  # by object of the line: the state after all of it
        for n, entry in enumerate(self.lineage):
            self._states[entry.op_id] = n + 1
            for table_key in entry.tables:
                self._moved[table_key].append(n)

    def submission_at(self, position: int) -> Submission | None:
        return self.submissions.get(self.lineage[position].commit_id)

    def state_of(self, commit_id: str) -> int | None:
        """The state that a snapshot at a commit shows: the state after the whole object that holds it."""
        position = self.position.get(commit_id)
        return None if position is None else self._states[self.lineage[position].op_id]

    def moved_between(self, table_key: str, first_state: int, last_state: int) -> int | None:
        """The position of the last commit that changed the table between two states, if any."""
        moves = self._moved[table_key]
        found = bisect_left(moves, last_state) - 1
        return moves[found] if found >= 0 and moves[found] >= first_state else None

    # Time

    def earliest_state(self, moment_ns: float) -> int:
        """The oldest state that an operation which begins at this moment may see."""
        known = bisect_left(self._returned, (moment_ns,))
        return self._states_seen[known]

    def latest_state(self, moment_ns: float) -> int:
        """The newest state that can exist at this moment."""
        sent = bisect_right(self._sent, (moment_ns, math.inf))
        return self._states_open[sent]

    @cached_property
    def known_ns(self) -> list[float]:
        """By position: the moment since which the commit is known, by its answer or from a snapshot."""
        submissions = (self.submission_at(n) for n in range(len(self.lineage)))
        known = [math.inf if s is None else s.acknowledged_ns for s in submissions]
        for read in self.reads:
            if state := self.state_of(read.commit_id):
                known[state - 1] = min(known[state - 1], read.at_ns)
        return known

    @cached_property
    def began_ns(self) -> list[float]:
        """By position: the moment at which the commit was first sent."""
        submissions = (self.submission_at(n) for n in range(len(self.lineage)))
        return [-math.inf if s is None else s.began_ns for s in submissions]

    @cached_property
    def _returned(self) -> list[tuple[float, int]]:
        return sorted((moment, n + 1) for n, moment in enumerate(self.known_ns) if moment < math.inf)

    @cached_property
    def _states_seen(self) -> list[int]:
        return [0, *itertools.accumulate((state for _, state in self._returned), max)]

    @cached_property
    def _sent(self) -> list[tuple[float, int]]:
        return sorted((moment, n) for n, moment in enumerate(self.began_ns))

    @cached_property
    def _states_open(self) -> list[int]:
        """For each count of sent commits: the lowest position of a commit that was not sent yet."""
        lowest = itertools.accumulate((n for _, n in reversed(self._sent)), min, initial=len(self.lineage))
        return list(lowest)[::-1]

    # Excerpts

    @cached_property
    def _events_of(self) -> dict[str, list[Event]]:
        found: defaultdict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            if isinstance(event, Invoked | Succeeded | Failed | Unclear):
                found[event.txn_id].append(event)
        return found

    def of_ids(self, txn_ids: Iterable[str]) -> tuple[str, ...]:
        """The lines of the history about some writes."""
        events = sorted((e for id in txn_ids for e in self._events_of.get(id, ())), key=lambda event: event.at_ns)
        return tuple(line_of(event) for event in events[-EXCERPT_LINES_MAX:])

    def of_names(self, names: Iterable[str]) -> tuple[str, ...]:
        """The last lines of the history about writes that mention one of the names."""
        wanted = set(names)
        return self.of_ids(id for id, s in self.submissions.items() if s.write.names & wanted)


def submissions_of(events: Iterable[Event]) -> dict[str, Submission]:
    """All writes by their ids. An outcome belongs to the last attempt of the same writer that has none yet."""
    attempts: defaultdict[str, list[Attempt]] = defaultdict(list)
    open_attempts: dict[tuple[int, str], int] = {}
    for event in events:
        match event:
            case Invoked():
                open_attempts[event.writer, event.txn_id] = len(attempts[event.txn_id])
                attempts[event.txn_id].append(Attempt(event, None))
            case Succeeded() | Failed() | Unclear():
                number = open_attempts.pop((event.writer, event.txn_id))
                attempts[event.txn_id][number] = Attempt(attempts[event.txn_id][number].invoked, event)
    return {id: Submission(tries[0].write, tuple(tries)) for id, tries in attempts.items()}
