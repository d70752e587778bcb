"""What a client says of a write while it looks for a coordinator that went away, and how long it waits for one."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import omniray
from omniray.coordinator.actors import cluster, publisher_actor
from omniray.coordinator.actors.cluster import Place, Storage
from omniray.coordinator.actors.publisher_actor import HasLeft
from omniray.coordinator.client import client as client_module
from omniray.coordinator.client import delivery, service
from omniray.coordinator.client.service import WAIT_S_MAX, Service
from omniray.coordinator.door.answers import encode_reply
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine.base.errors import (
    Fenced,
    InputError,
    LineOwned,
    OmnirayError,
    OutcomeUnknown,
    Overloaded,
    SchemaChanged,
    StorageError,
    Unreachable,
    Withdrawn,
)
from omniray.engine.base.ulids import new_ulid
from omniray.engine.judge.resolution import WriteResult
from omniray.engine.schema.parser import parse_schema
from omniray.engine.writes.write_requests import Request
from tests.coordination import Sender
from tests.graphs import INSERT, SCHEMA, new_graph
from tests.stores import Root

HERE = "10.0.0.1:6379"
LANDED = WriteAnswer(WriteResult(None, 0, 0))


class _Clock:
    """A time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class _Ailing:
    """A service that answers, and is found again, as it was told to; when nothing is left, as the last time."""

    address = HERE

    def __init__(self, answers: list[WriteAnswer | OmnirayError], found: list[Exception]) -> None:
        self.answers, self.found = answers, found
        self.sent: list[str] = []
        self.fresh: list[bool] = []

    def submit(self, request: Request, timeout_s: float) -> WriteAnswer:
        self.sent.append(request.header.commit_id)
        self.fresh.append(request.header.fresh)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OmnirayError):
            raise answer
        return answer

    def found_again(self, graph: omniray.Graph, timeout_s: float) -> _Ailing:
        raise self.found.pop(0) if len(self.found) > 1 else self.found[0]

    def close(self, timeout_s: float) -> None:
        pass


@pytest.fixture
def graph(disk: Root) -> str:
    with new_graph(disk) as graph:
        return graph.uri


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    for module in (delivery, service):
        monkeypatch.setattr(module, "time", clock)


@pytest.fixture
def connected(graph: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    opened: list[omniray.Client] = []

    def connect(ailing: _Ailing) -> omniray.Client:
        monkeypatch.setattr(client_module, "serve", lambda *_, **__: ailing)
        opened.append(omniray.connect(graph))
        return opened[-1]

    yield connect
    for one in opened:
        one.close()


def write(client: omniray.Client, **options: Any) -> omniray.WriteResult:
    return client.load([{"name": "ann"}], type="Person", **options)


def unanswered() -> OutcomeUnknown:
    return OutcomeUnknown("no answer in time", txn_id="")


# Whose id is new


@pytest.mark.parametrize("failed", [unanswered(), Fenced("gone"), Overloaded("full"), Withdrawn("given up")])
def test_an_id_that_the_client_minted_is_fresh_once(connected: Any, failed: OmnirayError) -> None:
    ailing = _Ailing([failed, failed, LANDED], [StorageError("away")])
    write(connected(ailing))
    assert ailing.fresh == [True, False, False]
    assert len(set(ailing.sent)) == 1


def test_an_id_that_the_caller_chose_is_never_fresh(connected: Any) -> None:
    ailing = _Ailing([unanswered(), LANDED], [StorageError("away")])
    client = connected(ailing)
    write(client, txn_id=new_ulid())
    client.mutate(INSERT, {"name": "bob"}, txn_id=new_ulid())
    assert ailing.fresh == [False, False, False]
    client.mutate(INSERT, {"name": "bob"})
    assert ailing.fresh[3:] == [True]


# In doubt


def ray_error() -> Exception:
    error: Exception = cluster.ray().exceptions.RaySystemError("the head is gone")
    return error


@pytest.mark.parametrize("failing", [StorageError("no route to the store"), Unreachable("no answer"), None])
def test_a_write_in_doubt_stays_so_when_no_coordinator_is_found_until_its_time_is_over(
    connected: Any, failing: StorageError | None
) -> None:
    ailing = _Ailing([unanswered()], [failing or ray_error()])
    with pytest.raises(OutcomeUnknown) as doubt:
        write(connected(ailing))
    assert len(ailing.sent) > 1, "it is sent until its time is over"
    assert {doubt.value.facts["txn_id"]} == set(ailing.sent)


def test_a_write_in_doubt_is_answered_by_the_coordinator_of_before_if_that_comes_back(connected: Any) -> None:
    ailing = _Ailing([unanswered(), unanswered(), LANDED], [StorageError("no route to the store")])
    assert write(connected(ailing)) == LANDED.result
    assert (len(ailing.sent), len(set(ailing.sent))) == (3, 1)


@pytest.mark.parametrize("refused", [LineOwned("it was taken down", owner="embedded"), SchemaChanged("another schema")])
def test_what_is_no_failure_of_the_store_ends_a_write_in_doubt_with_its_id(
    connected: Any, refused: OmnirayError
) -> None:
    ailing = _Ailing([unanswered()], [refused])
    with pytest.raises(OutcomeUnknown, match=str(refused)) as doubt:
        write(connected(ailing))
    assert [doubt.value.facts["txn_id"]] == ailing.sent
    assert doubt.value.facts.items() >= refused.facts.items()


def test_a_store_that_fails_a_write_that_is_not_in_doubt_is_told_as_it_is(connected: Any) -> None:
    with pytest.raises(StorageError, match="the disk is full") as failure:
        write(connected(_Ailing([StorageError("the disk is full")], [])))
    assert failure.value.retry == "safe"


# Time-outs


@pytest.mark.parametrize("timeout_s", [0, -1, math.nan])
def test_a_time_out_that_leaves_no_time_is_refused_before_anything_is_sent(
    graph: str, connected: Any, timeout_s: float
) -> None:
    ailing = _Ailing([LANDED], [])
    with pytest.raises(InputError, match="no time for an answer"):
        write(connected(ailing), timeout_s=timeout_s)
    with pytest.raises(InputError, match="no time for an answer"):
        omniray.connect(graph, timeout_s=timeout_s)
    assert ailing.sent == []


class _Ray:
    """A Ray whose actors are kept by name; it takes no more time-out than the real one does."""

    def __init__(self) -> None:
        self.exceptions = cluster.ray().exceptions
        self.actors: dict[str, _Actor] = {}
        self.killed: list[_Actor] = []

    def get(self, asked: Any, timeout: float) -> Any:
        int(timeout * 1000).to_bytes(8, signed=True)
        if isinstance(asked, Exception):
            raise asked
        return asked

    def kill(self, actor: _Actor) -> None:
        self.killed.append(actor)
        self.actors = {name: one for name, one in self.actors.items() if one is not actor}


class _Actor:
    """An actor all of whose methods answer the same."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __getattr__(self, method: str) -> Any:
        call = SimpleNamespace(remote=lambda *_: self._answer)
        call.options = lambda **_: call
        return call


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> _Ray:
    fake = _Ray()
    monkeypatch.setattr(service, "ray", lambda: fake)
    monkeypatch.setattr(cluster, "ray", lambda: fake)
    monkeypatch.setattr(service, "_queue_owners", lambda: 1)
    monkeypatch.setattr(cluster, "find", lambda name: fake.actors.get(name))
    return fake


LINE = "01K9ZQ5T7Z0000000000000000"
PLACE = Place(LINE)
STORAGE = Storage("s3://bucket/social", None, LINE, LINE)


@pytest.mark.parametrize("timeout_s", [math.inf, 1e300])
def test_whoever_waits_for_ever_waits_as_long_as_ray_can(ray: _Ray, timeout_s: float) -> None:
    request = Sender(parse_schema(SCHEMA)).mutation(INSERT, {"name": "ann"})
    assert Service(_Actor(encode_reply(LANDED)), PLACE, STORAGE, HERE, False).submit(request, timeout_s) == LANDED
    Service(_Actor(None), PLACE, STORAGE, HERE, False).down(timeout_s)
    assert WAIT_S_MAX < 2**31 / 1000


# Beginning


def begin(ray: _Ray, created: _Actor, monkeypatch: pytest.MonkeyPatch) -> Any:
    def create(place: Place, *_: Any) -> _Actor:
        return ray.actors.setdefault(place.publisher, created)

    monkeypatch.setattr(publisher_actor, "create_publisher", create)
    return service._begin(PLACE, STORAGE, HERE, "", 120.0)


def test_a_publisher_that_has_left_and_was_never_ended_is_replaced(ray: _Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    left, helper, created = _Actor(HasLeft("it has handed the line back")), _Actor(None), _Actor(None)
    ray.actors = {PLACE.publisher: left, PLACE.reconciler: helper}
    assert begin(ray, created, monkeypatch) is created
    assert ray.killed == [left, helper]


def test_a_publisher_that_is_leaving_is_waited_for(ray: _Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    ray.actors = {PLACE.publisher: _Actor(Unreachable("it finishes what is under way"))}
    with pytest.raises(Unreachable, match="under way"):
        begin(ray, _Actor(None), monkeypatch)
    assert ray.killed == []


def test_whoever_takes_a_coordinator_down_ends_the_one_that_was_drained_and_not_its_successor(ray: _Ray) -> None:
    drained, successor = _Actor(None), _Actor(None)
    ray.actors = {PLACE.publisher: successor}
    Service(drained, PLACE, STORAGE, HERE, False).down(1.0)
    assert ray.killed == [drained]


def test_a_publisher_that_fails_when_it_is_made_says_why_at_once(ray: _Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ray.exceptions
    died = module.RayActorError("1", "it died\n  File x\nNotFound: no graph at /data", actor_init_failed=True)
    with pytest.raises(Unreachable, match=r"could not begin .* NotFound: no graph at /data"):
        begin(ray, _Actor(died), monkeypatch)
    assert service.time.monotonic() == 0, "nothing was waited for"


# Durability


@pytest.mark.parametrize("durability", ["process", "power"])
def test_a_coordinator_that_a_client_starts_is_as_durable_as_the_client_asks_for(
    graph: str, ray: _Ray, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    asked: list[Storage] = []

    def create(place: Place, storage: Storage, *_: Any) -> _Actor:
        asked.append(storage)
        return _Actor(None)

    monkeypatch.setattr(publisher_actor, "create_publisher", create)
    monkeypatch.setattr(cluster, "join", lambda address: False)
    monkeypatch.setattr(cluster, "address", lambda: HERE)
    with omniray.connect(graph, durability=durability) as client:
        again = pickle.loads(pickle.dumps(client))
        again.close()
    assert [storage.durability for storage in asked] == [durability] * 2, "pickled, too"


def test_a_durability_that_there_is_not_is_refused_before_anything_is_started(graph: str) -> None:
    with pytest.raises(InputError, match="use process or power"):
        omniray.connect(graph, durability="for ever")
