"""A history is readable whatever becomes of its writer, and says all that its events say."""

from __future__ import annotations

from pathlib import Path

import pytest

from omniray.coordinator.stress.history import (
    NOBODY,
    Disturbed,
    Event,
    Failed,
    HistoryFile,
    Invoked,
    Read,
    Succeeded,
    Unclear,
    Unread,
    line_of,
    merge_histories,
    read_history,
)
from omniray.engine.base.errors import InputError
from tests.stress_story import account, append

EVENTS: list[Event] = [
    Invoked(at_ns=1, writer=3, write=append("A", account("ann", "A"))),
    Succeeded(at_ns=2, writer=3, txn_id="A", commit_id="A", nodes=1, edges=0, repeated=False),
    Failed(at_ns=3, writer=3, txn_id="B", kind="key_conflict", retry="never", message="it's there"),
    Unclear(at_ns=4, writer=3, txn_id="C", kind="outcome_unknown", message="?"),
    Read(at_ns=6, writer=3, began_ns=5, commit_id="A", names=("ann",), counts={"Account": 1}, digests={"Account": {}}),
    Unread(at_ns=7, writer=3, kind="storage", retry="safe", message="line 1\nline 2"),
    Disturbed(at_ns=8, writer=NOBODY, what="kill", target="writer 3"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "writer-3.jsonl"


def written(path: Path) -> Path:
    with HistoryFile(path) as history:
        for event in EVENTS:
            history.append(event)
    return path


def test_what_is_written_is_read_back(path: Path) -> None:
    assert read_history(written(path)) == EVENTS


def test_a_line_is_in_the_file_before_the_writer_goes_on(path: Path) -> None:
    with HistoryFile(path) as history:
        history.append(EVENTS[0])
        assert read_history(path) == EVENTS[:1]


def test_a_history_may_end_anywhere_in_its_last_line(path: Path) -> None:
    whole = written(path).read_bytes()
    for length in range(len(whole) - len(line_of(EVENTS[-1])) - 1, len(whole)):
        path.write_bytes(whole[:length])
        assert read_history(path) == EVENTS[:-1]


def test_a_broken_line_in_the_middle_is_refused(path: Path) -> None:
    whole = written(path).read_bytes()
    path.write_bytes(b'{"event": "ok"}\n' + whole)
    with pytest.raises(InputError, match=r"line 1 is not an event of a history"):
        read_history(path)


def test_two_writers_may_not_share_a_file(path: Path) -> None:
    written(path)
    with pytest.raises(InputError, match="give every writer a file of its own"):
        HistoryFile(path)
    assert read_history(path) == EVENTS


def test_histories_are_merged_in_the_order_of_time(path: Path) -> None:
    assert list(merge_histories([EVENTS[1::2], EVENTS[0::2]])) == EVENTS
