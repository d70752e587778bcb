"""Jobs that take turns: each runs until its next request, and the schedule says who goes on.

A job is a greenlet: the real code of a publisher, suspended wherever it asks a store or a queue for something, sleeps,
or waits for another job. Exactly one runs at a time, so a schedule is a sequence of choices, and a seed replays it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from greenlet import getcurrent, greenlet


class Crashed(BaseException):
    """What the jobs of a process meet that was killed: whatever they still try comes to nothing."""


class Process(Protocol):
    """Whoever runs jobs."""

    @property
    def is_alive(self) -> bool: ...

    def check_pause(self, kind: str) -> None:
        """Raise if a job may not wait here."""


@dataclass(eq=False, slots=True)
class Task:
    """One job on its way: it goes on when it is due, and what it waits for is done."""

    process: Process
    thread: greenlet
    due: int
    kind: str = "begin"  # of the request that it waits for
    waits_for: Future[Any] | None = None
    on_crash: Callable[[], None] | None = None  # what becomes of a request that is on its way when the process dies

    def is_ready(self, now: int) -> bool:
        return self.due <= now and (self.waits_for is None or self.waits_for.done())


class Tasks:
    """All jobs of all processes. `delay` says how long a request takes; `notice` hears of promises that jobs break."""

    def __init__(self, delay: Callable[[str], int], notice: Callable[[AssertionError], None]) -> None:
        self.all: list[Task] = []
        self.now = 0
        self.notice = notice
        self._delay = delay
        self._current: Task | None = None
        self._hub = getcurrent()

    def start(self, process: Process, job: Callable[[], object], after: int = 0) -> None:
        if process.is_alive:
            self.all.append(Task(process, greenlet(lambda: _unless_crashed(job), self._hub), self.now + after))

    def ready(self) -> list[Task]:
        return [task for task in self.all if task.is_ready(self.now)]

    def go_on(self, task: Task) -> None:
        """Let a job run up to its next request, or to its end."""
        self._switch(task, task.thread.switch)
        if task.thread.dead:
            self.all.remove(task)

    def pause(self, kind: str, after: int = 0, on_crash: Callable[[], None] | None = None) -> None:
        """The running job makes a request: others may run before it goes on."""
        task = self._current
        assert task is not None, f"{kind}: a request that is made outside of any job would hold up everybody"
        if not task.process.is_alive:
            raise Crashed
        task.process.check_pause(kind)
        task.kind, task.due, task.on_crash = kind, self.now + after + self._delay(kind), on_crash
        self._hub.switch()
        if not task.process.is_alive:
            raise Crashed

    def wait_for(self, future: Future[Any]) -> None:
        task = self._current
        assert task is not None, "the schedule itself never waits"
        task.waits_for = future
        self.pause("wait")
        task.waits_for = None

    def kill(self, process: Process) -> None:
        """End all jobs of a process that is not alive any more, without another effect of theirs."""
        for task in [task for task in self.all if task.process is process]:
            self.all.remove(task)
            if task.on_crash is not None:
                task.on_crash()
            if task.thread:  # it has begun
                self._switch(task, lambda task=task: task.thread.throw(Crashed))

    def _switch(self, task: Task, switch: Callable[[], object]) -> None:
        self._current = task
        try:
            switch()
        finally:
            self._current = None


def _unless_crashed(job: Callable[[], object]) -> None:
    with contextlib.suppress(Crashed):
        job()


class TaskFuture(Future[Any]):
    """What a job comes to; another job that waits for it lets others run meanwhile."""

    def __init__(self, tasks: Tasks) -> None:
        super().__init__()
        self._tasks = tasks

    def run(self, job: Callable[[], Any]) -> None:
        try:
            self.set_result(job())
        except BaseException as error:
            if isinstance(error, AssertionError):  # of some jobs nobody looks at what they come to
                self._tasks.notice(error)
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        self._wait()
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._wait()
        return super().exception(0)

    def _wait(self) -> None:
        if not self.done():
            self._tasks.wait_for(self)


class TaskExecutor:
    """The executor of a publisher whose jobs take turns."""

    def __init__(self, tasks: Tasks, process: Process, steps: Callable[[float], int]) -> None:
        self._tasks, self._process, self._steps = tasks, process, steps

    def submit(self, job: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = TaskFuture(self._tasks)
        self._tasks.start(self._process, lambda: future.run(lambda: job(*args, **kwargs)))
        return future

    def later(self, seconds: float, job: Callable[[], None]) -> None:
        self._tasks.start(self._process, job, after=self._steps(seconds))

    def close(self) -> None:
        """Nothing runs by itself."""
