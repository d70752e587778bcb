"""What is fsynced before a commit on a disk: the commit object alone, or everything that the commit refers to."""

from __future__ import annotations

from pathlib import Path

import pytest

import omniray
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
    synced = _synced(tmp_path / "g", "power", monkeypatch)
    table = Path("nodes/Person.lance")
    folders = [table / name for name in ("_deletions", "_transactions", "_versions", "data")]
    for folder in folders:
        assert [path for path in synced if path.parent == folder], f"no file in {folder} was fsynced"
    assert set(folders) <= set(synced)
    committed = next(n for n, path in enumerate(synced) if path.parent == Path("__commits"))
    assert set(folders) <= set(synced[:committed]), "the line's folder comes after all that its object refers to"


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
