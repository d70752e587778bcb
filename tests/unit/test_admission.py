"""Room for writes: what one tenant may hold, what all may, and what is left for newcomers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from omniray.coordinator.rounds.admission import FLOOR_BYTES, FLOOR_INTENTS, Admission, Limits, share
from omniray.coordinator.rounds.events import Judge, Judged, Landed, Refuse, Submitted
from omniray.coordinator.rounds.fairness import Ticket
from omniray.coordinator.rounds.machine import Rounds

LIMITS = Limits()
_NUMBERS = itertools.count()


def _ticket(tenant: str, size_bytes: int = 0) -> Ticket:
    return Ticket(f"{tenant}-{next(_NUMBERS)}", tenant, 1, size_bytes)


def _filled(admission: Admission, tenant: str, size_bytes: int) -> int:
    """Add writes of a tenant until it is refused; returns how many."""
    count = 0
    while not admission.refusal(ticket := _ticket(tenant, size_bytes)):
        admission.add(ticket)
        count += 1
    return count


def test_a_tenant_alone_may_hold_half_of_the_bytes() -> None:
    assert _filled(Admission(LIMITS), "ann", 16 << 20) == 32


def test_two_invented_names_do_not_fill_the_room() -> None:
    """Fault: half of the room is one tenant's, and a second name takes the other half."""
    admission = Admission(LIMITS)
    for name in ("x", "y"):
        _filled(admission, name, 16 << 20)
    assert not admission.refusal(_ticket("ann", 32 << 20))


@pytest.mark.parametrize("size_bytes", [0, 1 << 10, FLOOR_BYTES, 1 << 20, 64 << 20])
def test_a_thousand_invented_names_leave_room_for_a_newcomer(size_bytes: int) -> None:
    """Whether they send many small writes or few large ones, and however often each of them tries."""
    admission = Admission(LIMITS)
    for name in range(1_000):
        for size in (size_bytes, FLOOR_BYTES, 1 << 10, 0):
            _filled(admission, f"invented{name}", size)
    for _ in range(FLOOR_INTENTS):
        ticket = _ticket("ann", FLOOR_BYTES // FLOOR_INTENTS)
        assert not admission.refusal(ticket)
        admission.add(ticket)


def test_names_that_come_and_go_leave_room_for_a_newcomer() -> None:
    """A share that was taken while few had come is kept while many come: what they hold together is bounded still."""
    rng, admission = random.Random(3), Admission(LIMITS)
    held: dict[str, list[Ticket]] = {}
    for _ in range(30_000):
        name = f"invented{rng.randrange(1_000)}"
        if rng.random() < 0.3:
            for ticket in held.pop(name, []):
                admission.remove(ticket)
        ticket = _ticket(name, rng.choice((0, 1 << 10, FLOOR_BYTES, 1 << 20, 64 << 20, 512 << 20)))
        if not admission.refusal(ticket):
            admission.add(ticket)
            held.setdefault(name, []).append(ticket)
        assert not admission.refusal(_ticket("ann", FLOOR_BYTES))


def test_a_write_that_is_over_its_share_is_taken_while_there_is_room() -> None:
    admission = Admission(LIMITS)
    for name in range(20):
        admission.add(_ticket(f"tenant{name}", 1 << 20))
    assert share(LIMITS, 21)[1] < 100 << 20
    assert not admission.refusal(_ticket("ann", 100 << 20))


def test_room_comes_back() -> None:
    admission = Admission(LIMITS)
    tickets = [_ticket("ann", 256 << 20) for _ in range(2)]
    for ticket in tickets:
        admission.add(ticket)
    assert "tenant 'ann' has 2 writes" in admission.refusal(_ticket("ann", 1))
    admission.remove(tickets[0])
    assert not admission.refusal(_ticket("ann", 256 << 20))


def _flood(rng: random.Random) -> Iterator[Ticket]:
    """What a thousand invented names send at once, each some writes."""
    for name in rng.sample(range(1_000), 300):
        for _ in range(rng.randint(1, 8)):
            yield _ticket(f"invented{name}", rng.choice((0, 1 << 10, 1 << 20, 32 << 20)))


def test_an_honest_tenant_is_never_refused_and_always_served_beside_a_thousand_invented_ones() -> None:
    """Fault: a flood that tries again all the time. Oracle: the rounds that each write of the honest tenant waits."""
    rng, rounds = random.Random(7), Rounds()
    number, waited, waits = 1, 0, []
    rounds.handle(Submitted(_ticket("invented0")))
    waiting = ""
    for _ in range(80):
        for ticket in _flood(rng):
            rounds.handle(Submitted(ticket))
        if not waiting:
            ticket = _ticket("ann", 10 << 10)
            waiting, waited = ticket.intent_id, 0
            assert not any(isinstance(one, Refuse) for one in rounds.handle(Submitted(ticket)))
        instructions = [*rounds.handle(Judged(number, changes=False)), *rounds.handle(Landed(number))]
        begun = [one for one in instructions if isinstance(one, Judge)]
        rounds.validate()
        number, waited = number + 1, waited + 1
        if any(ticket.intent_id == waiting for one in begun for ticket in one.tickets):
            waits.append(waited)
            waiting = ""
    assert len(waits) > 5
    assert max(waits) <= 10
