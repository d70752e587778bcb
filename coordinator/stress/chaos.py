"""The chaos: carries out a schedule of disturbances and records them in a history of its own.

Processes are killed and frozen by signals, without a warning, as by the kernel or a broken machine. A lasting
disturbance is undone after its time, and when the chaos ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from omniray.coordinator.actors.cluster import Place, find
from omniray.coordinator.actors.hosting import QUEUE_OWNERS_MAX
from omniray.coordinator.stress.fault_proxy import FaultProxy
from omniray.coordinator.stress.history import NOBODY, Disturbed, HistoryFile
from omniray.coordinator.stress.nodes import Nodes, pid_of
from omniray.coordinator.stress.processes import Writers
from omniray.coordinator.stress.request_faults import Weather
from omniray.coordinator.stress.schedule import (
    BreakStore,
    Disturbance,
    Due,
    Freeze,
    KillActor,
    KillWriter,
    LoseNode,
    Role,
)

Mend = Callable[[], None]


class Chaos:
    """Disturbs writers, actors, nodes and the store, each at its time."""

    def __init__(
        self,
        schedule: Sequence[Due],
        *,
        sign_of_life: int,
        writers: Writers,
        place: Place,
        nodes: Nodes,
        proxy: FaultProxy | None,
        history: HistoryFile,
    ) -> None:
        self._schedule = list(schedule)
        self._sign_of_life = sign_of_life  # as a number of acknowledged writes
        self._writers, self._place, self._nodes, self._proxy, self._history = writers, place, nodes, proxy, history
        self._broken: dict[type[Disturbance], tuple[float, Mend]] = {}  # until when, and how to undo it
        self._frozen: dict[str, int] = {}
        self._acknowledged = 0  # writes at the last disturbance
        self.kills = self.faults = 0

    def tick(self, elapsed_s: float, acknowledged: int) -> None:
        """Carry out and undo the disturbances that are due, `acknowledged` writes into the run."""
        for kind, (until_s, mend) in list(self._broken.items()):
            if until_s <= elapsed_s:
                del self._broken[kind]
                mend()
        for due in [due for due in self._schedule if due.at_s <= elapsed_s]:
            waits_for_life = due.patient and acknowledged < self._acknowledged + self._sign_of_life
            if not waits_for_life and type(due.disturbance) not in self._broken:
                self._schedule.remove(due)
                self._carry_out(due.disturbance, elapsed_s)
                self._acknowledged = acknowledged

    def end(self) -> None:
        """Undo all disturbances, and carry out no more."""
        self._schedule.clear()
        for _, mend in self._broken.values():
            mend()
        self._broken.clear()

    def _carry_out(self, disturbance: Disturbance, elapsed_s: float) -> None:
        match disturbance:
            case KillWriter(lot):
                if (number := self._writers.kill(lot)) is not None:
                    self._note("kill", f"writer {number}")
            case KillActor(role, lot):
                self._kill(self._name(role, lot))
            case Freeze(role, lot, seconds):
                name = self._name(role, lot)
                self._freeze(name)
                self._broken[Freeze] = elapsed_s + seconds, partial(self._thaw, name)
            case LoseNode(seconds):
                self._nodes.lose()
                self._note("kill", "second node")
                self._broken[LoseNode] = elapsed_s + seconds, self._nodes.add
            case BreakStore(weather, seconds):
                self._set_weather(weather)
                self._note("fault", f"store: {weather}")
                self._broken[BreakStore] = elapsed_s + seconds, partial(self._set_weather, None)

    def _kill(self, name: str) -> None:
        pid = self._frozen.get(name) or pid_of(name)  # a frozen process can't be asked for its id
        if pid is not None and _signal(pid, signal.SIGKILL):
            self._note("kill", f"{name} (process {pid})")

    def _freeze(self, name: str) -> None:
        pid = pid_of(name)
        if pid is not None and _signal(pid, signal.SIGSTOP):
            self._frozen[name] = pid
            self._note("fault", f"{name} (process {pid}) frozen")

    def _thaw(self, name: str) -> None:
        pid = self._frozen.pop(name, None)
        if pid is not None:
            _signal(pid, signal.SIGCONT)

    def _set_weather(self, weather: Weather | None) -> None:
        assert self._proxy is not None, "the store is only broken where there is a proxy"
        self._proxy.set_weather(weather)

    def _name(self, role: Role, lot: int) -> str:
        """The name of the role's actor; of several queue owners, the one that the lot falls on."""
        match role:
            case Role.PUBLISHER:
                return self._place.publisher
            case Role.RECONCILER:
                return self._place.reconciler
            case Role.QUEUES:
                names = [self._place.queues(number) for number in range(QUEUE_OWNERS_MAX)]
                made = [name for name in names if find(name) is not None] or names
                return made[lot % len(made)]

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
