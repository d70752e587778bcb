"""The recorder writes down what a writer does before it goes on, and never more than the writer knows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from omniray.coordinator.stress.recorder import Recorder, export_edn, read_recorded
from omniray.coordinator.stress.transactions import Append, Read, read_transactions
from omniray.engine.base.errors import InputError, KeyConflict, OutcomeUnknown, StorageError
from tests.edn import read_edn


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history" / "writer-3.jsonl"


@pytest.fixture
def recorder(path: Path) -> Iterator[Recorder]:
    with Recorder(path, 3) as recorder:
        yield recorder


def kinds(path: Path) -> list[str]:
    return [event.event for event in read_transactions(path)]


def test_a_transaction_is_recorded_with_what_it_saw(recorder: Recorder, path: Path) -> None:
    with recorder.transaction(Append("x", 1), Read("x"), Read("x")) as transaction:
        transaction.saw("x", [1])
        transaction.saw("x", [1, 2])
    begun, ended = read_transactions(path)
    assert (begun.event, begun.ops) == ("invoke", (Append("x", 1), Read("x"), Read("x")))
    assert (ended.event, ended.ops) == ("ok", (Append("x", 1), Read("x", (1,)), Read("x", (1, 2))))
    assert begun.writer == ended.writer == 3


def test_the_beginning_is_in_the_file_before_the_call_is_made(recorder: Recorder, path: Path) -> None:
    with recorder.transaction(Append("x", 1)):
        assert kinds(path) == ["invoke"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KeyConflict("node:Item", "x"), "fail"),
        (StorageError("down"), "fail"),
        (OutcomeUnknown("?"), "info"),
        (ValueError("a bug"), "info"),
        (KeyboardInterrupt(), "info"),
    ],
)
def test_an_error_is_recorded_as_what_it_says_about_the_write_and_raised_on(
    recorder: Recorder, path: Path, error: BaseException, kind: str
) -> None:
    with pytest.raises(type(error)), recorder.transaction(Append("x", 1)):
        raise error
    assert kinds(path) == ["invoke", kind]


def test_an_error_of_a_transaction_that_writes_and_reads_may_have_come_after_the_write(
    recorder: Recorder, path: Path
) -> None:
    with pytest.raises(StorageError), recorder.transaction(Append("x", 1), Read("x")):
        raise StorageError("down")
    assert kinds(path) == ["invoke", "info"]


def test_a_read_that_says_nothing_about_its_list_is_refused_and_not_recorded_as_done(
    recorder: Recorder, path: Path
) -> None:
    with pytest.raises(InputError, match="did not say what it saw in list 'x'"), recorder.transaction(Read("x")):
        pass
    assert kinds(path) == ["invoke", "info"]


def test_a_list_that_is_not_read_can_not_be_seen(recorder: Recorder) -> None:
    with pytest.raises(InputError, match="no read of list 'y'"), recorder.transaction(Read("x")) as transaction:
        transaction.saw("y", [])


def test_events_may_be_recorded_one_by_one(recorder: Recorder, path: Path) -> None:
    recorder.invoke(Append("x", 1))
    recorder.info("no answer")
    recorder.invoke(Read("x"))
    recorder.ok(Read("x", (1,)))
    recorder.invoke(Append("x", 2))
    recorder.fail(StorageError("down"))
    events = read_transactions(path)
    assert [event.event for event in events] == ["invoke", "info", "invoke", "ok", "invoke", "fail"]
    assert (events[1].message, events[5].kind, events[5].message) == ("no answer", "storage", "down")


def test_one_writer_does_one_thing_at_a_time(recorder: Recorder) -> None:
    with pytest.raises(InputError, match="has no transaction under way"):
        recorder.ok()
    recorder.invoke(Read("x"))
    with pytest.raises(InputError, match="has a transaction under way"):
        recorder.invoke(Read("y"))


@pytest.mark.parametrize("ops", [(), ("append x 1",)])
def test_a_transaction_consists_of_appends_and_reads(recorder: Recorder, ops: tuple[object, ...]) -> None:
    with pytest.raises(InputError, match="consists of Append and Read"):
        recorder.invoke(*ops)  # type: ignore[arg-type]


def test_times_rise_although_the_clock_stands_still(tmp_path: Path) -> None:
    with Recorder(tmp_path / "0.jsonl", 0, clock_ns=lambda: 7) as recorder:
        for value in range(3):
            with recorder.transaction(Append("x", value)):
                pass
    times = [event.at_ns for event in read_transactions(tmp_path / "0.jsonl")]
    assert all(before < after for before, after in pairwise(times))


def test_two_writers_never_share_a_file_and_are_numbered_from_0(path: Path, tmp_path: Path) -> None:
    with Recorder(path, 0), pytest.raises(InputError, match="there is a history"):
        Recorder(path, 1)
    with pytest.raises(InputError, match="number the writers from 0"):
        Recorder(tmp_path / "other.jsonl", -1)


def test_all_writers_of_a_folder_are_read_and_exported_together(tmp_path: Path) -> None:
    for number in range(2):
        with Recorder(tmp_path / f"{number}.jsonl", number) as recorder, recorder.transaction(Append("x", number)):
            pass
    export_edn(read_recorded(tmp_path), tmp_path / "history.edn")
    lines = (tmp_path / "history.edn").read_text().splitlines()
    assert [read_edn(line)["process"] for line in lines] == [0, 0, 1, 1]


def test_a_folder_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing was recorded in .*: there is no file \*.jsonl"):
        read_recorded(tmp_path)


def test_a_line_that_is_none_of_an_event_is_named(tmp_path: Path) -> None:
    (tmp_path / "0.jsonl").write_text('{"event":"invoke","at_ns":1,"writer":0,"ops":[["put",1,2]]}\n')
    with pytest.raises(InputError, match=r"0\.jsonl, line 1 is not an event"):
        read_recorded(tmp_path)
