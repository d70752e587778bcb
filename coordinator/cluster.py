"""The Ray cluster under a graph's coordinator: start it, join it, and find the actors by their names."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omniray.engine.errors import Unreachable

NAMESPACE = "omniray"

# Ray reads these when it is imported. Whoever sets them wins.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def ray() -> Any:
    """The module, imported when a coordinator is first needed: embedded writers never wait for it."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    return ray


@dataclass(frozen=True, slots=True)
class Place:
    """Where the actors of one branch of one graph are to be found in a cluster."""

    graph_id: str
    branch: str

    @property
    def publisher(self) -> str:
        return f"publisher:{self.graph_id}:{self.branch}"

    @property
    def reconciler(self) -> str:
        return f"reconciler:{self.graph_id}:{self.branch}"

    def queues(self, number: int) -> str:
        return f"queues:{self.graph_id}:{self.branch}:{number}"


@dataclass(frozen=True, slots=True)
class Storage:
    """How an actor opens the graph's store."""

    uri: str
    options: Mapping[str, str] | None
    durability: str = "process"


def join(address: str | None) -> bool:
    """Connect this process to a cluster: the one at an address, or the one on this machine; else start one.

    Whether it was started here, so that it ends with this process.
    """
    module = ray()
    if module.is_initialized():
        return False
    try:
        _init(address=address or "auto")
    except (ConnectionError, RuntimeError, ValueError) as error:
        if address is not None:
            raise Unreachable(
                f"no Ray cluster answers at {address}: {str(error).splitlines()[0]}; start one with 'omniray up', or "
                "give another address",
                address=address,
            ) from error
        _init(include_dashboard=False)
        return True
    return False


def _init(**options: Any) -> None:
    with warnings.catch_warnings():
        # Ray starts its own programs by fork and exec; Lance warns of every fork, since it can't see the exec.
        warnings.filterwarnings("ignore", "lance is not fork-safe", UserWarning)
        warnings.filterwarnings("ignore", category=ResourceWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        ray().init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING, **options)


def address() -> str:
    """The address under which other processes join the cluster of this one."""
    return str(ray().get_runtime_context().gcs_address)


def find(name: str) -> Any | None:
    """The actor of a name, if there is one."""
    try:
        return ray().get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None
