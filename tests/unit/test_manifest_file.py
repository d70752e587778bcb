"""The bytes of a manifest file: a handle is made of them without a request, and what is none is refused."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import lance
import pytest

from omniray.engine.base.errors import InvariantViolation
from omniray.engine.store.open_store import open_store
from omniray.engine.tables import versions
from omniray.engine.tables.manifest_file import index_section, serialised
from omniray.engine.tables.version_names import final_path
from tests.lance_tables import final_file, ids, new_table, rows


def made_of(dataset: lance.LanceDataset) -> bytes:
    """The newest manifest's file."""
    return final_file(dataset, dataset.version).read_bytes()


@pytest.mark.parametrize("has_index", [False, True], ids=["the manifest alone", "an index section before it"])
def test_what_is_cut_out_is_what_lance_itself_hands_out_and_reads(tmp_path: Path, has_index: bool) -> None:
    dataset = new_table(tmp_path, rows("a", "b"))
    if has_index:
        dataset.create_scalar_index("id", "BTREE")
        dataset = lance.dataset(dataset.uri)
    found = serialised(made_of(dataset), where="here")
    assert found == dataset._ds.serialized_manifest()
    again = lance.LanceDataset(dataset.uri, version=dataset.version, serialized_manifest=found)
    assert ids(again) == ["a", "b"]
    assert again.count_rows("id = 'a'") == 1


def described(dataset: lance.LanceDataset) -> bytes:
    return index_section(made_of(dataset), where="here")


def folders(dataset: lance.LanceDataset) -> set[str]:
    return {f"_indices/{segment.uuid}" for index in dataset.describe_indices() for segment in index.segments}


def indexed(dataset: lance.LanceDataset, column: str = "id") -> lance.LanceDataset:
    dataset.create_scalar_index(column, "BTREE", name=f"by_{column}_{dataset.version}")
    return lance.dataset(dataset.uri)


def appended(dataset: lance.LanceDataset, *names: str) -> lance.LanceDataset:
    return lance.write_dataset(rows(*names), dataset.uri, mode="append")


def test_the_description_of_indexes_changes_with_them_and_with_nothing_else(tmp_path: Path) -> None:
    plain = new_table(tmp_path, rows("a", "b"))
    first = indexed(appended(plain, "c"))
    second = indexed(appended(first, "d"))
    assert described(plain) == b""
    assert described(first) != b""
    assert described(second) not in (b"", described(first))
    third = appended(second, "e")
    assert described(third) == described(second)
    assert folders(third) == folders(second) > folders(first)
    third.drop_index(third.describe_indices()[0].name)
    assert described(lance.dataset(third.uri)) not in (b"", described(second))


def test_every_version_refers_to_its_indexes_and_lance_describes_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = new_table(tmp_path, rows("a"))
    table = Path(dataset.uri).name
    expected = {1: set[str]()}
    for change in (appended, indexed, appended, appended, indexed, appended):
        dataset = change(dataset, "id" if change is indexed else f"row {dataset.version}")
        expected[dataset.version] = folders(dataset)
    looks = Mock(wraps=versions._index_folders)
    monkeypatch.setattr(versions, "_index_folders", looks)
    reader = versions.VersionReader(open_store(Path(dataset.uri).parent))
    for version, found in expected.items():
        files = reader.references(table, final_path(table, version))
        assert {file for file in files if file.startswith("_indices")} == found, version
    assert looks.call_count == 2, "two descriptions in seven versions"


@pytest.mark.parametrize("broken", ["nothing", "short", "cut at the end", "cut at the start", "another magic", "zeros"])
def test_what_is_no_manifest_is_refused_and_named(tmp_path: Path, broken: str) -> None:
    whole = made_of(new_table(tmp_path, rows("a")))
    data = {
        "nothing": b"",
        "short": b"LANC",
        "cut at the end": whole[:-3],
        "cut at the start": whole[len(whole) // 2 :],
        "another magic": whole[:-4] + b"PAR1",
        "zeros": bytes(len(whole)),
    }[broken]
    with pytest.raises(InvariantViolation, match=r"here is not a Lance manifest; restore it from a backup"):
        serialised(data, where="here")
    with pytest.raises(InvariantViolation, match=r"here is not a Lance manifest; restore it from a backup"):
        index_section(data, where="here")
