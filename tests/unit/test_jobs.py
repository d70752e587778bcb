"""Jobs beside a caller: in a thread where they wait for a store, at once where a thread would take longer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import omniray
from omniray.engine.base.jobs import AtOnce

INSERT = "query one($name: String) { insert Person { name: $name } }"


def test_a_job_that_runs_at_once_is_done_when_submit_returns() -> None:
    assert AtOnce().submit(divmod, 7, 2).result(timeout=0) == (3, 1)


def test_the_error_of_a_job_that_runs_at_once_is_in_its_future() -> None:
    failed = AtOnce().submit(divmod, 7, 0)
    assert isinstance(failed.exception(timeout=0), ZeroDivisionError)


def test_a_write_to_one_table_on_a_disk_hands_nothing_but_its_sidecar_to_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look at a name and to rename a file take less time than a thread takes to begin."""
    submitted: list[str] = []
    submit = ThreadPoolExecutor.submit

    def noted(pool: ThreadPoolExecutor, job: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        submitted.append(job.__name__)
        return submit(pool, job, *args, **kwargs)

    with omniray.init(str(tmp_path / "g"), schema="node Person { name: String @key }") as graph:
        graph.mutate(INSERT, {"name": "first"})  # it also looks for operations of dead writers
        graph.flush()
        with monkeypatch.context() as patch:
            patch.setattr(ThreadPoolExecutor, "submit", noted)
            graph.mutate(INSERT, {"name": "second"})
            graph.flush()
    assert submitted == ["_put_sidecar"]
