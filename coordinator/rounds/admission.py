"""Decides whether there is room for a write beside those that wait or are under way.

Up to one half the room is for whoever comes, as far as a single tenant may go. The other half is for tenants that hold
little. What each of them may hold then shrinks with the square of their number, down to a floor: so however many names
somebody invents, what all of them hold together leaves room for a newcomer, until thousands of them are at the floor.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from omniray.coordinator.rounds.fairness import RoundLimits, Ticket

FLOOR_INTENTS = 8
FLOOR_BYTES = 32 << 10


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a round and of the writes waiting or under way; `tenant_…` bound one tenant's share."""

    round: RoundLimits = field(default_factory=RoundLimits)
    waiting_intents: int = 50_000
    waiting_bytes: int = 1 << 30
    tenant_intents: int = 10_000
    tenant_bytes: int = 512 << 20


@dataclass(frozen=True, slots=True)
class Holding:
    """Writes that wait or are under way, and their bytes."""

    intents: int = 0
    size_bytes: int = 0

    def and_one(self, ticket: Ticket) -> Holding:
        return Holding(self.intents + 1, self.size_bytes + ticket.size_bytes)

    def but_one(self, ticket: Ticket) -> Holding:
        return Holding(self.intents - 1, self.size_bytes - ticket.size_bytes)

    def fits(self, intents: int, size_bytes: int) -> bool:
        return self.intents <= intents and self.size_bytes <= size_bytes

    def __str__(self) -> str:
        return f"{self.intents} writes with {self.size_bytes} bytes"


class Admission:
    """What is held, by tenant and over all."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held: dict[str, Holding] = {}
        self.total = Holding()

    def refusal(self, ticket: Ticket) -> str:
        """Why a write can't be taken now; empty if it can."""
        limits, held = self._limits, self._held.get(ticket.tenant, Holding())
        own, total = held.and_one(ticket), self.total.and_one(ticket)
        if not own.fits(limits.tenant_intents, limits.tenant_bytes):
            return f"tenant {ticket.tenant!r} has {held} under way"
        if not total.fits(limits.waiting_intents, limits.waiting_bytes):
            return f"{self.total} are under way"
        names = len(self._held) + (ticket.tenant not in self._held)
        is_scarce = not total.fits(limits.waiting_intents // 2, limits.waiting_bytes // 2)
        if is_scarce and not own.fits(*share(limits, names)):
            return f"tenant {ticket.tenant!r} has {held} under way, of {self.total} by {names} tenants"
        return ""

    def add(self, ticket: Ticket) -> None:
        self._held[ticket.tenant] = self._held.get(ticket.tenant, Holding()).and_one(ticket)
        self.total = self.total.and_one(ticket)

    def remove(self, ticket: Ticket) -> None:
        self.total = self.total.but_one(ticket)
        left = self._held.pop(ticket.tenant).but_one(ticket)
        if left.intents:
            self._held[ticket.tenant] = left


def share(limits: Limits, names: int) -> tuple[int, int]:
    """How many writes and bytes one of so many tenants may hold while room is scarce."""
    intents = max(limits.tenant_intents // names**2, min(FLOOR_INTENTS, limits.tenant_intents))
    size_bytes = max(limits.tenant_bytes // names**2, min(FLOOR_BYTES, limits.tenant_bytes))
    return intents, size_bytes
