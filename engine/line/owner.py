"""The owner of a line, which alone may extend it: every process (`embedded`), or one incarnation of a coordinator.

Every change of owner is an object of its own with the next epoch. From then on nothing that was under way can land, so
clocks and process ids say only when to take over, never whether that is safe.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from omniray.engine.base.errors import Fenced, InvariantViolation, LineOwned
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.base.process import Process, is_known_dead, this_process
from omniray.engine.base.ulids import new_ulid
from omniray.engine.line.commit_object import DURABILITY, EMBEDDED, CommitObject, change_owner
from omniray.engine.line.line_end import Tip, refuse_closed
from omniray.engine.store.object_store import Durability

log = logging.getLogger("omniray")

_SEPARATOR = "|"
_OWNER_SHOWN_MAX = 80


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of a coordinator: a ULID, its process and its address."""

    ulid: str
    process: Process
    address: str

    def __str__(self) -> str:
        return _SEPARATOR.join(
            (self.ulid, self.process.host, str(self.process.pid), self.process.started, self.address)
        )

    @classmethod
    def new(cls, address: str) -> Incarnation:
        return cls(new_ulid(), this_process(), address)

    @classmethod
    def parse(cls, owner: str) -> Incarnation:
        try:
            ulid, host, pid, started, address = owner.split(_SEPARATOR, 4)
            return cls(ulid, Process(host, int(pid), started), address)
        except ValueError as error:
            raise InvariantViolation(
                f"the line's owner {owner[:_OWNER_SHOWN_MAX]!r} can't be read: if no coordinator serves the graph, "
                "'omniray recover --take-over' hands the branch back",
                owner=owner[:_OWNER_SHOWN_MAX],
            ) from error


def is_owner_known_dead(owner: str) -> bool:
    return owner != EMBEDDED and is_known_dead(Incarnation.parse(owner).process)


def durability_after(newest: CommitObject, wanted: Durability, *, instead_of: str = "") -> Durability:
    """The durability of the coordinator that follows `newest`: not less than that of the one whose place it takes.

    Any client may create a coordinator again that has died, and none of them means to change what its writes survive.
    A line that was handed back, or is taken over on purpose (`instead_of`), gets what is wanted.
    """
    kept = newest.policy.get(DURABILITY) if newest.owner not in (EMBEDDED, instead_of) else None
    return Durability.POWER if kept == Durability.POWER else wanted


def take_over(tip: Tip, owner: str, durability: Durability | None = None, *, door: str = "") -> CommitObject:
    """Make `owner` the owner of the line, whatever owner it had; `embedded` opens it to every process."""

    def build(newest: CommitObject) -> CommitObject:
        reach(Point.OWNER_BEFORE_PUT)
        return change_owner(newest, op_id=new_ulid(), owner=owner, durability=durability, door=door)

    taken = tip.extend(build)
    reach(Point.OWNER_AFTER_PUT)
    assert taken is not None, "a change of owner is always built"
    return taken


def release(tip: Tip, owner: str) -> None:
    """Hand the line back to every process; a successor that has taken it over keeps it."""

    def build(newest: CommitObject) -> CommitObject | None:
        reach(Point.OWNER_BEFORE_PUT)
        return change_owner(newest, op_id=new_ulid(), owner=EMBEDDED) if newest.owner == owner else None

    tip.extend(build)
    reach(Point.OWNER_AFTER_PUT)


def inherit(tip: Tip) -> bool:
    """Release the line of an owner that is known to be dead to all writers; returns whether it was."""
    newest = tip.newest
    if not is_owner_known_dead(newest.owner):
        return False
    log.warning("event=owner_dead line=%s owner=%s epoch=%d", newest.line, newest.owner, newest.epoch)
    release(tip, newest.owner)
    return True


def refuse_stranger(owner: str, newest: CommitObject) -> None:
    """Raise if `owner` may not put after `newest`: it is fenced, must go through the coordinator, or the line ended."""
    refuse_closed(newest)
    if newest.owner == owner:
        return
    if owner != EMBEDDED:
        raise Fenced(
            f"the line was taken over in epoch {newest.epoch}: this coordinator's writer has ended; start a new one",
            epoch=newest.epoch, owner=newest.owner,
        )  # fmt: skip
    address = Incarnation.parse(newest.owner).address
    raise LineOwned(
        "a coordinator owns this branch: write through it with omniray.connect(uri), or take it down with 'omniray "
        "down'; if it is gone for good, 'omniray recover --take-over' hands the branch back",
        owner=newest.owner, address=address, epoch=newest.epoch,
    )  # fmt: skip
