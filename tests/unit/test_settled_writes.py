"""Whether a write was committed, asked of the publisher: an answer of "no" stays true of every try that began before.

The twins go without the guard, and must break that promise.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from omniray.coordinator.actors import steps
from omniray.coordinator.actors.steps import Round, RoundSteps
from omniray.coordinator.rounds import machine as rounds
from omniray.engine.base.errors import Fenced, OmnirayError, OutcomeUnknown, Withdrawn
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.base.ulids import new_ulid
from omniray.engine.history import withdrawals
from omniray.engine.history.withdrawals import Withdrawals
from omniray.engine.line.commit_object import EMBEDDED, Remark
from omniray.engine.line.owner import take_over
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.writes.write_requests import Request
from tests.coordination import TIMEOUT_S, Gate, Service, serving, told
from tests.graphs import PERSON, parts_of

GUARDED = pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PAUSE_S", 0.001)


def person(service: Service, name: str, *, began: int | None = None, **header: Any) -> Request:
    """A write that began now, or at an earlier number of the line."""
    request = service.load_request([{"name": name}], type="Person", **header)
    return replace(request, header=replace(request.header, began=service.newest.seq if began is None else began))


def again(service: Service, write: Request) -> Request:
    """The same write, in a try that begins now."""
    one: Any = write
    tried: Request = replace(one, header=replace(write.header, began=service.newest.seq))
    return tried


def people(store: ObjectStore) -> list[str]:
    return parts_of(store).rows(PERSON)


def settling(service: Service, commit_id: str) -> Future[bool]:
    """Ask for the outcome on another thread."""
    asked: Future[bool] = Future()

    def settle() -> None:
        try:
            asked.set_result(service.publisher.settle(commit_id))
        except BaseException as error:
            asked.set_exception(error)

    threading.Thread(target=settle, daemon=True).start()
    return asked


def refused(service: Service, write: Request) -> bool:
    """Whether a write is refused as one that was reported as not committed."""
    (answer,) = told([service.publisher.submit(write)])
    assert not isinstance(answer, OmnirayError) or isinstance(answer, Withdrawn), answer
    return isinstance(answer, Withdrawn) and answer.facts == {"txn_id": write.header.commit_id, "reported": True}


# What is said


def test_a_write_that_was_committed_is_reported_so_and_nothing_is_recorded(store: ObjectStore) -> None:
    with serving(store) as service:
        write = person(service, "ann")
        service.write(write)
        length = len(service.line())
        assert service.publisher.settle(write.header.commit_id)
        assert len(service.line()) == length


def test_a_write_that_nobody_has_seen_is_reported_as_not_committed_and_that_is_in_the_line(store: ObjectStore) -> None:
    with serving(store) as service:
        unknown = new_ulid()
        assert not service.publisher.settle(unknown)
        assert service.newest.withdrawn == (unknown,)


def test_a_write_that_waits_for_its_turn_is_given_up(store: ObjectStore) -> None:
    with serving(store) as service:
        plug = service.plug()
        plugged = service.publisher.submit(plug)
        plug.gate.wait_until_reached()
        write = person(service, "ann")
        waiting = service.publisher.submit(write)
        asked = settling(service, write.header.commit_id)
        assert isinstance(told([waiting])[0], Withdrawn)
        plug.gate.open()
        told([plugged])
        assert asked.result(TIMEOUT_S) is False
    assert people(store) == []


def test_a_write_that_is_in_a_round_is_waited_for(store: ObjectStore) -> None:
    gate = Gate()
    with serving(store) as service, armed({Point.C_BEFORE_PUT: Action(gate.hold, nth=1)}):
        write = person(service, "ann")
        under_way = service.publisher.submit(write)
        gate.wait_until_reached()
        asked = settling(service, write.header.commit_id)
        gate.open()
        assert asked.result(TIMEOUT_S) is True
        told([under_way])
    assert people(store) == ["ann"]


def test_a_publisher_that_is_fenced_meanwhile_settles_nothing(store: ObjectStore) -> None:
    with serving(store) as service:
        take_over(parts_of(store).tip, EMBEDDED)
        with pytest.raises(Fenced):
            service.publisher.settle(new_ulid())


def test_a_publisher_whose_record_has_no_clear_end_says_so_of_the_write_that_was_asked_for(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unclear(*_: object) -> None:
        raise OutcomeUnknown("the connection is gone", txn_id="")

    with serving(store) as service:
        monkeypatch.setattr(RoundSteps, "commit", unclear)
        asked = new_ulid()
        with pytest.raises(OutcomeUnknown, match=asked) as doubt:
            service.publisher.settle(asked)
        assert doubt.value.facts["txn_id"] == asked


# What stays true


@GUARDED
def test_a_try_that_began_before_its_write_was_reported_never_lands_and_one_that_begins_after_it_does(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    if not has_guard:
        monkeypatch.setattr(RoundSteps, "_withdrawn", lambda self, requests, work: {})
    with serving(store) as service:
        late = person(service, "ann")
        assert not service.publisher.settle(late.header.commit_id)
        assert refused(service, late) == has_guard
        if has_guard:
            service.write(person(service, "bob"))
            assert refused(service, late), "whatever has landed since"
            assert service.write(again(service, late)).result.repeated is False
    assert people(store) == (["ann", "bob"] if has_guard else ["ann"])


def test_a_try_that_begins_with_the_very_object_that_reports_its_write_lands(store: ObjectStore) -> None:
    with serving(store) as service:
        write = person(service, "ann")
        assert not service.publisher.settle(write.header.commit_id)
        assert not refused(service, again(service, write))
    assert people(store) == ["ann"]


@GUARDED
def test_a_try_in_the_round_of_the_report_does_not_land(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """Its object is the one that reports the write: in it, the write must not be committed."""
    if not has_guard:
        monkeypatch.setattr(
            RoundSteps,
            "_withdrawn",
            lambda self, requests, work: {
                r.header.commit_id: steps._reported(r.header.commit_id)
                for r in requests
                if self._withdrawals.voids(r.header.commit_id, r.header.began)
            },
        )
    with serving(store) as service:
        write = person(service, "ann")
        plug = service.plug()
        plugged = service.publisher.submit(plug)
        plug.gate.wait_until_reached()
        recorded = service.publisher.remark(Remark(new_ulid(), withdrawn=(write.header.commit_id,)))
        tried = service.publisher.submit(write)
        plug.gate.open()
        answers = told([plugged, recorded, tried])
        assert isinstance(answers[2], Withdrawn) == has_guard
        assert service.newest.withdrawn == (write.header.commit_id,)
    assert people(store) == ([] if has_guard else ["ann"])


@GUARDED
def test_a_try_on_top_of_a_report_that_is_being_put_does_not_land(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """Its round is judged before the report is in the line: it knows of it from the object that it is judged on."""
    with serving(store) as service:
        if not has_guard:
            judged_on = RoundSteps._withdrawn

            def unaware(self: RoundSteps, requests: Any, work: Round) -> Any:
                return judged_on(self, requests, replace(work, base=replace(work.base, withdrawn=())))

            monkeypatch.setattr(RoundSteps, "_withdrawn", unaware)
        write, gate = person(service, "ann"), Gate()
        with armed({Point.C_BEFORE_PUT: Action(gate.hold, nth=1)}):
            recorded = service.publisher.remark(Remark(new_ulid(), withdrawn=(write.header.commit_id,)))
            gate.wait_until_reached()
            judged = threading.Event()
            judge = service.publisher.steps.judge

            def tell(work: Round) -> Any:
                event = judge(work)
                judged.set()
                return event

            monkeypatch.setattr(service.publisher.steps, "judge", tell)
            others = [service.publisher.submit(one) for one in (write, person(service, "bob"))]
            assert judged.wait(TIMEOUT_S), "it was judged while the report was in Phase C"
            assert not recorded.done()
            gate.open()
            answers = told([recorded, *others])
        assert isinstance(answers[1], Withdrawn) == has_guard
    assert people(store) == (["bob"] if has_guard else ["ann", "bob"])


@GUARDED
def test_what_an_earlier_owner_reported_holds_after_a_take_over(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """Fault: the publisher that gave the answer dies, and a late try comes to its successor."""
    if not has_guard:
        monkeypatch.setattr(Withdrawals, "look_back", lambda self, *began: None)
        monkeypatch.setattr(
            Withdrawals, "voids", lambda self, commit_id, began: began < self._numbers.get(commit_id, 0)
        )
    with serving(store) as service:
        late = person(service, "ann")
        assert not service.publisher.settle(late.header.commit_id)
    with serving(store) as service:
        service.write(person(service, "bob"))
        assert refused(service, late) == has_guard
        assert refused(service, again(service, late)) is False
    assert people(store) == ["ann", "bob"]


@GUARDED
def test_a_try_that_does_not_say_when_it_began_is_held_against_all_that_the_line_reports(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    if not has_guard:
        monkeypatch.setattr(RoundSteps, "_began", lambda self, header: header.began)
    with serving(store) as service:
        late = person(service, "ann", began=0)
        assert not service.publisher.settle(late.header.commit_id)
    with serving(store) as service:
        service.write(person(service, "bob", began=0))
        assert refused(service, late) == has_guard
    assert people(store) == (["bob"] if has_guard else ["ann", "bob"])


@GUARDED
def test_a_try_from_too_long_ago_is_refused_rather_than_believed(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The twin takes what it has not read for "nothing was reported", and commits a write that was."""
    monkeypatch.setattr(withdrawals, "LOOK_BACK_MAX", 1)
    if not has_guard:
        monkeypatch.setattr(
            Withdrawals, "voids", lambda self, commit_id, began: began < self._numbers.get(commit_id, 0)
        )
    with serving(store) as service:
        late, other = person(service, "ann"), person(service, "bob")
        assert not service.publisher.settle(late.header.commit_id)
        for name in ("cid", "dan"):
            service.write(person(service, name))
    with serving(store) as service:
        assert refused(service, late) == has_guard
        assert refused(service, other) == has_guard, "of that one nothing is known either"
        if has_guard:
            assert not refused(service, again(service, other))
    assert people(store) == (["bob", "cid", "dan"] if has_guard else ["ann", "bob", "cid", "dan"])


def test_a_write_that_was_committed_has_its_first_answer_whatever_was_reported_since(store: ObjectStore) -> None:
    with serving(store) as service:
        write = person(service, "ann")
        first = service.write(write).result
        told([service.publisher.remark(Remark(new_ulid(), withdrawn=(write.header.commit_id,)))])
        assert service.write(write).result == replace(first, repeated=True)
        assert service.publisher.settle(write.header.commit_id)


def test_other_writes_of_a_round_land_beside_one_that_is_refused(store: ObjectStore) -> None:
    with serving(store) as service:
        late = person(service, "ann")
        service.publisher.settle(late.header.commit_id)
        answers = service.in_one_round([late, person(service, "bob")])
        assert [isinstance(one, Withdrawn) for one in answers] == [True, False]
    assert people(store) == ["bob"]
