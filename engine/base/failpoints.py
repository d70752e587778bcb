"""Named points at which a test can kill, fail, delay or watch the system. A point that is off costs one dict look-up.

A test arms points of its own process with `armed`, and of a process that it starts by the environment:

    OMNIRAY_FAILPOINTS="phase_c.before_put=kill; phase_d.before_fold=delay(0.2)@3"

`@3` means only the third time that the point is reached; without it, every time.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

VARIABLE = "OMNIRAY_FAILPOINTS"
_RULE = re.compile(r"\s*(?P<point>[a-z_.]+)=(?P<action>kill|raise|delay\((?P<seconds>[\d.]+)\))(@(?P<nth>\d+))?\s*")


class Point(StrEnum):
    """Every point there is, in the order in which an operation passes them."""

    INIT_BEFORE_IDENTITY = "init.before_identity"
    INIT_AFTER_IDENTITY = "init.after_identity"

    STAGE_AFTER_LEASE = "load.after_lease"
    STAGE_AFTER_ROWS = "load.after_rows"

    A_BEFORE_SIDECAR = "phase_a.before_sidecar"
    A_AFTER_SIDECAR = "phase_a.after_sidecar"
    B_BEFORE_TABLE = "phase_b.before_table"
    B_AFTER_ROWS = "phase_b.after_rows"
    B_AFTER_TABLE = "phase_b.after_table"
    C_BEFORE_PUT = "phase_c.before_put"
    C_AFTER_PUT = "phase_c.after_put"
    D_BEFORE_NAME = "phase_d.before_name"
    D_AFTER_NAME = "phase_d.after_name"
    D_BEFORE_FOLD = "phase_d.before_fold"
    D_BEFORE_AUDIT = "phase_d.before_audit"
    D_AUDIT_STAGED = "phase_d.audit_staged"
    D_FOLD_STAGED = "phase_d.fold_staged"
    D_AFTER_FOLD = "phase_d.after_fold"
    D_BEFORE_TIDY = "phase_d.before_tidy"
    D_BEFORE_SIDECARS = "phase_d.before_sidecars"
    D_AFTER_SIDECARS = "phase_d.after_sidecars"
    D_UPKEEP_WRITTEN = "phase_d.upkeep_written"
    D_UPKEEP_STAGED = "phase_d.upkeep_staged"
    D_AFTER_UPKEEP = "phase_d.after_upkeep"
    D_BEFORE_PRUNE = "phase_d.before_prune"
    D_AFTER_PRUNE = "phase_d.after_prune"

    LOST_BEFORE_DISCARD = "lost.before_discard"
    LOST_AFTER_DISCARD = "lost.after_discard"

    RECOVERY_BEFORE_RAISE = "recovery.before_raise"
    RECOVERY_AFTER_RAISE = "recovery.after_raise"
    RECOVERY_BEFORE_APPLY = "recovery.before_apply"
    RECOVERY_AFTER_VERSION = "recovery.after_version"
    RECOVERY_BEFORE_RECORD = "recovery.before_record"
    RECOVERY_AFTER_RECORD = "recovery.after_record"
    RECOVERY_BEFORE_SIDECAR = "recovery.before_sidecar"
    RECOVERY_AFTER_SIDECAR = "recovery.after_sidecar"

    OWNER_BEFORE_PUT = "owner.before_put"
    OWNER_AFTER_PUT = "owner.after_put"

    SWEEP_BEFORE_PUT = "sweep.before_put"
    SWEEP_AFTER_PUT = "sweep.after_put"
    SWEEP_AFTER_FILES = "sweep.after_files"
    SWEEP_AFTER_SIDECARS = "sweep.after_sidecars"
    SWEEP_BEFORE_DELETE = "sweep.before_delete"
    SWEEP_AFTER_DELETE = "sweep.after_delete"

    BRANCH_BEFORE_PUT = "branch.before_put"
    BRANCH_AFTER_BIND = "branch.after_bind"
    BRANCH_AFTER_MARK = "branch.after_mark"
    BRANCH_AFTER_CLOSE = "branch.after_close"

    REPAIR_BEFORE_ACT = "repair.before_act"
    REPAIR_AFTER_ASIDE = "repair.after_aside"
    REPAIR_AFTER_FINAL_NAME = "repair.after_final_name"
    REPAIR_BEFORE_PUT = "repair.before_put"
    REPAIR_AFTER_PUT = "repair.after_put"


class FailpointHit(Exception):
    """The error that the action `raise` raises: no code of the system handles it."""


@dataclass(slots=True)
class Action:
    """What happens at a point: `do` on the `nth` time, or every time."""

    do: Callable[[], None]
    nth: int | None = None
    reached: int = field(default=0, init=False)


_armed: dict[Point, Action] = {}


def reach(point: Point) -> None:
    """Run the action that is armed at this point, if any."""
    if _armed and (action := _armed.get(point)) is not None:
        action.reached += 1
        if action.nth is None or action.nth == action.reached:
            action.do()


@contextlib.contextmanager
def armed(actions: Mapping[Point, Action]) -> Iterator[None]:
    """Arm points of this process for a while."""
    before = dict(_armed)
    _armed.update(actions)
    try:
        yield
    finally:
        _armed.clear()
        _armed.update(before)


def arm(text: str) -> None:
    """Arm points of this process for good, as the environment variable would."""
    _armed.update(parse(text))


def kill() -> None:
    """End this process as a power cut would: no handler runs, nothing is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise FailpointHit("a failpoint was reached")


def parse(text: str) -> dict[Point, Action]:
    """Parse the environment variable; a mistake in it ends the process, since the test would prove nothing."""
    actions: dict[Point, Action] = {}
    for rule in filter(str.strip, text.split(";")):
        found = _RULE.fullmatch(rule)
        if found is None or found["point"] not in set(Point):
            raise ValueError(f"{VARIABLE}: can't read {rule.strip()!r}; write POINT=kill|raise|delay(SECONDS)[@N]")
        actions[Point(found["point"])] = Action(_action(found), int(found["nth"]) if found["nth"] else None)
    return actions


def _action(rule: re.Match[str]) -> Callable[[], None]:
    if rule["seconds"]:
        return lambda: time.sleep(float(rule["seconds"]))
    return kill if rule["action"] == "kill" else fail


arm(os.environ.get(VARIABLE, ""))
