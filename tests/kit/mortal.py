"""Processes that die within a test's own process, at a failpoint or at a call of their store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

from omniray.engine.base.errors import OmnirayError
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.store.object_store import ObjectStore
from tests.graphs import Parts, parts_of
from tests.kit.faulty_store import Crashed, FaultyStore


@contextlib.contextmanager
def dying_at(store: FaultyStore, point: Point, nth: int | None = None) -> Iterator[None]:
    """Whoever is at the point dies, and does not come out of this block any more."""
    with armed({point: Action(store.die, nth)}), contextlib.suppress(Crashed):
        yield


def mortal(store: ObjectStore, **options: Any) -> tuple[FaultyStore, Parts]:
    """A process on a graph, and the store by which it can be made to die."""
    its_own = FaultyStore(store)
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
