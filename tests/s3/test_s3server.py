"""The kit's S3 server does what S3 does, as far as Lance and s3fs ask."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import lance
import pyarrow as pa
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.http_core import join_aws_chunks
from tests.kit.s3_store import LAST_CHARACTER, byte_range, list_page
from tests.kit.s3server import Fault, LoggedRequest, S3Server, running_server, sequential_depth


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running_server() as server:
        yield server


@pytest.fixture
def client(server: S3Server) -> Iterator[Any]:
    server.create_bucket("bucket")
    server.reset()
    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )
    yield client
    client.close()


def status_of(error: pytest.ExceptionInfo[ClientError]) -> int:
    return int(error.value.response["ResponseMetadata"]["HTTPStatusCode"])


def test_a_put_comes_back_whole_and_in_ranges(client: Any) -> None:
    client.put_object(Bucket="bucket", Key="a b/ü&.txt", Body=b"0123456789")
    assert client.get_object(Bucket="bucket", Key="a b/ü&.txt")["Body"].read() == b"0123456789"
    for wanted, expected in [("bytes=2-4", b"234"), ("bytes=7-", b"789"), ("bytes=-2", b"89"), ("bytes=8-99", b"89")]:
        assert client.get_object(Bucket="bucket", Key="a b/ü&.txt", Range=wanted)["Body"].read() == expected
    assert client.head_object(Bucket="bucket", Key="a b/ü&.txt")["ContentLength"] == 10
    with pytest.raises(ClientError) as beyond:
        client.get_object(Bucket="bucket", Key="a b/ü&.txt", Range="bytes=10-11")
    assert status_of(beyond) == 416


def test_one_of_many_racing_puts_if_absent_wins(client: Any) -> None:
    def put(number: int) -> str:
        try:
            client.put_object(Bucket="bucket", Key="raced", Body=b"%d" % number, IfNoneMatch="*")
        except client.exceptions.ClientError as error:
            return str(error.response["Error"]["Code"])
        return "won"

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(put, range(16)))
    assert sorted(answers) == ["PreconditionFailed"] * 15 + ["won"]
    assert client.get_object(Bucket="bucket", Key="raced")["Body"].read() == b"%d" % answers.index("won")


def test_a_put_if_match_needs_the_etag_that_is_there(client: Any) -> None:
    etag = client.put_object(Bucket="bucket", Key="swapped", Body=b"1")["ETag"]
    client.put_object(Bucket="bucket", Key="swapped", Body=b"2", IfMatch=etag)
    with pytest.raises(ClientError) as stale:
        client.put_object(Bucket="bucket", Key="swapped", Body=b"3", IfMatch=etag)
    assert status_of(stale) == 412
    with pytest.raises(ClientError) as missing:
        client.put_object(Bucket="bucket", Key="never there", Body=b"3", IfMatch=etag)
    assert status_of(missing) == 404


def test_a_multipart_upload_appears_whole_when_it_is_completed(client: Any) -> None:
    upload = client.create_multipart_upload(Bucket="bucket", Key="big")["UploadId"]
    target = {"Bucket": "bucket", "Key": "big", "UploadId": upload}
    etags = [client.upload_part(**target, PartNumber=n, Body=b"%d" % n * 3)["ETag"] for n in (2, 1)]
    with pytest.raises(ClientError):
        client.head_object(Bucket="bucket", Key="big")
    parts = [{"PartNumber": 1, "ETag": etags[1]}, {"PartNumber": 2, "ETag": etags[0]}]
    client.complete_multipart_upload(**target, MultipartUpload={"Parts": parts})
    assert client.get_object(Bucket="bucket", Key="big")["Body"].read() == b"111222"
    with pytest.raises(ClientError, match="NoSuchUpload"):
        client.complete_multipart_upload(**target, MultipartUpload={"Parts": parts})


def test_copies_and_deletes_do_what_they_say(client: Any) -> None:
    client.put_object(Bucket="bucket", Key="from & to", Body=b"x")
    client.copy_object(Bucket="bucket", Key="copy", CopySource={"Bucket": "bucket", "Key": "from & to"})
    assert client.get_object(Bucket="bucket", Key="copy")["Body"].read() == b"x"
    deleted = client.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "from & to"}, {"Key": "copy"}]})
    assert [entry["Key"] for entry in deleted["Deleted"]] == ["from & to", "copy"]
    assert client.list_objects_v2(Bucket="bucket", Prefix="copy")["KeyCount"] == 0


def test_a_listing_is_paged_and_folders_are_rolled_up(client: Any) -> None:
    for key in ["l/1", "l/2/x", "l/2/y", "l/3", "m"]:
        client.put_object(Bucket="bucket", Key=key, Body=b"")
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket="bucket", Prefix="l/", Delimiter="/", PaginationConfig={"PageSize": 1}
    )
    seen = [(page.get("Contents"), page.get("CommonPrefixes")) for page in pages]
    assert [[entry["Key"] for entry in keys or []] for keys, _ in seen] == [["l/1"], [], ["l/3"]]
    assert [prefixes for _, prefixes in seen] == [None, [{"Prefix": "l/2/"}], None]
    first = client.list_objects_v2(Bucket="bucket", Prefix="l/", MaxKeys=2)
    assert [entry["Key"] for entry in first["Contents"]] == ["l/1", "l/2/x"]
    assert first["IsTruncated"]


def test_a_missing_bucket_says_so(client: Any) -> None:
    with pytest.raises(ClientError, match="NoSuchBucket"):
        client.list_objects_v2(Bucket="nobody")


@pytest.mark.parametrize(
    ("kind", "status", "landed"),
    [("refused", 500, False), ("refused_after", 500, True), ("cut", 0, False), ("cut_after", 0, True)],
)
def test_a_fault_hits_the_request_that_fits_once(
    server: S3Server, client: Any, kind: Any, status: int, landed: bool
) -> None:
    server.add_fault(Fault("PUT", f"commit-{kind}", kind))
    client.put_object(Bucket="bucket", Key="other", Body=b"")
    with pytest.raises(Exception, match=r"InternalError|onnection"):
        client.put_object(Bucket="bucket", Key=f"commit-{kind}", Body=b"x", IfNoneMatch="*")
    found = client.list_objects_v2(Bucket="bucket", Prefix=f"commit-{kind}")["KeyCount"]
    assert [entry.status for entry in server.requests()] == [200, status, 200]
    assert found == int(landed)
    client.put_object(Bucket="bucket", Key=f"commit-{kind}", Body=b"x")


def test_the_log_counts_and_a_reset_keeps_objects(server: S3Server, client: Any) -> None:
    client.put_object(Bucket="bucket", Key="counted", Body=b"12345", IfNoneMatch="*")
    (put,) = server.requests()
    assert (put.method, put.target, put.status, put.conditional) == ("PUT", "/bucket/counted", 200, True)
    assert (put.received_bytes, put.sent_bytes) == (5, 0)
    objects = server.stats()["objects"]["bucket"]
    server.reset()
    assert server.stats()["requests"] == 0
    assert server.stats()["objects"]["bucket"] == objects


def test_every_request_takes_at_least_its_delay(server: S3Server, client: Any) -> None:
    server.set_delay(10)
    client.put_object(Bucket="bucket", Key="slow", Body=b"")
    server.set_delay(0)
    (put,) = server.requests()
    assert put.end_s - put.start_s >= 0.009


def test_lance_writes_appends_and_reads(server: S3Server) -> None:
    uri = server.create_bucket("lance") + "/table"
    lance.write_dataset(pa.table({"id": [1, 2]}), uri, storage_options=server.storage_options)
    lance.write_dataset(pa.table({"id": [3]}), uri, mode="append", storage_options=server.storage_options)
    assert lance.dataset(uri, storage_options=server.storage_options).to_table().column("id").to_pylist() == [1, 2, 3]


def logged(start_s: float, end_s: float) -> LoggedRequest:
    return LoggedRequest("GET", "/", 200, start_s, end_s, 0, 0, False)


def test_depth_counts_what_followed_and_not_what_ran_beside() -> None:
    assert sequential_depth([]) == 0
    assert sequential_depth([logged(0, 1), logged(0, 1.1), logged(0.2, 1.2)]) == 1
    assert sequential_depth([logged(0, 1), logged(1, 2), logged(0, 3), logged(2, 3)]) == 3


def test_a_range_header_names_bytes() -> None:
    assert [byte_range(header, 10) for header in ("bytes=0-0", "bytes=5-", "bytes=-3", "bytes=4-90")] == [
        (0, 0),
        (5, 9),
        (7, 9),
        (4, 9),
    ]
    first, last = byte_range("bytes=10-", 10)
    assert first > last


def test_signed_chunks_are_joined() -> None:
    assert join_aws_chunks(b"3;chunk-signature=x\r\nabc\r\n2\r\nde\r\n0\r\nx-amz-checksum-crc32:y\r\n\r\n") == b"abcde"


@given(
    keys=st.sets(st.text("ab/", min_size=1, max_size=5), max_size=12),
    prefix=st.text("ab/", max_size=2),
    limit=st.integers(1, 4),
    delimiter=st.sampled_from(["", "/"]),
)
def test_pages_together_are_the_whole_listing(keys: set[str], prefix: str, limit: int, delimiter: str) -> None:
    ordered = sorted(keys)
    whole = list_page(ordered, prefix, delimiter, "", 1000)
    found: list[str] = []
    rolled: list[str] = []
    token = ""
    while True:
        page = list_page(ordered, prefix, delimiter, token, limit)
        assert len(page.keys) + len(page.common_prefixes) <= limit
        found += page.keys
        rolled += page.common_prefixes
        token = page.next_token
        if not token:
            break
    assert (found, rolled) == (whole.keys, whole.common_prefixes)
    below = {key for key in keys if key.startswith(prefix)}
    covered = {key for key in below if any(key.startswith(common) for common in rolled)}
    assert set(found) | covered == below
    assert LAST_CHARACTER not in "".join(found)
