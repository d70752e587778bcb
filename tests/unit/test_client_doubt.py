"""What a client says of a write while it looks for a coordinator that went away, and how long it waits for one."""

from __future__ import annotations

import asyncio
import math
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import omniray
from omniray.coordinator.client import client as client_module
from omniray.coordinator.client import delivery
from omniray.coordinator.client import waits as waits_module
from omniray.coordinator.client.starting import Terms
from omniray.coordinator.client.waits import Nothing, Waits
from omniray.coordinator.door import calls
from omniray.coordinator.door.calls import Call
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine.base.errors import (
    Fenced,
    GraphGone,
    InputError,
    LineOwned,
    NotFound,
    OmnirayError,
    OutcomeUnknown,
    Overloaded,
    SchemaChanged,
    StorageError,
    Unauthenticated,
    Unreachable,
    Withdrawn,
)
from omniray.engine.base.ulids import new_ulid
from omniray.engine.judge.resolution import Outcome, WriteResult
from omniray.engine.writes.write_requests import Request
from tests.clocks import SleepersClock
from tests.graphs import INSERT, new_graph
from tests.stores import Root

LANDED = WriteAnswer(WriteResult(None, 0, 0))
URL = "http://127.0.0.1:7"
REFUSED = Unreachable("the coordinator does not answer: connection refused", url=URL)

Answer = WriteAnswer | OmnirayError


class _Ailing:
    """A link that answers, and finds its coordinator again, as it was told to; when nothing is left, as the last time.

    It is its own wire, too: what it finds is `found`, an error or nothing.
    """

    url = URL

    def __init__(self, answers: list[Answer], found: list[Exception | None], *, newest: int = 7) -> None:
        self.answers, self.found = answers, found
        self.newest, self.has_paused = newest, False
        self.sent: list[str] = []
        self.fresh: list[bool] = []
        self.began: list[int] = []
        self.timeouts: list[float] = []
        self.looked = 0
        self.called: list[tuple[str, Any]] = []
        self.returns: list[Any] = [None]
        self.terms: list[Terms] = []

    @property
    def wire(self) -> _Ailing:
        return self

    def open(self, *, starts: bool, timeout_s: float) -> None:
        self.starts = starts

    def writing(self, request: Request, timeout_s: float) -> Waits[WriteAnswer]:
        yield Nothing()
        self.sent.append(request.header.commit_id)
        self.fresh.append(request.header.fresh)
        self.began.append(request.header.began)
        self.timeouts.append(timeout_s)
        return self._next(self.answers)

    def finding_again(self, lost: _Ailing, timeout_s: float) -> Waits[None]:
        yield Nothing()
        assert lost is self
        self.looked += 1
        self._next(self.found)

    def call(self, call: Call, timeout_s: float, arguments: Any = None) -> Any:
        self.called.append((call.name, arguments))
        return self._next(self.returns)

    def close(self) -> None:
        pass

    def calling(self, call: Call, timeout_s: float, arguments: Any = None) -> Waits[Any]:
        yield Nothing()
        return self.call(call, timeout_s, arguments)

    @staticmethod
    def _next(left: list[Any]) -> Any:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def graph(disk: Root) -> str:
    with new_graph(disk) as graph:
        return graph.uri


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SleepersClock:
    clock = SleepersClock()
    for module in (delivery, waits_module):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def connected(graph: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    opened: list[omniray.Client] = []

    def connect(ailing: _Ailing, **options: Any) -> omniray.Client:
        monkeypatch.setattr(client_module, "Link", lambda _, terms: (ailing.terms.append(terms), ailing)[1])
        opened.append(omniray.connect(graph, **options))
        return opened[-1]

    yield connect
    for one in opened:
        one.close()


def write(client: omniray.Client, **options: Any) -> omniray.WriteResult:
    return client.load([{"name": "ann"}], type="Person", **options)


def unanswered() -> OutcomeUnknown:
    return OutcomeUnknown("no answer in time", txn_id="")


# Whose id is new


@pytest.mark.parametrize(
    "failed",
    [unanswered(), Fenced("gone"), Overloaded("full"), Withdrawn("given up"), REFUSED, Unauthenticated("another")],
    ids=lambda error: error.kind,
)
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


# When it began


def test_a_write_says_the_newest_number_that_its_client_knows_and_says_the_same_when_it_is_sent_again(
    connected: Any,
) -> None:
    """Sent again by itself it is still the write that its caller began then, whatever was reported since."""
    ailing = _Ailing([unanswered(), LANDED], [None], newest=41)
    client = connected(ailing)
    write(client)
    assert ailing.began == [41, 41]
    ailing.newest = 43
    write(client)
    assert ailing.began[2:] == [43]
    assert ailing.called == [], "who has heard something lately need not ask"


def test_a_client_that_has_paused_asks_for_the_newest_number_first(connected: Any) -> None:
    """It knows an old one: since then, the write may have been reported as not committed, and asked for again."""
    ailing = _Ailing([LANDED], [None])
    client = connected(ailing)
    ailing.has_paused = True
    write(client)
    assert ailing.called == [("newest", None)]


def test_a_client_that_can_not_ask_for_the_newest_number_sends_its_write_all_the_same(connected: Any) -> None:
    ailing = _Ailing([LANDED], [None])
    ailing.returns = [Unreachable("away")]
    client = connected(ailing)
    ailing.has_paused = True
    assert write(client) == LANDED.result


def test_a_client_that_has_paused_is_told_that_its_coordinator_was_taken_down_before_it_sends(connected: Any) -> None:
    ailing = _Ailing([LANDED], [None])
    ailing.returns = [LineOwned("it was taken down", owner="embedded")]
    client = connected(ailing)
    ailing.has_paused = True
    with pytest.raises(LineOwned):
        write(client)
    assert ailing.sent == []


# In doubt


@pytest.mark.parametrize("failing", [StorageError("no route to the store"), Unreachable("no answer")])
def test_a_write_in_doubt_stays_so_when_no_coordinator_is_found_until_its_time_is_over(
    connected: Any, failing: StorageError
) -> None:
    ailing = _Ailing([unanswered()], [failing])
    with pytest.raises(OutcomeUnknown) as doubt:
        write(connected(ailing))
    assert len(ailing.sent) > 1, "it is sent until its time is over"
    assert {doubt.value.facts["txn_id"]} == set(ailing.sent)
    assert [name for name, _ in ailing.called] == ["abandon"], "nobody waits for it any more"
    assert ailing.called[0][1] == calls.OfWrite(ailing.sent[0])


def test_a_write_in_doubt_is_unknown_also_where_nobody_can_be_told_that_it_was_given_up(connected: Any) -> None:
    ailing = _Ailing([unanswered()], [Unreachable("no answer")])
    ailing.returns = [Unreachable("no answer")]
    with pytest.raises(OutcomeUnknown):
        write(connected(ailing))


def test_a_write_in_doubt_is_answered_by_the_coordinator_of_before_if_that_comes_back(connected: Any) -> None:
    ailing = _Ailing([unanswered(), unanswered(), LANDED], [StorageError("no route to the store")])
    assert write(connected(ailing)) == LANDED.result
    assert (len(ailing.sent), len(set(ailing.sent))) == (3, 1)


def test_a_fenced_coordinator_leaves_a_write_in_doubt_which_its_successor_answers(connected: Any) -> None:
    ailing = _Ailing([Fenced("another owner"), LANDED], [None])
    assert write(connected(ailing)) == LANDED.result
    assert ailing.looked == 1
    ailing = _Ailing([Fenced("another owner"), StorageError("the disk is full")], [None])
    with pytest.raises(OutcomeUnknown):
        write(connected(ailing))


@pytest.mark.parametrize(
    "refused",
    [
        LineOwned("it was taken down", owner="embedded"),
        SchemaChanged("another schema"),
        GraphGone("the graph was deleted"),
        NotFound("another branch"),
    ],
    ids=lambda error: error.kind,
)
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
        write(connected(_Ailing([StorageError("the disk is full")], [None])))
    assert failure.value.retry == "safe"


# Not in doubt


@pytest.mark.parametrize("not_taken", [REFUSED, Unauthenticated("the secret of before")], ids=lambda error: error.kind)
def test_a_write_that_reached_nobody_is_sent_to_the_coordinator_that_is_found_then_and_is_not_in_doubt(
    connected: Any, not_taken: OmnirayError
) -> None:
    ailing = _Ailing([not_taken, not_taken, LANDED], [Unreachable("not yet"), None])
    assert write(connected(ailing)) == LANDED.result
    assert ailing.looked == 2
    ailing = _Ailing([not_taken, StorageError("the disk is full")], [None])
    with pytest.raises(StorageError, match="the disk is full"):
        write(connected(ailing))


@pytest.mark.parametrize("not_taken", [REFUSED, Unauthenticated("the secret of before")], ids=lambda error: error.kind)
def test_a_write_that_reached_nobody_in_time_was_not_written(connected: Any, not_taken: OmnirayError) -> None:
    """To send it again is safe, with any id: that is more than "unknown"."""
    ailing = _Ailing([not_taken], [Unreachable("no coordinator")])
    with pytest.raises(type(not_taken)) as failure:
        write(connected(ailing))
    assert failure.value.retry == "safe"
    assert len(ailing.sent) > 1
    assert ailing.called == [], "there is nothing to be given up"


@pytest.mark.parametrize(
    "refused", [LineOwned("it was taken down", owner="embedded"), GraphGone("gone")], ids=lambda error: error.kind
)
def test_a_write_that_reached_nobody_says_why_no_coordinator_takes_it(connected: Any, refused: OmnirayError) -> None:
    ailing = _Ailing([REFUSED], [refused])
    with pytest.raises(type(refused)):
        write(connected(ailing))
    assert len(ailing.sent) == 1


def test_a_coordinator_that_leaves_says_so_and_is_not_asked_again(connected: Any) -> None:
    """Its answer came: nothing was written, and its clients must not undo 'omniray down'."""
    ailing = _Ailing([Unreachable("it was taken down", address="10.0.0.1:6379")], [None])
    with pytest.raises(Unreachable, match="taken down"):
        write(connected(ailing))
    assert (len(ailing.sent), ailing.looked) == (1, 0)


def test_a_doubt_does_not_go_away_when_a_later_try_reaches_nobody(connected: Any) -> None:
    ailing = _Ailing([unanswered(), REFUSED], [None])
    with pytest.raises(OutcomeUnknown):
        write(connected(ailing))
    assert len(ailing.sent) > 2, "the coordinator of before, or its successor, may still answer"
    ailing = _Ailing([unanswered(), Unauthenticated("another"), LANDED], [None])
    assert write(connected(ailing)) == LANDED.result


# Waiting


def test_a_coordinator_that_is_overloaded_is_asked_again_after_the_time_that_it_gave(
    connected: Any, clock: SleepersClock
) -> None:
    ailing = _Ailing([Overloaded("full", retry_after_s=8.0), LANDED], [None])
    write(connected(ailing))
    assert 4.0 <= clock.now_s <= 8.0
    assert ailing.looked == 0, "it is where it was"


def test_an_overload_that_lasts_is_told_as_it_is(connected: Any) -> None:
    ailing = _Ailing([Overloaded("full")], [None])
    with pytest.raises(Overloaded):
        write(connected(ailing))
    assert len(ailing.sent) > 1


def test_a_write_that_was_given_up_for_another_caller_is_sent_again(connected: Any) -> None:
    ailing = _Ailing([Withdrawn("given up before its turn"), LANDED], [None])
    assert write(connected(ailing)) == LANDED.result


def test_a_write_that_somebody_was_told_is_not_committed_is_not_sent_again_by_itself(connected: Any) -> None:
    """It would make a lie of what was told: only its caller may decide to begin it anew."""
    ailing = _Ailing([Withdrawn("outcome() reported it", reported=True), LANDED], [None])
    with pytest.raises(Withdrawn, match="reported"):
        write(connected(ailing))
    assert len(ailing.sent) == 1


def test_a_write_in_doubt_that_somebody_was_told_is_not_committed_ends_with_that(connected: Any) -> None:
    """The answer settles it: no try of it can have landed."""
    ailing = _Ailing([unanswered(), Withdrawn("outcome() reported it", reported=True)], [None])
    with pytest.raises(Withdrawn, match="reported"):
        write(connected(ailing))


# Cancelled


def test_a_write_that_is_cancelled_is_given_up_at_the_coordinator_too(connected: Any) -> None:
    """It may wait there for its turn, and need not be written."""
    ailing = _Ailing([LANDED], [None])
    waits = connected(ailing)._loading([{"name": "ann"}], type="Person", txn_id=(txn_id := new_ulid()))
    next(waits)  # it is about to be sent
    next(waits)  # it waits for its answer
    waits.throw(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        next(waits)
    assert ailing.called == [("abandon", calls.OfWrite(txn_id))]


def test_a_write_that_is_cancelled_before_it_is_sent_is_not_sent(connected: Any) -> None:
    ailing = _Ailing([LANDED], [None])
    waits = connected(ailing)._loading([{"name": "ann"}], type="Person")
    next(waits)
    with pytest.raises(asyncio.CancelledError):
        waits.throw(asyncio.CancelledError())
    assert (ailing.sent, ailing.called) == ([], [])


# Time-outs


@pytest.mark.parametrize("timeout_s", [0, -1, math.nan])
def test_a_time_out_that_leaves_no_time_is_refused_before_anything_is_sent(
    graph: str, connected: Any, timeout_s: float
) -> None:
    ailing = _Ailing([LANDED], [None])
    with pytest.raises(InputError, match="no time for an answer"):
        write(connected(ailing), timeout_s=timeout_s)
    with pytest.raises(InputError, match="no time for an answer"):
        omniray.connect(graph, timeout_s=timeout_s)
    assert ailing.sent == []


def test_a_time_out_without_end_is_one_that_every_wait_can_be_given(graph: str, connected: Any) -> None:
    """A lock, a poll and an event loop overflow with an infinite one, in the middle of a write that is in doubt."""
    ailing = _Ailing([LANDED], [None])
    client = connected(ailing, timeout_s=math.inf)
    write(client)
    write(client, timeout_s=math.inf)
    assert all(0 < timeout_s <= delivery.TIMEOUT_S_MAX for timeout_s in ailing.timeouts)
    assert threading.Lock().acquire(timeout=delivery.TIMEOUT_S_MAX)


def test_each_try_has_only_the_time_that_is_left(connected: Any) -> None:
    ailing = _Ailing([unanswered()], [None])
    with pytest.raises(OutcomeUnknown):
        write(connected(ailing), timeout_s=10)
    assert ailing.timeouts[0] == 10
    assert ailing.timeouts == sorted(ailing.timeouts, reverse=True)
    assert all(0 < left_s <= 10 for left_s in ailing.timeouts)


# The other verbs


def test_what_became_of_a_write_is_asked_of_the_coordinator(connected: Any) -> None:
    """Its owner alone can keep a try that is under way from landing."""
    asked = new_ulid()
    ailing = _Ailing([LANDED], [None])
    ailing.returns = [Outcome(asked, committed=False)]
    client = connected(ailing)
    assert client.outcome(asked.lower()) == Outcome(asked, committed=False)
    assert ailing.called == [("outcome", calls.OfWrite(asked))]
    with pytest.raises(InputError):
        client.outcome("not an id")


def test_repairs_sweeps_and_the_end_are_asked_of_the_coordinator(connected: Any) -> None:
    ailing = _Ailing([LANDED], [None])
    client = connected(ailing)
    client.repair(adopt=True, tables=("node:Person",), actor="ann")
    client.sweep(older_than_s=60.0, dry_run=True)
    client.flush()
    client.recover()
    client.status()
    client.down()
    assert ailing.called == [
        ("repair", calls.RepairTerms(adopt=True, tables=["node:Person"], actor="ann")),
        ("sweep", calls.SweepTerms(60.0, dry_run=True)),
        ("flush", None),
        ("recover", calls.RecoverTerms(600.0)),
        ("status", None),
        ("down", None),
    ]


def test_a_client_that_is_closed_asks_for_nothing(connected: Any) -> None:
    ailing = _Ailing([LANDED], [None])
    client = connected(ailing)
    client.close()
    client.close()
    verbs = [client.status, client.flush, client.recover, client.repair, client.sweep, client.down]
    for verb in [*verbs, lambda: client.outcome(new_ulid()), lambda: write(client)]:
        with pytest.raises(InputError, match="connect again"):
            verb()
    assert (ailing.called, ailing.sent) == ([], [])


# Pickling and durability


@pytest.mark.parametrize("durability", ["process", "power"])
def test_a_coordinator_that_a_client_starts_is_as_durable_as_the_client_asks_for(
    graph: str, connected: Any, durability: str
) -> None:
    ailing = _Ailing([LANDED], [None])
    client = connected(ailing, durability=durability, address="10.0.0.1:6379", actor="ann", timeout_s=7)
    again = pickle.loads(pickle.dumps(client))
    try:
        assert ailing.terms == [Terms(graph, None, "10.0.0.1:6379", durability)] * 2, "pickled, too"
        assert (again._author, again._timeout_s) == (client._author, 7)
        assert ailing.starts
    finally:
        again.close()


def test_a_durability_that_there_is_not_is_refused_before_anything_is_started(graph: str) -> None:
    with pytest.raises(InputError, match="use process or power"):
        omniray.connect(graph, durability="for ever")


def test_the_secrets_of_a_store_are_not_in_the_text_of_what_a_client_starts_with() -> None:
    assert "hush" not in repr(Terms("s3://bucket/graph", {"secret_access_key": "hush"}))


@pytest.mark.parametrize("refusal", [LineOwned("a copy", line="01K"), NotFound("no such branch", line="01K")])
def test_a_door_that_reads_nothing_does_not_settle_a_write_in_doubt(connected: Any, refusal: OmnirayError) -> None:
    """Its refusal is no answer to the write: the try before it may have landed."""
    with pytest.raises(OutcomeUnknown):
        write(connected(_Ailing([unanswered(), refusal], [None])))
    with pytest.raises(type(refusal)):
        write(connected(_Ailing([refusal], [None])))
