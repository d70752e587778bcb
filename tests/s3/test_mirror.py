"""A remote table's next version is made on this machine and sent at once: it is what Lance would have made there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from omniray.engine.base.errors import StorageError
from omniray.engine.line.commit_object import Pin
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from omniray.engine.store.s3 import S3Store
from omniray.engine.tables.final_names import give_final_name
from omniray.engine.tables.mirror import Mirror
from omniray.engine.tables.storage import StagedVersion, TableStorage, VersionTaken
from omniray.engine.tables.table import ROWADDR, Table
from omniray.engine.tables.version_names import final_path
from tests.stores import Root
from tests.unit.test_tables import PERSON, born, people

WAIT_S = 30
PATH = "nodes/Person.lance"


@pytest.fixture
def store(s3: Root) -> ObjectStore:
    return open_store(f"{s3.uri}/graph", s3.storage_options)


@pytest.fixture
def storage(store: ObjectStore) -> TableStorage:
    return TableStorage(store)


@pytest.fixture
def table(storage: TableStorage, store: ObjectStore) -> Table:
    return born(storage, store)


def files_in(store: ObjectStore, folder: str) -> list[str]:
    return list(store.names(f"{PATH}/{folder}"))


def appended(storage: TableStorage, table: Table, *names: str) -> StagedVersion:
    return storage.commit_staged(table, storage.stage_append(table, people(*names)), f"add-{names[0]}")


def removed(storage: TableStorage, table: Table, *names: str) -> StagedVersion:
    found = table.scan(["id"], addresses=True).read_all()
    gone = found.filter(pa.compute.is_in(found["id"], value_set=pa.array(names))).select(["id", ROWADDR])
    return storage.commit_staged(table, storage.stage_delete(table, gone), f"remove-{names[0]}")


def finalised(store: ObjectStore, staged: StagedVersion) -> None:
    give_final_name(
        store, "node:Person", Pin(staged.version, staged.transaction, 1, staged.rows, staging=staged.staging)
    )


def mirror_of(table: Table) -> Mirror:
    assert table.mirror is not None
    return table.mirror


def ids(dataset: lance.LanceDataset) -> list[str]:
    return sorted(dataset.to_table()["id"].to_pylist())


def plain(storage: TableStorage, store: ObjectStore) -> lance.LanceDataset:
    return lance.dataset(storage.uri(PERSON), storage_options=store.lance_options)


def test_all_files_of_a_version_are_on_their_way_at_the_same_time(
    storage: TableStorage, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, transaction, manifest and the look at the next name: none of them waits for another."""
    together, upload, list_files = threading.Barrier(4), S3Store.put, S3Store.names

    def upload_together(store: S3Store, path: str, data: bytes) -> None:
        together.wait(WAIT_S)
        upload(store, path, data)

    def look_together(store: S3Store, folder: str) -> Iterator[str]:
        together.wait(WAIT_S)
        return list_files(store, folder)

    monkeypatch.setattr(S3Store, "put", upload_together)
    monkeypatch.setattr(S3Store, "names", look_together)
    assert ids(appended(storage, table, "ann").table.dataset) == ["ann"]


def test_a_version_is_answered_when_the_last_of_its_files_has_arrived(
    storage: TableStorage, table: Table, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, upload = threading.Event(), S3Store.put

    def rows_last(store: S3Store, target: str, data: bytes) -> None:
        if "/data/" in target:
            assert arrived.wait(WAIT_S), "the manifest waits for the rows"
        upload(store, target, data)
        if ".manifest-" in target:
            arrived.set()

    monkeypatch.setattr(S3Store, "put", rows_last)
    staged = appended(storage, table, "ann")
    assert len(files_in(store, "data")) == 1
    assert store.get(staged.staging) is not None


@pytest.mark.parametrize("broken", ["/data/", "_transactions/", ".manifest-"])
def test_a_file_that_does_not_arrive_fails_the_version(
    storage: TableStorage, table: Table, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = S3Store.put

    def fail(store: S3Store, target: str, data: bytes) -> None:
        if broken in target:
            raise StorageError("no way")
        upload(store, target, data)

    monkeypatch.setattr(S3Store, "put", fail)
    with pytest.raises(StorageError, match="no way"):
        appended(storage, table, "ann")
    monkeypatch.undo()
    assert ids(appended(storage, table, "bob").table.dataset) == ["bob"]


def test_versions_on_top_of_each_other_are_what_plain_lance_reads_in_the_end(
    storage: TableStorage, table: Table, store: ObjectStore
) -> None:
    """Appends, merges and deletions, in rows that were deleted from before, staged in a row and then given names."""
    first = appended(storage, table, *(f"p{n:04}" for n in range(1_500)))
    second = removed(storage, first.table, "p0003", "p0004")
    third = appended(storage, second.table, "new")
    fourth = removed(storage, third.table, "p0005")
    expected = sorted({f"p{n:04}" for n in range(1_500)} - {"p0003", "p0004", "p0005"} | {"new"})
    assert ids(fourth.table.dataset) == expected
    assert plain(storage, store).version == 1
    for staged in (first, second, third, fourth):
        finalised(store, staged)
    assert plain(storage, store).version == 5
    assert ids(plain(storage, store)) == expected


def test_deletions_that_another_process_made_are_fetched(
    storage: TableStorage, table: Table, store: ObjectStore
) -> None:
    first = appended(storage, table, *(f"p{n:04}" for n in range(1_500)))
    second = removed(storage, first.table, "p0003")
    finalised(store, first)
    finalised(store, second)
    elsewhere = TableStorage(store)
    opened = elsewhere.open(PERSON, second.version, second.transaction, second.rows)
    third = removed(elsewhere, opened, "p0004")
    assert not {"p0003", "p0004"} & set(ids(third.table.dataset))
    assert third.table.dataset.count_rows() == 1_498


@pytest.mark.parametrize("foreign_versions", [1, 2])
def test_a_foreign_writer_is_noticed_even_if_its_first_version_is_gone_again(
    storage: TableStorage, table: Table, store: ObjectStore, foreign_versions: int
) -> None:
    for _ in range(foreign_versions):
        lance.write_dataset(people("eve"), storage.uri(PERSON), mode="append", storage_options=store.lance_options)
    if foreign_versions > 1:
        store.delete(final_path(PATH, 2))
    before = files_in(store, "_versions")
    with pytest.raises(VersionTaken):
        appended(storage, table, "ann")
    assert files_in(store, "_versions") == before


def test_a_table_with_an_index_is_committed_to_where_it_is(
    storage: TableStorage, table: Table, store: ObjectStore
) -> None:
    first = appended(storage, table, "ann")
    finalised(store, first)
    plain(storage, store).create_scalar_index("id", "BTREE")
    indexed = TableStorage(store).open(PERSON, 3, "theirs", 1)
    staged = appended(TableStorage(store), indexed, "bob")
    assert staged.table.mirror is None
    assert ids(staged.table.dataset) == ["ann", "bob"]
    finalised(store, staged)
    assert plain(storage, store).to_table(filter="id = 'bob'").num_rows == 1


def test_columns_that_were_added_later_keep_their_numbers(
    storage: TableStorage, table: Table, store: ObjectStore
) -> None:
    """In a file with other numbers than the table's they would seem to be missing."""
    age = PERSON.arrow[-1]
    evolved = plain(storage, store)
    evolved.drop_columns([age.name])
    evolved.add_columns(age)
    assert evolved.schema == PERSON.arrow
    opened = storage.open(PERSON, evolved.version, "theirs", 0)
    staged = appended(storage, opened, "ann")
    assert staged.table.mirror is not None
    assert staged.table.dataset.to_table()[age.name].to_pylist() == people("ann")[age.name].to_pylist()


def test_nothing_but_manifest_and_deletions_stays_on_this_machine(storage: TableStorage, store: ObjectStore) -> None:
    first = appended(storage, born(storage, store), *(f"p{n:04}" for n in range(1_500)))
    second = removed(storage, first.table, "p0003")
    third = removed(storage, second.table, "p0004")
    folder: Path = mirror_of(third.table).folder.path
    left = {path.relative_to(folder).parts[0] for path in folder.rglob("*") if path.is_file()}
    assert left <= {"_versions", "_deletions"}
    assert len(list((folder / "_deletions").iterdir())) == 1
    assert not [path for path in (folder / "_versions").iterdir() if ".manifest-" in path.name]
    del first, second, third
    assert not folder.exists()
