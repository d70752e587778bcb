"""Batch reads on a real Spark: a pinned snapshot, cut into partitions, with columns and filters pushed down."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import omniray
from tests.graphs import DELETE, insert, new_graph
from tests.kit.s3server import S3Server, running_server
from tests.stores import Root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

pytestmark = pytest.mark.xdist_group("spark")

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
EVERY_TYPE = """
node Item {
    name: String @key
    flag: Bool?
    small: I32?
    large: I64?
    count: U32?
    huge: U64?
    weight: F32?
    height: F64?
    born: Date?
    seen: DateTime?
    photo: Blob?
    role: enum(dev, ops)?
    tags: [String]?
    totals: [U64]?
    place: Vector(2)?
}
edge Near: Item -> Item
"""


@pytest.fixture
def load(spark: SparkSession) -> Any:
    """Load a frame of a type of a graph, with options."""

    def frame(graph: omniray.Graph, type: str, root: Root, **options: str) -> DataFrame:
        reader: DataFrameReader = spark.read.format("omniray").option("uri", graph.uri).option("type", type)
        storage = {f"storage.{name}": value for name, value in root.storage_options.items()}
        return reader.options(**storage, **options).load()

    return frame


def names(frame: DataFrame) -> list[str]:
    return sorted(row["name"] for row in frame.collect())


def test_every_type_is_read_as_it_was_written(load: Any, disk: Root) -> None:
    full = {
        "name": "ann", "flag": True, "small": -1, "large": 2**62, "count": 2**32 - 1, "huge": 2**64 - 1, "weight": 0.5,
        "height": float("inf"), "born": date(1900, 2, 28), "seen": datetime(2024, 1, 1, 12, 30, 0, 5, tzinfo=UTC),
        "photo": b"\x00\xff", "role": "dev", "tags": ["a", ""], "totals": [2**64 - 1, 0], "place": [1.0, -0.5],
    }  # fmt: skip
    with omniray.init(f"{disk.uri}/items", schema=EVERY_TYPE) as graph:
        graph.load([full, {"name": "bob"}, {"name": "cid", "tags": [], "totals": []}], type="Item")
        frame = load(graph, "Item", disk)
        rows = {row["name"]: row.asDict() for row in frame.collect()}
        empty = load(graph, "Near", disk)
        assert (empty.columns, empty.collect()) == (["id", "src", "dst"], [])
    seen = rows["ann"].pop("seen")
    assert seen.astimezone(UTC) == full.pop("seen")
    assert rows["ann"] == {
        "id": "ann", **full, "huge": Decimal(2**64 - 1), "photo": bytearray(b"\x00\xff"),
        "totals": [Decimal(2**64 - 1), Decimal(0)],
    }  # fmt: skip
    assert rows["bob"] == {name: "bob" if name in ("id", "name") else None for name in frame.columns}
    assert (rows["cid"]["tags"], rows["cid"]["totals"]) == ([], [])


def test_a_frame_stays_the_same_while_writers_go_on(load: Any, s3: Root) -> None:
    """Every action on it: the snapshot is chosen when the frame is made, and may have moved to the history by then."""
    with new_graph(s3) as graph:
        insert(graph, "ann", "bob")
        pinned = graph.snapshot().commit_id
        frame = load(graph, "Person", s3, with_commit_id="true")
        graph.mutate(DELETE, {"name": "ann"})
        insert(graph, *(f"p{n}" for n in range(20)))
        assert names(frame) == ["ann", "bob"]
        graph.load([], type="Person", mode="overwrite")
        graph.flush()
        assert names(frame.where("name > 'a'")) == ["ann", "bob"]
        assert {row["_commit_id"] for row in frame.collect()} == {pinned}
        assert names(load(graph, "Person", s3, at=pinned)) == ["ann", "bob"]
        assert names(load(graph, "Person", s3)) == []


def test_large_tables_are_read_in_several_partitions_without_the_deleted(load: Any, disk: Root) -> None:
    with new_graph(disk) as graph:
        for start in (0, 200_000):
            texts = pa.array([f"p{n:06}" for n in range(start, start + 200_000)])
            graph.load(pa.table({"name": texts}), type="Person")
        graph.mutate(DELETE, {"name": "p000007"})
        graph.mutate(DELETE, {"name": "p300000"})
        frame = load(graph, "Person", disk, columns="name").selectExpr("name", "spark_partition_id() part")
        found = frame.toPandas()
        assert found["part"].nunique() == 2
        assert sorted(found["name"]) == [f"p{n:06}" for n in range(400_000) if n not in (7, 300_000)]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running_server() as server:
        yield server


def test_pushed_columns_and_filters_read_fewer_bytes(spark: SparkSession, load: Any, server: S3Server) -> None:
    """Counted by the store itself, of data files alone."""
    root = Root(server.create_bucket("bucket"), server.storage_options)
    schema = "node Doc { name: String @key  age: I32  text: String }"
    with omniray.init(f"{root.uri}/docs", schema=schema, storage_options=root.storage_options) as graph:
        rows = [{"name": f"d{n}", "age": n, "text": f"{n * 7919 % 10007:05}" * 40} for n in range(20_000)]
        graph.load(rows, type="Doc")

        def read(ages: list[int], where: str | None = None, **options: str) -> int:
            frame = load(graph, "Doc", root, **options)
            server.reset()
            found = (frame if where is None else frame.where(where)).collect()
            assert sorted(row["age"] for row in found) == ages
            return sum(r.sent_bytes for r in server.requests() if "/data/" in r.target)

        everything = read(list(range(20_000)))
        assert everything > 1_000_000
        assert read(list(range(20_000)), columns="age") < everything / 5
        assert read([7], filter="age = 7") < everything / 5
        assert read([7], where="age = 7") < everything / 5
        try:
            spark.conf.set(PUSH_DOWN, "false")
            assert read([7], where="age = 7") == everything
        finally:
            spark.conf.set(PUSH_DOWN, "true")


def test_filters_that_are_pushed_and_those_that_are_not_together_select_what_spark_alone_does(
    spark: SparkSession, load: Any, disk: Root
) -> None:
    with omniray.init(f"{disk.uri}/items", schema=EVERY_TYPE) as graph:
        items = [
            {"name": f"i{n}", "small": n % 5, "height": [0.0, -0.0, float("nan"), 1.5][n % 4], "huge": 2**64 - 1 - n}
            for n in range(40)
        ]
        graph.load([*items, {"name": "none"}], type="Item")
        frame = load(graph, "Item", disk)
        where = "small >= 3 and height = 0.0 and name like 'i%' and huge > 18446744073709551580 and small + 1 <> 4"
        pushed = frame.where(where)
        found = names(pushed)
        assert found
        left = pushed._jdf.queryExecution().executedPlan().toString().split("Filter", 1)[1].splitlines()[0]
        assert "height" in left
        assert "name" not in left
        try:
            spark.conf.set(PUSH_DOWN, "false")
            assert names(frame.where(where)) == found
        finally:
            spark.conf.set(PUSH_DOWN, "true")


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[omniray.Graph]:
    with new_graph(Root(str(tmp_path_factory.mktemp("people")), {})) as graph:
        insert(graph, "ann")
        yield graph


def test_a_read_that_can_not_be_is_refused_when_the_frame_is_made(load: Any, people: omniray.Graph) -> None:
    with pytest.raises(Exception, match="Person has no column 'agee'; did you mean 'age'"):
        load(people, "Person", Root("", {}), columns="name,agee")


def test_a_frame_of_another_schema_is_refused(spark: SparkSession, people: omniray.Graph) -> None:
    reader = spark.read.format("omniray").option("uri", people.uri).option("type", "Person")
    with pytest.raises(Exception, match=r"leave \.schema"):
        reader.schema("name int").load().collect()
    assert [row["name"] for row in reader.schema("id string, name string, age int").load().collect()] == ["ann"]
