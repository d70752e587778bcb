"""The storage surface: what is staged stays invisible, is exactly one version more, and holds the right rows."""

from __future__ import annotations

import contextlib
import errno
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from omniray.engine.base.errors import GraphGone, InputError, InvariantViolation, StorageError
from omniray.engine.line.commit_object import Pin
from omniray.engine.line.graph_identity import PATH as IDENTITY
from omniray.engine.line.graph_identity import GraphIdentity, encode
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.types import ID, ElementType
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from omniray.engine.tables import mirror, old_versions
from omniray.engine.tables.final_names import give_final_name
from omniray.engine.tables.mirror import Mirrors
from omniray.engine.tables.storage import (
    STORAGE_VERSION,
    EmptyVersion,
    StagedChange,
    StagedVersion,
    TableStorage,
    VersionTaken,
)
from omniray.engine.tables.table import ROWADDR, TAIL_ROWS_MAX, Table
from omniray.engine.tables.version_names import final_path, history_path, manifest_name, own_path, transaction_mark
from tests.graphs import SCHEMA, files_below, rows_of
from tests.stores import Root

PERSON = parse_schema(SCHEMA).type("Person")
PATH = PERSON.first_path
MAIN_LINE, BRANCH_LINE = "01M0000000000000000000MAEN", "01M0000000000000000000BRAN"


@pytest.fixture
def store(disk: Root) -> ObjectStore:
    return new_store(disk)


@pytest.fixture
def storage(store: ObjectStore) -> TableStorage:
    return main_storage(store)


@pytest.fixture
def table(storage: TableStorage, store: ObjectStore) -> Table:
    return created(storage, store)


def new_store(root: Root) -> ObjectStore:
    """A place where a graph has its identity, and nothing else yet."""
    store = open_store(f"{root.uri}/graph", root.storage_options)
    store.put(IDENTITY, encode(GraphIdentity(MAIN_LINE)))
    return store


def main_storage(store: ObjectStore) -> TableStorage:
    return TableStorage(store, MAIN_LINE, MAIN_LINE)


def pin_of(version: int, transaction: str, rows: int, line: str = MAIN_LINE) -> Pin:
    return Pin("id", PATH, version, transaction, rows, transaction, line, since=version)


def pinned(version: StagedVersion, line: str = MAIN_LINE) -> Pin:
    """The pin of a version that was staged."""
    return pin_of(version.version, version.transaction, version.rows, line)


def created(storage: TableStorage, store: ObjectStore) -> Table:
    """A new table as everybody sees it."""
    first = staged_first(storage, store)
    pin = pin_of(1, first.transaction, 0)
    give_final_name(store, MAIN_LINE, PERSON.table_key, pin)
    return storage.open(PERSON, pin)


def staged_first(storage: TableStorage, store: ObjectStore) -> EmptyVersion:
    first = storage.empty(PERSON, PATH)
    for path, data in first.files.items():
        store.put(path, data)
    return first


def people(*ids: str, age: int = 0) -> pa.Table:
    return rows_of(PERSON, ids, age)


def numbered(count: int) -> pa.Table:
    return people(*(f"{n:06}" for n in range(count)))


def commit(storage: TableStorage, table: Table, change: StagedChange, name: str = "transaction") -> StagedVersion:
    return storage.commit_staged(table, change, f"{name}-{table.version + 1}")


def finalise(store: ObjectStore, version: StagedVersion) -> None:
    give_final_name(store, MAIN_LINE, PERSON.table_key, pinned(version))


def ids(table: Table | lance.LanceDataset) -> list[str]:
    rows = table.scan([ID]).read_all() if isinstance(table, Table) else table.to_table(columns=[ID])
    found: list[str] = sorted(rows[ID].to_pylist())
    return found


def at(table: Table, *wanted: str) -> pa.Table:
    """The addresses of rows, as a judgement gives them."""
    rows = table.scan([ID], addresses=True).read_all()
    return rows.filter(pc.is_in(rows[ID], value_set=pa.array(wanted, pa.string())))


def plain(storage: TableStorage) -> lance.LanceDataset:
    return lance.dataset(storage.uri(PATH))


# Invisible, and one more

CHANGES: dict[str, Callable[[TableStorage, Table], StagedChange]] = {
    "append": lambda storage, table: storage.stage_append(table, people("new")),
    "append of staged rows": lambda storage, table: storage.stage_append(
        table, storage.stage_rows(table, people("new"))
    ),
    "merge": lambda storage, table: storage.stage_merge(table, people("ann", "new"), at(table, "ann")),
    "delete": lambda storage, table: storage.stage_delete(table, at(table, "ann")),
    "overwrite": lambda storage, table: storage.stage_overwrite(table, people("new")),
    "empty overwrite": lambda storage, table: storage.stage_overwrite(table, people()),
}
AFTER = {
    "append": ["ann", "bob", "new"],
    "append of staged rows": ["ann", "bob", "new"],
    "merge": ["ann", "bob", "new"],
    "delete": ["bob"],
    "overwrite": ["new"],
    "empty overwrite": [],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_staged_version_is_seen_by_nobody_until_it_has_its_final_name(
    storage: TableStorage, store: ObjectStore, table: Table, change: str
) -> None:
    first = commit(storage, table, storage.stage_append(table, people("ann", "bob")))
    finalise(store, first)
    staged = commit(storage, first.table, CHANGES[change](storage, first.table))
    assert (plain(storage).version, ids(plain(storage))) == (2, ["ann", "bob"])
    assert (staged.version, staged.table.version, ids(staged.table)) == (3, 3, AFTER[change])
    assert staged.rows == staged.table.rows == len(AFTER[change])
    finalise(store, staged)
    assert (plain(storage).version, ids(plain(storage))) == (3, AFTER[change])
    assert plain(storage).read_transaction(3).uuid == staged.transaction


def test_versions_are_staged_on_top_of_staged_ones(storage: TableStorage, store: ObjectStore, table: Table) -> None:
    staged = []
    for name in "abcd":
        staged.append(commit(storage, table, storage.stage_append(table, people(name))))
        table = staged[-1].table
    assert [one.version for one in staged] == [2, 3, 4, 5]
    assert ids(plain(storage)) == []
    for version, seen in zip(staged, ("a", "ab", "abc", "abcd"), strict=True):
        finalise(store, version)
        assert ids(plain(storage)) == list(seen)


def test_a_staged_version_is_invisible_until_it_has_its_final_name(any_root: Root) -> None:
    store = new_store(any_root)
    storage = main_storage(store)
    table = created(storage, store)
    staged = commit(storage, table, storage.stage_append(table, people("ann")))
    reader = lance.dataset(storage.uri(PATH), storage_options=any_root.storage_options)
    assert (reader.version, ids(staged.table)) == (1, ["ann"])
    assert staged.manifest == f"{PATH}/_staged/transaction-2/{manifest_name(2)}"
    assert ids(main_storage(store).open(PERSON, pinned(staged))) == ["ann"], "readers wait for nobody"
    finalise(store, staged)
    assert ids(lance.dataset(storage.uri(PATH), storage_options=any_root.storage_options)) == ["ann"]
    assert ids(main_storage(store).open(PERSON, pinned(staged))) == ["ann"]


def test_a_graph_on_another_disk_than_the_scratch_folders_gets_its_manifests_as_bytes(
    storage: TableStorage, store: ObjectStore, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def to_another_disk(source: object, target: str) -> None:
        refused.append(target)
        raise OSError(errno.EXDEV, "invalid cross-device link")

    change = storage.stage_append(table, people("ann"))
    monkeypatch.setattr(mirror.os, "rename", to_another_disk)
    staged = commit(storage, table, change)
    assert refused == [f"{store.uri}/{staged.manifest}"]
    assert ids(main_storage(store).open(PERSON, pinned(staged))) == ["ann"]


# The first version


def test_a_table_that_is_staged_is_seen_by_those_who_know_its_pin_and_by_plain_lance_under_its_final_name(
    storage: TableStorage, store: ObjectStore
) -> None:
    first = staged_first(storage, store)
    pin = pin_of(1, first.transaction, 0)
    with pytest.raises(ValueError, match="not found"):
        plain(storage)
    assert ids(storage.open(PERSON, pin)) == []
    give_final_name(store, MAIN_LINE, PERSON.table_key, pin)
    assert (plain(storage).version, ids(plain(storage))) == (1, [])
    assert plain(storage).read_transaction(1).uuid == first.transaction
    assert plain(storage).schema == PERSON.arrow


def test_two_first_versions_of_one_table_share_no_name(storage: TableStorage) -> None:
    one, other = storage.empty(PERSON, PATH), storage.empty(PERSON, PATH)
    assert one.files.keys() & other.files.keys() == set()
    assert one.transaction != other.transaction


# Somebody else's versions


@pytest.mark.parametrize("change", CHANGES)
def test_a_foreign_commit_is_noticed_whatever_we_do_on_top_of_the_old_version(
    storage: TableStorage, store: ObjectStore, table: Table, change: str
) -> None:
    """Lance rebases an append silently: the version that comes out is compared with the one expected."""
    first = commit(storage, table, storage.stage_append(table, people("ann", "bob")))
    finalise(store, first)
    ours = CHANGES[change](storage, first.table)
    lance.write_dataset(people("foreign"), storage.uri(PATH), mode="append")
    before = manifests(store)
    with pytest.raises(VersionTaken) as taken:
        commit(storage, first.table, ours)
    assert (taken.value.table_key, taken.value.expected) == (PERSON.table_key, 3)
    assert ids(plain(storage)) == ["ann", "bob", "foreign"]
    assert manifests(store) == before, "no name of its own is left"


def manifests(store: ObjectStore) -> list[str]:
    return [file.path for file in store.files(PATH) if file.path.endswith(".manifest")]


def test_two_attempts_at_one_version_do_not_see_each_other(
    storage: TableStorage, store: ObjectStore, table: Table
) -> None:
    other = main_storage(store)
    winner = commit(storage, table, storage.stage_append(table, people("winner")), "w")
    theirs = other.open(PERSON, pin_of(1, table.transaction, 0))
    loser = commit(other, theirs, other.stage_append(theirs, people("loser")), "l")
    assert winner.version == loser.version == 2
    finalise(store, winner)
    store.delete_all(list(loser.files))
    assert ids(other.open(PERSON, pinned(winner))) == ["winner"]
    assert ids(plain(storage)) == ["winner"]


def test_a_lost_attempt_s_files_are_deleted(storage: TableStorage, store: ObjectStore, table: Table) -> None:
    kept = commit(storage, table, storage.stage_append(table, people("ann")))
    finalise(store, kept)
    before = files_below(store.uri)
    lost = commit(storage, kept.table, storage.stage_merge(kept.table, people("ann", "bob"), at(kept.table, "ann")))
    assert files_below(store.uri) != before
    store.delete_all(list(lost.files))
    left = set(files_below(store.uri)) - set(before)
    assert {Path(path).parent.name for path in left} <= {"_transactions"}, "a small transaction file is the sweep's"
    assert ids(plain(storage)) == ["ann"]


def test_rows_that_an_intent_brought_along_survive_a_lost_attempt(
    storage: TableStorage, store: ObjectStore, table: Table
) -> None:
    staged = storage.stage_rows(table, people("ann"))
    lost = commit(storage, table, storage.stage_append(table, staged))
    store.delete_all(list(lost.files))
    again = commit(storage, table, storage.stage_append(table, staged), "again")
    assert ids(again.table) == ["ann"]
    storage.forget_rows(PATH, staged)
    assert files_below(Path(storage.uri(PATH)) / "data") == []


def test_staged_rows_are_read_back_in_order(storage: TableStorage, table: Table) -> None:
    staged = storage.stage_rows(table, numbered(3000))
    batches = list(storage.read_staged(PERSON, PATH, staged))
    assert pa.Table.from_batches(batches).equals(numbered(3000))
    assert staged.rows == 3000


# Handles


def test_an_open_table_is_never_pickled(table: Table) -> None:
    with pytest.raises(TypeError, match="would commit visibly"):
        pickle.dumps(table)


@pytest.mark.parametrize("is_final", [True, False], ids=["looked for as final", "looked for by its own name"])
@pytest.mark.parametrize("where", ["staged", "both names", "final", "archived"])
def test_a_version_is_opened_by_its_pin_wherever_its_manifest_lies(
    storage: TableStorage, store: ObjectStore, table: Table, where: str, is_final: bool
) -> None:
    staged = commit(storage, table, storage.stage_append(table, people("ann")))
    pin = pinned(staged)
    if where != "staged":
        finalise(store, staged)
    if where in ("final", "archived"):
        store.delete(own_path(pin, MAIN_LINE))
    if where == "archived":
        store.copy(final_path(PATH, 2), history_path(PATH, 2))
        store.delete(final_path(PATH, 2))
    assert ids(main_storage(store).open(PERSON, pin, is_final=is_final)) == ["ann"]


def test_a_handle_goes_on_reading_while_its_version_gets_its_final_name_and_is_archived(
    storage: TableStorage, store: ObjectStore, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_versions, "KEPT_VERSIONS", 1)
    staged = commit(storage, table, storage.stage_append(table, people("ann")))
    late, later = (main_storage(store).open(PERSON, pinned(staged)) for _ in range(2))
    finalise(store, staged)
    store.delete(staged.manifest)
    assert ids(late) == ["ann"], "nothing was read of it before"
    following = commit(storage, staged.table, storage.stage_append(staged.table, people("bob")))
    finalise(store, following)
    old_versions.archive(store, PATH)
    assert store.get(final_path(PATH, 2)) is None
    assert ids(later) == ids(late) == ["ann"]


def test_a_version_that_moves_between_two_looks_is_found(
    storage: TableStorage, store: ObjectStore, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Phase D runs just after its own name was looked for, or just before, whichever is looked for first."""
    staged = commit(storage, table, storage.stage_append(table, people("ann")))
    get, own = store.get, staged.manifest

    def overtaken(path: str) -> bytes | None:
        if path == own and store.get is not get:
            monkeypatch.setattr(store, "get", get)
            finalise(store, staged)
            store.delete(own)
            return get(path)
        return get(path)

    for is_final in (False, True):
        monkeypatch.setattr(store, "get", overtaken)
        assert ids(main_storage(store).open(PERSON, pinned(staged), is_final=is_final)) == ["ann"]
        monkeypatch.setattr(store, "get", get)
        store.copy(final_path(PATH, 2), own)
        store.delete(final_path(PATH, 2))


# Branches


def test_a_branch_and_main_make_the_same_number_and_never_see_each_other(
    storage: TableStorage, store: ObjectStore, table: Table
) -> None:
    base = commit(storage, table, storage.stage_append(table, people("ann")))
    finalise(store, base)
    branch = TableStorage(store, BRANCH_LINE, MAIN_LINE)
    theirs = branch.open(PERSON, pinned(base))
    on_branch = commit(branch, theirs, branch.stage_append(theirs, people("trial")), "b")
    on_main = commit(storage, base.table, storage.stage_append(base.table, people("main")), "m")
    finalise(store, on_main)
    later = commit(branch, on_branch.table, branch.stage_append(on_branch.table, people("later")), "b")
    assert (on_branch.version, on_main.version, later.version) == (3, 3, 4)
    assert on_branch.manifest == f"{PATH}/_branches/{BRANCH_LINE}/b-3/{manifest_name(3)}"
    assert ids(plain(storage)) == ["ann", "main"]
    reader = TableStorage(store, BRANCH_LINE, MAIN_LINE)
    assert ids(reader.open(PERSON, pinned(on_branch, BRANCH_LINE))) == ["ann", "trial"]
    assert ids(reader.open(PERSON, pinned(later, BRANCH_LINE))) == ["ann", "later", "trial"]
    assert ids(main_storage(store).open(PERSON, pinned(on_main))) == ["ann", "main"]


def test_what_the_client_is_asked_beyond_a_new_version_it_does_not_answer(
    storage: TableStorage, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A staging name that were handed back to Lance would be given its final name at once."""
    clients: list[Any] = []
    real = lance.LanceDataset.commit

    def noting(*args: Any, **kwargs: Any) -> Any:
        clients.append(kwargs["namespace_client"])
        return real(*args, **kwargs)

    monkeypatch.setattr(lance.LanceDataset, "commit", noting)
    first = commit(storage, table, storage.stage_append(table, people("ann")))
    commit(storage, first.table, storage.stage_append(first.table, people("bob")))
    assert len(set(map(id, clients))) == 2, "one client per attempt"
    own = {name for name in vars(type(clients[0])) if not name.startswith("_")}
    assert own == {"namespace_id", "create_table_version", "describe_table_version", "staged_name"}
    with pytest.raises(NotImplementedError):
        clients[0].describe_table_version({"version": 2})


# Tails


def test_small_appends_are_folded_into_one_fragment_until_it_is_full(storage: TableStorage, table: Table) -> None:
    for start in range(0, 40 * 60, 60):
        names = [f"{n:05}" for n in range(start, start + 60)]
        table = commit(storage, table, storage.stage_append(table, people(*names))).table
    sizes = [fragment.count_rows() for fragment in table.dataset.get_fragments()]
    assert sum(sizes) == table.rows == 2400
    assert all(TAIL_ROWS_MAX <= size < TAIL_ROWS_MAX + 60 for size in sizes[:-1])
    assert len(sizes) == 3


@pytest.mark.parametrize("seed", range(2))
def test_tail_folding_with_upserts_and_deletes_equals_a_dict(storage: TableStorage, table: Table, seed: int) -> None:
    """150 rounds over tail and sealed fragments, with handles that are warm, and now and then dropped."""
    rng = random.Random(seed)
    model: dict[str, int] = {}
    for age in range(150):
        if rng.random() < 0.3 and model:
            doomed = rng.sample(sorted(model), min(len(model), rng.choice([1, 2, 30, 300])))
            change = storage.stage_delete(table, at(table, *doomed))
            model = {key: value for key, value in model.items() if key not in doomed}
        else:
            names = rng.sample(range(3000), rng.choice([1, 1, 5, 40, 400]))
            rows = people(*map(str, names), age=age)
            change = storage.stage_merge(table, rows, at(table, *map(str, names)))
            model |= {str(name): age for name in names}
        staged = commit(storage, table, change)
        table = staged.table
        if rng.random() < 0.2:
            table._tail = None  # as after an open by URI
        assert staged.rows == len(model)
        if age % 10 == 9:
            rows = table.scan([ID, "age"]).read_all()
            assert dict(zip(rows[ID].to_pylist(), rows["age"].to_pylist(), strict=True)) == model
            assert rows.num_rows == len(model)
            table.dataset.validate()


@pytest.mark.parametrize("deleted", [1, 999, 1000])
def test_rows_are_deleted_from_a_tail_and_what_follows_is_right(
    storage: TableStorage, table: Table, deleted: int
) -> None:
    table = commit(storage, table, storage.stage_append(table, numbered(1000))).table
    rows = table.scan([ID], addresses=True).read_all().slice(0, deleted)
    table = commit(storage, table, storage.stage_delete(table, rows)).table
    assert table.rows == 1000 - deleted
    table = commit(storage, table, storage.stage_append(table, people("new"))).table
    assert ids(table) == [*(f"{n:06}" for n in range(deleted, 1000)), "new"]


def test_deleting_nothing_is_a_version_with_the_same_rows(storage: TableStorage, table: Table) -> None:
    table = commit(storage, table, storage.stage_append(table, people("ann"))).table
    after = commit(storage, table, storage.stage_delete(table, at(table)))
    assert ids(after.table) == ["ann"]


@pytest.mark.parametrize(
    "which",
    [
        pytest.param(slice(0, 120_000), id="neighbours"),
        pytest.param(slice(0, None, 2), id="every second row"),
        pytest.param(slice(1, None), id="all but one"),
    ],
)
def test_a_large_delete_removes_exactly_its_rows(storage: TableStorage, table: Table, which: slice) -> None:
    rows = numbered(130_000)
    table = commit(storage, table, storage.stage_append(table, storage.stage_rows(table, rows))).table
    found = table.scan([ID], addresses=True).read_all()
    chosen = np.arange(found.num_rows)[which]
    after = commit(storage, table, storage.stage_delete(table, found.take(pa.array(chosen))))
    expected = np.delete(np.array(rows[ID].to_pylist()), chosen)
    assert ids(after.table) == expected.tolist()
    assert after.rows == len(expected)


def test_a_merge_replaces_rows_in_many_fragments_at_once(storage: TableStorage, table: Table) -> None:
    for start in range(0, 6000, 2000):
        rows = people(*(f"{n:06}" for n in range(start, start + 2000)))
        table = commit(storage, table, storage.stage_append(table, rows)).table
    wanted = [f"{n:06}" for n in range(0, 6000, 500)]
    after = commit(storage, table, storage.stage_merge(table, people(*wanted, age=7), at(table, *wanted))).table
    found = after.scan([ID, "age"]).read_all()
    assert found.num_rows == after.rows == 6000
    assert sorted(found.filter(pc.equal(found["age"], 7))[ID].to_pylist()) == wanted


def test_an_overwrite_with_staged_rows_replaces_everything(storage: TableStorage, table: Table) -> None:
    table = commit(storage, table, storage.stage_append(table, numbered(5000))).table
    staged = storage.stage_rows(table, people("ann", "bob"))
    after = commit(storage, table, storage.stage_overwrite(table, staged)).table
    assert (ids(after), after.rows) == (["ann", "bob"], 2)
    more = commit(storage, after, storage.stage_append(after, people("cat"))).table
    assert ids(more) == ["ann", "bob", "cat"]


def test_an_emptied_table_takes_rows_again(storage: TableStorage, table: Table) -> None:
    table = commit(storage, table, storage.stage_append(table, numbered(10))).table
    table = commit(storage, table, storage.stage_overwrite(table, people())).table
    assert (ids(table), table.rows) == ([], 0)
    table = commit(storage, table, storage.stage_append(table, people("ann"))).table
    assert ids(table) == ["ann"]


def test_addresses_name_the_fragment_and_the_row(storage: TableStorage, table: Table) -> None:
    table = commit(storage, table, storage.stage_append(table, numbered(3))).table
    rows = table.scan([ID], addresses=True).read_all()
    assert rows.schema.names == [ID, ROWADDR]
    assert [address & 0xFFFFFFFF for address in rows[ROWADDR].to_pylist()] == [0, 1, 2]


def test_a_table_that_is_written_again_and_again_does_not_keep_what_it_was(store: ObjectStore) -> None:
    """Lance's own cache would keep every version: a few kilobytes per write, for as long as the process lives."""
    mirrors = Mirrors(store, STORAGE_VERSION, cache_bytes=20_000)
    storage = main_storage(store)
    first = created(storage, store)
    manifest = store.get(own_path(pin_of(1, first.transaction, 0), MAIN_LINE)) or store.get(final_path(PATH, 1))
    assert manifest is not None
    made_on = mirrors.of(PATH, 1, manifest)
    for version in range(1, 41):
        append = lance.LanceOperation.Append(list(made_on.encode(people(f"p{version}")).fragments))
        made = lance.Transaction(version, append, f"transaction-{version}")
        made_on = made_on.commit(made, f"{PATH}/_staged/{version}", ()).mirror
    assert made_on.dataset.version == 41
    assert made_on.dataset.session().size_bytes() < 60_000


# Errors


def test_a_pinned_version_that_is_nowhere_is_an_invariant_violation_that_names_it(storage: TableStorage) -> None:
    with pytest.raises(InvariantViolation, match=r"node:Person: version 7 is pinned.*backup") as error:
        storage.open(PERSON, pin_of(7, "transaction", 0))
    assert error.value.facts == {"table_key": PERSON.table_key, "version": 7}


@pytest.mark.parametrize("successor", [True, False])
def test_a_table_of_a_graph_that_is_gone_says_so(
    storage: TableStorage, store: ObjectStore, table: Table, successor: bool
) -> None:
    """The graph's files are no witness of what was lost, once the graph itself is gone."""
    staged = commit(storage, table, storage.stage_append(table, people("ann")))
    store.delete_all([file.path for file in store.files("nodes")])
    if successor:
        store.put(IDENTITY, encode(GraphIdentity("01M0000000000000000000ATER")))
    else:
        store.delete(IDENTITY)
    with pytest.raises(GraphGone):
        main_storage(store).open(PERSON, pinned(staged))
    with pytest.raises(GraphGone):
        ids(staged.table)


def test_a_manifest_that_is_none_is_named(storage: TableStorage, store: ObjectStore, table: Table) -> None:
    staged = commit(storage, table, storage.stage_append(table, people("ann")))
    store.put(staged.manifest, b"junk" + transaction_mark(pinned(staged)))
    with pytest.raises(InvariantViolation, match=f"{staged.manifest} is not a Lance manifest"):
        main_storage(store).open(PERSON, pinned(staged))


@pytest.mark.parametrize(("left", "what"), [(None, "is not there"), (b"L", "has 1 bytes instead of")])
@pytest.mark.parametrize("overwrites", [False, True])
def test_rows_that_were_staged_and_are_gone_or_cut_short_are_not_committed(
    any_root: Root, left: bytes | None, what: str, overwrites: bool
) -> None:
    """A sweep or a foreign hand deleted them; the version would be pinned, and its readers would fail for ever."""
    store = new_store(any_root)
    storage = main_storage(store)
    table = created(storage, store)
    staged = storage.stage_rows(table, people("ann"))
    storage.forget_rows(PATH, staged)
    if left is not None:
        store.put(f"{PATH}/data/{staged.files[0]}", left)
    change = (storage.stage_overwrite if overwrites else storage.stage_append)(table, staged)
    with pytest.raises(InputError, match=f"{staged.files[0]} {what}.*; nothing was written: stage its rows again"):
        commit(storage, table, change)


def test_a_mirror_that_can_t_be_made_leaves_no_folder(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def scratch_folder(purpose: str) -> Path:
        made.append(tmp_path / purpose)
        made[0].mkdir()
        return made[0]

    monkeypatch.setattr(mirror, "scratch_folder", scratch_folder)
    with contextlib.suppress(OSError, ValueError):
        pytest.fail(f"a mirror of junk: {Mirrors(store, STORAGE_VERSION).of(PATH, 1, b'junk')}")
    assert [folder.exists() for folder in made] == [False]


def test_data_that_is_gone_is_an_error_of_the_store(storage: TableStorage, table: Table) -> None:
    staged = storage.stage_rows(table, people("ann"))
    storage.forget_rows(PATH, staged)
    with pytest.raises(StorageError, match="node:Person"):
        list(storage.read_staged(PERSON, PATH, staged))


def test_a_type_is_the_same_by_name_and_by_key() -> None:
    found: ElementType = parse_schema(SCHEMA).by_table_key[PERSON.table_key]
    assert found == PERSON
