"""Source files of loads, on disk or at any address of fsspec, and their lines, in bounded memory."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit

from omniray.engine.base.errors import InputError, NotFound
from omniray.engine.rows.records import BLOCK_BYTES_TARGET, STDIN, Progress

LINE_BYTES_MAX = 32 << 20
PROOF_BYTES = 64 << 10
STDIN_PATH = "/dev/stdin"
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as its user named it. `size` is None for a file without one, such as a pipe, which is read only once."""

    name: str
    path: str
    size: int | None
    remote: bool = False

    @property
    def replayable(self) -> bool:
        return self.size is not None

    def open(self) -> BinaryIO:
        try:
            return _open_url(self.path) if self.remote else open(self.path, "rb")
        except OSError as error:
            raise unreadable(self.name, error) from error


def find_file(name: str | os.PathLike[str]) -> SourceFile:
    """Find a file and check that it is readable, so that a mistyped name fails before anything is loaded."""
    text = os.fspath(name)
    try:
        scheme = urlsplit(text).scheme if "://" in text else ""
        if scheme not in ("", "file"):
            return SourceFile(text, text, _size_of_url(text), remote=True)
        path = Path(unquote(urlsplit(text).path)) if scheme else Path(text).expanduser()
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise InputError(f"{text} is a directory; name the files in it", source=text)
        if stat.S_ISREG(found.st_mode):
            path.open("rb").close()
    except OSError as error:
        raise unreadable(text, error) from error
    except (ValueError, RuntimeError) as error:  # a null byte, half of an address, the home of nobody
        raise InputError(f"{text!r} names no file: {error}", source=text) from error
    shown = STDIN if text == STDIN_PATH else text
    return SourceFile(shown, str(path), found.st_size if stat.S_ISREG(found.st_mode) else None)


def proof_of(file: SourceFile) -> str:
    """A digest that only a process which may read the file can tell: of its size, its beginning and its end."""
    digest = hashlib.sha256(str(file.size).encode())
    with file.open() as stream:
        digest.update(stream.read(PROOF_BYTES))
        stream.seek(max(0, (file.size or 0) - PROOF_BYTES))
        digest.update(stream.read(PROOF_BYTES))
    return digest.hexdigest()


def unreadable(name: str, error: OSError) -> InputError:
    """The error for a source file that the system can't read."""
    if isinstance(error, FileNotFoundError):
        return NotFound(f"no such file: {name}", source=name)
    return InputError(f"can't read {name}: {error.strerror or error}", source=name)


def _open_url(url: str) -> BinaryIO:
    return cast(BinaryIO, _fsspec_open(url).open())


def _size_of_url(url: str) -> int:
    opened = _fsspec_open(url)
    try:
        return int(opened.fs.info(opened.path)["size"])
    except OSError as error:
        raise unreadable(url, error) from error
    except Exception as error:  # every kind of store has errors of its own
        raise InputError(f"can't read {url}: {error}", source=url) from error


def _fsspec_open(url: str) -> Any:
    try:
        import fsspec

        return fsspec.open(url, "rb")
    except (ImportError, ValueError) as error:
        hint = "copy the file to a disk, or install what reads it"
        raise InputError(f"can't read {url}: {error}; {hint}", source=url) from error


def read_lines(file: SourceFile, progress: Progress) -> Iterator[list[bytes]]:
    """The lines of a file without their newlines, some megabytes at a time.

    A line over `LINE_BYTES_MAX` is truncated, to a length still over it; the caller refuses it by its length.
    """
    with file.open() as stream:
        pending: list[bytes] = []
        size = 0
        first = True
        while chunk := _read(stream, file.name):
            progress.bytes_done += len(chunk)
            head, *others = (chunk.removeprefix(_BOM) if first else chunk).split(b"\n")
            first = False
            if size <= LINE_BYTES_MAX:
                pending.append(head)
                size += len(head)
            if others:
                yield [b"".join(pending), *others[:-1]]
                pending, size = [others[-1]], len(others[-1])
        if pending and size:
            yield [b"".join(pending)]


def _read(stream: BinaryIO, name: str) -> bytes:
    try:
        return stream.read(BLOCK_BYTES_TARGET)
    except OSError as error:
        raise unreadable(name, error) from error


def too_long(line: bytes) -> str | None:
    """The reason to refuse a line for its length, if there is one."""
    return f"the line is longer than {LINE_BYTES_MAX >> 20} MiB" if len(line) > LINE_BYTES_MAX else None


def not_utf8(line: bytes) -> str | None:
    """The reason to refuse a line that is not UTF-8, if there is one."""
    try:
        line.decode()
    except UnicodeDecodeError as error:
        byte = f"byte 0x{line[error.start]:02x} at position {error.start + 1} of the line"
        return f"not UTF-8: {byte}; save the file as UTF-8"
    return None
