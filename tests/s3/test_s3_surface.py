"""What the engine relies on in S3, in s3fs and in Lance on S3, pinned like the rest of the surface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import lance
import pytest
import s3fs
from botocore.exceptions import ClientError

from tests.kit.s3server import Fault, S3Server, running_server, sequential_depth
from tests.lance_tables import Recorder, adding, ids, rows, stage
from tests.stores import Root


def filesystem(storage_options: dict[str, str], **settings: Any) -> s3fs.S3FileSystem:
    return s3fs.S3FileSystem(
        key=storage_options["aws_access_key_id"],
        secret=storage_options["aws_secret_access_key"],
        client_kwargs={"endpoint_url": storage_options["aws_endpoint"], "region_name": storage_options["aws_region"]},
        use_listings_cache=False,
        skip_instance_cache=True,
        **settings,
    )


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
    except OSError as error:
        return str(
            getattr(error.__cause__, "response", {}).get("Error", {}).get("Code", f"no S3 error behind {error!r}")
        )
    return None


# The test server


@pytest.fixture
def moto(s3: Root) -> Iterator[Any]:
    """A client that asks once and hides nothing."""
    client = boto3.client(
        "s3",
        endpoint_url=s3.storage_options["aws_endpoint"],
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name="us-east-1",
    )
    yield client
    client.close()


def test_moto_honours_put_if_absent(s3: Root, moto: Any) -> None:
    target = {"Bucket": s3.uri.removeprefix("s3://"), "Key": "object"}
    assert refusal_of(moto.put_object, **target, Body=b"first", IfNoneMatch="*") is None
    assert refusal_of(moto.put_object, **target, Body=b"second", IfNoneMatch="*") == "PreconditionFailed"
    assert moto.get_object(**target)["Body"].read() == b"first"


def test_moto_honours_put_if_match(s3: Root, moto: Any) -> None:
    target = {"Bucket": s3.uri.removeprefix("s3://"), "Key": "object"}
    etag = moto.put_object(**target, Body=b"first")["ETag"]
    assert refusal_of(moto.put_object, **target, Body=b"second", IfMatch=etag) is None
    assert refusal_of(moto.put_object, **target, Body=b"third", IfMatch=etag) == "PreconditionFailed"


def test_moto_lists_from_behind_a_key_in_byte_order_and_dates_each_object(s3: Root, moto: Any) -> None:
    bucket = s3.uri.removeprefix("s3://")
    for key in ("f/b", "f/a/x", "f/a-b", "g/c"):
        moto.put_object(Bucket=bucket, Key=key, Body=b"four")
    page = moto.list_objects_v2(Bucket=bucket, Prefix="f/", StartAfter="f/a-b")
    assert [(entry["Key"], entry["Size"]) for entry in page["Contents"]] == [("f/a/x", 4), ("f/b", 4)]
    assert page["Contents"][0]["LastModified"].tzinfo is not None
    pages = moto.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix="f/", StartAfter="f/a-b", PaginationConfig={"PageSize": 1}
    )
    assert [entry["Key"] for page in pages for entry in page["Contents"]] == ["f/a/x", "f/b"]


# s3fs


def test_the_loser_of_a_create_gets_precondition_failed_and_changes_nothing(s3: Root) -> None:
    fs = filesystem(s3.storage_options)
    fs.pipe_file(f"{s3.uri}/object", b"first", mode="create")
    assert refusal_of(fs.pipe_file, f"{s3.uri}/object", b"second", mode="create") == "PreconditionFailed"
    assert fs.cat_file(f"{s3.uri}/object") == b"first"


def test_files_that_lance_wrote_are_found_without_a_listing_cache(s3: Root) -> None:
    fs = filesystem(s3.storage_options)
    lance.write_dataset(rows("a"), f"{s3.uri}/table", storage_options=s3.storage_options)
    before = fs.ls(f"{s3.uri}/table/_versions")
    lance.write_dataset(rows("b"), f"{s3.uri}/table", mode="append", storage_options=s3.storage_options)
    assert len(fs.ls(f"{s3.uri}/table/_versions")) == len(before) + 1


@pytest.mark.parametrize("kind", ["refused_after", "cut_after"])
def test_a_put_whose_answer_was_lost_comes_back_as_a_refusal(bench_server: S3Server, kind: Any) -> None:
    """Trap: the library asks again by itself and loses to its own first try. Read before calling it a loss."""
    bench_server.reset()
    bench_server.add_fault(Fault("PUT", f"lost-{kind}", kind))
    fs = filesystem(bench_server.storage_options)
    assert refusal_of(fs.pipe_file, f"bench/lost-{kind}", b"ours", mode="create") == "PreconditionFailed"
    assert fs.cat_file(f"bench/lost-{kind}") == b"ours"


# Lance on S3


def test_a_version_is_staged_on_s3_as_on_disk(s3: Root) -> None:
    dataset = lance.write_dataset(rows("a"), f"{s3.uri}/graph/table", storage_options=s3.storage_options)
    client = Recorder()
    staged = stage(dataset, adding(dataset, rows("b")), client)
    plain = lance.dataset(dataset.uri, storage_options=s3.storage_options)
    assert (ids(staged), ids(plain)) == (["a", "b"], ["a"])
    fs = filesystem(s3.storage_options)
    staging_path = client.created[0]["manifest_path"]
    assert staging_path.startswith("graph/table/_versions/")
    final_path = staging_path.rsplit(".manifest-", 1)[0] + ".manifest"
    fs.pipe_file(f"{s3.uri}/{final_path}", fs.cat_file(f"{s3.uri}/{staging_path}"), mode="create")
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
