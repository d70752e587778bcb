"""What is fsynced before a commit on a disk: the commit object alone, or everything that the commit refers to."""

from __future__ import annotations

from pathlib import Path

import pytest

import omniray
from omniray.engine.commit.create_graph import create_graph
from omniray.engine.store import directory as store

SCHEMA = "node Person { name: String @key   age: I32? }"
UPDATE = 'query older() { update Person set { age: 1 } where name = "p5" }'


def _synced(root: Path, durability: str, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    omniray.init(str(root), schema=SCHEMA).close()
    synced: list[Path] = []
    with omniray.open(str(root), durability=durability) as graph:
        graph.load([{"type": "Person", "data": {"name": f"p{n}", "age": n}} for n in range(2000)])
        monkeypatch.setattr(store, "_fsync", lambda path: synced.append(path.relative_to(root)))
        graph.mutate(UPDATE)
    return synced


def test_every_file_and_folder_of_a_commit_is_fsynced_when_it_must_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version is staged in a folder of its own, which is new: its name has to last, too."""
    synced = _synced(tmp_path / "g", "power", monkeypatch)
    table = Path("nodes/Person.lance")
    (staged,) = {path for path in synced if path.parent == table / "_staged"}
    folders = [*(table / name for name in ("_deletions", "_transactions", "data")), staged]
    for folder in folders:
        assert [path for path in synced if path.parent == folder], f"no file in {folder} was fsynced"
    (line,) = {path for path in synced if path.parent == Path("__commits")}
    committed = synced.index(line)
    assert {*folders, table / "_staged", table} <= set(synced[:committed]), "before the object that refers to it"
    assert table / "_versions" in synced[committed:], "the final name comes behind it"


@pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])
def test_every_folder_of_a_new_graph_is_fsynced_in_the_one_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_guard: bool
) -> None:
    """The twin fsyncs files and their folders alone: those of a table would be lost with the name of the table's."""
    root, synced = tmp_path / "g", list[Path]()
    monkeypatch.setattr(store, "_fsync", synced.append)
    if not has_guard:
        monkeypatch.setattr(
            store.DirectoryStore, "_make_folder", lambda self, folder: folder.mkdir(parents=True, exist_ok=True)
        )
    create_graph(store.DirectoryStore(root, store.Durability.POWER), SCHEMA)
    made = {path for path in (root, *root.rglob("*")) if path.is_dir() and "__manifest" not in path.parts}
    forgotten = {path.name for path in made if path.parent not in synced}
    assert ({"g", "Person.lance", "_staged"} <= forgotten) is not has_guard
    assert not (has_guard and forgotten)


def test_the_fold_survives_a_power_cut_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is folded is read by nobody else: a manifest with an empty data file would be the end of the history."""
    synced = _synced(tmp_path / "g", "power", monkeypatch)
    manifest = Path("__manifest")
    folders = [manifest / name for name in ("_transactions", "_versions", "data")]
    for folder in folders:
        assert [path for path in synced if path.parent == folder], f"no file in {folder} was fsynced"
    assert set(folders) <= set(synced)
    assert synced.index(manifest / "data") < len(synced) - 1 - synced[::-1].index(manifest / "_versions")


def test_a_commit_waits_for_no_disk_when_it_need_survive_the_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _synced(tmp_path / "g", "process", monkeypatch) == []


def test_an_unknown_durability_is_refused(tmp_path: Path) -> None:
    with pytest.raises(omniray.InputError, match="use process or power"):
        omniray.open(str(tmp_path), durability="eternal")
