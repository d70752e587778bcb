"""The store of the random world: objects in memory, and each process's own way to them, on which requests get lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from omniray.engine.base.errors import StorageError
from omniray.engine.history.lineage_entry import CommitId, LineageEntry, entries_of
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.store.object_store import Answer, StoredFile
from tests.model.round_tasks import Tasks
from tests.model.round_terms import Weather

T = TypeVar("T")

STORM_RATE = 0.2
STORM_REQUESTS = (0, 3, 8)  # trouble seldom comes alone


class Watcher(Protocol):
    """Watches what takes effect in the store."""

    tally: Counter[str]

    @property
    def weather(self) -> Weather: ...

    def created(self, path: str, data: bytes, by: str) -> None:
        """An object is about to be created."""

    def refused(self, path: str, data: bytes) -> None:
        """An object is there already."""

    def deleted(self, path: str) -> None:
        """An object is about to be deleted."""


class Storage:
    """What is in the store, and the puts that are still on their way to it."""

    def __init__(self, watcher: Watcher, *, lists_newest_first: bool) -> None:
        self.objects: dict[str, bytes] = {}
        self.late: list[tuple[str, bytes, str]] = []
        self.lists_newest_first = lists_newest_first
        self._watcher = watcher

    def put_if_absent(self, path: str, data: bytes, by: str) -> bool:
        """A put-if-absent takes effect."""
        if path in self.objects:
            self._watcher.refused(path, data)
            return False
        self._watcher.created(path, data, by)
        self.objects[path] = data
        return True

    def delete(self, path: str) -> None:
        self._watcher.deleted(path)
        self.objects.pop(path, None)

    def names(self, folder: str) -> list[str]:
        prefix = folder + "/"
        return sorted(path.removeprefix(prefix) for path in self.objects if path.startswith(prefix))


class ProcessStore:
    """The store as one process reaches it: other processes get ahead of its requests, and of their answers."""

    uri = "memory"
    lance_options = None
    shared_options: Mapping[str, str] = {}
    local_root = None

    def __init__(self, storage: Storage, tasks: Tasks, watcher: Watcher, rng: random.Random, name: str) -> None:
        self._storage, self._tasks, self._watcher, self._rng, self._name = storage, tasks, watcher, rng, name
        self._stormy_requests = 0

    @property
    def lists_newest_first(self) -> bool:
        return self._storage.lists_newest_first

    def get(self, path: str) -> bytes | None:
        return self._request("read", lambda: self._storage.objects.get(path))

    def first_name(self, folder: str) -> str | None:
        return self._request("read", lambda: next(iter(self._storage.names(folder)), None))

    def names(self, folder: str) -> Iterator[str]:
        return iter(self._request("read", lambda: self._storage.names(folder)))

    def put_if_absent(self, path: str, data: bytes, *, lasting: bool = True) -> Answer:
        """The answer may be lost, the effect late, or a success come back as the refusal of its own repetition."""
        kind = "commit" if path.startswith("__commits/") else "announce"
        self._tasks.pause(kind, on_crash=lambda: self._send(path, data) if self._rng.random() < 0.5 else None)
        answer = self._put(path, data)
        self._tasks.pause(f"{kind} answer")
        if answer is None:
            raise _trouble()
        return answer

    def _put(self, path: str, data: bytes) -> Answer | None:
        luck, rate = self._rng.random(), self._rate()
        if luck < rate:
            self._send(path, data)
            return Answer.UNCLEAR
        if luck < 2 * rate:
            return None
        created = self._storage.put_if_absent(path, data, self._name)
        if luck < 3 * rate:
            self._watcher.tally["lost answers"] += 1
            return Answer.UNCLEAR
        return Answer.CREATED if created and luck >= 4 * rate else Answer.REFUSED

    def _rate(self) -> float:
        """How likely each trouble is for the next request."""
        rate = self._watcher.weather.store
        if self._stormy_requests and rate:
            self._stormy_requests -= 1
            return STORM_RATE
        if self._rng.random() < rate:
            self._stormy_requests = self._rng.choice(STORM_REQUESTS)
        return rate

    def _send(self, path: str, data: bytes) -> None:
        self._storage.late.append((path, data, self._name))

    def put_hint(self, path: str, data: bytes) -> None:
        self._storage.objects[path] = data

    def delete_all(self, paths: Sequence[str]) -> None:
        self._request("delete", lambda: [self._storage.delete(path) for path in paths])

    def _request(self, kind: str, do: Callable[[], T]) -> T:
        self._tasks.pause(kind)
        if self._rng.random() < self._rate():
            raise _trouble()
        answer = do()
        self._tasks.pause(kind)
        return answer

    # Nothing below is asked for by a publisher.

    def size(self, path: str) -> int | None:
        raise NotImplementedError

    def put(self, path: str, data: bytes) -> None:
        raise NotImplementedError

    def copy_if_absent(self, source: str, target: str) -> Answer | None:
        raise NotImplementedError

    def copy(self, source: str, target: str) -> bool:
        raise NotImplementedError

    def delete(self, path: str) -> None:
        raise NotImplementedError

    def files(self, folder: str, *, after: str = "") -> Iterator[StoredFile]:
        raise NotImplementedError

    def lance_path(self, path: str) -> str:
        raise NotImplementedError

    def sync(self, paths: Iterable[str]) -> None:
        raise NotImplementedError

    def delete_empty_folders(self, folder: str = "") -> None:
        """There are none."""

    def close(self) -> None:
        """Nothing is held open."""


def _trouble() -> StorageError:
    return StorageError("the store is in trouble; nothing was written")


class FoldedLine:
    """What `__manifest` holds of the line: its commits, up to the number that Phase D has come to."""

    def __init__(self) -> None:
        self._through = 1
        self._entries: dict[str, LineageEntry] = {}
        self._versions: dict[int, dict[str, int]] = {}

    def fold(self, obj: CommitObject) -> None:
        assert obj.seq == self._through + 1, "objects are folded in the order of the line"
        self._through = obj.seq
        self._entries |= {entry.commit_id: entry for entry in entries_of(obj, parent="")}
        self._versions[obj.seq] = {key: pin.version for key, pin in obj.introduced().items()}

    def folded_through(self) -> int:
        return self._through

    def commit_ids(self) -> Iterator[CommitId]:
        for entry in reversed(self._entries.values()):
            yield CommitId(entry.commit_id, entry.seq, int(entry.at.timestamp() * 1e6))

    def commits_with(self, commit_ids: Collection[str]) -> list[LineageEntry]:
        return [self._entries[one] for one in commit_ids if one in self._entries]

    def holds_none(self, commit_ids: Collection[str], through: int) -> bool:
        return self._through >= through and not any(one in self._entries for one in commit_ids)

    def versions_introduced_by(self, seqs: Collection[int]) -> dict[int, dict[str, int]]:
        return {seq: self._versions[seq] for seq in seqs}

    def commit(self, commit_id: str) -> LineageEntry | None:
        return self._entries.get(commit_id)

    def is_folded(self, obj: CommitObject) -> bool:
        found = self.commit(obj.commits[-1].commit_id)
        return found is not None and found.op_id == obj.op_id

    def versions_introduced(self, seq: int) -> dict[str, int]:
        return self._versions[seq]
