"""The objects of an S3 store in memory, and the answer to each S3 request.

`Store.answer` never awaits: a request's check and its effect are one step of the event loop, so that a conditional put
is atomic by construction. Path-style addresses only; no authentication, no persistence.
"""

from __future__ import annotations

import bisect
import hashlib
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from itertools import count
from urllib.parse import unquote
from xml.sax.saxutils import escape, unescape

from tests.kit.http_core import Request, Response

# S3's own words: a client that decides by text instead of the code is to fail here as it would there.
MESSAGES = {
    "NoSuchBucket": "The specified bucket does not exist",
    "NoSuchKey": "The specified key does not exist.",
    "PreconditionFailed": "At least one of the pre-conditions you specified did not hold",
    "InternalError": "We encountered an internal error. Please try again.",
}
LAST_CHARACTER = "\U0010ffff"
PAGE_KEYS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Object:
    """An object's bytes, and what its headers say about them."""

    data: bytes
    etag: str
    modified_s: float

    @classmethod
    def of(cls, data: bytes) -> Object:
        return cls(data, f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"', time.time())

    @classmethod
    def of_parts(cls, parts: list[bytes]) -> Object:
        digests = b"".join(hashlib.md5(part, usedforsecurity=False).digest() for part in parts)
        etag = hashlib.md5(digests, usedforsecurity=False).hexdigest()
        return cls(b"".join(parts), f'"{etag}-{len(parts)}"', time.time())

    def headers(self) -> dict[str, str]:
        return {
            "ETag": self.etag,
            "Last-Modified": formatdate(self.modified_s, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Type": "binary/octet-stream",
        }


@dataclass(slots=True)
class Bucket:
    """A bucket's objects, with its keys kept in the order of a listing."""

    objects: dict[str, Object] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)

    def put(self, key: str, obj: Object) -> None:
        if key not in self.objects:
            bisect.insort(self.keys, key)
        self.objects[key] = obj

    def delete(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            del self.keys[bisect.bisect_left(self.keys, key)]


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing; the token is empty on the last one."""

    keys: list[str]
    common_prefixes: list[str]
    next_token: str


def list_page(keys: list[str], prefix: str, delimiter: str, after: str, limit: int) -> Page:
    """The first entries after a key or token, with keys that share a part up to the delimiter rolled into one entry."""
    found: list[str] = []
    rolled: list[str] = []
    token = after
    at = max(bisect.bisect_left(keys, prefix), bisect.bisect_right(keys, after) if after else 0)
    while at < len(keys) and keys[at].startswith(prefix):
        if len(found) + len(rolled) == limit:
            return Page(found, rolled, token)
        key = keys[at]
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        if cut < 0:
            found.append(key)
            token = key
            at += 1
        else:
            rolled.append(key[: cut + len(delimiter)])
            token = rolled[-1] + LAST_CHARACTER
            at = bisect.bisect_left(keys, token, at)
    return Page(found, rolled, "")


class Store:
    """Buckets by name, and what each S3 request does to them."""

    def __init__(self) -> None:
        self.buckets: dict[str, Bucket] = {}
        self._upload_numbers = count(1)

    def answer(self, request: Request) -> Response:
        """Carry the request out, whole, and say what came of it."""
        bucket_name, _, key = request.path.removeprefix("/").partition("/")
        if request.method == "PUT" and not key:
            self.buckets.setdefault(bucket_name, Bucket())
            return Response(HTTPStatus.OK)
        bucket = self.buckets.get(bucket_name)
        if bucket is None:
            return refusal(HTTPStatus.NOT_FOUND, "NoSuchBucket")
        if key:
            return self._answer_for_object(request, bucket, key)
        return _answer_for_bucket(request, bucket, bucket_name)

    def _answer_for_object(self, request: Request, bucket: Bucket, key: str) -> Response:
        query = request.query
        match request.method:
            case "GET" | "HEAD":
                return _get(request, bucket.objects.get(key))
            case "PUT" if "uploadId" in query:
                return _put_part(request, bucket, query)
            case "PUT" if "x-amz-copy-source" in request.headers:
                return self._copy(request, bucket, key)
            case "PUT":
                return _put(request, bucket, key, Object.of(request.body))
            case "DELETE" if "uploadId" in query:
                bucket.uploads.pop(query["uploadId"], None)
                return Response(HTTPStatus.NO_CONTENT)
            case "DELETE":
                bucket.delete(key)
                return Response(HTTPStatus.NO_CONTENT)
            case "POST" if "uploads" in query:
                upload_id = f"upload-{next(self._upload_numbers)}"
                bucket.uploads[upload_id] = {}
                return xml(element("InitiateMultipartUploadResult", element("UploadId", upload_id)))
            case "POST" if "uploadId" in query:
                return _complete_upload(request, bucket, key, query["uploadId"])
        return refusal(HTTPStatus.NOT_IMPLEMENTED, "NotImplemented")

    def _copy(self, request: Request, bucket: Bucket, key: str) -> Response:
        source_bucket, _, source_key = unquote(request.headers["x-amz-copy-source"]).removeprefix("/").partition("/")
        source = self.buckets.get(source_bucket, Bucket()).objects.get(source_key)
        if source is None:
            return refusal(HTTPStatus.NOT_FOUND, "NoSuchKey")
        copied = _put(request, bucket, key, Object.of(source.data))
        if copied.status != HTTPStatus.OK:
            return copied
        return xml(element("CopyObjectResult", element("ETag", escape(copied.headers["ETag"]))))


def _answer_for_bucket(request: Request, bucket: Bucket, bucket_name: str) -> Response:
    query = request.query
    match request.method:
        case "HEAD":
            return Response(HTTPStatus.OK)
        case "GET" if "location" in query:
            return xml(element("LocationConstraint", ""))
        case "GET":
            return _list(bucket, bucket_name, query)
        case "POST" if "delete" in query:
            escaped_keys = re.findall(r"<Key>(.*?)</Key>", request.body.decode(), re.DOTALL)
            for key in escaped_keys:
                bucket.delete(unescape(key, {"&quot;": '"', "&apos;": "'"}))
            deleted = (element("Deleted", element("Key", key)) for key in escaped_keys)
            return xml(element("DeleteResult", *deleted))
    return refusal(HTTPStatus.NOT_IMPLEMENTED, "NotImplemented")


def _list(bucket: Bucket, bucket_name: str, query: Mapping[str, str]) -> Response:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = query.get("continuation-token") or query.get("start-after", "")
    limit = min(int(query.get("max-keys", PAGE_KEYS_MAX)), PAGE_KEYS_MAX)
    page = list_page(bucket.keys, prefix, delimiter, after, limit)
    entries = [
        element("Name", escape(bucket_name)),
        element("Prefix", escape(prefix)),
        element("KeyCount", str(len(page.keys) + len(page.common_prefixes))),
        element("MaxKeys", str(limit)),
        element("IsTruncated", "true" if page.next_token else "false"),
    ]
    if page.next_token:
        entries.append(element("NextContinuationToken", escape(page.next_token)))
    entries += [_listed(key, bucket.objects[key]) for key in page.keys]
    entries += [element("CommonPrefixes", element("Prefix", escape(common))) for common in page.common_prefixes]
    return xml(element("ListBucketResult", *entries))


def _listed(key: str, obj: Object) -> str:
    modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(obj.modified_s))
    facts = (
        element("Key", escape(key)),
        element("LastModified", modified),
        element("ETag", escape(obj.etag)),
        element("Size", str(len(obj.data))),
        element("StorageClass", "STANDARD"),
    )
    return element("Contents", *facts)


def _get(request: Request, obj: Object | None) -> Response:
    if obj is None:
        return refusal(HTTPStatus.NOT_FOUND, "NoSuchKey")
    if_match, if_none_match = request.headers.get("if-match"), request.headers.get("if-none-match")
    if if_match is not None and not _names(if_match, obj):
        return refusal(HTTPStatus.PRECONDITION_FAILED, "PreconditionFailed")
    if if_none_match is not None and _names(if_none_match, obj):
        return Response(HTTPStatus.NOT_MODIFIED, headers={"ETag": obj.etag})
    wanted = request.headers.get("range")
    if wanted is None:
        return Response(HTTPStatus.OK, obj.data, obj.headers())
    first, last = byte_range(wanted, len(obj.data))
    if first > last:
        return refusal(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "InvalidRange")
    headers = obj.headers() | {"Content-Range": f"bytes {first}-{last}/{len(obj.data)}"}
    return Response(HTTPStatus.PARTIAL_CONTENT, obj.data[first : last + 1], headers)


def byte_range(header: str, size: int) -> tuple[int, int]:
    """The first and last byte that a Range header asks for; first is greater than last where there are none."""
    first, _, last = header.removeprefix("bytes=").partition("-")
    if not first:
        return max(0, size - int(last)), size - 1
    return int(first), min(int(last), size - 1) if last else size - 1


def _put(request: Request, bucket: Bucket, key: str, obj: Object) -> Response:
    refused = unmet_condition(request.headers, bucket.objects.get(key))
    if refused is not None:
        return refused
    bucket.put(key, obj)
    return Response(HTTPStatus.OK, headers={"ETag": obj.etag})


def unmet_condition(headers: Mapping[str, str], current: Object | None) -> Response | None:
    """The refusal that a conditional put earns from the object that is there now, or None if it may go on."""
    if_match, if_none_match = headers.get("if-match"), headers.get("if-none-match")
    if if_none_match is not None and current is not None and _names(if_none_match, current):
        return refusal(HTTPStatus.PRECONDITION_FAILED, "PreconditionFailed")
    if if_match is not None and current is None:
        return refusal(HTTPStatus.NOT_FOUND, "NoSuchKey")
    if if_match is not None and current is not None and not _names(if_match, current):
        return refusal(HTTPStatus.PRECONDITION_FAILED, "PreconditionFailed")
    return None


def _names(condition: str, obj: Object) -> bool:
    return condition == "*" or condition.strip('"') == obj.etag.strip('"')


def _put_part(request: Request, bucket: Bucket, query: Mapping[str, str]) -> Response:
    parts = bucket.uploads.get(query["uploadId"])
    if parts is None:
        return refusal(HTTPStatus.NOT_FOUND, "NoSuchUpload")
    parts[int(query["partNumber"])] = request.body
    return Response(HTTPStatus.OK, headers={"ETag": Object.of(request.body).etag})


def _complete_upload(request: Request, bucket: Bucket, key: str, upload_id: str) -> Response:
    parts = bucket.uploads.get(upload_id)
    if parts is None:
        return refusal(HTTPStatus.NOT_FOUND, "NoSuchUpload")
    chosen = [int(number) for number in re.findall(r"<PartNumber>(\d+)</PartNumber>", request.body.decode())]
    if any(number not in parts for number in chosen):
        return refusal(HTTPStatus.BAD_REQUEST, "InvalidPart")
    put = _put(request, bucket, key, Object.of_parts([parts[number] for number in chosen]))
    if put.status != HTTPStatus.OK:
        return put
    del bucket.uploads[upload_id]
    return xml(element("CompleteMultipartUploadResult", element("ETag", escape(put.headers["ETag"]))))


def element(tag: str, *content: str) -> str:
    """An XML element around content that is XML already."""
    return f"<{tag}>{''.join(content)}</{tag}>"


def xml(root: str, status: int = HTTPStatus.OK) -> Response:
    """A response that holds one XML document."""
    return Response(status, f'<?xml version="1.0"?>{root}'.encode(), {"Content-Type": "application/xml"})


def refusal(status: int, code: str) -> Response:
    """An S3 error response."""
    return xml(element("Error", element("Code", code), element("Message", MESSAGES.get(code, code))), status)


def object_counts(buckets: Mapping[str, Bucket]) -> dict[str, int]:
    """How many objects each bucket holds."""
    return {name: len(bucket.objects) for name, bucket in buckets.items()}


def total_bytes(objects: Iterable[Object]) -> int:
    """The size of all the objects together."""
    return sum(len(obj.data) for obj in objects)
