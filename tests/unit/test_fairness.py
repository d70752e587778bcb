"""Whose turn it is: the order within a tenant, and the shares of tenants that all have more waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from omniray.coordinator.rounds.fairness import QUANTUM, WRITE_COST, RoundLimits, TenantQueue, Ticket

ROOMY = RoundLimits()


def _ticket(intent_id: str, *, rows: int = 0, size_bytes: int = 0, **rest: object) -> Ticket:
    """A write whose tenant is the first letter of its id."""
    return Ticket(intent_id, intent_id[0], rows, size_bytes, **rest)  # type: ignore[arg-type]


def _queue(*tickets: Ticket) -> TenantQueue:
    queue = TenantQueue()
    for ticket in tickets:
        queue.push(ticket)
    return queue


def _many(tenant: str, count: int, *, cost: int, **rest: object) -> list[Ticket]:
    return [_ticket(f"{tenant}{n}", rows=cost - WRITE_COST, **rest) for n in range(count)]


def _ids(tickets: Iterable[Ticket]) -> list[str]:
    return [ticket.intent_id for ticket in tickets]


def _served(queue: TenantQueue, limits: RoundLimits, rounds: int) -> Counter[str]:
    served: Counter[str] = Counter()
    for _ in range(rounds):
        for ticket in queue.take(limits):
            served[ticket.tenant] += ticket.cost
    return served


def test_a_tenants_writes_keep_their_order() -> None:
    queue = _queue(*_many("a", 50, cost=300))
    taken = [ticket for _ in range(10) for ticket in queue.take(RoundLimits(intents=5))]
    assert _ids(taken) == [f"a{n}" for n in range(50)]


def test_everything_that_waits_is_taken_where_there_is_room() -> None:
    queue = _queue(*_many("a", 5, cost=3 * QUANTUM), *_many("b", 5, cost=20))
    assert len(queue.take(ROOMY)) == 10
    assert len(queue) == 0
    assert queue.take(ROOMY) == []


def test_tenants_that_all_have_more_waiting_get_equal_shares() -> None:
    costs = {"a": 510, "b": 250, "c": 2_400}
    queue = _queue(*(ticket for tenant, cost in costs.items() for ticket in _many(tenant, 400, cost=cost)))
    served = _served(queue, RoundLimits(rows=3_000), rounds=60)
    assert max(served.values()) - min(served.values()) <= 2 * (QUANTUM + max(costs.values())), served


def test_a_tenant_that_sends_a_flood_does_not_keep_another_waiting() -> None:
    queue = _queue(*_many("a", 1_000, cost=20), _ticket("b0"))
    assert "b0" in _ids(queue.take(RoundLimits(intents=60)))


def test_what_is_left_of_the_credit_stays_for_the_next_turn() -> None:
    """Writes that cost more than half a quantum would otherwise get one turn's worth of one, and no more."""
    queue = _queue(*_many("a", 100, cost=600), *_many("b", 300, cost=200))
    served = _served(queue, RoundLimits(intents=10), rounds=15)
    assert abs(served["a"] - served["b"]) <= 2 * (QUANTUM + 600), served


def test_a_turn_that_is_cut_short_is_gone_on_with_in_the_next_round() -> None:
    queue = _queue(*_many("a", 10, cost=100), *_many("b", 10, cost=100))
    assert _ids(queue.take(RoundLimits(intents=4))) == ["a0", "a1", "a2", "a3"]
    assert _ids(queue.take(RoundLimits(intents=7))) == ["a4", "a5", "a6", "a7", "a8", "a9", "b0"]


@pytest.mark.parametrize("limits", [RoundLimits(intents=2), RoundLimits(rows=20), RoundLimits(size_bytes=20)])
def test_a_round_holds_no_more_than_its_limits(limits: RoundLimits) -> None:
    queue = _queue(*(_ticket(f"a{n}", rows=10, size_bytes=10) for n in range(5)))
    assert [len(queue.take(limits)) for _ in range(3)] == [2, 2, 1]


def test_a_write_above_the_limits_has_a_round_of_its_own() -> None:
    queue = _queue(_ticket("a0"), _ticket("a1", rows=100), _ticket("a2"))
    assert [_ids(queue.take(RoundLimits(rows=50))) for _ in range(3)] == [["a0"], ["a1"], ["a2"]]


def test_a_write_that_stands_alone_shares_a_round_with_nobody() -> None:
    queue = _queue(_ticket("a0"), _ticket("a1", alone=True), _ticket("a2"))
    assert [_ids(queue.take(ROOMY)) for _ in range(3)] == [["a0"], ["a1"], ["a2"]]


def test_rounds_of_ones_own_do_not_save_up_credit_for_a_burst() -> None:
    """Fault: credit is given for each such round and little of it is used. Oracle: the shares afterwards."""
    queue = _queue(*_many("a", 20, cost=20, alone=True), *_many("b", 3_000, cost=20))
    for n in range(20, 800):
        queue.push(_ticket(f"a{n}", rows=10))
    while "a19" not in _ids(queue.take(RoundLimits(intents=50))):
        pass
    served = _served(queue, RoundLimits(intents=50), rounds=10)
    assert abs(served["a"] - served["b"]) <= 2 * (QUANTUM + 20), served


def test_writes_that_come_back_go_before_all_that_came_later() -> None:
    queue = _queue(_ticket("a0"), _ticket("b0"), _ticket("a1"))
    taken = queue.take(ROOMY)
    queue.push(_ticket("a2"))
    queue.put_back(taken)
    assert [ticket for ticket in _ids(queue.take(ROOMY)) if ticket[0] == "a"] == ["a0", "a1", "a2"]


def test_a_write_that_nobody_waits_for_is_taken_out() -> None:
    queue = _queue(_ticket("a0"), _ticket("a1"))
    found = queue.remove("a0")
    assert found is not None
    assert found.intent_id == "a0"
    assert queue.remove("a0") is None
    assert _ids(queue) == ["a1"]


def test_a_write_that_is_blocked_lets_others_pass_and_keeps_its_place() -> None:
    queue = _queue(_ticket("a0"), _ticket("a1"), _ticket("b0"))
    assert _ids(queue.take(ROOMY, lambda ticket: ticket.intent_id == "a0")) == ["a1", "b0"]
    assert queue.take(ROOMY, lambda ticket: True) == []
    queue.push(_ticket("a2"))
    assert _ids(queue.take(ROOMY)) == ["a0", "a2"]


# What writes weigh, before they are judged and after


def test_bytes_weigh_too() -> None:
    assert _ticket("a0", size_bytes=4 << 20).cost > 4 * QUANTUM
    queue = _queue(*_many("a", 40, cost=20, size_bytes=1 << 20), *_many("b", 4_000, cost=20))
    served = _served(queue, RoundLimits(intents=100), rounds=20)
    assert abs(served["a"] - served["b"]) <= 2 * (QUANTUM + (1 << 10) + 20), served


def test_a_tenant_whose_writes_met_many_rows_lets_others_go_first_until_it_is_even() -> None:
    queue = _queue(*_many("a", 500, cost=100), *_many("b", 500, cost=100))
    queue.charge("a", 10 * QUANTUM)
    served = _served(queue, RoundLimits(intents=20), rounds=10)
    assert 8 * QUANTUM <= served["b"] - served["a"] <= 12 * QUANTUM, served


def test_a_debt_stays_while_its_tenant_has_nothing_waiting_and_each_round_pays_as_much_as_a_turn() -> None:
    """Else a tenant that waits for each of its answers would never pay."""
    queue = _queue(_ticket("a0"))
    queue.take(ROOMY)
    queue.charge("a", 10 * QUANTUM)
    for n in range(4):
        queue.push(_ticket(f"c{n}"))
        queue.take(ROOMY)
    for ticket in (*_many("a", 500, cost=100), *_many("b", 500, cost=100)):
        queue.push(ticket)
    served = _served(queue, RoundLimits(intents=20), rounds=10)
    assert 4 * QUANTUM <= served["b"] - served["a"] <= 8 * QUANTUM, served


def test_a_debt_keeps_nobody_waiting_where_there_is_room() -> None:
    queue = _queue(_ticket("a0"), _ticket("b0"))
    queue.charge("a", 1_000 * QUANTUM)
    assert sorted(_ids(queue.take(ROOMY))) == ["a0", "b0"]


def test_what_is_paid_off_is_forgotten() -> None:
    """Else names that come once would be remembered for ever."""
    queue = _queue()
    for n in range(1_000):
        queue.charge(f"tenant{n}", 3 * QUANTUM)
    for _ in range(3):
        queue.take(ROOMY)
    assert queue._credit == {}
