"""Opens the store that a URI names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from omniray.engine.base.errors import InputError
from omniray.engine.store.directory import DirectoryStore
from omniray.engine.store.object_store import Durability, ObjectStore


def open_store(
    uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None, durability: str = "process"
) -> ObjectStore:
    """The store behind a URI: a path, `file://…`, or `s3://bucket/prefix`."""
    uri = os.fspath(uri)
    if durability not in set(Durability):
        raise InputError(f"invalid durability {durability!r}: use process or power")
    parts = urlsplit(uri)
    if parts.scheme == "s3":
        from omniray.engine.store.s3 import S3Store  # a graph on a disk needs no S3 client

        return S3Store.open(uri, storage_options or {})
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return DirectoryStore(Path(unquote(parts.path)).absolute(), Durability(durability))
    if "://" in uri:
        raise InputError(f"can't open {uri!r}: use a path, file://… or s3://bucket/prefix", uri=uri)
    if not uri:
        raise InputError("the graph's URI is empty: use a path, file://… or s3://bucket/prefix")
    return DirectoryStore(Path(uri).absolute(), Durability(durability))
