"""Few rows on their way to S3: the commit does not wait for them, and nobody is told of it before they are there."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.file import LanceFileSession

from omniray.engine.errors import StorageError
from omniray.engine.namespace import Attempt
from omniray.engine.store import ObjectStore, open_store
from omniray.engine.tables import Table, TableStorage
from omniray.engine.uploads import Uploads
from tests.stores import Root
from tests.unit.test_tables import PERSON, born, people

WAIT_S = 30


@pytest.fixture
def store(s3: Root) -> ObjectStore:
    return open_store(f"{s3.uri}/graph", s3.storage_options)


@pytest.fixture
def storage(store: ObjectStore) -> TableStorage:
    return TableStorage(store)


@pytest.fixture
def table(storage: TableStorage, store: ObjectStore) -> Table:
    return born(storage, store)


def files_of(store: ObjectStore) -> list[str]:
    return list(store.names("nodes/Person/data"))


def test_the_commit_does_not_wait_for_the_upload_but_its_answer_does(
    storage: TableStorage, table: Table, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed, upload = threading.Event(), LanceFileSession.upload_file

    def upload_late(session: LanceFileSession, *paths: str) -> None:
        assert committed.wait(WAIT_S), "the commit waits for the upload"
        upload(session, *paths)

    class Noted(Attempt):
        def create_table_version(self, request: Any) -> Any:
            assert files_of(store) == []
            committed.set()
            return super().create_table_version(request)

    monkeypatch.setattr(LanceFileSession, "upload_file", upload_late)
    change = storage.stage_append(table, people("ann"))
    staged = storage.commit_staged(table, change, "transaction", Noted())
    assert len(files_of(store)) == 1
    assert staged.table.dataset.to_table()["id"].to_pylist() == ["ann"]


def test_an_upload_that_fails_fails_the_version(
    storage: TableStorage, table: Table, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(session: LanceFileSession, *paths: str) -> None:
        raise OSError("no way")

    monkeypatch.setattr(LanceFileSession, "upload_file", fail)
    change = storage.stage_append(table, people("ann"))
    with pytest.raises(StorageError, match="no way"):
        storage.commit_staged(table, change, "transaction")
    monkeypatch.undo()
    staged = storage.commit_staged(table, storage.stage_append(table, people("bob")), "another")
    assert staged.table.dataset.to_table()["id"].to_pylist() == ["bob"]


def test_a_table_that_numbers_its_columns_in_a_way_of_its_own_is_written_to_directly(
    store: ObjectStore, table: Table, tmp_path: Path
) -> None:
    """A column that was added later has another number: in a file with the old one it would seem to be missing."""
    *others, age = PERSON.arrow
    first = pa.schema([*others, pa.field("gone", pa.int32())])
    evolved = lance.write_dataset(first.empty_table(), tmp_path / "evolved")
    evolved.add_columns(age)
    evolved.drop_columns(["gone"])
    assert evolved.schema == PERSON.arrow
    uploads = Uploads(store, "2.1")
    assert uploads.begin(PERSON, evolved, people("ann")) is None
    assert uploads.begin(PERSON, table.dataset, people("ann")) is not None


def test_nothing_is_left_on_this_machine(store: ObjectStore, table: Table) -> None:
    uploads = Uploads(store, "2.1")
    fragments = uploads.begin(PERSON, table.dataset, people("ann"))
    assert fragments is not None
    uploads.finish(tuple(file.path for fragment in fragments for file in fragment.files))
    folder = uploads._folder
    assert not any((folder / "nodes/Person/data").iterdir())
    del uploads
    assert not folder.exists()
