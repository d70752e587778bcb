"""Processes that die within a test's own process: what they had under way stops, and nothing they do has an effect.

The store of such a process goes dead at a failpoint, and every later call of it ends the caller. So no handler of an
error, and no thread that goes on, can do what a killed process could not. What Lance writes by itself is only staged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, cast

from omniray.engine.base.errors import OmnirayError
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.store.object_store import ObjectStore
from tests.graphs import Parts, parts_of

_OF_THE_DEAD = frozenset({"uri", "lance_options", "lists_newest_first", "local_root", "lance_path", "close"})


class Crashed(BaseException):
    """The process has died. No error: nothing in the system may handle it."""


class MortalStore:
    """A store as one process reaches it, while that lives."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        if self.is_dead and name not in _OF_THE_DEAD:
            raise Crashed(name)
        return getattr(self._inner, name)

    def die(self) -> NoReturn:
        self.is_dead = True
        raise Crashed("here")


@contextlib.contextmanager
def dying_at(store: MortalStore, point: Point, nth: int | None = None) -> Iterator[None]:
    """Whoever is at the point dies, and does not come out of this block any more."""
    with armed({point: Action(store.die, nth)}), contextlib.suppress(Crashed):
        yield


def mortal(store: ObjectStore, **options: Any) -> tuple[MortalStore, Parts]:
    """A process on a graph, and the store by which it can be made to die."""
    its_own = MortalStore(store)
    return its_own, parts_of(cast(ObjectStore, its_own), **options)


def bury(parts: Parts) -> None:
    """End the threads of a process that died, or that can't finish what it has begun."""
    with contextlib.suppress(Crashed, OmnirayError):
        parts.close()


def crash(store: ObjectStore, point: Point, act: Callable[[Parts], object], nth: int | None = None, **of: Any) -> Parts:
    """A process that dies at a point while it acts, or while it finishes what it did."""
    its_own, parts = mortal(store, **of)
    with dying_at(its_own, point, nth):
        act(parts)
        parts.finaliser.close()
    assert its_own.is_dead, f"{point} was not reached"
    bury(parts)
    return parts
