"""Errors of ours that come back from Spark as the text of a traceback."""

from __future__ import annotations

import pytest

from omniray.engine.base.errors import ExpectedVersionMismatch, GraphGone, OmnirayError, StorageError
from omniray.workers.spark.own_errors import own_errors

TRACEBACK = """Job aborted: Traceback (most recent call last):
  File "worker.py", line 1, in main
{module}.{name}: the disk is full; make room

JVM stacktrace:
"""


def told_of(kind: type[OmnirayError]) -> str:
    """An error as a traceback names it: by the module in which its class is, wherever that moves."""
    return TRACEBACK.format(module=kind.__module__, name=kind.__name__)


@pytest.mark.parametrize("kind", [StorageError, GraphGone, ExpectedVersionMismatch])
def test_an_error_of_ours_is_raised_as_what_it_is(kind: type[OmnirayError]) -> None:
    with pytest.raises(kind) as caught, own_errors():
        raise RuntimeError(told_of(kind))
    assert str(caught.value) == "the disk is full; make room"
    assert type(caught.value) is kind


def test_a_name_that_is_none_of_ours_is_an_error_all_the_same() -> None:
    with pytest.raises(OmnirayError, match="the disk is full"), own_errors():
        raise RuntimeError(TRACEBACK.format(module=StorageError.__module__, name="annotations"))


def test_an_error_of_spark_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="an executor was lost"), own_errors():
        raise RuntimeError("an executor was lost")


def test_an_error_that_quotes_another_stays_what_it_is() -> None:
    with pytest.raises(GraphGone), own_errors():
        raise GraphGone(told_of(StorageError))
