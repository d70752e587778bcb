"""Old versions leave `_versions/`, which Lance lists in every commit, and stay readable all the same."""

from __future__ import annotations

from typing import cast

import lance
import pytest

import omniray
from omniray.engine.base.errors import StorageError
from omniray.engine.commit import phase_d as finalise
from omniray.engine.history import cas_table as swap
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from omniray.engine.tables import old_versions as archive
from tests.graphs import insert, new_graph, people, reopen
from tests.kit.faulty_store import CallFault, Crashed, Effect, FaultyStore
from tests.stores import Root

TABLE = "nodes/Person.lance"


@pytest.fixture(autouse=True)
def few_versions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "KEPT_VERSIONS", 4)
    monkeypatch.setattr(swap, "KEPT_VERSIONS", 4)
    monkeypatch.setattr(finalise, "TIDY_FILES", 1)


@pytest.fixture
def graph(any_root: Root) -> omniray.Graph:
    return new_graph(any_root)


@pytest.fixture
def store(graph: omniray.Graph, any_root: Root) -> ObjectStore:
    return open_store(graph.uri, any_root.storage_options)


def kept(store: ObjectStore, table: str = TABLE) -> list[str]:
    return [name for name in store.names(f"{table}/_versions") if name.endswith(".manifest")]


def test_every_commit_stays_readable_while_few_versions_are_listed(
    graph: omniray.Graph, store: ObjectStore, any_root: Root
) -> None:
    names = [f"p{n:02}" for n in range(20)]
    for name in names:
        insert(graph, name)
        graph.flush()
    assert len(kept(store)) < 2 * archive.KEPT_VERSIONS
    commits = [entry.commit_id for entry in reversed(graph.history())]
    for handle in (graph, reopen(graph, any_root, read_only=True)):
        for count, commit_id in enumerate(commits):
            snapshot = handle.snapshot(at=commit_id)
            assert people(snapshot) == names[:count]
            assert snapshot.sql("select count(*) as n from Person")["n"].to_pylist() == [count]
        handle.close()


def test_plain_lance_sees_the_newest_version(graph: omniray.Graph, store: ObjectStore, any_root: Root) -> None:
    for n in range(9):
        insert(graph, f"p{n}")
    graph.close()
    plain = lance.dataset(f"{graph.uri}/{TABLE}", storage_options=any_root.storage_options)
    assert (plain.version, plain.count_rows()) == (10, 9)


def test_the_manifest_keeps_few_versions_of_its_own(graph: omniray.Graph, store: ObjectStore) -> None:
    for n in range(12):
        insert(graph, f"p{n}")
        graph.flush()
    assert len(kept(store, "__manifest")) < 2 * archive.KEPT_VERSIONS
    assert len(graph.history()) == 13
    graph.close()


def test_a_writer_whose_handle_is_older_than_what_is_kept_lands_on_top_of_the_others(
    graph: omniray.Graph, any_root: Root
) -> None:
    sleeper = reopen(graph, any_root)
    insert(sleeper, "early")
    sleeper.flush()
    for n in range(14):
        insert(graph, f"p{n:02}")
        graph.flush()
    insert(sleeper, "late")
    assert people(graph) == ["early", "late", *(f"p{n:02}" for n in range(14))]
    sleeper.close()
    graph.close()


def test_a_manifest_that_may_not_have_been_copied_is_not_deleted(
    graph: omniray.Graph, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(6):
        insert(graph, f"p{n}")
        graph.flush()
    graph.close()
    monkeypatch.setattr(archive, "KEPT_VERSIONS", 1)
    before = kept(store)
    faulty = FaultyStore(store)
    faulty.arm(CallFault(Effect.FAIL, frozenset({"copy"})))
    with pytest.raises(StorageError, match="was made to fail"):
        archive.archive(cast(ObjectStore, faulty), TABLE)
    assert kept(store) == before


def test_archiving_again_after_a_crash_between_copy_and_delete_finishes_it(
    graph: omniray.Graph, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        insert(graph, f"p{n}")
    graph.close()
    monkeypatch.setattr(archive, "KEPT_VERSIONS", 1)
    mortal = FaultyStore(store)
    mortal.arm(CallFault(Effect.KILL, frozenset({"delete_all"})))
    with pytest.raises(Crashed):
        archive.archive(cast(ObjectStore, mortal), TABLE)
    assert len(kept(store)) == 4
    archive.archive(store, TABLE)
    assert len(kept(store)) == 1
    assert len(list(store.names(f"{TABLE}/_history"))) == 3
