"""Errors of ours that come back from Spark as the text of a traceback."""

from __future__ import annotations

import pytest

from omniray.engine.base.errors import ExpectedVersionMismatch, NotFinalised, OmnirayError, StorageError
from omniray.workers.spark.own_errors import own_errors

TRACEBACK = """Job aborted: Traceback (most recent call last):
  File "worker.py", line 1, in main
omniray.engine.base.errors.{name}: the disk is full; make room

JVM stacktrace:
"""


@pytest.mark.parametrize("kind", [StorageError, NotFinalised, ExpectedVersionMismatch])
def test_an_error_of_ours_is_raised_as_what_it_is(kind: type[OmnirayError]) -> None:
    with pytest.raises(kind) as caught, own_errors():
        raise RuntimeError(TRACEBACK.format(name=kind.__name__))
    assert str(caught.value) == "the disk is full; make room"
    assert type(caught.value) is kind


def test_a_name_that_is_none_of_ours_is_an_error_all_the_same() -> None:
    with pytest.raises(OmnirayError, match="the disk is full"), own_errors():
        raise RuntimeError(TRACEBACK.format(name="annotations"))


def test_an_error_of_spark_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="an executor was lost"), own_errors():
        raise RuntimeError("an executor was lost")


def test_an_error_that_quotes_another_stays_what_it_is() -> None:
    with pytest.raises(NotFinalised), own_errors():
        raise NotFinalised(TRACEBACK.format(name="StorageError"))
