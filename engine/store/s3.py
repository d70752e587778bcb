"""A graph in an S3 bucket, through obstore: each method is one request, and a lost answer is never taken for a refusal.

obstore is the `object_store` crate on which Lance itself sits, so options, credentials, endpoints and proxies mean the
same to both (`s3_options.py`). Only its blocking calls are used: the others abort a process that ends meanwhile.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import obstore
import obstore.store
from obstore.exceptions import AlreadyExistsError, BaseError, UnknownConfigurationKeyError

from omniray.engine.base.errors import InputError, StorageError
from omniray.engine.store.object_store import Answer, StoredFile
from omniray.engine.store.s3_errors import PRECONDITION_FAILED, advice, code_of, is_clear_refusal, status_of
from omniray.engine.store.s3_options import check_credentials, needs_chain, resolve_options, shared_options

if TYPE_CHECKING:
    from obstore import ObjectMeta

    from omniray.engine.store.s3_credentials import CredentialChain

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 20.0
REQUEST_TIMEOUT_S = 300.0  # of one that keeps making progress: a large body on a slow connection
REQUEST_TRIES = 4
RETRY_TIMEOUT_S = 60.0  # from the first try to the beginning of the last one
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 5.0
BACKOFF_BASE = 4  # a throttling store gets time, a single failure is retried at once
DELETE_KEYS_MAX = 1000
_PAGE_KEYS = 1000
_SPECIAL = frozenset("%?#")  # Lance parses a URI as a URL: it decodes the first, and ends the path at the others

_FAILURES = (BaseError, OSError, ValueError)  # a missing object is a FileNotFoundError, an impossible path a ValueError


class _Runtime:
    """Whether a fork has lost the client's threads: a child that waits for them would wait for ever."""

    started = False
    lost = False

    @classmethod
    def forked(cls) -> None:
        cls.lost = cls.started


os.register_at_fork(after_in_child=_Runtime.forked)


class S3Store:
    """Objects below `bucket/prefix`."""

    lists_newest_first = True
    local_root = None

    def __init__(
        self,
        bucket: str,
        prefix: str,
        options: dict[str, str],
        shared_options: Mapping[str, str],
        credentials: CredentialChain | None = None,
    ) -> None:
        self.bucket = bucket
        self.prefix = prefix
        self.uri = f"s3://{bucket}/{prefix}"
        self.lance_options: dict[str, str] | None = options
        self.shared_options = shared_options
        self._opened = _open_client(bucket, options, credentials)
        _Runtime.started = True

    @classmethod
    def open(cls, uri: str, storage_options: Mapping[str, str]) -> S3Store:
        """The store at a URI, by the given options, the environment, and the AWS profile if those hold no key."""
        parts = urlsplit(uri)
        prefix = parts.path.strip("/")
        if not parts.netloc or not prefix:
            raise InputError(f"can't open {uri!r}: an S3 graph is s3://bucket/prefix, with both", uri=uri)
        if set(uri) & _SPECIAL or {"", ".", ".."} & set(prefix.split("/")):
            raise InputError(
                f"can't open {uri!r}: write the prefix as the bucket has it, without %, ?, #, empty parts, '.', '..'; "
                "Lance would take it for another one",
                uri=uri,
            )
        options, credentials = resolve_options(storage_options, os.environ), None
        check_credentials(options, os.environ)
        if needs_chain(options):
            from omniray.engine.store.s3_credentials import CredentialChain  # botocore takes its time to import

            credentials = CredentialChain()
            options = resolve_options(storage_options, os.environ, credentials.options)
        return cls(parts.netloc, prefix, options, shared_options(storage_options, options), credentials)

    def lance_path(self, path: str) -> str:
        return self._key(path)

    def sync(self, paths: Iterable[str]) -> None:
        """An S3 put that was answered is durable."""

    def get(self, path: str) -> bytes | None:
        try:
            return obstore.get(self._client, self._key(path)).bytes().to_bytes()
        except _FAILURES as error:
            if _is_missing(error):
                return None
            raise self._failed(error, "read", path) from error

    def size(self, path: str) -> int | None:
        try:
            return obstore.head(self._client, self._key(path))["size"]
        except _FAILURES as error:
            if _is_missing(error):
                return None
            raise self._failed(error, "look at", path) from error

    def place_of(self, path: str) -> str | None:
        try:
            found = obstore.head(self._client, self._key(path))
        except _FAILURES as error:
            if _is_missing(error):
                return None
            raise self._failed(error, "look at", path) from error
        # Not the endpoint, which may have several names.
        return f"{self.bucket}/{self._key(path)}@{round(found['last_modified'].timestamp() * 1e3)}"

    def put(self, path: str, data: bytes) -> None:
        try:
            obstore.put(self._client, self._key(path), data, use_multipart=False)
        except _FAILURES as error:
            raise self._failed(error, "write", path) from error

    def put_hint(self, path: str, data: bytes) -> None:
        """Does nothing: a listing finds the newest object."""

    def put_if_absent(self, path: str, data: bytes, *, lasting: bool = True) -> Answer:
        try:
            obstore.put(self._client, self._key(path), data, mode="create", use_multipart=False)
        except AlreadyExistsError as error:
            # Two puts at once may both be answered 409, which raises the same type and says nothing about the object.
            return Answer.REFUSED if status_of(error) == PRECONDITION_FAILED else Answer.UNCLEAR
        except _FAILURES as error:
            if is_clear_refusal(code_of(error)) or isinstance(error, ValueError):  # an invalid path: nothing was sent
                raise self._failed(error, "write", path) from error
            return Answer.UNCLEAR
        return Answer.CREATED

    def copy_if_absent(self, source: str, target: str) -> Answer | None:
        data = self.get(source)
        return None if data is None else self.put_if_absent(target, data)

    def copy(self, source: str, target: str) -> bool:
        try:
            obstore.copy(self._client, self._key(source), self._key(target))
        except _FAILURES as error:
            if _is_missing(error):
                return False
            raise self._failed(error, "copy", source) from error
        return True

    def delete(self, path: str) -> None:
        self.delete_all([path])

    def delete_all(self, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), DELETE_KEYS_MAX):  # one after another: pruning relies on the order
            some = paths[start : start + DELETE_KEYS_MAX]
            try:
                obstore.delete(self._client, [self._key(path) for path in some])
            except _FAILURES as error:
                raise self._failed(error, "delete", some[0]) from error

    def names(self, folder: str) -> Iterator[str]:
        prefix = self._folder(folder)
        try:
            found = obstore.list_with_delimiter(self._client, prefix)
        except _FAILURES as error:
            raise self._failed(error, "list", folder) from error
        names = [entry["path"] for entry in found["objects"] if entry["path"] != prefix]
        names += [f"{path}/" for path in found["common_prefixes"]]
        yield from sorted(name[len(prefix) + 1 :] for name in names)

    def first_name(self, folder: str) -> str | None:
        prefix = self._folder(folder)
        # A chunk of two, since the first may be the folder's own marker; the request asks for a whole page anyway.
        first = next(self._listed(folder, chunk_size=2), None)
        return None if first is None else first["path"][len(prefix) + 1 :]

    def files(self, folder: str, *, after: str = "") -> Iterator[StoredFile]:
        for entry in self._listed(folder, after=after):
            modified_us = round(entry["last_modified"].timestamp() * 1e6)
            yield StoredFile(entry["path"][len(self.prefix) + 1 :], modified_us, entry["size"])

    def delete_empty_folders(self, folder: str = "") -> None:
        """S3 has no folders."""

    def close(self) -> None:
        """The client closes its connections when it is collected."""

    @property
    def _client(self) -> obstore.store.S3Store:
        if _Runtime.lost:
            raise StorageError(
                f"{self.uri} can't be reached from a process that was forked after S3 had been used: the client's "
                "threads stay behind; start processes by spawn, or fork before anything is opened",
                uri=self.uri,
            )
        return self._opened

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}"

    def _folder(self, folder: str) -> str:
        return self._key(folder.strip("/")) if folder.strip("/") else self.prefix

    def _listed(self, folder: str, *, after: str = "", chunk_size: int = _PAGE_KEYS) -> Iterator[ObjectMeta]:
        """Everything below a folder, in byte order, by pages; without the folder markers that some tools create."""
        prefix = self._folder(folder)
        offset = f"{prefix}/{after}" if after else None
        try:
            for chunk in obstore.list(self._client, prefix, offset=offset, chunk_size=chunk_size):
                yield from (entry for entry in chunk if entry["path"] != prefix)
        except _FAILURES as error:
            raise self._failed(error, "list", folder) from error

    def _failed(self, error: Exception, verb: str, path: str) -> StorageError:
        where = f"{self.uri}/{path}".rstrip("/")
        return StorageError(f"can't {verb} {where}: {advice(error)}", uri=where, code=code_of(error))


def _is_missing(error: Exception) -> bool:
    return isinstance(error, FileNotFoundError) and code_of(error) != "NoSuchBucket"


def _open_client(bucket: str, options: Mapping[str, str], credentials: CredentialChain | None) -> obstore.store.S3Store:
    """A client with all options that it knows; unknown ones are ignored, as Lance does."""
    config = {
        "connect_timeout": f"{CONNECT_TIMEOUT_S:g}s",
        "read_timeout": f"{READ_TIMEOUT_S:g}s",
        "timeout": f"{REQUEST_TIMEOUT_S:g}s",
        **options,
    }
    retry_config = _retry_config(options)
    while True:
        try:
            return obstore.store.S3Store(
                bucket,
                config=cast(Any, config),
                retry_config=retry_config,
                credential_provider=credentials,
            )
        except UnknownConfigurationKeyError as error:
            unknown = next((name for name in config if f"'{name}'" in str(error)), None)
            if unknown is None:
                raise StorageError(f"can't open s3://{bucket}: {advice(error)}") from error
            del config[unknown]
        except _FAILURES as error:
            raise InputError(f"can't open s3://{bucket}: {advice(error)}") from error


def _retry_config(options: Mapping[str, str]) -> Any:
    """Bounds for the retries and their time; Lance's names for these options set them for both."""
    try:
        retries = int(options.get("client_max_retries", REQUEST_TRIES - 1))
        timeout_s = float(options.get("client_retry_timeout", RETRY_TIMEOUT_S))
    except ValueError as error:
        raise InputError(f"client_max_retries and client_retry_timeout are numbers: {error}") from error
    return {
        "max_retries": retries,
        "retry_timeout": datetime.timedelta(seconds=timeout_s),
        "backoff": {
            "init_backoff": datetime.timedelta(seconds=BACKOFF_FIRST_S),
            "max_backoff": datetime.timedelta(seconds=BACKOFF_MAX_S),
            "base": BACKOFF_BASE,
        },
    }
