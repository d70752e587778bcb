"""Object storage as the line needs it: read, list in order, delete, and put-if-absent that is whole or not at all.

Two stores: a directory and an S3 bucket. Paths are relative to the graph's root. Everything Lance does with its own
files goes through Lance; this surface carries commit objects, manifests' final names and small files.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from omniray.engine.errors import InputError, StorageError
from omniray.engine.line import Answer

TEMPORARY = ".tmp-"
PROBE = "__probe"  # a folder for what is put only to see how the store behaves
FOLDER_TRIES_MAX = 8


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
    def lists_newest_first(self) -> bool:
        """Whether `first_name` is one cheap request; else a hint file helps to find the newest object."""

    def lance_path(self, path: str) -> str:
        """A path as Lance's object store names it: without a leading slash, or without the bucket."""

    def sync(self, paths: Iterable[str]) -> None:
        """Make files that Lance wrote as safe as the store promises to be."""

    def get(self, path: str) -> bytes | None: ...

    def put(self, path: str, data: bytes) -> None:
        """Write an object whose content may be replaced."""

    def put_hint(self, path: str, data: bytes) -> None:
        """Write a small file that may be lost at any time, where that is worth it."""

    def put_if_absent(self, path: str, data: bytes, *, lasting: bool = True) -> Answer:
        """Create an object, or say that it is there, or that the store gave no clear answer.

        One that is not `lasting` may come out of a power cut empty, unless the store was opened to survive one.
        """

    def copy_if_absent(self, source: str, target: str) -> Answer | None:
        """Give an object's bytes a second name; None if the source is not there."""

    def copy(self, source: str, target: str) -> bool:
        """The same for bytes that never change, whoever copies them; False if the source is not there."""

    def delete(self, path: str) -> None: ...

    def delete_all(self, paths: Sequence[str]) -> None:
        """Delete many objects in as few requests as the store allows."""

    def names(self, folder: str) -> Iterator[str]:
        """The names directly in a folder, in byte order; folders end in '/'."""

    def first_name(self, folder: str) -> str | None:
        """The first object name in a folder."""

    def files(self, folder: str, *, after: str = "") -> Iterator[StoredFile]:
        """Every file below a folder, temporary ones too, in byte order of the path.

        Those whose path within the folder is not behind `after` are left out, and so is what vanishes meanwhile.
        """

    def delete_empty_folders(self, folder: str = "") -> None:
        """Delete every folder without a file in it, from this one downward; only some stores have folders.

        Not where somebody may be about to write: a file system has folders made before the files in them.
        """

    def close(self) -> None: ...


class DirectoryStore:
    """A graph on a disk that every writer mounts.

    With `Durability.POWER` a commit survives a power cut: what it refers to is fsynced before Phase C, which Lance
    never does, and so are the folders.
    """

    lance_options: dict[str, str] | None = None
    lists_newest_first = False

    def __init__(self, root: Path, durability: Durability = Durability.PROCESS) -> None:
        self.root = root
        self.uri = str(root)
        self._durability = durability

    def lance_path(self, path: str) -> str:
        return str(self.root / path).lstrip("/")

    def sync(self, paths: Iterable[str]) -> None:
        if self._durability is not Durability.POWER:
            return
        files = {self.root / path for path in paths}
        try:
            for file in (*files, *{file.parent for file in files}):
                _fsync(file)
        except OSError as error:
            raise _disk_error(error, "fsync", self.root) from error

    def get(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _disk_error(error, "read", self.root / path) from error

    def put(self, path: str, data: bytes) -> None:
        target = self.root / path
        try:
            with self._whole_file(target, data) as temporary:
                os.replace(temporary, target)
        except OSError as error:
            raise _disk_error(error, "write", target) from error

    def put_if_absent(self, path: str, data: bytes, *, lasting: bool = True) -> Answer:
        target = self.root / path
        try:
            with self._whole_file(target, data, sync=lasting or self._durability is Durability.POWER) as temporary:
                try:
                    answer = _link(temporary, target)
                    if self._durability is Durability.POWER:
                        _fsync(target.parent)
                except OSError:
                    return Answer.UNCLEAR  # it may be there: a network file system links and fails, or the fsync failed
                return answer
        except OSError as error:
            raise _disk_error(error, "write", target) from error

    def copy_if_absent(self, source: str, target: str) -> Answer | None:
        try:
            (self.root / target).parent.mkdir(exist_ok=True)
            answer = _link(self.root / source, self.root / target)
            if self._durability is Durability.POWER:
                _fsync((self.root / target).parent)
            return answer
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _disk_error(error, "link", self.root / target) from error

    def copy(self, source: str, target: str) -> bool:
        return self.copy_if_absent(source, target) is not None

    def put_hint(self, path: str, data: bytes) -> None:
        try:
            with self._whole_file(self.root / path, data, sync=False) as temporary:
                os.replace(temporary, self.root / path)
        except OSError as error:
            raise _disk_error(error, "write", self.root / path) from error

    def delete(self, path: str) -> None:
        try:
            (self.root / path).unlink(missing_ok=True)
        except OSError as error:
            raise _disk_error(error, "delete", self.root / path) from error

    def delete_all(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.delete(path)

    def names(self, folder: str) -> Iterator[str]:
        return (name for name in self._entries(folder) if not name.startswith(TEMPORARY))

    def first_name(self, folder: str) -> str | None:
        return next(self.names(folder), None)

    def files(self, folder: str, *, after: str = "") -> Iterator[StoredFile]:
        top = f"{folder.strip('/')}/".lstrip("/")
        for path in self._below(top):
            if path[len(top) :] > after and (found := self._stat(path)) is not None:
                yield StoredFile(path, found.st_mtime_ns // 1000, found.st_size)

    def _below(self, folder: str) -> Iterator[str]:
        for name in self._entries(folder):
            yield from self._below(folder + name) if name.endswith("/") else (folder + name,)

    def _stat(self, path: str) -> os.stat_result | None:
        try:
            return (self.root / path).stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _disk_error(error, "look at", self.root / path) from error

    def _entries(self, folder: str) -> list[str]:
        """All names in a folder; with the slash behind a folder's name their order is that of the paths below."""
        try:
            with os.scandir(self.root / folder) as entries:
                return sorted(entry.name + "/" if entry.is_dir() else entry.name for entry in entries)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _disk_error(error, "list", self.root / folder) from error

    def delete_empty_folders(self, folder: str = "") -> None:
        for below, _, _ in os.walk(self.root / folder, topdown=False):
            with contextlib.suppress(OSError):  # not empty, or another process was faster
                os.rmdir(below)

    def close(self) -> None:
        """Nothing is held open."""

    @contextlib.contextmanager
    def _whole_file(self, target: Path, data: bytes, *, sync: bool = True) -> Iterator[Path]:
        """A temporary file beside the target with all of the data in it, so that no reader ever sees half an object."""
        handle, name = _new_temporary(target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            yield Path(name)
        finally:
            with contextlib.suppress(OSError):  # a leftover is harmless; what the caller is told must not depend on it
                os.unlink(name)


def _new_temporary(folder: Path) -> tuple[int, str]:
    """A new file in a folder, which is made if it is not there.

    Somebody who deletes empty folders may do so between the two, as creators of a graph that lost to another do.
    """
    for _ in range(FOLDER_TRIES_MAX - 1):
        with contextlib.suppress(FileNotFoundError):
            folder.mkdir(parents=True, exist_ok=True)
            return tempfile.mkstemp(prefix=TEMPORARY, dir=folder)
    folder.mkdir(parents=True, exist_ok=True)
    return tempfile.mkstemp(prefix=TEMPORARY, dir=folder)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _link(source: Path, target: Path) -> Answer:
    try:
        os.link(source, target)
    except FileExistsError:
        return Answer.REFUSED
    return Answer.CREATED


def _disk_error(error: OSError, verb: str, path: Path) -> StorageError:
    reason = error.strerror or str(error)
    return StorageError(f"can't {verb} {path}: {reason}; check the path and its permissions", path=str(path))


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


def open_store(
    uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None, durability: str = "process"
) -> ObjectStore:
    """The store behind a URI: a path, `file://…`, or `s3://bucket/prefix`."""
    uri = os.fspath(uri)
    if durability not in set(Durability):
        raise InputError(f"no durability {durability!r}: use process or power")
    parts = urlsplit(uri)
    if parts.scheme == "s3":
        from omniray.engine.store_s3 import S3Store  # s3fs takes a quarter of a second to import

        return S3Store.open(uri, storage_options or {})
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return DirectoryStore(Path(unquote(parts.path)).absolute(), Durability(durability))
    if "://" in uri:
        raise InputError(f"can't open {uri!r}: use a path, file://… or s3://bucket/prefix", uri=uri)
    if not uri:
        raise InputError("the graph's URI is empty: use a path, file://… or s3://bucket/prefix")
    return DirectoryStore(Path(uri).absolute(), Durability(durability))
