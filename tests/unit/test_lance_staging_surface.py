"""What the engine relies on in versions that we keep ourselves: commits that are given a namespace client.

Pinned, so that an upgrade that changes it says so here first. Some of these behaviours are traps; a trap that is gone
is good news: find the code that goes around it, then the test.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest
from lance.commit import CommitConflictError
from lance.fragment import write_fragments

from tests.lance_tables import (
    Recorder,
    adding,
    append,
    deleting,
    final_file,
    finalise,
    ids,
    new_table,
    opened_with,
    plain,
    rows,
    stage,
    staging_file,
    updating,
    versions_folder,
)


def relative_to_store(path: Path) -> str:
    """A path as Lance names it inside a store: on disk, without the first slash."""
    return str(path).lstrip("/")


# Who sees a staged version


def test_a_staged_version_is_seen_by_its_own_handle_and_by_nobody_else(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"))
    staged = stage(dataset, adding(dataset, rows("b")), Recorder())
    assert (staged.version, ids(staged)) == (2, ["a", "b"])
    assert (plain(dataset).version, ids(plain(dataset))) == (1, ["a"])
    assert [version["version"] for version in plain(dataset).versions()] == [1]


def test_a_version_without_its_final_name_cannot_be_opened(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"))
    stage(dataset, adding(dataset, rows("b")), Recorder())
    with pytest.raises(ValueError, match="not found"):
        lance.dataset(dataset.uri, version=2)


def test_the_client_is_told_version_and_path_and_nothing_is_asked_of_it(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"))
    client = Recorder()
    stage(dataset, adding(dataset, rows("b")), client)
    (request,) = client.created
    assert request["version"] == 2
    assert request["id"] == ["table"]
    assert request["manifest_path"] == relative_to_store(staging_file(dataset, request))
    assert request["manifest_size"] == staging_file(dataset, request).stat().st_size
    assert client.described == []


def test_staging_and_final_names_begin_with_the_same_twenty_digits(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"))
    client = Recorder()
    stage(dataset, adding(dataset, rows("b")), client)
    name = Path(client.created[0]["manifest_path"]).name
    assert re.fullmatch(r"\d{20}\.manifest-[0-9a-f-]{36}", name)
    assert name.startswith(final_file(dataset, 2).name + "-")
    assert final_file(dataset, 1).exists()


def test_the_manifest_names_the_transaction_that_made_it(tmp_path: Path) -> None:
    """So a manifest's bytes tell whose version it is, without opening the table."""
    dataset = new_table(tmp_path, rows("a"))
    client = Recorder()
    uuid = "01234567-89ab-cdef-0123-456789abcdef"
    stage(dataset, lance.Transaction(1, adding(dataset, rows("b")), uuid), client)
    assert f"1-{uuid}.txn".encode() in staging_file(dataset, client.created[0]).read_bytes()


def test_the_uuid_of_a_staged_transaction_can_be_read_once_it_is_final(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"))
    uuid = "01234567-89ab-cdef-0123-456789abcdef"
    client = Recorder()
    stage(dataset, lance.Transaction(1, adding(dataset, rows("b")), uuid), client)
    finalise(dataset, client.created[0])
    assert plain(dataset).read_transaction(2).uuid == uuid


# Final names


def test_the_same_bytes_under_the_final_name_are_the_version(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"))
    client = Recorder()
    stage(dataset, adding(dataset, rows("b")), client)
    finalise(dataset, client.created[0])
    assert (plain(dataset).version, ids(plain(dataset))) == (2, ["a", "b"])
    staging_file(dataset, client.created[0]).unlink()
    assert ids(append(plain(dataset), rows("c"))) == ["a", "b", "c"]


def test_a_chain_of_staged_updates_is_exact_at_every_version_once_finalised(tmp_path: Path) -> None:
    dataset = handle = new_table(tmp_path, rows("0x", "0y"))
    client = Recorder()
    expected = {1: {"0x", "0y"}}
    for number in range(1, 9):
        before, x, y = handle.get_fragments()[-1].fragment_id, f"{number - 1}x", f"{number - 1}y"
        new = write_fragments(rows(f"{number}x", f"{number}y"), handle)
        if number % 2:
            change, gone = updating(updated=[deleting(handle, before, x)], new=new), {x}
        else:
            change, gone = updating(removed=[before], new=new), {x, y}
        handle = stage(handle, change, client)
        expected[number + 1] = expected[number] - gone | {f"{number}x", f"{number}y"}
    assert plain(dataset).version == 1
    for request in client.created:
        finalise(dataset, request)
    assert {n: set(ids(lance.dataset(dataset.uri, version=n))) for n in expected} == expected
    plain(dataset).validate()


def test_the_order_of_final_names_does_not_matter_to_the_latest(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"))
    client = Recorder()
    second = stage(dataset, adding(dataset, rows("b")), client)
    stage(second, adding(second, rows("c")), client)
    finalise(dataset, client.created[1])
    assert (plain(dataset).version, ids(plain(dataset))) == (3, ["a", "b", "c"])
    finalise(dataset, client.created[0])
    assert (plain(dataset).version, ids(lance.dataset(dataset.uri, version=2))) == (3, ["a", "b"])


def test_a_stale_hint_of_the_latest_version_is_coped_with(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"))
    hint = versions_folder(dataset) / "latest_version_hint.json"
    before = hint.read_bytes()
    client = Recorder()
    stage(dataset, adding(dataset, rows("b")), client)
    finalise(dataset, client.created[0])
    hint.write_bytes(before)
    assert plain(dataset).version == 2


# Giving up


def test_an_attempt_can_be_forgotten_and_made_again_under_the_same_number(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"))
    client = Recorder()
    stage(dataset, adding(dataset, rows("loser")), client)
    again = stage(lance.dataset(dataset.uri, version=1), adding(dataset, rows("winner")), client)
    assert [request["version"] for request in client.created] == [2, 2]
    assert client.created[0]["manifest_path"] != client.created[1]["manifest_path"]
    finalise(dataset, client.created[1])
    assert ids(plain(dataset)) == ids(again) == ["a", "winner"]


def test_a_losers_handle_goes_on_reading_its_own_rows(tmp_path: Path) -> None:
    """Trap: checking its version out again changes nothing. Drop the handle."""
    dataset = new_table(tmp_path, rows("a"))
    loser = stage(dataset, adding(dataset, rows("loser")), Recorder())
    append(dataset, rows("winner"))
    assert ids(loser.checkout_version(2)) == ["a", "loser"]
    assert ids(plain(dataset)) == ["a", "winner"]


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("no"), RuntimeError("no")])
def test_a_client_that_raises_leaves_the_outcome_unknown_and_its_type_is_lost(tmp_path: Path, error: Exception) -> None:
    def refuse(request: Any) -> None:
        raise error

    dataset = new_table(tmp_path, rows("a"))
    client = Recorder(on_create=refuse)
    with pytest.raises(OSError, match="unknown"):
        stage(dataset, adding(dataset, rows("b")), client)
    assert (len(client.created), len(client.described)) == (1, 4)
    assert ids(plain(dataset)) == ["a"]


# What stages, and what does not


OPERATIONS: dict[str, Callable[[lance.LanceDataset], object]] = {
    "insert": lambda handle: handle.insert(rows("z")),
    "delete": lambda handle: handle.delete("id = 'a'"),
    "update": lambda handle: handle.update({"value": "9"}),
    "merge": lambda handle: handle.merge_insert("id").when_not_matched_insert_all().execute(rows("z")),
    "scalar index": lambda handle: handle.create_scalar_index("id", "BTREE"),
    "optimize indices": lambda handle: handle.optimize.optimize_indices(),
    "add column": lambda handle: handle.add_columns({"twice": "value * 2"}),
    "alter column": lambda handle: handle.alter_columns({"path": "value", "name": "renamed"}),
    "drop column": lambda handle: handle.drop_columns(["value"]),
    "config": lambda handle: handle.update_config({"key": "value"}),
}


def indexed_table(folder: Path) -> lance.LanceDataset:
    new_table(folder, rows("a"), rows("b")).create_scalar_index("value", "BTREE")
    return append(lance.dataset(str(folder / "table")), rows("c"))


def final_names(dataset: lance.LanceDataset) -> Recorder:
    """A client that knows final versions only, which is all that a handle of one asks for."""
    return Recorder(manifest_of=lambda version: relative_to_store(final_file(dataset, version)))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_lance_does_in_one_piece_is_staged_too(tmp_path: Path, operation: str) -> None:
    dataset = indexed_table(tmp_path)
    client = final_names(dataset)
    OPERATIONS[operation](opened_with(dataset, client))
    assert [request["version"] for request in client.created] == [dataset.version + 1]
    assert plain(dataset).version == dataset.version
    finalise(dataset, client.created[0])
    after = plain(dataset)
    after.validate()
    assert after.version == dataset.version + 1


def test_a_compaction_creates_one_number_twice_and_the_last_one_counts(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"), rows("b"), rows("c"))
    client = final_names(dataset)
    opened_with(dataset, client).optimize.compact_files()
    assert [request["version"] for request in client.created] == [4, 4]
    finalise(dataset, client.created[-1])
    assert (ids(plain(dataset)), len(plain(dataset).get_fragments())) == (["a", "b", "c"], 1)


def test_a_commit_without_the_arguments_is_visible_at_once_on_a_staged_handle_too(tmp_path: Path) -> None:
    """Trap: a handle does not remember the client of the commit that made it."""
    dataset = new_table(tmp_path, rows("a"))
    staged = stage(dataset, adding(dataset, rows("b")), Recorder())
    append(staged, rows("c"))
    assert ids(plain(dataset)) == ["a", "b", "c"]


def test_pickling_a_handle_drops_its_client(tmp_path: Path) -> None:
    """Trap: a commit on the copy is visible at once."""
    dataset = new_table(tmp_path, rows("a"))
    client = final_names(dataset)
    copy = pickle.loads(pickle.dumps(opened_with(dataset, client)))
    copy.insert(rows("b"))
    assert client.created == []
    assert ids(plain(dataset)) == ["a", "b"]


# What Lance does not notice


def test_a_merge_prepared_before_a_staged_version_takes_its_number_again(tmp_path: Path) -> None:
    """Trap: staged versions are outside Lance's conflict check. Prepare on the handle of the pin."""
    dataset = new_table(tmp_path, rows("a"))
    merge = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    early, _ = merge.execute_uncommitted(rows("early"))
    staged = stage(dataset, adding(dataset, rows("b")), Recorder())
    after = stage(staged, early, Recorder())
    assert (staged.version, after.version) == (2, 2)
    assert ids(after) == ["a", "early"]


def test_a_fragment_prepared_before_a_staged_version_brings_a_deleted_row_back(tmp_path: Path) -> None:
    """Trap: with the right number, and without a word."""
    dataset = new_table(tmp_path, rows("a", "b", "c"))
    without_b = deleting(dataset, 0, "b")
    staged = stage(dataset, updating(updated=[deleting(dataset, 0, "a")]), Recorder())
    after = stage(staged, updating(updated=[without_b]), Recorder())
    assert after.version == 3
    assert ids(after) == ["a", "c"]


def test_rows_staged_before_a_staged_version_may_be_committed_on_top_of_it(tmp_path: Path) -> None:
    """New data files are the one thing that may be prepared ahead."""
    dataset = new_table(tmp_path, rows("a"))
    ahead = write_fragments(rows("ahead"), dataset)
    staged = stage(dataset, adding(dataset, rows("b")), Recorder())
    after = stage(staged, lance.LanceOperation.Append(ahead), Recorder())
    assert (after.version, ids(after)) == (3, ["a", "ahead", "b"])


def test_after_a_foreign_commit_ours_comes_out_one_too_high(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"))
    append(dataset, rows("foreign"))
    client = Recorder()
    after = stage(dataset, adding(dataset, rows("ours")), client)
    assert after.version == client.created[0]["version"] == 3
    assert ids(plain(dataset)) == ["a", "foreign"]


def test_a_foreign_commit_between_staging_and_final_name_shows_in_the_bytes_only(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"))
    client = Recorder()
    staged = stage(dataset, adding(dataset, rows("ours")), client)
    append(dataset, rows("foreign"))
    assert stage(staged, adding(staged, rows("more")), client).version == 3
    assert final_file(dataset, 2).read_bytes() != staging_file(dataset, client.created[0]).read_bytes()


@pytest.mark.parametrize("operation", ["append", "update"])
def test_after_a_foreign_commit_a_conflicting_update_is_refused_and_an_append_is_not(
    tmp_path: Path, operation: str
) -> None:
    dataset = new_table(tmp_path, rows("a", "b"))
    plain(dataset).delete("id = 'a'")
    if operation == "append":
        assert stage(dataset, adding(dataset, rows("c")), Recorder()).version == 3
    else:
        with pytest.raises(CommitConflictError, match="Retryable commit conflict"):
            stage(dataset, updating(updated=[deleting(dataset, 0, "b")]), Recorder())


# What must never be handed to Lance


def test_a_staging_name_handed_back_gets_its_final_name_at_once(tmp_path: Path) -> None:
    """Trap: by a mere open, so that a reader would publish."""
    dataset = new_table(tmp_path, rows("a"))
    client = Recorder()
    staged = stage(dataset, adding(dataset, rows("b")), client)
    staging_path = client.created[0]["manifest_path"]
    assert not final_file(dataset, 2).exists()
    opened_with(staged, Recorder(manifest_of=lambda version: staging_path))
    assert final_file(dataset, 2).exists()
    assert ids(plain(dataset)) == ["a", "b"]


def test_a_staging_name_handed_back_overwrites_a_foreign_commit(tmp_path: Path) -> None:
    """Trap: the foreign rows are gone."""
    dataset = new_table(tmp_path, rows("a"))
    client = Recorder()
    staged = stage(dataset, adding(dataset, rows("ours")), client)
    append(dataset, rows("foreign"))
    opened_with(staged, Recorder(manifest_of=lambda version: client.created[0]["manifest_path"]))
    assert ids(plain(dataset)) == ["a", "ours"]


def test_a_path_that_ends_as_a_final_name_is_read_where_it_is(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"))
    client = Recorder()
    staged = stage(dataset, adding(dataset, rows("b")), client)
    elsewhere = tmp_path / final_file(dataset, 2).name
    elsewhere.write_bytes(staging_file(dataset, client.created[0]).read_bytes())
    handle = opened_with(staged, Recorder(manifest_of=lambda version: relative_to_store(elsewhere)))
    assert ids(handle) == ["a", "b"]
    assert not final_file(dataset, 2).exists()


def test_a_name_without_its_twenty_digits_spoils_the_names_that_follow(tmp_path: Path) -> None:
    """Trap: from then on the table no longer opens."""
    dataset = new_table(tmp_path, rows("a"))
    short = tmp_path / "1.manifest"
    short.write_bytes(final_file(dataset, 1).read_bytes())
    client = Recorder(manifest_of=lambda version: relative_to_store(short))
    handle = opened_with(dataset, client)
    stage(handle, adding(handle, rows("b")), client)
    staging = staging_file(dataset, client.created[0])
    assert staging.name.startswith("2.manifest-")
    staging.with_name("2.manifest").write_bytes(staging.read_bytes())
    with pytest.raises(ValueError, match="multiple manifest naming schemes"):
        plain(dataset)


def test_cleaning_up_on_a_staged_handle_destroys_the_table(tmp_path: Path) -> None:
    """Trap: clean-up only ever runs by URI, at a final version."""
    dataset = new_table(tmp_path, rows("a"), rows("b"))
    staged = stage(dataset, updating(removed=[0], new=write_fragments(rows("c"), dataset)), Recorder())
    staged.cleanup_old_versions(older_than=timedelta(0))
    with pytest.raises(ValueError, match="not found"):
        plain(dataset)


def test_cleaning_up_by_uri_leaves_a_staged_version_whole(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"), rows("b"))
    client = Recorder()
    stage(dataset, adding(dataset, rows("c")), client)
    plain(dataset).cleanup_old_versions(older_than=timedelta(0))
    assert not final_file(dataset, 1).exists()
    finalise(dataset, client.created[0])
    assert ids(plain(dataset)) == ["a", "b", "c"]


# What a client must be


class Bare:
    """A client by its methods alone, which answers with plain mappings."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []

    def namespace_id(self) -> str:
        return "bare"

    def create_table_version(self, request: dict[str, Any]) -> dict[str, Any]:
        self.created.append(request)
        return {"version": {"version": request["version"], "manifest_path": request["manifest_path"]}}


def test_a_client_need_not_be_of_the_clients_package(tmp_path: Path) -> None:
    """That package takes longer to import than Lance itself, so the engine does without."""
    dataset, client = new_table(tmp_path, rows("a")), Bare()
    staged = stage(dataset, adding(dataset, rows("b")), client)  # type: ignore[arg-type]
    assert (ids(staged), ids(plain(dataset)), len(client.created)) == (["a", "b"], ["a"], 1)


# Threads


def test_tables_are_staged_beside_each_other(tmp_path: Path) -> None:
    tables = [new_table(tmp_path / str(number), rows("a")) for number in range(4)]

    def stage_three(dataset: lance.LanceDataset) -> list[str]:
        for name in "bcd":
            dataset = stage(dataset, adding(dataset, rows(name)), Recorder())
        return ids(dataset)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(stage_three, tables)) == [["a", "b", "c", "d"]] * 4
    assert [plain(table).version for table in tables] == [1] * 4
