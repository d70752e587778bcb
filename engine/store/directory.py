"""A graph in a directory that every writer mounts."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from omniray.engine.base.errors import StorageError
from omniray.engine.store.object_store import TEMPORARY, Answer, Durability, StoredFile

FOLDER_TRIES_MAX = 8


class DirectoryStore:
    """A graph on a disk that every writer mounts.

    With `Durability.POWER` a commit survives a power cut: before Phase C the files that it refers to and their folders
    are fsynced, which Lance never does.
    """

    lance_options: dict[str, str] | None = None
    shared_options: Mapping[str, str] = {}
    lists_newest_first = False

    def __init__(self, root: Path, durability: Durability = Durability.PROCESS) -> None:
        self.root = self.local_root = root
        self.uri = str(root)
        self._durability = durability

    def _at(self, path: str) -> str:
        """Where an object lies; text, since a write asks for a dozen and a `Path` takes longer than some answers."""
        return f"{self.uri}/{path}"

    def lance_path(self, path: str) -> str:
        return str(self.root / path).lstrip("/")

    def sync(self, paths: Iterable[str]) -> None:
        if self._durability is not Durability.POWER:
            return
        files = {self.root / path for path in paths}
        folders = {folder for file in files for folder in (file.parent, file.parent.parent)}  # Lance creates some
        try:
            for file in (*files, *folders):
                _fsync(file)
        except OSError as error:
            raise _disk_error(error, "fsync", self.root) from error

    def get(self, path: str) -> bytes | None:
        try:
            with open(self._at(path), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _disk_error(error, "read", self.root / path) from error

    def size(self, path: str) -> int | None:
        found = self._stat(path)
        return None if found is None else found.st_size

    def put(self, path: str, data: bytes) -> None:
        target = self.root / path
        try:
            with self._whole_file(target, data) as temporary:
                os.replace(temporary, target)
                if self._durability is Durability.POWER:
                    _fsync(target.parent)
        except OSError as error:
            raise _disk_error(error, "write", target) from error

    def place_of(self, path: str) -> str | None:
        found = self._stat(path)
        # Its inode, since paths and devices differ from host to host.
        return None if found is None else f"{found.st_ino}-{found.st_mtime_ns}"

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
            answer = self._linked(self._at(source), self._at(target))
            if self._durability is Durability.POWER:
                _fsync((self.root / target).parent)
            return answer
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _disk_error(error, "link", self.root / target) from error

    def _linked(self, source: str, target: str) -> Answer:
        """Link a file under another name, in a folder that is created if it is missing: it seldom is."""
        try:
            return _link(source, target)
        except FileNotFoundError:  # the file or the folder
            self._make_folder(Path(target).parent)
            return _link(source, target)

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
            os.unlink(self._at(path))
        except FileNotFoundError:
            return
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
        """All names in a folder; the slash after a folder's name gives them the order of the paths below."""
        try:
            with os.scandir(self._at(folder)) as entries:
                return sorted(entry.name + "/" if entry.is_dir() else entry.name for entry in entries)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _disk_error(error, "list", self.root / folder) from error

    def delete_empty_folders(self, folder: str = "") -> None:
        with contextlib.suppress(OSError):  # most hold nothing: one step
            os.rmdir(self._at(folder))
            return
        for below, _, _ in os.walk(self.root / folder, topdown=False):
            with contextlib.suppress(OSError):  # not empty, or another process was faster
                os.rmdir(below)

    def close(self) -> None:
        """Nothing is held open."""

    @contextlib.contextmanager
    def _whole_file(self, target: Path, data: bytes, *, sync: bool = True) -> Iterator[str]:
        """A temporary file beside the target with all of the data in it, so that no reader ever sees half an object."""
        handle, name = self._new_temporary(target.parent)
        try:
            _write(handle, data, sync=sync)
            yield name
        finally:
            with contextlib.suppress(OSError):  # a leftover is harmless; the answer must not depend on it
                os.unlink(name)

    def _new_temporary(self, folder: Path) -> tuple[int, str]:
        """A new file in a folder, which is created if it is missing.

        Another process may delete the empty folder between the two: a creator of a graph that lost the race does.
        """
        for _ in range(FOLDER_TRIES_MAX):
            with contextlib.suppress(FileNotFoundError):
                return tempfile.mkstemp(prefix=TEMPORARY, dir=folder)
            self._make_folder(folder)
        return tempfile.mkstemp(prefix=TEMPORARY, dir=folder)

    def _make_folder(self, folder: Path) -> None:
        """Create a folder and its missing parents, durably: a file is lost with the name of its folder."""
        missing = list(itertools.takewhile(lambda one: not one.exists(), (folder, *folder.parents)))
        folder.mkdir(parents=True, exist_ok=True)
        if self._durability is Durability.POWER:
            for made in missing:
                _fsync(made.parent)


def _write(handle: int, data: bytes, *, sync: bool) -> None:
    """Write all of the data to an open file and close it; a file object would ask more of the system than the write."""
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(handle, left) :]
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _link(source: str, target: str | Path) -> Answer:
    try:
        os.link(source, target)
    except FileExistsError:
        return Answer.REFUSED
    return Answer.CREATED


def _disk_error(error: OSError, verb: str, path: Path) -> StorageError:
    reason = error.strerror or str(error)
    return StorageError(f"can't {verb} {path}: {reason}; check the path and its permissions", path=str(path))
