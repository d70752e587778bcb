"""A table's next version is made on a mirror of its manifest: it is what Lance would have made in the table itself.

On a disk the mirror's other folders are links to the table's own; to a remote store everything is sent at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from omniray.engine.base.errors import StorageError
from omniray.engine.line.commit_object import Pin
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.tables import old_versions
from omniray.engine.tables.final_names import give_final_name
from omniray.engine.tables.storage import StagedChange, StagedVersion, TableStorage, VersionTaken
from omniray.engine.tables.table import ROWADDR, Table
from omniray.engine.tables.version_names import final_path
from tests.stores import Root
from tests.unit.test_tables import MAIN_LINE, PATH, PERSON, created, main_storage, new_store, people, pin_of, pinned

WAIT_S = 30


@pytest.fixture
def store(any_root: Root) -> ObjectStore:
    return new_store(any_root)


@pytest.fixture
def remote(s3: Root) -> ObjectStore:
    return new_store(s3)


@pytest.fixture
def storage(store: ObjectStore) -> TableStorage:
    return main_storage(store)


@pytest.fixture
def table(storage: TableStorage, store: ObjectStore) -> Table:
    return created(storage, store)


def files_in(store: ObjectStore, folder: str) -> list[str]:
    return list(store.names(f"{PATH}/{folder}"))


def appended(storage: TableStorage, table: Table, *names: str) -> StagedVersion:
    return storage.commit_staged(table, storage.stage_append(table, people(*names)), f"add-{names[0]}")


def removed(storage: TableStorage, table: Table, *names: str) -> StagedVersion:
    found = table.scan(["id"], addresses=True).read_all()
    gone = found.filter(pa.compute.is_in(found["id"], value_set=pa.array(names))).select(["id", ROWADDR])
    return storage.commit_staged(table, storage.stage_delete(table, gone), f"remove-{names[0]}")


def finalised(store: ObjectStore, staged: StagedVersion) -> None:
    give_final_name(store, MAIN_LINE, PERSON.table_key, pinned(staged))


def ids(dataset: lance.LanceDataset) -> list[str]:
    return sorted(dataset.to_table()["id"].to_pylist())


def plain(storage: TableStorage, store: ObjectStore) -> lance.LanceDataset:
    return lance.dataset(storage.uri(PATH), storage_options=store.lance_options)


# On their way to a remote store


def test_all_files_of_a_version_are_on_their_way_at_the_same_time(
    remote: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, transaction, manifest and the look at the next name: none of them waits for another."""
    storage = main_storage(remote)
    table = created(storage, remote)
    together, put, names = threading.Barrier(4), remote.put_if_absent, remote.names

    def put_together(path: str, data: bytes, **options: Any) -> Answer:
        together.wait(WAIT_S)
        return put(path, data, **options)

    def look_together(folder: str) -> Iterator[str]:
        together.wait(WAIT_S)
        return names(folder)

    monkeypatch.setattr(remote, "put_if_absent", put_together)
    monkeypatch.setattr(remote, "names", look_together)
    assert ids(appended(storage, table, "ann").table.dataset) == ["ann"]


def test_a_version_is_answered_when_the_last_of_its_files_has_arrived(
    remote: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = main_storage(remote)
    table = created(storage, remote)
    arrived, put = threading.Event(), remote.put_if_absent

    def rows_last(path: str, data: bytes, **options: Any) -> Answer:
        if "/data/" in path:
            assert arrived.wait(WAIT_S), "the manifest waits for the rows"
        answer = put(path, data, **options)
        if path.endswith(".manifest"):
            arrived.set()
        return answer

    monkeypatch.setattr(remote, "put_if_absent", rows_last)
    staged = appended(storage, table, "ann")
    assert len(files_in(remote, "data")) == 1
    assert remote.get(staged.manifest) is not None


@pytest.mark.parametrize("answer", ["refused", "never clear"])
@pytest.mark.parametrize("broken", ["/data/", "_transactions/", ".manifest"])
def test_a_file_that_does_not_arrive_fails_the_version(
    remote: ObjectStore, broken: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = main_storage(remote)
    table = created(storage, remote)
    put = remote.put_if_absent

    def fail(path: str, data: bytes, **options: Any) -> Answer:
        if broken not in path:
            return put(path, data, **options)
        if answer == "refused":
            raise StorageError("no clear answer, nor any other")
        return Answer.UNCLEAR

    with monkeypatch.context() as patch:
        patch.setattr(remote, "put_if_absent", fail)
        with pytest.raises(StorageError, match="no clear answer"):
            appended(storage, table, "ann")
    assert ids(appended(storage, table, "bob").table.dataset) == ["bob"]


def test_a_file_whose_answer_got_lost_is_put_again(remote: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = main_storage(remote)
    table = created(storage, remote)
    put, asked = remote.put_if_absent, list[str]()

    def lose_the_first(path: str, data: bytes, **options: Any) -> Answer:
        answer = put(path, data, **options)
        asked.append(path)
        return Answer.UNCLEAR if asked.count(path) == 1 else answer

    monkeypatch.setattr(remote, "put_if_absent", lose_the_first)
    assert ids(appended(storage, table, "ann").table.dataset) == ["ann"]
    assert all(asked.count(path) == 2 for path in asked)


def test_nothing_but_manifest_and_deletions_stays_on_this_machine(remote: ObjectStore) -> None:
    storage = main_storage(remote)
    first = appended(storage, created(storage, remote), *(f"p{n:04}" for n in range(1_500)))
    second = removed(storage, first.table, "p0003")
    third = removed(storage, second.table, "p0004")
    folder = third.table.mirror.folder.path
    left = {path.relative_to(folder).parts[0] for path in folder.rglob("*") if path.is_file()}
    assert left <= {"_versions", "_deletions"}
    assert len(list((folder / "_deletions").iterdir())) == 1
    assert not [path for path in (folder / "_versions").iterdir() if ".manifest-" in path.name]
    del first, second, third
    assert not folder.exists()


# On a disk


def test_a_mirror_on_a_disk_is_a_manifest_and_links_and_leaves_nothing_in_the_table_but_the_version(disk: Root) -> None:
    store = new_store(disk)
    storage = main_storage(store)
    first = appended(storage, created(storage, store), *(f"p{n:04}" for n in range(1_500)))
    second = removed(storage, first.table, "p0003")
    folder, home = second.table.mirror.folder.path, Path(store.uri) / PATH
    assert {path.name for path in folder.iterdir() if path.is_symlink()} == {
        "data", "_deletions", "_transactions", "_indices",
    }  # fmt: skip
    assert {(folder / name).resolve() for name in ("data", "_deletions")} == {home / "data", home / "_deletions"}
    left = [path.name for path in (folder / "_versions").iterdir() if ".manifest" in path.name]
    assert left == [Path(final_path(PATH, 1)).name], "what was staged has gone to the table"
    assert sorted(files_in(store, "_versions")) == [Path(final_path(PATH, 1)).name], "only finalised ones lie there"
    assert {Path(first.manifest), Path(second.manifest)} < {
        path.relative_to(store.uri) for path in (home / "_staged").rglob("*.manifest")
    }


def test_a_mirror_that_goes_takes_its_links_along_and_nothing_of_the_table(disk: Root) -> None:
    """A folder that is deleted through a link would take the rows of everybody with it."""
    store = new_store(disk)
    storage = main_storage(store)
    first = appended(storage, created(storage, store), *(f"p{n:04}" for n in range(1_500)))
    second = removed(storage, first.table, "p0003")
    pin, folder = pinned(second), second.table.mirror.folder.path
    before = sorted(file.path for file in store.files(""))
    del first, second
    assert not folder.exists()
    assert sorted(file.path for file in store.files("")) == before
    assert len(ids(main_storage(store).open(PERSON, pin).dataset)) == 1_499


# What is made there


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
    elsewhere = main_storage(store)
    opened = elsewhere.open(PERSON, pinned(second))
    third = removed(elsewhere, opened, "p0004")
    assert not {"p0003", "p0004"} & set(ids(third.table.dataset))
    assert third.table.dataset.count_rows() == 1_498


@pytest.mark.parametrize("foreign_versions", [1, 2])
def test_a_foreign_writer_is_noticed_even_if_its_first_version_is_gone_again(
    storage: TableStorage, table: Table, store: ObjectStore, foreign_versions: int
) -> None:
    for _ in range(foreign_versions):
        lance.write_dataset(people("eve"), storage.uri(PATH), mode="append", storage_options=store.lance_options)
    if foreign_versions > 1:
        store.delete(final_path(PATH, 2))
    before = files_in(store, "_versions")
    with pytest.raises(VersionTaken):
        appended(storage, table, "ann")
    assert files_in(store, "_versions") == before


def test_columns_that_were_added_later_keep_their_numbers(
    storage: TableStorage, table: Table, store: ObjectStore
) -> None:
    """In a file with other numbers than the table's they would seem to be missing."""
    age = PERSON.arrow[-1]
    evolved = plain(storage, store)
    evolved.drop_columns([age.name])
    evolved.add_columns(age)
    assert evolved.schema == PERSON.arrow
    staged = appended(storage, storage.open(PERSON, pin_of(evolved.version, "", 0)), "ann")
    assert staged.table.dataset.to_table()[age.name].to_pylist() == people("ann")[age.name].to_pylist()


@pytest.mark.parametrize("where", ["staged", "final", "archived"])
def test_a_restored_version_holds_exactly_what_its_source_does(
    storage: TableStorage, table: Table, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(old_versions, "KEPT_VERSIONS", 1)
    first = appended(storage, table, "ann", "bob")
    second = removed(storage, first.table, "bob")
    if where != "staged":
        for staged in (first, second):
            finalised(store, staged)
            store.delete(staged.manifest)
    if where == "archived":
        old_versions.archive(store, PATH)
    restored = storage.commit_restored(second.table, pinned(first), "restore")
    assert (restored.version, restored.rows) == (4, 2)
    assert ids(main_storage(store).open(PERSON, pinned(restored)).dataset) == ["ann", "bob"]
    assert ids(appended(storage, restored.table, "cid").table.dataset) == ["ann", "bob", "cid"]


# Indexes


Model = dict[str, int]


def indexed(storage: TableStorage, table: Table, transaction: str) -> StagedVersion:
    """The version after `table`, with an index of all its rows by id: built in the table, committed on the mirror."""
    built = table.dataset.create_index_uncommitted(
        "id", "BTREE", name="id_idx", replace=True, fragment_ids=[fragment.id for fragment in table.fragments()]
    )
    change = StagedChange(lance.LanceOperation.CreateIndex([built], []), table.rows)
    return storage.commit_staged(table, change, transaction)


def merged(storage: TableStorage, table: Table, *names: str, age: int) -> StagedVersion:
    found = table.scan(["id"], pc.field("id").isin(list(names)), addresses=True).read_all()
    return storage.commit_staged(table, storage.stage_merge(table, people(*names, age=age), found), f"merge-{names[0]}")


def is_indexed(table: Table, name: str) -> bool:
    """Whether a look-up by id goes by the index."""
    return "ScalarIndexQuery" in table.dataset.scanner(filter=f"id = '{name}'").explain_plan()


def wrong(table: Table, model: Model, asked: Iterable[str]) -> list[str]:
    """What a version tells otherwise than it is."""
    rows = table.scan(["id", "age"]).read_all()
    found = [] if dict(zip(rows["id"].to_pylist(), rows["age"].to_pylist(), strict=True)) == model else ["all rows"]
    for name in asked:
        expected = [model[name]] if name in model else []
        for where in (f"id = '{name}'", pc.field("id") == name):
            if table.scan(["age"], where).read_all()["age"].to_pylist() != expected:
                found.append(f"{where}")
    return found


def test_an_indexed_table_is_written_to_on_its_mirror_and_every_version_reads_right_in_every_place(
    storage: TableStorage, table: Table, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends, merges and deletes on top of an index; each version unfinalised, final and archived."""
    monkeypatch.setattr(old_versions, "KEPT_VERSIONS", 1)
    names = [f"p{n:04}" for n in range(1_500)]
    asked = ("p0000", "p0003", "p0004", "p0005", "p1499", "new", "newer", "nobody")
    model = dict.fromkeys(names, 0)
    made: list[tuple[Pin, Model]] = []

    def keep(staged: StagedVersion) -> Table:
        made.append((pinned(staged), dict(model)))
        finals.append(staged)
        return staged.table

    finals: list[StagedVersion] = []
    table = keep(appended(storage, table, *names))
    table = keep(indexed(storage, table, "index"))
    model["new"] = 0
    table = keep(appended(storage, table, "new"))
    model |= {"p0005": 7, "newer": 7}
    table = keep(merged(storage, table, "p0005", "newer", age=7))
    for name in ("p0003", "new"):
        del model[name]
    table = keep(removed(storage, table, "p0003", "new"))
    model |= {"p0005": 8, "p0003": 8}
    table = keep(merged(storage, table, "p0005", "p0003", age=8))

    def told_wrong() -> dict[int, list[str]]:
        fresh = main_storage(store)
        opened = {pin.version: (fresh.open(PERSON, pin), model) for pin, model in made}
        assert [is_indexed(one, "p0004") for one, _ in opened.values()] == [False, True, True, True, True, True]
        return {version: found for version, (one, model) in opened.items() if (found := wrong(one, model, asked))}

    assert told_wrong() == {}
    for staged in finals:
        finalised(store, staged)
        store.delete(staged.manifest)
    assert told_wrong() == {}
    assert plain(storage, store).count_rows("id = 'p0003'") == 1
    assert plain(storage, store).count_rows() == len(model)
    old_versions.archive(store, PATH)
    assert len(files_in(store, "_history")) == len(made)
    assert told_wrong() == {}
    pin, last = made[-1]
    cold = main_storage(store)
    assert wrong(merged(cold, cold.open(PERSON, pin), "p0004", age=9).table, {**last, "p0004": 9}, asked) == []


def test_an_index_that_lies_is_noticed_by_the_test_above(storage: TableStorage, table: Table) -> None:
    """The twin: an index that claims a fragment whose rows it does not have hides them from look-ups."""
    table = appended(storage, table, *(f"p{n:04}" for n in range(1_500))).table
    first = [fragment.id for fragment in table.fragments()]
    table = appended(storage, table, *(f"q{n:04}" for n in range(1_500))).table
    built = table.dataset.create_index_uncommitted("id", "BTREE", name="id_idx", replace=True, fragment_ids=first)
    built.fragment_ids = {fragment.id for fragment in table.fragments()}
    lying = storage.commit_staged(table, StagedChange(lance.LanceOperation.CreateIndex([built], []), 3_000), "lie")
    model = dict.fromkeys([f"{letter}{n:04}" for letter in "pq" for n in range(1_500)], 0)
    found = wrong(lying.table, model, ["p0007", "q0007"])
    assert found
    assert all("q0007" in one for one in found)
