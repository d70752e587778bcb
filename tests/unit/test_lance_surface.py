"""What the engine relies on in Lance's own commits, pinned, so that an upgrade that changes it says so here first.

Some of these behaviours are traps. A trap that is gone is good news: find the code that goes around it, then the test.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import lance
import pytest
from lance.commit import CommitConflictError
from lance.file import LanceFileReader
from lance.fragment import FragmentMetadata, write_fragments
from lance.optimize import Compaction

from tests.lance_tables import adding, append, deleting, ids, new_table, plain, rows, updating


def commit(dataset: lance.LanceDataset, operation: lance.LanceOperation.BaseOperation) -> lance.LanceDataset:
    return lance.LanceDataset.commit(dataset, operation, read_version=dataset.version, max_retries=0)


# Staging


def test_staged_rows_belong_to_no_table_until_they_are_committed(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"))
    staged = write_fragments(rows("b"), dataset)
    assert ids(plain(dataset)) == ["a"]
    assert ids(commit(dataset, lance.LanceOperation.Append(staged))) == ["a", "b"]


def test_staged_rows_can_be_sent_to_another_process(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"))
    (fragment,) = write_fragments(rows("b"), dataset)
    pickled = pickle.loads(pickle.dumps(fragment))
    as_json = FragmentMetadata.from_json(json.dumps(fragment.to_json()))
    assert pickled == as_json == fragment
    assert fragment.num_rows == 1


def test_staged_rows_know_the_size_of_their_files(tmp_path: Path) -> None:
    """The tail is folded while it is small, by rows and by bytes."""
    dataset = new_table(tmp_path, rows("a"))
    (fragment,) = write_fragments(rows("b", "c"), dataset)
    (file,) = fragment.files
    assert file.file_size_bytes == (tmp_path / "table" / "data" / file.path).stat().st_size
    assert fragment.physical_rows == 2


def test_staged_rows_can_be_read_back_before_any_table_refers_to_them(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"))
    (fragment,) = write_fragments(rows("b", "c"), dataset, data_storage_version="2.1")
    (file,) = fragment.files
    read = LanceFileReader(f"{dataset.uri}/data/{file.path}").read_all().to_table()
    assert read.column("id").to_pylist() == ["b", "c"]


def test_a_row_address_names_its_fragment_in_the_upper_half(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"), rows("b", "c"))
    found = dataset.scanner(columns=["id"], filter="id in ('a', 'c')", with_row_address=True).to_table()
    assert found.column("_rowaddr").to_pylist() == [0, (1 << 32) + 1]


def test_a_fragment_gives_up_rows_by_address_and_none_is_left_when_all_are_gone(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a", "b"), rows("c"))
    less = deleting(dataset, 0, "a")
    assert less is not None
    assert (less.num_rows, less.num_deletions) == (1, 1)
    assert deleting(dataset, 1, "c") is None
    assert ids(plain(dataset)) == ["a", "b", "c"]
    after = commit(dataset, lance.LanceOperation.Delete([less], [1], "by address"))
    assert ids(after) == ["b"]


def test_addresses_can_be_given_as_ranges(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a", "b", "c", "d"))
    less = dataset.get_fragment(0).delete("_rowaddr between 0 and 1 or _rowaddr between 3 and 3")
    assert ids(commit(dataset, updating(updated=[less]))) == ["c"]


# Committing


def test_inserts_replacements_and_deletes_are_one_version(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a", "b"), rows("c"), rows("d"))
    less = deleting(dataset, 0, "a")
    after = commit(dataset, updating(removed=[1], updated=[less], new=write_fragments(rows("c", "e"), dataset)))
    after.validate()
    assert after.version == dataset.version + 1
    assert ids(plain(after)) == ["b", "c", "d", "e"]


def test_an_update_that_adds_nothing_is_a_delete(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a", "b"), rows("c"))
    after = commit(dataset, updating(removed=[1], updated=[deleting(dataset, 0, "b")]))
    after.validate()
    assert ids(plain(after)) == ["a"]


def test_a_small_newest_fragment_can_be_folded_into_its_successor(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"))
    for name in "bcd":
        (tail,) = dataset.get_fragments()
        folded = write_fragments(rows(*ids(dataset), name), dataset)
        dataset = commit(dataset, updating(removed=[tail.fragment_id], new=folded))
    assert ids(plain(dataset)) == ["a", "b", "c", "d"]
    assert len(dataset.get_fragments()) == 1


def test_an_overwrite_may_be_empty_and_keeps_the_schema(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"))
    after = commit(dataset, lance.LanceOperation.Overwrite(dataset.schema, []))
    assert (after.version, after.count_rows(), after.schema) == (2, 0, dataset.schema)
    assert ids(append(after, rows("b"))) == ["b"]


def test_a_table_can_be_born_empty(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows())
    assert (dataset.version, dataset.count_rows(), dataset.get_fragments()) == (1, 0, [])


def test_a_transactions_uuid_and_properties_can_be_read_back(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"))
    uuid = "01234567-89ab-cdef-0123-456789abcdef"
    properties = {"operation": "01J", "actor": "zoë"}
    transaction = lance.Transaction(1, adding(dataset, rows("b")), uuid, transaction_properties=properties)
    lance.LanceDataset.commit(dataset, transaction)
    append(plain(dataset), rows("c"))
    found = plain(dataset).read_transaction(2)
    assert (found.uuid, found.read_version, found.transaction_properties) == (uuid, 1, properties)


def test_a_version_is_read_as_it_was(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"), rows("b"))
    commit(dataset, updating(removed=[0]))
    assert ids(lance.dataset(dataset.uri, version=2)) == ["a", "b"]
    assert ids(lance.dataset(dataset.uri, version=3)) == ["b"]


# Conflicts


def test_a_stale_append_is_rebased_without_a_word(tmp_path: Path) -> None:
    """Trap: only the version that came out says that somebody was faster."""
    dataset = new_table(tmp_path, rows("a"))
    late = adding(dataset, rows("late"))
    append(dataset, rows("early"))
    after = lance.LanceDataset.commit(dataset, late, read_version=1, max_retries=0)
    assert after.version == 3
    assert ids(after) == ["a", "early", "late"]


def test_the_same_append_twice_adds_its_rows_twice(tmp_path: Path) -> None:
    """Trap: a transaction's uuid makes nothing idempotent."""
    dataset = new_table(tmp_path, rows("a"))
    transaction = lance.Transaction(1, adding(dataset, rows("b")), "01234567-89ab-cdef-0123-456789abcdef")
    lance.LanceDataset.commit(dataset, transaction)
    lance.LanceDataset.commit(dataset, transaction)
    assert ids(plain(dataset)) == ["a", "b", "b"]


def test_two_staged_merges_of_one_new_key_both_land(tmp_path: Path) -> None:
    """Trap: a key's uniqueness is ours to keep."""
    dataset = new_table(tmp_path, rows("a"))
    merge = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    staged = [merge.execute_uncommitted(rows("new", value=value))[0] for value in (1, 2)]
    for transaction in staged:
        lance.LanceDataset.commit(dataset, pickle.loads(pickle.dumps(transaction)), max_retries=0)
    assert ids(plain(dataset)) == ["a", "new", "new"]


def test_updates_of_one_fragment_conflict_though_their_rows_differ(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a", "b", "c"))
    first, second = (updating(updated=[deleting(dataset, 0, name)]) for name in "ab")
    commit(dataset, first)
    with pytest.raises(CommitConflictError, match="Retryable commit conflict"):
        commit(dataset, second)
    assert ids(plain(dataset)) == ["b", "c"]


def test_updates_of_different_fragments_both_land(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"), rows("b"), rows("c"))
    commit(dataset, updating(removed=[0]))
    after = commit(dataset, updating(removed=[1]))
    assert after.version == dataset.version + 2
    assert ids(after) == ["c"]


def test_swapping_a_fragment_is_a_compare_and_swap(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("head", value=1))
    winner, loser = (updating(removed=[0], new=write_fragments(rows("head", value=value), dataset)) for value in (2, 3))
    commit(dataset, winner)
    with pytest.raises(CommitConflictError):
        commit(dataset, loser)
    assert plain(dataset).to_table().column("value").to_pylist() == [2]


# Indexes and maintenance


def test_an_index_is_staged_and_moves_the_table_only_when_committed(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a", "b"), rows("c"))
    segment = dataset.create_index_uncommitted("id", "BTREE", name="by_id", fragment_ids=[0])
    assert plain(dataset).version == 2
    after = dataset.commit_existing_index_segments("by_id", "id", [segment])
    assert after.version == plain(dataset).version == 3
    assert after.count_rows("id in ('b', 'c')") == 2


def test_another_segment_of_an_index_leaves_the_first_one_in_place(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a", "b"), rows("c"))
    first = dataset.create_index_uncommitted("id", "BTREE", name="by_id", fragment_ids=[0])
    dataset = dataset.commit_existing_index_segments("by_id", "id", [first])
    second = dataset.create_index_uncommitted("id", "BTREE", name="by_id", replace=True, fragment_ids=[1])
    dataset = dataset.commit_existing_index_segments("by_id", "id", [second])
    assert dataset.stats.index_stats("by_id")["num_unindexed_fragments"] == 0
    assert dataset.stats.index_stats("by_id")["num_indices"] == 2


def test_a_compaction_reserves_and_then_rewrites(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"), rows("b"))
    before = dataset.version
    plan = Compaction.plan(dataset, {})
    results = [pickle.loads(pickle.dumps(task)).execute(dataset) for task in plan.tasks]
    Compaction.commit(dataset, results)
    after = plain(dataset)
    assert (after.version, len(after.get_fragments())) == (before + 2, 1)
    assert ids(after) == ["a", "b"]


def test_a_branch_of_a_table_goes_on_counting_in_a_folder_of_its_own(tmp_path: Path) -> None:
    dataset = new_table(tmp_path, rows("a"), rows("b"))
    branch = dataset.create_branch("side")
    after = append(branch, rows("c"))
    assert after.version == 3
    assert (ids(plain(dataset)), ids(dataset.checkout_version(("side", None)))) == (["a", "b"], ["a", "b", "c"])
    assert (tmp_path / "table" / "tree" / "side").is_dir()
