"""The folders of staged versions: made a few times, used again and again, gone at the end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import omniray
from omniray.engine.store.directory import DirectoryStore
from omniray.engine.tables.staged_folders import SPARE_MAX, StagedFolders

INSERT = "query one($name: String) { insert Person { name: $name } }"
STAGED = "nodes/Person.lance/_staged"


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    (tmp_path / "g" / STAGED).mkdir(parents=True)
    return DirectoryStore(tmp_path / "g")


@pytest.fixture
def folders(store: DirectoryStore) -> StagedFolders:
    return StagedFolders(store)


def staged(folders: StagedFolders, store: DirectoryStore, name: str) -> str:
    """Stage a manifest in a folder of this name; returns the folder."""
    source = store.root.parent / f"made-{name}"
    source.write_bytes(name.encode())
    assert folders.move_in(source, f"{STAGED}/{name}/manifest")
    assert store.get(f"{STAGED}/{name}/manifest") == name.encode()
    return f"{STAGED}/{name}"


def emptied(folders: StagedFolders, store: DirectoryStore, name: str) -> str:
    """The same after Phase D: the manifest is deleted, and the folder retired."""
    folder = staged(folders, store, name)
    store.delete(f"{folder}/manifest")
    folders.retire(folder)
    return folder


def names(store: DirectoryStore) -> list[str]:
    return sorted(os.listdir(store.root / STAGED))


def test_a_busy_writer_neither_creates_nor_deletes_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both cost a small write more than all else that it does."""
    made: list[str] = []
    mkdir, rmdir = os.mkdir, os.rmdir

    def noted_mkdir(path: str | Path, *args: Any, **kwargs: Any) -> None:
        made.append(str(path))
        mkdir(path, *args, **kwargs)

    def noted_rmdir(path: str | Path, *args: Any, **kwargs: Any) -> None:
        made.append(str(path))
        rmdir(path, *args, **kwargs)

    with omniray.init(str(tmp_path / "g"), schema="node Person { name: String @key }") as graph:
        with monkeypatch.context() as patch:
            patch.setattr(os, "mkdir", noted_mkdir)
            patch.setattr(os, "rmdir", noted_rmdir)
            for n in range(64):
                if n == 40:
                    assert [path for path in made if "/_staged/" in path], "at first it does"
                    made.clear()
                graph.mutate(INSERT, {"name": f"p{n}"})
                graph.flush()
        assert [path for path in made if "/_staged/" in path] == []
    assert not list((tmp_path / "g" / STAGED).glob("*")), "none is left when the graph is closed"


def test_an_emptied_folder_becomes_the_next_version_s(store: DirectoryStore, folders: StagedFolders) -> None:
    first = emptied(folders, store, "first")
    inode = (store.root / first).stat().st_ino
    second = staged(folders, store, "second")
    assert (store.root / second).stat().st_ino == inode
    assert names(store) == ["second"]


def test_a_folder_that_another_process_has_deleted_is_made_anew(store: DirectoryStore, folders: StagedFolders) -> None:
    os.rmdir(store.root / emptied(folders, store, "first"))
    staged(folders, store, "second")
    assert names(store) == ["second"]


def test_a_folder_that_still_holds_a_file_is_no_other_version_s(store: DirectoryStore, folders: StagedFolders) -> None:
    folders.retire(staged(folders, store, "first"))
    staged(folders, store, "second")
    assert names(store) == ["first", "second"]


def test_a_process_that_stages_nothing_keeps_no_folder(store: DirectoryStore, folders: StagedFolders) -> None:
    folder = staged(folders, store, "first")
    store.delete(f"{folder}/manifest")
    StagedFolders(store).retire(folder)
    assert names(store) == []


def test_only_so_many_folders_are_kept_and_none_at_the_end(store: DirectoryStore, folders: StagedFolders) -> None:
    made = [staged(folders, store, f"{n:03}") for n in range(SPARE_MAX + 8)]
    for folder in made:
        store.delete(f"{folder}/manifest")
        folders.retire(folder)
    assert len(names(store)) == SPARE_MAX
    folders.close()
    assert names(store) == []


def test_a_sweep_deletes_the_folders_that_a_killed_process_kept(tmp_path: Path) -> None:
    with omniray.init(str(tmp_path / "g"), schema="node Person { name: String @key }") as graph:
        kept = tmp_path / "g" / STAGED / "of-a-process-before"
        kept.mkdir(parents=True, exist_ok=True)
        graph.mutate(INSERT, {"name": "ann"})
        graph.sweep(older_than_s=0)
        assert not kept.exists()
        graph.mutate(INSERT, {"name": "bob"})
        assert graph.snapshot().count("Person") == 2
