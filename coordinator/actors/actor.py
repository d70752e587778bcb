"""How the Ray actors of a coordinator are created, and how their failures are reported.

They are named, detached and restarted by Ray. No actor relies on being the only one of its name: its state can be read
from storage again, and only the epoch of the line decides which publisher may commit.
"""

from __future__ import annotations

from typing import Any

from omniray.coordinator.actors.cluster import NAMESPACE, ray

CALL_TIMEOUT_S = 120.0
AWAY_PAUSE_S = 0.2  # between tries to reach an actor that Ray restarts


def create(actor: type, name: str, *arguments: Any, max_concurrency: int) -> Any:
    """The existing Ray actor of a name, or a new one."""
    return ray().remote(actor).options(
        name=name, namespace=NAMESPACE, get_if_exists=True, lifetime="detached",
        max_restarts=-1, max_task_retries=0, num_cpus=0, max_concurrency=max_concurrency,
    ).remote(*arguments)  # fmt: skip


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
