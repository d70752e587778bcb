"""Batches of a writer: which of them are under way at once, and what becomes of them when one fails."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from omniray.coordinator.client.batch_writer import BatchWriter
from omniray.engine.base.errors import InputError, KeyConflict, OutcomeUnknown
from omniray.engine.judge.resolution import WriteResult


class _Loads:
    """Takes batches; `answers` has the errors of some, by their number."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.futures: list[Future[WriteResult]] = []
        self.at_once = 0  # the most that were under way
        self.answers: dict[int, Exception] = {}

    def submit(self, batch: list[Any], **options: Any) -> Future[WriteResult]:
        self.batches.append(batch)
        self.futures.append(_Lazy(self.answers.get(len(self.futures)), len(self.futures)))
        self.at_once = max(self.at_once, sum(not future.done() for future in self.futures))
        return self.futures[-1]


class _Lazy(Future[WriteResult]):
    """Is done when somebody waits for it."""

    def __init__(self, error: Exception | None, number: int) -> None:
        super().__init__()
        self._error, self._number = error, number

    def result(self, timeout: float | None = None) -> WriteResult:
        if self._error is not None:
            self.set_exception(self._error)
        else:
            self.set_result(WriteResult(str(self._number), 1, 0))
        return super().result(timeout)


def writer(loads: _Loads, **options: Any) -> BatchWriter:
    return BatchWriter(loads.submit, options, rows=1, in_flight=3)


def write(writer: BatchWriter, *numbers: int) -> None:
    for number in numbers:
        writer.write({"n": number})


def landed(writer: BatchWriter) -> list[str | None]:
    return [result.commit_id for result in writer.results]


@pytest.mark.parametrize("options", [{}, {"mode": "append"}])
def test_batches_of_appends_are_under_way_together(options: dict[str, str]) -> None:
    loads = _Loads()
    with writer(loads, **options) as batches:
        write(batches, *range(6))
    assert (loads.at_once, len(batches.results)) == (3, 6)


@pytest.mark.parametrize("mode", ["merge", "overwrite"])
def test_batches_that_may_replace_each_other_s_rows_go_one_after_another(mode: str) -> None:
    loads = _Loads()
    with writer(loads, mode=mode) as batches:
        write(batches, *range(6))
    assert (loads.at_once, loads.batches) == (1, [[{"n": n}] for n in range(6)])


def test_after_a_batch_that_failed_nothing_is_sent_and_those_on_their_way_are_waited_for() -> None:
    loads = _Loads()
    loads.answers = {0: KeyConflict("node:Person", "ann"), 2: OutcomeUnknown("write 2 may have landed", txn_id="2")}
    batches = writer(loads)
    with pytest.raises(KeyConflict) as failed:
        write(batches, *range(6))
    assert (len(loads.batches), landed(batches)) == (3, ["1"])
    assert all(future.done() for future in loads.futures)
    assert failed.value.__notes__ == ["another batch failed too: write 2 may have landed"]
    with pytest.raises(InputError, match="refused"):
        write(batches, 7)
    batches.close()
    assert len(loads.batches) == 3
