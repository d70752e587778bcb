"""The Ray actors that own the table queues, each for some tables, and the handle by which the publisher calls them."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from zlib import crc32

import pyarrow as pa

from omniray.coordinator.actors.actor import AWAY_PAUSE_S, CALL_TIMEOUT_S, create, first_line
from omniray.coordinator.actors.cluster import Place, Storage, end, ray
from omniray.coordinator.actors.table_queues import TableQueues
from omniray.coordinator.door.questions import Question
from omniray.coordinator.door.queue_answers import (
    decode_dropped,
    decode_found,
    decode_staged,
    encode_dropped,
    encode_failed,
    encode_found,
    encode_staged,
)
from omniray.coordinator.door.queue_requests import (
    decode_drop,
    decode_read,
    decode_stage,
    encode_drop,
    encode_read,
    encode_stage,
)
from omniray.engine.base.errors import InputError, NotFound, OmnirayError, StorageError
from omniray.engine.commit.staging import Base, Staged, TableStage
from omniray.engine.schema.types import Schema

log = logging.getLogger("omniray")

THREADS = 8

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class QueuesActor:
    """Owns the queues of some tables; asked and answered in the messages of `door/queue_messages.py`."""

    def __init__(self, storage: Storage) -> None:
        self._queues = TableQueues(storage.opened())

    def read(self, asked: bytes) -> bytes:
        return self._answered(decode_read, asked, self._found)

    def stage(self, asked: bytes) -> bytes:
        return self._answered(decode_stage, asked, self._staged)

    def drop(self, asked: bytes) -> bytes:
        return self._answered(decode_drop, asked, self._dropped)

    def _answered(self, decode: Callable[[bytes, Schema], Asked], asked: bytes, do: Callable[[Asked], bytes]) -> bytes:
        try:
            with _told_as("a write queue can't read what it is asked"):
                given = decode(asked, self._queues.schema)
            return do(given)
        except OmnirayError as error:
            return encode_failed(error)

    def _found(self, asked: tuple[Base, list[Question]]) -> bytes:
        return encode_found(asked[1], self._queues.read(*asked))

    def _staged(self, asked: tuple[Base, list[TableStage]]) -> bytes:
        return encode_staged(self._queues.stage(*asked))

    def _dropped(self, table_keys: list[str]) -> bytes:
        self._queues.drop(table_keys)
        return encode_dropped()


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

    def read(self, base: Base, questions: Sequence[Question]) -> list[pa.Table]:
        return self._each(
            "read",
            questions,
            lambda question: question.type.table_key,
            lambda part: encode_read(base, part),
            decode_found,
        )

    def stage(self, base: Base, stages: Sequence[TableStage]) -> list[Staged]:
        return self._each(
            "stage",
            stages,
            lambda stage: stage.announced.table_key,
            lambda part: encode_stage(base, part),
            lambda answered, part: decode_staged(answered, base, part),
        )

    def drop(self, table_keys: Sequence[str]) -> None:
        """Drop cached tables, best effort: a dead owner caches nothing, and a kept handle is compared with its pin."""
        cached = [key for key in table_keys if self._number(key) in self._actors]
        try:
            self._each(
                "drop", cached, lambda key: key, encode_drop, lambda answered, part: decode_dropped(answered) or part
            )
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
        self,
        method: str,
        parts: Sequence[Asked],
        key: Callable[[Asked], str],
        encode: Callable[[list[Asked]], bytes],
        decode: Callable[[bytes, list[Asked]], Sequence[Answer] | OmnirayError],
    ) -> list[Answer]:
        """Call each owner once, all in parallel; the answers are in the order of the parts."""
        by_owner: defaultdict[int, list[int]] = defaultdict(list)
        for index, part in enumerate(parts):
            by_owner[self._number(key(part))].append(index)
        asked = {owner: [parts[index] for index in indexes] for owner, indexes in by_owner.items()}
        answers: dict[int, Answer] = {}
        messages = {owner: encode(part) for owner, part in asked.items()}
        for owner, answered in self._called(method, messages).items():
            with _told_as("a write queue's answer can't be read"):
                found = decode(answered, asked[owner])
            if isinstance(found, OmnirayError):
                raise found
            answers.update(zip(by_owner[owner], found, strict=True))
        return [answers[index] for index in range(len(parts))]

    def _called(self, method: str, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        module = ray()
        try:
            calls = {owner: getattr(self._owner(owner), method).remote(sent) for owner, sent in messages.items()}
            return dict(zip(calls, module.get(list(calls.values()), timeout=CALL_TIMEOUT_S), strict=True))
        except module.exceptions.RayTaskError as error:
            raise StorageError(f"a write queue failed: {error.cause!r}") from error
        except (module.exceptions.RayError, ValueError) as error:
            with self._lock:
                self._actors.clear()
            self._storage.refuse_gone()
            self._wait_for(messages)
            raise StorageError(f"the owner of a write queue is gone: {first_line(error)}; tried again") from error

    def _wait_for(self, owners: Iterable[int]) -> None:
        """Wait until owners are back: Ray needs seconds to restart one, and a round is retried only a few times."""
        module, deadline = ray(), time.monotonic() + CALL_TIMEOUT_S
        for owner in owners:
            while time.monotonic() < deadline:
                try:
                    module.get(self._owner(owner).drop.remote(encode_drop([])), timeout=CALL_TIMEOUT_S)
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


@contextmanager
def _told_as(what: str) -> Iterator[None]:
    """Blame a message that can't be read on no write: the two processes may be of different releases."""
    try:
        yield
    except InputError as error:
        raise StorageError(f"{what}: {error}", **error.facts) from error
