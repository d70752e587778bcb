"""A store that fails on demand, around any other: for tests that need no server between the engine and its storage.

What goes wrong is told as data: which calls, and how. It is also the store of a process that can die within a test's
own process: once dead, every call ends the caller, so that no handler of an error, and no thread that goes on, can do
what a killed process could not. What Lance writes by itself is only staged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NoReturn, TypeVar

from omniray.engine.base.errors import StorageError
from omniray.engine.store.object_store import Answer, ObjectStore, StoredFile

T = TypeVar("T")
ALWAYS = 1_000_000_000  # as the times that a fault is met


class Effect(StrEnum):
    """What goes wrong with a call."""

    FAIL = "fail"  # StorageError, and nothing happened
    UNCLEAR = "unclear"  # nothing happened, and the answer is unclear, or a StorageError where a method has none such
    LOSE = "lose"  # it happened, and the answer is likewise
    PAUSE = "pause"  # a callback runs first, then it happens
    KILL = "kill"  # the process dies, and nothing happened


class Crashed(BaseException):
    """The process has died. No error: nothing in the system may handle it."""


class NoAnswer(StorageError):
    """The store said nothing: what a method without an unclear answer raises."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call, and the path that it was about."""

    method: str
    path: str


@dataclass(slots=True)
class CallFault:
    """Breaks the `nth` call that fits, and the `times` - 1 that fit after it: of these methods, or of any."""

    effect: Effect
    methods: frozenset[str] = frozenset()
    path_contains: str = ""
    nth: int = 1
    times: int = 1
    pause: Callable[[], None] = lambda: None
    met: int = field(default=0, init=False)

    def meets(self, call: Call) -> bool:
        """Count a call; whether it is one to break."""
        if (self.methods and call.method not in self.methods) or self.path_contains not in call.path:
            return False
        self.met += 1
        return self.nth <= self.met < self.nth + self.times


class FaultyStore:
    """A store that passes every call on, keeps a log, and breaks the calls that an armed fault meets."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.calls: list[Call] = []
        self.faults: list[CallFault] = []
        self.is_dead = False

    def arm(self, fault: CallFault) -> CallFault:
        """Calls are counted from here on."""
        self.faults.append(fault)
        return fault

    def disarm(self) -> None:
        self.faults.clear()

    def die(self) -> NoReturn:
        """End the process that reaches the store through this one."""
        self.is_dead = True
        raise Crashed("here")

    @property
    def uri(self) -> str:
        return self.inner.uri

    @property
    def lance_options(self) -> dict[str, str] | None:
        return self.inner.lance_options

    @property
    def shared_options(self) -> Mapping[str, str]:
        return self.inner.shared_options

    @property
    def lists_newest_first(self) -> bool:
        return self.inner.lists_newest_first

    @property
    def local_root(self) -> Path | None:
        return self.inner.local_root

    def lance_path(self, path: str) -> str:
        return self.inner.lance_path(path)

    def sync(self, paths: Iterable[str]) -> None:
        kept = list(paths)
        self._pass_on("sync", kept[0] if kept else "", lambda: self.inner.sync(kept))

    def get(self, path: str) -> bytes | None:
        return self._pass_on("get", path, lambda: self.inner.get(path))

    def size(self, path: str) -> int | None:
        return self._pass_on("size", path, lambda: self.inner.size(path))

    def place_of(self, path: str) -> str | None:
        return self._pass_on("place_of", path, lambda: self.inner.place_of(path))

    def put(self, path: str, data: bytes) -> None:
        self._pass_on("put", path, lambda: self.inner.put(path, data))

    def put_hint(self, path: str, data: bytes) -> None:
        self._pass_on("put_hint", path, lambda: self.inner.put_hint(path, data))

    def put_if_absent(self, path: str, data: bytes, *, lasting: bool = True) -> Answer:
        try:
            return self._pass_on("put_if_absent", path, lambda: self.inner.put_if_absent(path, data, lasting=lasting))
        except NoAnswer:
            return Answer.UNCLEAR

    def copy_if_absent(self, source: str, target: str) -> Answer | None:
        try:
            return self._pass_on("copy_if_absent", target, lambda: self.inner.copy_if_absent(source, target))
        except NoAnswer:
            return Answer.UNCLEAR

    def copy(self, source: str, target: str) -> bool:
        return self._pass_on("copy", target, lambda: self.inner.copy(source, target))

    def delete(self, path: str) -> None:
        self._pass_on("delete", path, lambda: self.inner.delete(path))

    def delete_all(self, paths: Sequence[str]) -> None:
        self._pass_on("delete_all", paths[0] if paths else "", lambda: self.inner.delete_all(paths))

    def names(self, folder: str) -> Iterator[str]:
        return self._pass_on("names", folder, lambda: self.inner.names(folder))

    def first_name(self, folder: str) -> str | None:
        return self._pass_on("first_name", folder, lambda: self.inner.first_name(folder))

    def files(self, folder: str, *, after: str = "") -> Iterator[StoredFile]:
        return self._pass_on("files", folder, lambda: self.inner.files(folder, after=after))

    def delete_empty_folders(self, folder: str = "") -> None:
        self._pass_on("delete_empty_folders", folder, lambda: self.inner.delete_empty_folders(folder))

    def close(self) -> None:
        self.inner.close()

    def _pass_on(self, method: str, path: str, call: Callable[[], T]) -> T:
        if self.is_dead:
            raise Crashed(method)
        seen = Call(method, path)
        self.calls.append(seen)
        struck = [fault for fault in self.faults if fault.meets(seen)]  # each one counts, also behind the first
        if not struck:
            return call()
        match struck[0].effect:
            case Effect.PAUSE:
                struck[0].pause()
                return call()
            case Effect.FAIL:
                raise StorageError(f"{method} {path} was made to fail", path=path)
            case Effect.KILL:
                self.die()
            case Effect.LOSE:
                call()
        raise NoAnswer(f"the answer to {method} {path} was lost", path=path)
