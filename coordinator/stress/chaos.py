"""The chaos: carries out a schedule of disturbances, each of which is written to a history of its own.

Processes are killed and frozen by signals, as the kernel and a broken machine do it: nobody is told.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from typing import Literal

from omniray.coordinator.cluster import Place, find
from omniray.coordinator.service import QUEUE_OWNERS_MAX
from omniray.coordinator.stress.fault_proxy import FaultProxy
from omniray.coordinator.stress.history import NOBODY, Disturbed, HistoryFile
from omniray.coordinator.stress.nodes import Nodes, pid_of
from omniray.coordinator.stress.processes import Writers
from omniray.coordinator.stress.schedule import (
    AddNode,
    BreakStore,
    Disturbance,
    Due,
    Freeze,
    KillActor,
    KillWriter,
    LoseNode,
    MendStore,
    Role,
    Thaw,
)


class Chaos:
    """Disturbs writers, actors, nodes and the store, each at its time."""

    def __init__(
        self,
        schedule: Sequence[Due],
        *,
        writers: Writers,
        place: Place,
        nodes: Nodes,
        proxy: FaultProxy | None,
        history: HistoryFile,
    ) -> None:
        self._schedule = deque(schedule)
        self._writers, self._place, self._nodes, self._proxy, self._history = writers, place, nodes, proxy, history
        self._frozen: dict[str, int] = {}
        self.kills = self.faults = 0

    def tick(self, elapsed_s: float) -> None:
        """Carry out all that is due."""
        while self._schedule and self._schedule[0].at_s <= elapsed_s:
            self._carry_out(self._schedule.popleft().disturbance)

    def end(self) -> None:
        """Leave nothing broken: carry out what ends a disturbance, and none that begins one."""
        for due in self._schedule:
            if isinstance(due.disturbance, Thaw | AddNode | MendStore):
                self._carry_out(due.disturbance)
        self._schedule.clear()

    def _carry_out(self, disturbance: Disturbance) -> None:
        match disturbance:
            case KillWriter(lot):
                if (number := self._writers.kill(lot)) is not None:
                    self._note("kill", f"writer {number}")
            case KillActor(role, lot):
                name = self._name(role, lot)
                if (pid := self._frozen.get(name) or pid_of(name)) and _signal(pid, signal.SIGKILL):
                    self._note("kill", f"{name} (process {pid})")
            case Freeze(role, lot):
                name = self._name(role, lot)
                if (pid := pid_of(name)) and _signal(pid, signal.SIGSTOP):
                    self._frozen[name] = pid
                    self._note("fault", f"{name} (process {pid}) frozen")
            case Thaw():
                for pid in self._frozen.values():
                    _signal(pid, signal.SIGCONT)
                self._frozen.clear()
            case LoseNode():
                self._nodes.lose()
                self._note("kill", "second node")
            case AddNode():
                self._nodes.add()
            case BreakStore(weather):
                self._weather().set_weather(weather)
                self._note("fault", f"store: {weather}")
            case MendStore():
                self._weather().set_weather(None)

    def _name(self, role: Role, lot: int) -> str:
        """The name of an actor of the role; of queue owners the one that the lot falls on."""
        match role:
            case Role.PUBLISHER:
                return self._place.publisher
            case Role.RECONCILER:
                return self._place.reconciler
            case Role.QUEUES:
                names = [self._place.queues(number) for number in range(QUEUE_OWNERS_MAX)]
                made = [name for name in names if find(name) is not None] or names
                return made[lot % len(made)]

    def _weather(self) -> FaultProxy:
        assert self._proxy is not None, "the store is only broken where there is a proxy"
        return self._proxy

    def _note(self, what: Literal["kill", "fault"], target: str) -> None:
        self.kills += what == "kill"
        self.faults += what == "fault"
        self._history.append(Disturbed(at_ns=time.monotonic_ns(), writer=NOBODY, what=what, target=target))


def _signal(pid: int, number: int) -> bool:
    """Whether there was a process to be signalled."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False
