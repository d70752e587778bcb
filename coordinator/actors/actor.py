"""What all actors of a coordinator have in common: how they are made, and what is told of their failures.

They are named, detached and restarted by Ray. None of them is believed to be the only one of its name: what one keeps
can be read from storage again, and only the epoch of the line decides who may commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omniray.coordinator.actors.cluster import NAMESPACE, ray

CALL_TIMEOUT_S = 120.0
AWAY_PAUSE_S = 0.2  # between looks for an actor that Ray restarts


def create(
    actor: type, name: str, *arguments: Any, max_concurrency: int, groups: Mapping[str, Any] | None = None
) -> Any:
    """The actor of a name: the one that is there, or a new one."""
    shell = ray().remote(**groups)(actor) if groups else ray().remote(actor)
    return shell.options(
        name=name, namespace=NAMESPACE, get_if_exists=True, lifetime="detached",
        max_restarts=-1, max_task_retries=0, num_cpus=0, max_concurrency=max_concurrency,
    ).remote(*arguments)  # fmt: skip


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
