"""A graph in an S3 bucket, through s3fs: each method is one request, and a lost answer is never taken for a refusal.

Options come from `storage_options` (the names Lance uses: `aws_endpoint`, `aws_access_key_id`, …), else from the usual
AWS environment variables; Lance is given the same ones, so that both sides of a write speak to the same store.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import botocore.exceptions
import fsspec.asyn
import s3fs

from omniray.engine.base.errors import InputError, StorageError
from omniray.engine.store.object_store import Answer, StoredFile

CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 20
REQUEST_TRIES = 4
BODY_TRIES = 3
DELETE_KEYS_MAX = 1000

_MISSING = {"NoSuchKey", "404", "NotFound"}
_HINTS = {
    "NoSuchBucket": "the bucket does not exist: create it first, or check its name and the endpoint",
    "AccessDenied": "access denied: check that the credentials may read and write this prefix",
    "Forbidden": "access denied: check that the credentials may read and write this prefix",
    "403": "access denied: check that the credentials may read and write this prefix",
    "InvalidAccessKeyId": "the access key is not known: check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret key is wrong: check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session token has expired: get new credentials",
    "PermanentRedirect": "the bucket is in another region: set AWS_REGION",
    "SlowDown": "the store is throttling: try again later",
}

# The names under which Lance's options are known in the environment, in order of preference.
_ENVIRONMENT = {
    "aws_endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "aws_access_key_id": ("AWS_ACCESS_KEY_ID",),
    "aws_secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "aws_session_token": ("AWS_SESSION_TOKEN",),
    "aws_region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
_CREDENTIALS = {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"}
_ALIASES = {
    "endpoint": "aws_endpoint",
    "endpoint_url": "aws_endpoint",
    "aws_endpoint_url": "aws_endpoint",
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "region": "aws_region",
    "aws_default_region": "aws_region",
}


def resolve_options(given: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """One set of options for Lance and for us: what was given, else what the environment says."""
    options = {_ALIASES.get(name.lower(), name.lower()): str(value) for name, value in given.items()}
    own_key = "aws_access_key_id" in options  # a key goes with its own secret and token, never with somebody else's
    for name, variables in _ENVIRONMENT.items():
        if own_key and name in _CREDENTIALS:
            continue
        found = next((environment[v] for v in variables if environment.get(v)), None)
        if found is not None:
            options.setdefault(name, found)
    options.setdefault("aws_region", "us-east-1")
    if options.get("aws_endpoint", "").startswith("http://"):
        options.setdefault("allow_http", "true")
    return options


class S3Store:
    """Objects below `bucket/prefix`."""

    lists_newest_first = True
    local_root = None

    def __init__(self, bucket: str, prefix: str, options: dict[str, str]) -> None:
        self.bucket = bucket
        self.prefix = prefix
        self.uri = f"s3://{bucket}/{prefix}"
        self.lance_options: dict[str, str] | None = options
        self._fs = s3fs.S3FileSystem(
            key=options.get("aws_access_key_id"),
            secret=options.get("aws_secret_access_key"),
            token=options.get("aws_session_token"),
            use_listings_cache=False,
            skip_instance_cache=True,
            client_kwargs={"endpoint_url": options.get("aws_endpoint"), "region_name": options["aws_region"]},
            config_kwargs={
                "connect_timeout": CONNECT_TIMEOUT_S,
                "read_timeout": READ_TIMEOUT_S,
                "retries": {"max_attempts": REQUEST_TRIES, "mode": "standard"},
                "max_pool_connections": 64,
            },
        )
        # It would repeat everything that botocore has repeated, and keep a caller waiting for a quarter of an hour.
        self._fs.retries = 1

    @classmethod
    def open(cls, uri: str, storage_options: Mapping[str, str]) -> S3Store:
        parts = urlsplit(uri)
        prefix = parts.path.strip("/")
        if not parts.netloc or not prefix:
            raise InputError(f"can't open {uri!r}: an S3 graph is s3://bucket/prefix, with both", uri=uri)
        return cls(parts.netloc, prefix, resolve_options(storage_options, os.environ))

    def lance_path(self, path: str) -> str:
        return self._key(path)

    def sync(self, paths: Iterable[str]) -> None:
        """An S3 put that was answered is durable."""

    def get(self, path: str) -> bytes | None:
        try:
            data: bytes = self._run(self._get(self._key(path)))
            return data
        except Exception as error:
            if _code(error) in _MISSING:
                return None
            raise self._failed(error, "read", path) from error

    def put(self, path: str, data: bytes) -> None:
        try:
            self._call("put_object", Key=self._key(path), Body=data)
        except Exception as error:
            raise self._failed(error, "write", path) from error

    def put_hint(self, path: str, data: bytes) -> None:
        """Nobody reads one: a listing of one name finds the newest object."""

    def put_if_absent(self, path: str, data: bytes, *, lasting: bool = True) -> Answer:
        try:
            self._call("put_object", Key=self._key(path), Body=data, IfNoneMatch="*")
        except Exception as error:
            code = _code(error)
            if code in ("PreconditionFailed", "412"):
                return Answer.REFUSED
            if code in _HINTS and code != "SlowDown":
                raise self._failed(error, "write", path) from error  # clearly refused: nothing can have been written
            return Answer.UNCLEAR
        return Answer.CREATED

    def copy_if_absent(self, source: str, target: str) -> Answer | None:
        data = self.get(source)
        return None if data is None else self.put_if_absent(target, data)

    def copy(self, source: str, target: str) -> bool:
        try:
            origin = {"Bucket": self.bucket, "Key": self._key(source)}
            self._call("copy_object", Key=self._key(target), CopySource=origin)
        except Exception as error:
            if _code(error) in _MISSING:
                return False
            raise self._failed(error, "copy", source) from error
        return True

    def delete(self, path: str) -> None:
        try:
            self._call("delete_object", Key=self._key(path))
        except Exception as error:
            raise self._failed(error, "delete", path) from error

    def delete_all(self, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), DELETE_KEYS_MAX):
            keys = [{"Key": self._key(path)} for path in paths[start : start + DELETE_KEYS_MAX]]
            try:
                answer = self._call("delete_objects", Delete={"Objects": keys, "Quiet": True})
            except Exception as error:
                raise self._failed(error, "delete", paths[start]) from error
            for refused in answer.get("Errors", []):  # the request as a whole is a success all the same
                where, code = f"s3://{self.bucket}/{refused['Key']}", str(refused["Code"])
                raise StorageError(f"can't delete {where}: {_HINTS.get(code, code)}", uri=where, code=code)

    def names(self, folder: str) -> Iterator[str]:
        prefix = self._folder(folder)
        for page in self._pages(folder, Prefix=prefix, Delimiter="/"):
            found = [entry["Key"] for entry in page.get("Contents", [])]
            found += [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
            yield from (key[len(prefix) :] for key in sorted(found))

    def first_name(self, folder: str) -> str | None:
        prefix = self._folder(folder)
        page = self._list(folder, Prefix=prefix, MaxKeys=1)
        found = page.get("Contents", [])
        return found[0]["Key"][len(prefix) :] if found else None

    def files(self, folder: str, *, after: str = "") -> Iterator[StoredFile]:
        prefix = self._folder(folder)
        start = {"StartAfter": prefix + after} if after else {}
        for page in self._pages(folder, Prefix=prefix, **start):
            for entry in page.get("Contents", []):
                modified_us = round(entry["LastModified"].timestamp() * 1e6)
                yield StoredFile(entry["Key"][len(self.prefix) + 1 :], modified_us, entry["Size"])

    def delete_empty_folders(self, folder: str = "") -> None:
        """There are none."""

    def close(self) -> None:
        """s3fs closes its connections when it is collected."""

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}"

    def _folder(self, folder: str) -> str:
        return self._key(folder.strip("/")) + "/" if folder.strip("/") else self.prefix + "/"

    def _pages(self, folder: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        while True:
            page = self._list(folder, **arguments)
            yield page
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def _list(self, folder: str, **arguments: Any) -> dict[str, Any]:
        try:
            return self._call("list_objects_v2", **arguments)
        except Exception as error:
            raise self._failed(error, "list", folder) from error

    async def _get(self, key: str, tries: int = BODY_TRIES) -> bytes:
        """Read an object. A body that breaks off is asked for again: the client repeats only what has no answer."""
        answer = await self._fs._call_s3("get_object", Bucket=self.bucket, Key=key)
        try:
            async with answer["Body"] as stream:
                body: bytes = await stream.read()
                return body
        except Exception:
            if tries == 1:
                raise
        return await self._get(key, tries - 1)

    def _call(self, method: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._run(self._fs._call_s3(method, Bucket=self.bucket, **arguments))
        return answer

    def _run(self, coroutine: Any) -> Any:
        async def awaited() -> Any:
            return await coroutine

        return fsspec.asyn.sync(self._fs.loop, awaited)

    def _failed(self, error: Exception, verb: str, path: str) -> StorageError:
        code = _code(error)
        where = f"{self.uri}/{path}".rstrip("/")
        if code is None and isinstance(error, botocore.exceptions.NoCredentialsError):
            hint = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or pass storage_options"
        else:
            hint = _HINTS.get(code or "", str(error) or type(error).__name__)
        return StorageError(f"can't {verb} {where}: {hint}", uri=where, code=code or "")


def _code(error: BaseException | None) -> str | None:
    """The S3 error code behind an exception; s3fs keeps the original as the cause."""
    while error is not None:
        if isinstance(error, botocore.exceptions.ClientError):
            return str(error.response.get("Error", {}).get("Code"))
        error = error.__cause__
    return None
