"""Writes that are awaited, over real connections: none is lost or doubled, whatever becomes of its task."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import omniray
from omniray.coordinator.client import connection as connection_module
from omniray.coordinator.client.client import connect_to_serving
from omniray.coordinator.client.http1 import Response, ResponseReader
from omniray.coordinator.client.under_way import THREADS, UnderWay
from omniray.coordinator.client.wire import Wire
from omniray.coordinator.door.answers import encode_reply
from omniray.coordinator.door.app import Reply
from omniray.coordinator.door.certificate import Certificate
from omniray.coordinator.door.room import Room
from omniray.engine.base.errors import KeyConflict, OutcomeUnknown, Overloaded
from omniray.engine.base.ulids import new_ulid
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.writes.write_requests import Request
from tests.door.houses import LANDED, TIMEOUT_S, Door, FakeHouse, opened
from tests.door.test_wire import LARGE, REQUEST
from tests.graphs import INSERT, PERSON, create_store, parts_of
from tests.housing import Housed, housed
from tests.stores import Root

CROWD = 100


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    (tmp_path / "root").mkdir()
    return create_store(Root(str(tmp_path / "root"), {}))


@pytest.fixture
def coordinator(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Housed]:
    with housed(store, monkeypatch) as coordinator:
        yield coordinator


@pytest.fixture
def client(store: ObjectStore, coordinator: Housed) -> Iterator[omniray.Client]:
    with connect_to_serving(store.uri, None) as client:
        yield client


@pytest.fixture
def under_way() -> Iterator[UnderWay]:
    one = UnderWay()
    yield one
    one.close()


async def add(client: omniray.Client, name: str, txn_id: str | None = None) -> omniray.WriteResult:
    return await client.load_async([{"name": name}], type="Person", txn_id=txn_id)


def people(store: ObjectStore) -> list[str]:
    return parts_of(store).rows(PERSON)


class Hold:
    """Holds up the writes that come to a coordinator, before it takes them."""

    def __init__(self, coordinator: Housed) -> None:
        self.came, self._goes_on = threading.Semaphore(0), asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        take = coordinator.house.write

        async def held(line: str, sent: bytes, version: int) -> Reply:
            self._loop = asyncio.get_running_loop()
            self.came.release()
            await self._goes_on.wait()
            return await take(line, sent, version)

        coordinator.house.write = held  # type: ignore[method-assign]

    async def wait_for(self, writes: int) -> None:
        for _ in range(writes):
            assert await asyncio.to_thread(self.came.acquire, timeout=TIMEOUT_S)

    def end(self) -> None:
        assert self._loop is not None, "nothing is held"
        self._loop.call_soon_threadsafe(self._goes_on.set)


# On any event loop


def test_writes_are_awaited_on_one_event_loop_after_another_and_on_those_of_several_threads(
    store: ObjectStore, client: omniray.Client
) -> None:
    async def several(prefix: str) -> None:
        await asyncio.gather(*(add(client, f"{prefix}-{number}") for number in range(5)))
        await client.mutate_async(INSERT, {"name": f"{prefix}-5"})

    asyncio.run(several("first"))
    asyncio.run(several("second"))
    threads = [threading.Thread(target=lambda n=n: asyncio.run(several(f"thread-{n}"))) for n in range(3)]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    prefixes = ["first", "second", *(f"thread-{n}" for n in range(3))]
    assert people(store) == sorted(f"{prefix}-{number}" for prefix in prefixes for number in range(6))


def test_many_writes_are_awaited_without_a_thread_for_each(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    hold = Hold(coordinator)

    def theirs() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if one.name.startswith(("omniray-client", "omniray-waits"))}

    async def many() -> set[threading.Thread]:
        writes = [asyncio.create_task(add(client, f"{number:03}")) for number in range(CROWD)]
        await hold.wait_for(CROWD)
        carrying = theirs()
        hold.end()
        await asyncio.gather(*writes)
        return carrying

    before = theirs()
    assert 0 < len(asyncio.run(many()) - before) <= THREADS + 1
    assert people(store) == [f"{number:03}" for number in range(CROWD)]


def test_an_error_is_raised_where_a_write_is_awaited(client: omniray.Client) -> None:
    async def twice() -> None:
        await add(client, "ann")
        with pytest.raises(KeyConflict):
            await add(client, "ann")

    asyncio.run(twice())


# Cancelled


def test_a_task_that_is_cancelled_gives_its_write_up_and_the_same_id_is_applied_once(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    """Its connection is closed: the answer to it must not be taken for that to the next write."""
    hold, txn_id = Hold(coordinator), new_ulid()

    async def story() -> list[omniray.WriteResult]:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await add(client, "ann", txn_id)
        again = asyncio.create_task(add(client, "ann", txn_id))
        await hold.wait_for(2)
        hold.end()
        return [await again, await add(client, "bob"), await add(client, "ann", txn_id)]

    first, other, third = asyncio.run(story())
    assert (first.commit_id, third.commit_id, third.repeated) == (txn_id, txn_id, True)
    assert other.commit_id != txn_id
    assert people(store) == ["ann", "bob"]


def test_a_future_that_is_cancelled_gives_its_write_up(
    store: ObjectStore, coordinator: Housed, client: omniray.Client
) -> None:
    hold, txn_id = Hold(coordinator), new_ulid()
    future = client.submit_load([{"name": "ann"}], type="Person", txn_id=txn_id)
    assert hold.came.acquire(timeout=TIMEOUT_S)
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result()
    hold.end()
    assert client.load([{"name": "ann"}], type="Person", txn_id=txn_id).commit_id == txn_id
    assert people(store) == ["ann"]


def test_of_tasks_that_are_cancelled_at_any_moment_no_write_is_lost_or_doubled(
    store: ObjectStore, client: omniray.Client
) -> None:
    """Fault: every second task is cancelled, at a random moment. Oracle: the rows, also after all are sent again."""
    ids = {f"{number:03}": new_ulid() for number in range(CROWD)}
    moments = random.Random(7)

    async def cancelled(task: asyncio.Task[Any]) -> None:
        await asyncio.sleep(moments.random() * 0.3)
        task.cancel()

    async def some() -> dict[str, bool]:
        tasks = {name: asyncio.create_task(add(client, name, txn_id)) for name, txn_id in ids.items()}
        await asyncio.gather(*(cancelled(task) for name, task in tasks.items() if int(name) % 2))
        await asyncio.wait(tasks.values())
        return {name: not task.cancelled() and task.exception() is None for name, task in tasks.items()}

    async def all_again() -> None:
        await asyncio.gather(*(add(client, name, txn_id) for name, txn_id in ids.items()))

    answered = asyncio.run(some())
    landed = Counter(people(store))
    assert max(landed.values()) == 1
    assert {name for name, was_answered in answered.items() if was_answered} <= landed.keys()
    assert all(answered[name] for name in ids if not int(name) % 2)
    asyncio.run(all_again())
    assert people(store) == sorted(ids)


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """A server that says one thing on each connection, and keeps it open; its URL."""
    ends = threading.Event()

    def serve(server: socket.socket) -> None:
        kept = []
        for answer in answers:
            connection, _ = server.accept()
            kept.append(connection)
            connection.recv(1 << 16)
            connection.sendall(answer)
        ends.wait(TIMEOUT_S)
        for connection in kept:
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        ends.set()
        thread.join(TIMEOUT_S)


def test_a_connection_whose_answer_is_half_read_is_not_used_again(
    under_way: UnderWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = threading.Event()

    class Reader(ResponseReader):
        def feed(self, data: bytes) -> Response | None:
            read.set()
            return super().feed(data)

    monkeypatch.setattr(connection_module, "ResponseReader", Reader)
    body = encode_reply(LANDED)
    whole = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.msgpack\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with opened() as door, answering(whole[: len(whole) // 2], whole) as url:
        wire = door.wire(url=url)
        first = under_way.submit(wire.writing(REQUEST, TIMEOUT_S))
        assert read.wait(TIMEOUT_S)
        assert first.cancel()
        assert not wait([first], TIMEOUT_S).not_done, "it has cleaned up"
        assert under_way.submit(wire.writing(REQUEST, TIMEOUT_S)).result(TIMEOUT_S) == LANDED
        wire.close()


# Over the wire, as for a thread that waits


@contextmanager
def reached(under_way: UnderWay, **options: Any) -> Iterator[tuple[Door, Callable[[Request, float], Any]]]:
    with opened(FakeHouse(gives={"newest": 41}), **options) as door:
        wire: Wire = door.wire()
        yield door, lambda request, timeout_s: under_way.submit(wire.writing(request, timeout_s)).result(TIMEOUT_S)
        wire.close()


@pytest.mark.parametrize("request_", [REQUEST, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("is_secured", [False, True])
def test_writes_of_any_size_go_there_and_back_with_a_certificate_and_without(
    under_way: UnderWay, request_: Request, is_secured: bool
) -> None:
    certificate = Certificate.new("127.0.0.1") if is_secured else None
    with reached(under_way, certificate=certificate) as (door, write):
        assert [write(request_, TIMEOUT_S) for _ in range(3)] == [LANDED] * 3
        assert door.server.connections == 1


def test_a_large_write_without_room_is_overloaded_and_not_in_doubt(under_way: UnderWay) -> None:
    with reached(under_way) as (door, write):
        door.app.room = Room(10)
        with pytest.raises(Overloaded):
            write(LARGE, TIMEOUT_S)
        door.app.room = Room()
        assert write(LARGE, TIMEOUT_S) == LANDED


def test_a_write_that_is_not_answered_in_time_is_unknown(under_way: UnderWay) -> None:
    with answering(b"") as url, opened() as door:
        wire = door.wire(url=url)
        with pytest.raises(OutcomeUnknown, match=r"no answer in 0\.05 s"):
            under_way.submit(wire.writing(REQUEST, 0.05)).result(TIMEOUT_S)
        wire.close()
