"""A run over lists that never took place, told event by event."""

from __future__ import annotations

from dataclasses import dataclass, field

from omniray.coordinator.stress.list_checker import check_lists
from omniray.coordinator.stress.transactions import Append, Event, Key, Kind, Micro, Read, Value
from omniray.coordinator.stress.violation import ListRule, Rule

STEP_NS = 10


@dataclass
class ListStory:
    """Whatever is told happens at once, one thing after the other; `begin` and `end` let things overlap."""

    events: list[Event] = field(default_factory=list)

    def begin(self, writer: int, *ops: Micro) -> None:
        self._tell("invoke", writer, ops)

    def end(self, writer: int, kind: Kind, *ops: Micro) -> None:
        """It ends; with the operations that it began with, unless others are given."""
        begun = next(one for one in reversed(self.events) if one.writer == writer and one.event == "invoke")
        self._tell(kind, writer, ops or begun.ops)

    def append(self, writer: int, key: Key, value: Value, kind: Kind = "ok") -> None:
        self.begin(writer, Append(key, value))
        self.end(writer, kind)

    def read(self, writer: int, key: Key, *values: Value) -> None:
        self.begin(writer, Read(key))
        self.end(writer, "ok", Read(key, values))

    def broken_rules(self) -> set[Rule | ListRule]:
        return {violation.rule for violation in check_lists(self.events).violations}

    def _tell(self, kind: Kind, writer: int, ops: tuple[Micro, ...]) -> None:
        self.events.append(Event(event=kind, at_ns=STEP_NS * (1 + len(self.events)), writer=writer, ops=ops))
