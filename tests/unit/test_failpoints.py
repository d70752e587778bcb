"""Failpoints: armed in process or by the environment, and declared and used one for one."""

from __future__ import annotations

import ast
import itertools
import os
import re
import time
from collections import Counter
from pathlib import Path

import pytest

import omniray
from omniray.engine.base import failpoints
from omniray.engine.base.failpoints import VARIABLE, Action, FailpointHit, Point, armed, fail, kill, parse, reach

PACKAGE = Path(omniray.__file__).parent
FOLDERS = ("engine", "workers", "coordinator")  # links, which `rglob` does not follow
SIGKILLED = -9

A, B = Point.C_BEFORE_PUT, Point.C_AFTER_PUT


def points_reached() -> Counter[str]:
    """The names given to `reach` in the source; one that is computed would not be found, and is refused."""
    found: Counter[str] = Counter()
    for path in itertools.chain.from_iterable((PACKAGE / folder).rglob("*.py") for folder in FOLDERS):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "reach":
                (point,) = node.args
                assert isinstance(point, ast.Attribute), f"{path}:{node.lineno} names no point"
                assert isinstance(point.value, ast.Name)
                assert point.value.id == "Point"
                found[point.attr] += 1
    return found


def test_every_point_that_is_declared_is_used_and_every_point_used_is_declared() -> None:
    assert set(points_reached()) == {point.name for point in Point}


def test_points_have_names_that_the_environment_can_spell() -> None:
    for point in Point:
        assert parse(f"{point}=raise").keys() == {point}


def test_a_point_that_is_not_armed_does_nothing() -> None:
    with armed({A: Action(fail)}):
        reach(B)
    reach(A)


def test_an_armed_point_does_what_it_is_told_every_time_or_the_nth() -> None:
    seen: list[str] = []
    with armed({A: Action(lambda: seen.append("always")), B: Action(lambda: seen.append("second"), nth=2)}):
        for _ in range(3):
            reach(A)
            reach(B)
    assert seen == ["always", "always", "second", "always"]


def test_points_armed_for_a_while_are_as_before_afterwards() -> None:
    seen: list[str] = []
    with armed({A: Action(lambda: seen.append("outer"))}):
        with pytest.raises(FailpointHit), armed({A: Action(fail)}):
            reach(A)
        reach(A)
    reach(A)
    assert seen == ["outer"]


def test_the_environment_s_text_is_read() -> None:
    found = parse(" phase_c.before_put=kill; phase_d.before_fold=delay(0.25)@3 ;phase_a.before_sidecar=raise; ")
    assert {point: action.nth for point, action in found.items()} == {
        Point.C_BEFORE_PUT: None,
        Point.D_BEFORE_FOLD: 3,
        Point.A_BEFORE_SIDECAR: None,
    }
    assert found[Point.C_BEFORE_PUT].do is kill
    assert found[Point.A_BEFORE_SIDECAR].do is fail


def test_a_delay_sleeps_as_long_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    parse("phase_d.before_fold=delay(0.25)")[Point.D_BEFORE_FOLD].do()
    assert slept == [0.25]


@pytest.mark.parametrize(
    "text",
    ["phase_x.nowhere=kill", "phase_c.before_put", "phase_c.before_put=explode", "phase_c.before_put=delay()", "kill"],
)
def test_a_mistake_in_the_environment_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{VARIABLE}: can't read '{text}'; write POINT=")):
        parse(text)


def test_nothing_is_armed_unless_the_environment_says_so() -> None:
    assert VARIABLE not in os.environ
    assert failpoints._armed == {}
