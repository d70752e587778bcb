"""Processes and incarnations: who is known to be dead, and of whom nobody can tell."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from omniray.engine.base import process
from omniray.engine.base.process import Process, is_known_dead, this_process
from omniray.engine.line.commit_object import EMBEDDED
from omniray.engine.line.owner import Incarnation, is_owner_known_dead

_WAIT_TO_BE_ENDED = "import sys; sys.stdin.read()"


@contextlib.contextmanager
def another() -> Iterator[tuple[subprocess.Popen[bytes], Process]]:
    with subprocess.Popen([sys.executable, "-c", _WAIT_TO_BE_ENDED], stdin=subprocess.PIPE) as running:
        started = process._started(running.pid)
        assert started is not None
        yield running, Process(this_process().host, running.pid, started)


def test_a_process_that_runs_is_not_dead() -> None:
    assert not is_known_dead(this_process())
    with another() as (_, found):
        assert not is_known_dead(found)


def test_a_process_that_is_only_stopped_is_not_dead() -> None:
    with another() as (running, found):
        os.kill(running.pid, signal.SIGSTOP)
        assert not is_known_dead(found)
        os.kill(running.pid, signal.SIGCONT)


def test_a_process_that_ended_is_known_to_be_dead_at_once() -> None:
    """Also before its parent has asked for its exit code: it is a zombie then."""
    with another() as (running, found):
        os.kill(running.pid, signal.SIGKILL)
        os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
        assert is_known_dead(found)
    assert is_known_dead(found)


def test_another_process_with_the_same_number_is_not_taken_for_the_one_that_ended() -> None:
    assert is_known_dead(replace(this_process(), started="before"))


def test_of_a_process_on_another_machine_nobody_knows() -> None:
    with another() as (_, found):
        pass
    assert not is_known_dead(replace(found, host="elsewhere"))
    assert not is_known_dead(Process("elsewhere", 1, ""))


def test_a_machine_that_was_booted_again_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    before = this_process().host
    monkeypatch.setattr(Path, "read_text", lambda self: "another boot\n")
    assert process._host.__wrapped__() != before


def test_without_proc_the_name_of_the_machine_and_the_number_must_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_proc(self: Path) -> str:
        raise OSError("no such thing")

    with another() as (_, ended):
        pass
    monkeypatch.setattr(Path, "read_text", no_proc)
    assert "/" not in process._host.__wrapped__()
    assert not is_known_dead(this_process())
    assert is_known_dead(ended)


def test_a_process_that_may_not_be_signalled_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(process, "_started", lambda pid: None)
    monkeypatch.setattr(os, "kill", refuse)
    assert not is_known_dead(this_process())


def test_a_process_is_shown_by_its_number_and_machine() -> None:
    assert str(Process("host/boot/namespace", 17, "1")) == "process 17 on host"


# Incarnations


def test_an_incarnation_is_read_back_from_what_the_line_says() -> None:
    for address in ("ray://head:10001", "http://[::1]:80/a|b", ""):
        one = Incarnation.new(address)
        assert Incarnation.parse(str(one)) == one
        assert pickle.loads(pickle.dumps(one)) == one
    assert Incarnation.new("") != Incarnation.new(""), "each life has its own"


def test_an_owner_is_known_to_be_dead_if_its_process_is() -> None:
    alive = Incarnation.new("here")
    assert not is_owner_known_dead(EMBEDDED)
    assert not is_owner_known_dead(str(alive))
    assert is_owner_known_dead(str(replace(alive, process=replace(alive.process, started="before"))))
