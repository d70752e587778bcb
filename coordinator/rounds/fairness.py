"""Shares rounds among tenants by the cost of their writes; each tenant's writes keep their order.

Deficit round robin. Tenants form a ring. At its turn a tenant gets a quantum of credit and takes as many of its waiting
writes as the credit covers; while it has more writes, it keeps the remaining credit for its next turn. So a tenant that
sends large writes, or very many, gets no more of a round than one that sends few small ones.

What a write costs is known in full only when it is judged: a short mutation may match a million rows. What it cost
beyond its ticket is charged then. A tenant in debt has its turns like any other, and takes nothing until they have paid
for it; while it has nothing waiting, each round pays as much as a turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

ROW_COST = 1
BYTES_OF_A_COST = 1024  # a short row; what is larger costs more
WRITE_COST = 10  # of a write in addition to its rows: judging it, and its entry in the line
QUANTUM = 1_000


@dataclass(frozen=True, slots=True)
class Ticket:
    """The facts about a write that the rounds need."""

    intent_id: str
    tenant: str
    rows: int
    size_bytes: int
    alone: bool = False  # shares a round with no other write
    tables: frozenset[str] | None = None  # that it may touch; None if they are known only when it is judged
    attempts: int = 0  # rounds that it has been in already

    @property
    def cost(self) -> int:
        return WRITE_COST + ROW_COST * self.rows + self.size_bytes // BYTES_OF_A_COST


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """The limits of one round; a single write above them gets a round of its own."""

    intents: int = 1_024
    rows: int = 65_536
    size_bytes: int = 64 << 20


class TenantQueue:
    """The waiting writes, by tenant."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Ticket]] = {}  # in the order of the ring; none is empty
        self._credit: dict[str, int] = {}  # below zero: a debt, which a tenant has also while it has nothing waiting

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[Ticket]:
        for tickets in self._waiting.values():
            yield from tickets

    def push(self, ticket: Ticket) -> None:
        self._waiting.setdefault(ticket.tenant, deque()).append(ticket)

    def put_back(self, tickets: Iterable[Ticket]) -> None:
        """Return taken writes in their old order, before all writes that came later."""
        for ticket in reversed(list(tickets)):
            self._waiting.setdefault(ticket.tenant, deque()).appendleft(ticket)

    def remove(self, intent_id: str) -> Ticket | None:
        """Remove a waiting write and return it; None if it does not wait here."""
        found = next((ticket for ticket in self if ticket.intent_id == intent_id), None)
        if found is not None:
            self._waiting[found.tenant].remove(found)
            self._leave_if_empty(found.tenant)
        return found

    def charge(self, tenant: str, cost: int) -> None:
        """Take credit for what a write has cost beyond its ticket; give it back if the cost is negative."""
        self._credit[tenant] = self._credit.get(tenant, 0) - cost
        self._forget_if_even(tenant)

    def take(self, limits: RoundLimits, is_blocked: Callable[[Ticket], bool] = lambda ticket: False) -> list[Ticket]:
        """Take the writes of the next round, at least one if any is unblocked; blocked writes let others pass."""
        taken: list[Ticket] = []
        room = limits
        for tenant in self._credit.keys() - self._waiting.keys():
            self.charge(tenant, -QUANTUM)
        while any(_first(waiting, is_blocked) for waiting in self._waiting.values()):
            tenant = next(iter(self._waiting))
            if _first(self._waiting[tenant], is_blocked) is None:
                self._to_the_end(tenant)
                continue
            self._credit[tenant] = self._credit.get(tenant, 0) + QUANTUM
            room, is_full = self._take_turn(tenant, taken, room, is_blocked)
            if is_full:
                break
        return taken

    def _take_turn(
        self, tenant: str, taken: list[Ticket], room: RoundLimits, is_blocked: Callable[[Ticket], bool]
    ) -> tuple[RoundLimits, bool]:
        """Take one tenant's turn; returns the room that is left, and whether the round is full."""
        waiting = self._waiting[tenant]
        while (ticket := _first(waiting, is_blocked)) is not None and ticket.cost <= self._credit[tenant]:
            left = _room_after(room, ticket)
            if taken and (left is None or ticket.alone):
                self._credit[tenant] -= QUANTUM  # its turn was cut short: it is first in the next round
                return room, True
            waiting.remove(ticket)
            taken.append(ticket)
            self._credit[tenant] -= ticket.cost
            if left is None or ticket.alone:
                self._credit[tenant] = 0  # a round of its own is a whole turn: remaining credit is not kept
                self._to_the_end(tenant)
                return room, True
            room = left
        self._to_the_end(tenant)
        return room, False

    def _to_the_end(self, tenant: str) -> None:
        self._waiting[tenant] = self._waiting.pop(tenant)
        self._leave_if_empty(tenant)

    def _leave_if_empty(self, tenant: str) -> None:
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._forget_if_even(tenant)

    def _forget_if_even(self, tenant: str) -> None:
        """Forget the credit of a tenant without waiting writes: only a debt stays."""
        if tenant not in self._waiting and self._credit.get(tenant, 0) >= 0:
            self._credit.pop(tenant, None)


def _first(waiting: Iterable[Ticket], is_blocked: Callable[[Ticket], bool]) -> Ticket | None:
    return next((ticket for ticket in waiting if not is_blocked(ticket)), None)


def _room_after(room: RoundLimits, ticket: Ticket) -> RoundLimits | None:
    """The room left in a round after adding the ticket; None if it does not fit."""
    left = RoundLimits(room.intents - 1, room.rows - ticket.rows, room.size_bytes - ticket.size_bytes)
    return left if min(left.intents, left.rows, left.size_bytes) >= 0 else None
