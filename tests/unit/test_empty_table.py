"""An empty table handed out as bytes is the table that Lance would have created itself, wherever it is put."""

from __future__ import annotations

import lance
import pyarrow as pa
import pytest

from omniray.engine.base.errors import StorageError
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from omniray.engine.tables.empty_table import FIRST_MANIFEST, EmptyTable, empty_table_files
from tests.stores import Root

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), ("age", pa.int32())], metadata={b"stamp": b"1"})


def put(store: ObjectStore, path: str, files: EmptyTable) -> None:
    store.put_if_absent(f"{path}/_transactions/{files.transaction_file_name}", files.transaction_bytes)
    store.put_if_absent(f"{path}/_versions/{FIRST_MANIFEST}", files.manifest_bytes)


def test_the_files_put_through_a_store_are_a_table_that_plain_lance_reads_and_writes(any_root: Root) -> None:
    store = open_store(f"{any_root.uri}/graph", any_root.storage_options)
    files = empty_table_files(SCHEMA, "2.1")
    put(store, "nodes/Person.lance", files)
    uri = f"{store.uri}/nodes/Person.lance"
    table = lance.dataset(uri, storage_options=store.lance_options)
    assert (table.version, table.count_rows(), table.data_storage_version) == (1, 0, "2.1")
    assert table.schema.equals(SCHEMA, check_metadata=True)
    assert table.read_transaction(1).uuid == files.transaction_uuid
    rows = pa.table({"id": ["a"], "age": pa.array([1], pa.int32())}, schema=SCHEMA)
    after = lance.write_dataset(rows, uri, mode="append", storage_options=store.lance_options)
    assert (after.version, after.to_table().to_pylist()) == (2, [{"id": "a", "age": 1}])


def test_the_manifest_names_its_transaction_and_no_two_tables_share_one() -> None:
    one, other = (empty_table_files(SCHEMA, None) for _ in range(2))
    assert one.transaction_uuid != other.transaction_uuid
    assert one.transaction_file_name.encode() in one.manifest_bytes
    assert one.transaction_file_name == f"0-{one.transaction_uuid}.txn"


def test_an_empty_table_comes_out_as_lance_itself_creates_it(disk: Root) -> None:
    store = open_store(f"{disk.uri}/graph")
    put(store, "ours", empty_table_files(SCHEMA, None))
    ours = lance.dataset(f"{store.uri}/ours")
    theirs = lance.write_dataset(SCHEMA.empty_table(), f"{store.uri}/theirs")
    assert ours.lance_schema.to_pyarrow().equals(theirs.lance_schema.to_pyarrow(), check_metadata=True)
    assert ours.data_storage_version == theirs.data_storage_version


def test_a_scratch_folder_that_can_t_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
    with pytest.raises(StorageError, match=r"/proc/nowhere.*TMPDIR"):
        empty_table_files(SCHEMA, None)
