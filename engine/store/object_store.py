"""Object storage as the line needs it: read, list in order, delete, and an atomic put-if-absent.

Two stores: a directory (`directory.py`) and an S3 bucket (`s3.py`). Paths are relative to the graph's root. Lance
accesses its own files itself; this interface serves commit objects, the names of manifests, and small files.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from omniray.engine.base.errors import StorageError

TEMPORARY = ".tmp-"
PROBE = "__probe"  # a folder for objects that only test how the store behaves


class Answer(StrEnum):
    """What the store said to a put-if-absent."""

    CREATED = "created"
    REFUSED = "refused"  # an object is there: another writer's, or our own from a first try whose answer got lost
    UNCLEAR = "unclear"  # the object may be there or not: read, and put again if it is not


class Durability(StrEnum):
    """What an acknowledged write on a disk survives; on S3 it is what S3 promises."""

    PROCESS = "process"
    POWER = "power"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as a listing shows it; the time is by the store's own clock."""

    path: str
    modified_us: int
    size: int


class ObjectStore(Protocol):
    """A graph's root. Methods raise `StorageError` when the store fails, and never for a missing object."""

    @property
    def uri(self) -> str: ...

    @property
    def lance_options(self) -> dict[str, str] | None: ...

    @property
    def shared_options(self) -> Mapping[str, str]:
        """The options for other processes that open it; credentials that were not given are theirs to find."""

    @property
    def lists_newest_first(self) -> bool:
        """Whether `first_name` is one request for one page; else a hint file helps to find the newest object."""

    @property
    def local_root(self) -> Path | None:
        """The folder that the graph lies in; None for a remote store."""

    def lance_path(self, path: str) -> str:
        """A path as Lance's object store names it: without a leading slash, or without the bucket."""

    def sync(self, paths: Iterable[str]) -> None:
        """Make files that Lance wrote as durable as the store promises."""

    def get(self, path: str) -> bytes | None: ...

    def size(self, path: str) -> int | None:
        """The number of bytes of an object; None if it is not there."""

    def put(self, path: str, data: bytes) -> None:
        """Write an object whose content may be replaced; on a disk, only its owner may read it."""

    def place_of(self, path: str) -> str | None:
        """A text that tells this very object from every copy of it, whoever asks; None if it is not there."""

    def put_hint(self, path: str, data: bytes) -> None:
        """Write a small file that may be lost at any time, if this store uses hints."""

    def put_if_absent(self, path: str, data: bytes, *, lasting: bool = True) -> Answer:
        """Create an object; the answer may also be that one is there, or unclear.

        An object that is not `lasting` may be empty after a power cut, unless the store was opened to survive one.
        """

    def copy_if_absent(self, source: str, target: str) -> Answer | None:
        """Give an object's bytes a second name; None if the source is not there."""

    def copy(self, source: str, target: str) -> bool:
        """The same where every process copies the same bytes; False if the source is not there."""

    def delete(self, path: str) -> None: ...

    def delete_all(self, paths: Sequence[str]) -> None:
        """Delete many objects in as few requests as the store allows."""

    def names(self, folder: str) -> Iterator[str]:
        """The names directly in a folder, in byte order; folders end in '/'."""

    def first_name(self, folder: str) -> str | None:
        """The first object name in a folder."""

    def files(self, folder: str, *, after: str = "") -> Iterator[StoredFile]:
        """Every file below a folder, temporary ones too, in byte order of the path.

        Files whose path within the folder is not behind `after` are left out, and so are files deleted meanwhile.
        """

    def delete_empty_folders(self, folder: str = "") -> None:
        """Delete every folder without a file in it, from this one downward; only some stores have folders.

        Not where a process may be about to write: a file system's folders are created before the files in them.
        """

    def close(self) -> None: ...


def store_now_us(store: ObjectStore) -> int:
    """The time by the clock that dates the store's files."""
    probe = f"{PROBE}/{uuid.uuid4()}"
    store.put(probe, b"")
    found = {file.path: file.modified_us for file in store.files(PROBE)}
    store.delete(probe)
    store.delete_empty_folders(PROBE)
    if probe not in found:
        raise StorageError(f"{probe} was put and is not listed; try again", path=probe)
    return found[probe]
