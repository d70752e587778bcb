"""The token of a Ray cluster that omniray starts on this machine: who has it may run code there, and nobody else.

Each start has a token of its own, in a file that its user alone can read; Ray would write one for the whole machine to
read. Processes of the cluster inherit the file's path, and others of the same user find it by the cluster's address.
Where `RAY_AUTH_MODE` is set, whoever set it has decided, and nothing is done here.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Any

from omniray.engine.base.errors import StorageError

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
_mine: list[Path] = []  # files of this process's cluster
_set: list[str] = []  # variables that were set here


def folder() -> Path:
    """Where the tokens lie: created for its user alone, and refused if anybody else may read or write it."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(cache, "omniray", "ray")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise StorageError(f"{path} must be a folder that only you can use: chmod 700 it, or delete it", path=str(path))
    return path


def begin() -> None:
    """Make a token for a cluster that this process is about to start."""
    if _is_decided():
        return
    path = folder() / f"{secrets.token_hex(8)}.token"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32))
    _mine.append(path)
    _use(path)


def publish(address: str) -> None:
    """Let other processes of this user find the token of the cluster that was started."""
    if _mine:
        named = _path_of(address)
        named.unlink(missing_ok=True)  # of a cluster that had this address before
        os.link(_mine[0], named)
        _mine.append(named)


def find(address: str) -> None:
    """Use the token of a cluster of this machine and user at an address; any other cluster is joined as Ray does."""
    if not _is_decided() and (path := _path_of(address)).is_file():
        _use(path)


def end() -> None:
    """Delete the token of this process's cluster, which has ended."""
    for path in _mine:
        with contextlib.suppress(OSError):
            path.unlink()
    for name in _set:
        os.environ.pop(name, None)
    if _set:
        _reload()
    _mine.clear()
    _set.clear()


def _is_decided() -> bool:
    return MODE in os.environ and MODE not in _set


def _path_of(address: str) -> Path:
    return folder() / f"{''.join(c if c.isalnum() or c == '.' else '_' for c in address)}.address"


def _use(path: Path) -> None:
    os.environ[MODE] = "token"
    _set.append(MODE)
    if TOKEN not in os.environ:  # which Ray prefers
        os.environ[TOKEN_PATH] = str(path)
        _set.append(TOKEN_PATH)
    _reload()


def _reload() -> None:
    """Let Ray read its settings again: it may have been imported before they were there."""
    from ray import _raylet

    raylet: Any = _raylet  # its stubs lack both
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
