"""Threads for what a line is asked and takes long, some for each kind of it.

So calls of one kind that wait, for storage, for Phase D or for a merge, keep no call of another kind waiting, and no
write from being read. A thread is made when it is first needed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

OF_A_KIND = 8

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class CallThreads:
    """The threads of one line, by the kind of what they carry out."""

    def __init__(self) -> None:
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._lock = threading.Lock()

    async def run(
        self, kind: str, do: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Carry something out on a thread for its kind."""
        return await asyncio.get_running_loop().run_in_executor(self._of(kind), partial(do, *args, **kwargs))

    def close(self) -> None:
        """End the threads, each once it has nothing left to do."""
        for pool in self._pools.values():
            pool.shutdown(wait=False)

    def _of(self, kind: str) -> ThreadPoolExecutor:
        with self._lock:
            if kind not in self._pools:
                self._pools[kind] = ThreadPoolExecutor(OF_A_KIND, thread_name_prefix=f"omniray-{kind}")
            return self._pools[kind]
