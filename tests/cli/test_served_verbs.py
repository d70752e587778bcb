"""Every verb of the command line is tried on a served graph beside one that nobody serves, or a reason says why not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from omniray.coordinator.cli.app import app
from tests.ray.test_verbs import CASES

EXCEPT = {
    "init": "there is no graph yet",
    "up": "it is what serves a graph; tests/ray/test_service.py and tests/ray/test_own_rays.py",
    "status": "without a coordinator it has nothing to tell; a test of its own beside the cases",
    "down": "without a coordinator it has nothing to do; a test of its own beside the cases",
    "pipeline run": "it needs Spark; tests/spark/test_pipeline.py",
    "stress": "it makes a graph and a coordinator of its own; tests/ray/test_stress.py",
    "version": "it looks at no graph",
}


def verbs(group: Any, *names: str) -> Iterator[str]:
    """The verbs of a command by their full names; groups have commands of their own."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from verbs(command, *names, name)
        else:
            yield " ".join((*names, name))


def test_each_verb_is_tried_on_a_served_graph_or_says_why_not() -> None:
    tried = {case.verb for case in CASES}
    assert set(verbs(typer.main.get_command(app))) == tried | EXCEPT.keys()
    assert tried.isdisjoint(EXCEPT), "an exception that is none any more"


def test_each_verb_succeeds_in_one_case_at_least() -> None:
    """Verbs that are refused in all of their cases would be the same however they worked."""
    assert {case.verb for case in CASES} == {case.verb for case in CASES if case.code == 0}
