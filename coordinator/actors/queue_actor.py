"""The Ray actors that own the table queues, each for some tables, and the handle by which the publisher calls them."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

from omniray.coordinator.actors.actor import AWAY_PAUSE_S, CALL_TIMEOUT_S, create, first_line
from omniray.coordinator.actors.cluster import Place, Storage, end, ray
from omniray.coordinator.actors.table_queues import Question, TableQueues
from omniray.coordinator.door.wire import packed, unpacked
from omniray.engine.base.errors import NotFound, OmnirayError, StorageError
from omniray.engine.commit.staging import Base, Staged, TableStage

log = logging.getLogger("omniray")

THREADS = 8


class QueuesActor:
    """Owns the queues of some tables."""

    def __init__(self, storage: Storage) -> None:
        self._queues = TableQueues(storage.opened())

    def read(self, asked: bytes) -> bytes:
        return packed(self._queues.read(*unpacked(asked)))

    def stage(self, asked: bytes) -> bytes:
        return packed(self._queues.stage(*unpacked(asked)))

    def drop(self, asked: bytes) -> bytes:
        (table_keys,) = unpacked(asked)
        self._queues.drop(table_keys)
        return packed([None for _ in table_keys])


class RemoteQueues:
    """Calls the table queues in their Ray actors: each table has one owner, found by the hash of its name.

    An owner that died is created again, unless its graph is gone: it would die again, for ever.
    """

    def __init__(self, place: Place, storage: Storage, owners: int) -> None:
        self._place, self._storage, self._owners = place, storage, owners
        self._actors: dict[int, Any] = {}
        self._lock = threading.Lock()

    @property
    def made(self) -> int:
        return len(self._actors)

    def read(self, base: Base, questions: Sequence[Question]) -> list[Any]:
        return self._each(
            questions,
            lambda q: q.table_key,
            lambda owner, part: owner.read.remote(packed((_part(base, [q.table_key for q in part]), part))),
        )

    def stage(self, base: Base, stages: Sequence[TableStage]) -> list[Staged]:
        return self._each(
            stages,
            lambda s: s.announced.table_key,
            lambda owner, part: owner.stage.remote(packed((_part(base, [s.announced.table_key for s in part]), part))),
        )

    def drop(self, table_keys: Sequence[str]) -> None:
        """Drop cached tables, best effort: a dead owner caches nothing, and a kept handle is compared with its pin."""
        cached = [key for key in table_keys if self._number(key) in self._actors]
        try:
            self._each(cached, lambda key: key, lambda owner, part: owner.drop.remote(packed((part,))))
        except (StorageError, NotFound) as error:
            log.warning("event=drop_failed error=%s", error)

    def use(self, storage: Storage) -> None:
        """Open the branch in another way from now on."""
        self._storage = storage
        self.end()

    def end(self) -> None:
        """End the owners; the next call creates them again."""
        with self._lock:
            self._actors.clear()
        for number in range(self._owners):
            end(self._place.queues(number))

    def _each(
        self, parts: Sequence[Any], key: Callable[[Any], str], call: Callable[[Any, list[Any]], Any]
    ) -> list[Any]:
        """Call each owner once, all in parallel; the answers are in the order of the parts."""
        by_owner: defaultdict[int, list[int]] = defaultdict(list)
        for index, part in enumerate(parts):
            by_owner[self._number(key(part))].append(index)
        answers: list[Any] = [None] * len(parts)
        module = ray()
        try:
            calls = {
                owner: call(self._owner(owner), [parts[i] for i in indexes]) for owner, indexes in by_owner.items()
            }
            for owner, answered in zip(calls, module.get(list(calls.values()), timeout=CALL_TIMEOUT_S), strict=True):
                for index, answer in zip(by_owner[owner], unpacked(answered), strict=True):
                    answers[index] = answer
        except module.exceptions.RayTaskError as error:
            raise _as_ours(error) from error
        except (module.exceptions.RayError, ValueError) as error:
            with self._lock:
                self._actors.clear()
            self._storage.refuse_gone()
            self._wait_for(by_owner)
            raise StorageError(f"the owner of a write queue is gone: {first_line(error)}; tried again") from error
        return answers

    def _wait_for(self, owners: Iterable[int]) -> None:
        """Wait until owners are back: Ray needs seconds to restart one, and a round is retried only a few times."""
        module, deadline = ray(), time.monotonic() + CALL_TIMEOUT_S
        for owner in owners:
            while time.monotonic() < deadline:
                try:
                    module.get(self._owner(owner).drop.remote(packed(([],))), timeout=CALL_TIMEOUT_S)
                    break
                except (module.exceptions.RayError, ValueError):
                    with self._lock:
                        self._actors.clear()
                    self._storage.refuse_gone()
                    time.sleep(AWAY_PAUSE_S)

    def _number(self, table_key: str) -> int:
        return crc32(table_key.encode()) % self._owners

    def _owner(self, number: int) -> Any:
        with self._lock:
            if number not in self._actors:
                self._actors[number] = create(
                    QueuesActor, self._place.queues(number), self._storage, max_concurrency=THREADS
                )
            return self._actors[number]


def _part(base: Base, table_keys: Sequence[str]) -> Base:
    return replace(base, pins={key: base.pins[key] for key in table_keys if key in base.pins})


def _as_ours(error: Any) -> OmnirayError:
    cause = error.cause
    return cause if isinstance(cause, OmnirayError) else StorageError(f"a write queue failed: {cause!r}")
