"""Prepared loads that others wait for: one at a time, while its client is heard from, half of the time at most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from omniray.coordinator.actors.executor import ThreadedExecutor
from omniray.coordinator.actors.publisher import STANDSTILL_LOOK_S, STANDSTILL_LOOKS_MAX, Publisher
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine.base.errors import Moved
from omniray.engine.base.principal import Author
from omniray.engine.base.ulids import new_ulid
from omniray.engine.judge.resolution import Affected, Resolution
from omniray.engine.store.open_store import open_store
from omniray.engine.writes.write_requests import Header, PreparedRequest
from tests.coordination import TIMEOUT_S, Service
from tests.graphs import PERSON, new_graph
from tests.stores import Root


class _Timers(ThreadedExecutor):
    """Runs what is due within moments by itself; what is due later waits until the test lets the time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.due: list[tuple[float, Callable[[], None]]] = []

    def later(self, seconds: float, job: Callable[[], None]) -> None:
        if seconds < STANDSTILL_LOOK_S:
            super().later(seconds, job)
        else:
            self.due.append((seconds, job))

    def pass_time(self) -> float:
        """Let the time pass until the next job that is due; returns how long that was."""
        seconds, job = self.due.pop(0)
        job()
        return seconds


class _Standing(Service):
    """A publisher whose time is the test's."""

    def __init__(self, root: Root) -> None:
        with new_graph(root) as graph:
            uri = graph.uri
        super().__init__(open_store(uri))
        self.publisher.close()
        self.timers = _Timers()
        self.publisher = Publisher(
            self.branch, self.tip, self.queues, self.finaliser.notice, owner=self.owner, executor=self.timers
        )

    def overtaken(self) -> str:
        """Submit a prepared load that was judged on a version that is gone; returns its id."""
        header = Header(new_ulid(), "Load", Author(tenant="large"), {}, "", self.schema_hash)
        request = PreparedRequest(header, Resolution({}, Affected()), {PERSON: 999})
        with pytest.raises(Moved):
            self.write(request)
        return header.commit_id

    def is_passed_over(self, waiting: Future[WriteAnswer]) -> bool:
        """Whether a write still waits when a later one, of another table, is through."""
        self.write(self.load_request([{"name": new_ulid()}], type="City"))
        return not waiting.done()

    def small(self) -> Future[WriteAnswer]:
        return self.publisher.submit(self.load_request([{"name": new_ulid()}], type="Person"))


@pytest.fixture
def service(disk: Root) -> Iterator[_Standing]:
    one = _Standing(disk)
    yield one
    one.close()


def answered(future: Future[WriteAnswer]) -> bool:
    return future.result(TIMEOUT_S).result.affected_nodes == 1


def test_others_wait_for_a_prepared_load_while_its_client_is_heard_from(service: _Standing) -> None:
    commit_id = service.overtaken()
    waiting = service.small()
    for _ in range(3):
        service.publisher.hold(commit_id)
        service.timers.pass_time()
    assert service.is_passed_over(waiting)
    service.timers.pass_time()  # nothing was heard since the last look
    assert answered(waiting)


def test_a_mutation_waits_only_for_the_tables_that_it_writes_to(service: _Standing) -> None:
    """Fault: while one table stands still, a mutation of another is taken for one that may touch any."""
    service.overtaken()
    mutations = (service.mutation(f'query q() {{ insert {type} {{ name: "x" }} }}') for type in ("Person", "City"))
    of_person, of_city = (service.publisher.submit(one.scoped(service.schema)) for one in mutations)
    assert answered(of_city)
    assert service.is_passed_over(of_person)
    service.timers.pass_time()
    assert answered(of_person)


def test_a_client_that_is_heard_for_ever_does_not_keep_others_waiting_for_ever(service: _Standing) -> None:
    commit_id = service.overtaken()
    waiting = service.small()
    for _ in range(STANDSTILL_LOOKS_MAX):
        service.publisher.hold(commit_id)
        service.timers.pass_time()
    assert answered(waiting)


def test_somebody_else_keeps_nobody_waiting_by_a_load_s_name(service: _Standing) -> None:
    service.overtaken()
    waiting = service.small()
    service.publisher.hold(new_ulid())
    service.timers.pass_time()
    assert answered(waiting)


def test_after_a_standstill_no_other_begins_for_as_long_as_it_lasted(service: _Standing) -> None:
    """Else clients that take turns would keep everybody waiting."""
    first = service.overtaken()
    service.publisher.hold(first)
    service.timers.pass_time()
    service.timers.pass_time()  # not heard: over, after two looks
    service.overtaken()
    assert answered(service.small()), "the second one has reserved nothing"
    assert service.timers.pass_time() >= 2 * STANDSTILL_LOOK_S
    service.overtaken()
    waiting = service.small()
    assert service.is_passed_over(waiting), "now one may"
    service.timers.pass_time()
    assert answered(waiting)


def test_of_two_prepared_loads_only_the_first_has_tables_reserved(service: _Standing) -> None:
    service.overtaken()
    second = service.overtaken()
    waiting = service.small()
    service.publisher.hold(second)
    service.timers.pass_time()
    assert answered(waiting), "the first one was not heard from, and the second one has nothing"
