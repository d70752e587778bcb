"""What the engine relies on in S3, in obstore and in Lance on S3, pinned like the rest of the surface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import lance
import obstore
import obstore.exceptions
import obstore.store
import pytest
from botocore.exceptions import ClientError

from omniray.engine.base.errors import StorageError
from omniray.engine.store.object_store import Answer
from omniray.engine.store.open_store import open_store
from omniray.engine.store.s3_errors import code_of, status_of
from tests.answering import answering_server, error_body
from tests.kit.s3server import S3Server, running_server, sequential_depth
from tests.lance_tables import Recorder, adding, ids, rows, stage
from tests.stores import Root

KEY = {"access_key_id": "key", "secret_access_key": "secret"}


@pytest.fixture(scope="module")
def bench_server() -> Iterator[S3Server]:
    with running_server() as server:
        server.create_bucket("bench")
        yield server


def refusal_of(call: Callable[..., object], *arguments: Any, **named: Any) -> str | None:
    """The S3 error code of a call that was refused, or None."""
    try:
        call(*arguments, **named)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return None


# The test server


@pytest.fixture
def moto(moto_bucket: Root) -> Iterator[Any]:
    """A client that asks once and hides nothing."""
    client = boto3.client(
        "s3",
        endpoint_url=moto_bucket.storage_options["aws_endpoint"],
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name="us-east-1",
    )
    yield client
    client.close()


def test_moto_honours_put_if_absent(moto_bucket: Root, moto: Any) -> None:
    target = {"Bucket": moto_bucket.uri.removeprefix("s3://"), "Key": "object"}
    assert refusal_of(moto.put_object, **target, Body=b"first", IfNoneMatch="*") is None
    assert refusal_of(moto.put_object, **target, Body=b"second", IfNoneMatch="*") == "PreconditionFailed"
    assert moto.get_object(**target)["Body"].read() == b"first"


def test_moto_honours_put_if_match(moto_bucket: Root, moto: Any) -> None:
    target = {"Bucket": moto_bucket.uri.removeprefix("s3://"), "Key": "object"}
    etag = moto.put_object(**target, Body=b"first")["ETag"]
    assert refusal_of(moto.put_object, **target, Body=b"second", IfMatch=etag) is None
    assert refusal_of(moto.put_object, **target, Body=b"third", IfMatch=etag) == "PreconditionFailed"


def test_moto_lists_from_behind_a_key_in_byte_order_and_dates_each_object(moto_bucket: Root, moto: Any) -> None:
    bucket = moto_bucket.uri.removeprefix("s3://")
    for key in ("f/b", "f/a/x", "f/a-b", "g/c"):
        moto.put_object(Bucket=bucket, Key=key, Body=b"four")
    page = moto.list_objects_v2(Bucket=bucket, Prefix="f/", StartAfter="f/a-b")
    assert [(entry["Key"], entry["Size"]) for entry in page["Contents"]] == [("f/a/x", 4), ("f/b", 4)]
    assert page["Contents"][0]["LastModified"].tzinfo is not None
    pages = moto.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix="f/", StartAfter="f/a-b", PaginationConfig={"PageSize": 1}
    )
    assert [entry["Key"] for page in pages for entry in page["Contents"]] == ["f/a/x", "f/b"]


# obstore


def client(endpoint: str) -> obstore.store.S3Store:
    config: Any = {"endpoint": endpoint, "region": "us-east-1", "allow_http": "true", **KEY}
    return obstore.store.S3Store("bucket", config=config, retry_config={"max_retries": 0})


@pytest.mark.parametrize(
    ("status", "code"), [(412, "PreconditionFailed"), (409, "ConditionalRequestConflict"), (409, "OperationAborted")]
)
def test_the_two_reasons_to_refuse_a_create_have_one_type_and_are_told_apart_by_the_status_in_its_text(
    status: int, code: str
) -> None:
    with (
        answering_server(lambda request: (status, error_body(code))) as (endpoint, _),
        pytest.raises(obstore.exceptions.AlreadyExistsError) as raised,
    ):
        obstore.put(client(endpoint), "object", b"", mode="create")
    assert (status_of(raised.value), code_of(raised.value)) == (str(status), code)


def test_a_listing_takes_no_limit_and_a_reader_that_wants_one_name_asks_for_one_page(bench_server: S3Server) -> None:
    """Trap: so nobody lists to follow a line; whoever knows an object probes the number above it."""
    store = open_store("s3://bench/one-name", bench_server.storage_options)
    for name in ("a", "b", "c"):
        store.put(name, b"")
    bench_server.reset()
    assert store.first_name("") == "a"
    (request,) = bench_server.requests()
    assert "max-keys" not in request.target


def test_keys_with_an_empty_part_are_refused_by_the_client_as_by_lance(bench_server: S3Server) -> None:
    """Trap: one such key of somebody else in a graph's folder, and the folder can't be listed."""
    store = open_store("s3://bench/strange", bench_server.storage_options)
    for put in (store.put, store.put_if_absent):
        with pytest.raises(StorageError, match="empty path segment"):
            put("a//b", b"")


# Lance on S3


def test_a_version_is_staged_on_s3_as_on_disk(s3: Root) -> None:
    dataset = lance.write_dataset(rows("a"), f"{s3.uri}/graph/table", storage_options=s3.storage_options)
    recorder = Recorder()
    staged = stage(dataset, adding(dataset, rows("b")), recorder)
    plain = lance.dataset(dataset.uri, storage_options=s3.storage_options)
    assert (ids(staged), ids(plain)) == (["a", "b"], ["a"])
    staging_path = recorder.created[0]["manifest_path"]
    assert staging_path.startswith("graph/table/_versions/")
    final_path = staging_path.rsplit(".manifest-", 1)[0] + ".manifest"
    store = open_store(f"{s3.uri}/graph", s3.storage_options)
    copied = store.copy_if_absent(staging_path.removeprefix("graph/"), final_path.removeprefix("graph/"))
    assert copied is Answer.CREATED
    assert ids(lance.dataset(dataset.uri, storage_options=s3.storage_options)) == ["a", "b"]


def test_a_staged_commit_is_a_list_and_two_puts_one_after_another(bench_server: S3Server) -> None:
    """The cost that every round pays; a request more would be one more round trip."""
    options = bench_server.storage_options
    dataset = lance.write_dataset(rows("a"), "s3://bench/counted", storage_options=options)
    change = adding(dataset, rows("b"))
    bench_server.reset()
    bench_server.set_delay(5)
    stage(dataset, change, Recorder())
    bench_server.set_delay(0)
    requests = bench_server.requests()
    assert [request.method for request in requests] == ["GET", "PUT", "PUT"]
    listing, transaction, manifest = (request.target for request in requests)
    assert "list-type=2" in listing
    assert transaction.endswith(".txn")
    assert ".manifest-" in manifest
    assert sequential_depth(requests) == 3
