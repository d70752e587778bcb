"""The Ray actors that own the table queues, each for some tables of all branches, and the handles to call them by.

They are as many as the cluster has processors for, however many branches there are.
"""

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
from omniray.coordinator.actors.branch_queues import BranchQueues
from omniray.coordinator.actors.cluster import Place, Storage, end, ray
from omniray.coordinator.actors.opener import Opener
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
    line_of,
)
from omniray.engine.base.errors import InputError, NotFound, OmnirayError, StorageError
from omniray.engine.commit.staging import Base, Staged, TableStage
from omniray.engine.schema.types import Schema

log = logging.getLogger("omniray")

THREADS = 64  # more than get a turn at once (`branch_queues.py`)
_UNREADABLE = "a write queue can't read what it is asked"

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class QueuesActor:
    """Owns the queues of some tables of all branches; asked and answered in messages of `door/queue_messages.py`."""

    def __init__(self, storage: Storage) -> None:
        self._branches = BranchQueues(Opener(storage).opened)

    def read(self, asked: bytes) -> bytes:
        return self._answered(decode_read, asked, _found)

    def stage(self, asked: bytes) -> bytes:
        return self._answered(decode_stage, asked, _staged)

    def drop(self, asked: bytes) -> bytes:
        return self._answered(decode_drop, asked, _dropped)

    def let_go(self, line: str) -> None:
        """Forget a branch that its publisher has let go."""
        self._branches.let_go(line)

    def _answered(
        self,
        decode: Callable[[bytes, Schema], Asked],
        asked: bytes,
        do: Callable[[TableQueues, Asked], bytes],
    ) -> bytes:
        try:
            with _told_as(_UNREADABLE):
                line = line_of(asked)
            with self._branches.of(line) as queues:
                with _told_as(_UNREADABLE):
                    given = decode(asked, queues.schema)
                return do(queues, given)
        except OmnirayError as error:
            return encode_failed(error)


def _found(queues: TableQueues, asked: tuple[Base, list[Question]]) -> bytes:
    return encode_found(asked[1], queues.read(*asked))


def _staged(queues: TableQueues, asked: tuple[Base, list[TableStage]]) -> bytes:
    return encode_staged(queues.stage(*asked))


def _dropped(queues: TableQueues, table_keys: list[str]) -> bytes:
    queues.drop(table_keys)
    return encode_dropped()


class LineQueues:
    """The table queues of one branch, in the Ray actors that all branches share."""

    def __init__(self, remote: RemoteQueues, line: str) -> None:
        self._remote, self._line = remote, line

    def read(self, base: Base, questions: Sequence[Question]) -> list[pa.Table]:
        return self._remote.asked_each(
            "read",
            self._line,
            questions,
            lambda question: question.type.table_key,
            lambda part: encode_read(base, part),
            decode_found,
        )

    def stage(self, base: Base, stages: Sequence[TableStage]) -> list[Staged]:
        return self._remote.asked_each(
            "stage",
            self._line,
            stages,
            lambda stage: stage.announced.table_key,
            lambda part: encode_stage(base, part),
            lambda answered, part: decode_staged(answered, base, part),
        )

    def drop(self, table_keys: Sequence[str]) -> None:
        """Drop cached tables, best effort: a dead owner caches nothing, and a kept handle is compared with its pin."""
        cached = [key for key in table_keys if self._remote.is_made(self._line, key)]
        try:
            self._remote.asked_each(
                "drop",
                self._line,
                cached,
                lambda key: key,
                lambda part: encode_drop(self._line, part),
                lambda answered, part: decode_dropped(answered) or part,
            )
        except (StorageError, NotFound) as error:
            log.warning("event=drop_failed line=%s error=%s", self._line, error)

    def let_go(self) -> None:
        """Have the owners forget the branch; nobody waits for it."""
        self._remote.let_go(self._line)


class RemoteQueues:
    """Calls the table queues in their Ray actors: each table of each branch has one owner, found by its name and line.

    An owner that died is created again, unless its graph is gone: it would die again, for ever.
    """

    def __init__(self, place: Place, storage: Storage, owners: int) -> None:
        self._place, self._storage, self._owners = place, storage, owners
        self._actors: dict[int, Any] = {}
        self._lock = threading.Lock()

    @property
    def made(self) -> int:
        return len(self._actors)

    def of(self, line: str) -> LineQueues:
        return LineQueues(self, line)

    def is_made(self, line: str, table_key: str) -> bool:
        """Whether the owner of a table has been created by this process."""
        return self._number(line, table_key) in self._actors

    def let_go(self, line: str) -> None:
        with self._lock:
            actors = list(self._actors.values())
        for actor in actors:
            actor.let_go.remote(line)

    def use(self, storage: Storage) -> None:
        """Open the graph in another way from now on."""
        self._storage = storage
        self.end()

    def end(self) -> None:
        """End the owners; the next call creates them again."""
        with self._lock:
            self._actors.clear()
        for number in range(self._owners):
            end(self._place.queues(number))

    def asked_each(
        self,
        method: str,
        line: str,
        parts: Sequence[Asked],
        key: Callable[[Asked], str],
        encode: Callable[[list[Asked]], bytes],
        decode: Callable[[bytes, list[Asked]], Sequence[Answer] | OmnirayError],
    ) -> list[Answer]:
        """Call each owner once, all in parallel; the answers are in the order of the parts."""
        by_owner: defaultdict[int, list[int]] = defaultdict(list)
        for index, part in enumerate(parts):
            by_owner[self._number(line, key(part))].append(index)
        asked = {owner: [parts[index] for index in indexes] for owner, indexes in by_owner.items()}
        answers: dict[int, Answer] = {}
        messages = {owner: encode(part) for owner, part in asked.items()}
        for owner, answered in self._called(method, line, messages).items():
            with _told_as("a write queue's answer can't be read"):
                found = decode(answered, asked[owner])
            if isinstance(found, OmnirayError):
                raise found
            answers.update(zip(by_owner[owner], found, strict=True))
        return [answers[index] for index in range(len(parts))]

    def _called(self, method: str, line: str, messages: Mapping[int, bytes]) -> dict[int, bytes]:
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
            self._wait_for(line, messages)
            raise StorageError(f"the owner of a write queue is gone: {first_line(error)}; tried again") from error

    def _wait_for(self, line: str, owners: Iterable[int]) -> None:
        """Wait until owners are back: Ray needs seconds to restart one, and a round is retried only a few times."""
        module, deadline = ray(), time.monotonic() + CALL_TIMEOUT_S
        for owner in owners:
            while time.monotonic() < deadline:
                try:
                    module.get(self._owner(owner).drop.remote(encode_drop(line, [])), timeout=CALL_TIMEOUT_S)
                    break
                except (module.exceptions.RayError, ValueError):
                    with self._lock:
                        self._actors.clear()
                    self._storage.refuse_gone()
                    time.sleep(AWAY_PAUSE_S)

    def _number(self, line: str, table_key: str) -> int:
        """The owner of a table: each branch's tables are spread alike, beginning at another owner."""
        return (crc32(line.encode()) + crc32(table_key.encode())) % self._owners

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
