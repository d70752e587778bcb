"""A history as EDN says what its events say, in the form and order that Elle expects."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from omniray.coordinator.stress.edn import edn_lines
from omniray.coordinator.stress.transactions import Append, Event, Read
from omniray.engine.base.errors import InputError
from tests.edn import Keyword, read_edn
from tests.list_story import ListStory


def exported(story: ListStory) -> list[Any]:
    return [read_edn(line) for line in edn_lines(story.events)]


def test_an_event_is_one_line_with_these_fields() -> None:
    story = ListStory()
    story.begin(2, Append(3, 40), Read(4))
    story.end(2, "ok", Append(3, 40), Read(4, (1, 2)))
    assert list(edn_lines(story.events)) == [
        "{:type :invoke, :f :txn, :value [[:append 3 40] [:r 4 nil]], :process 2, :time 10, :index 0}",
        "{:type :ok, :f :txn, :value [[:append 3 40] [:r 4 [1 2]]], :process 2, :time 20, :index 1}",
    ]


def test_keys_and_values_may_be_texts_with_anything_in_them() -> None:
    strange = 'a "b" \\ \n\t]} ü 🙂 \x01'
    story = ListStory()
    story.append(0, strange, strange)
    story.read(0, strange, strange)
    assert exported(story)[-1]["value"] == [["r", strange, [strange]]]
    assert all("\n" not in line for line in edn_lines(story.events))


def test_an_empty_list_is_not_an_unknown_one() -> None:
    story = ListStory()
    story.read(0, 1)
    assert [event["value"] for event in exported(story)] == [[["r", 1, None]], [["r", 1, []]]]


@pytest.mark.parametrize("kind", ["fail", "info"])
def test_a_transaction_that_failed_says_what_it_was_about(kind: Any) -> None:
    story = ListStory()
    story.append(0, 1, 2, kind)
    (_, end) = exported(story)
    assert (end["type"], end["value"]) == (Keyword(kind), [[Keyword("append"), 1, 2]])


def test_index_and_time_rise_whatever_the_order_of_the_files() -> None:
    story = ListStory()
    for value in range(5):
        story.append(value % 2, 1, value)
    story.events.sort(key=lambda event: event.writer)
    events = exported(story)
    assert [event["index"] for event in events] == list(range(10))
    assert all(before["time"] < after["time"] for before, after in pairwise(events))


def test_a_writer_goes_on_as_a_new_process_after_an_unclear_outcome() -> None:
    story = ListStory()
    for value, kind in enumerate(("info", "ok", "info", "ok")):
        story.append(1, 1, value, kind)  # type: ignore[arg-type]
    story.append(0, 1, 9)
    events = exported(story)
    assert [event["process"] for event in events] == [1, 1, 3, 3, 3, 3, 5, 5, 0, 0]
    ended = {event["process"] for event in events if event["type"] == "info"}
    began_later = [event["process"] for event in events[2:] if event["type"] == "invoke"]
    assert ended == {1, 3}
    assert began_later.count(1) == 0


def test_processes_of_different_writers_are_never_the_same() -> None:
    story = ListStory()
    for writer in range(3):
        for value in range(4):
            story.append(writer, writer, value, "info")
    begun = [event["process"] for event in exported(story) if event["type"] == "invoke"]
    assert len(begun) == len(set(begun)) == 12


def test_what_a_dead_writer_left_open_ends_at_the_end_with_an_unclear_outcome() -> None:
    story = ListStory()
    story.begin(0, Append(1, 2))
    story.begin(1, Read(1))
    story.append(2, 1, 3)
    events = exported(story)
    assert [(event["type"], event["process"]) for event in events[-2:]] == [("info", 0), ("info", 1)]
    assert [event["time"] for event in events[-3:]] == [40, 40, 40]
    begun = sum(event["type"] == "invoke" for event in events)
    assert begun == len(events) - begun


def test_at_one_moment_beginnings_come_before_ends() -> None:
    events = [
        Event(event="invoke", at_ns=1, writer=0, ops=(Append(1, 1),)),
        Event(event="ok", at_ns=5, writer=0, ops=(Append(1, 1),)),
        Event(event="invoke", at_ns=5, writer=1, ops=(Read(1),)),
        Event(event="ok", at_ns=9, writer=1, ops=(Read(1, ()),)),
    ]
    assert [read_edn(line)["process"] for line in edn_lines(events)] == [0, 1, 0, 1]


def test_events_that_are_no_run_are_not_exported() -> None:
    story = ListStory([Event(event="ok", at_ns=1, writer=4, ops=(Append("x", 1),))])
    with pytest.raises(InputError, match="has not begun"):
        list(edn_lines(story.events))


def test_no_events_are_no_lines() -> None:
    assert list(edn_lines([])) == []
