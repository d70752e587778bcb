"""The sweep deletes what nothing refers to. Each guard has a test that shows a file which it alone protects."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import lance
import pytest
from ulid import ULID

import omniray
from omniray.engine.base.errors import InputError, LineOwned, TableDrift
from omniray.engine.base.failpoints import Action, FailpointHit, Point, armed, fail
from omniray.engine.base.process import this_process
from omniray.engine.base.ulids import new_ulid
from omniray.engine.history import cas_table, lineage_levels, lineage_upkeep, manifest
from omniray.engine.line.commit_object import EMBEDDED, Pin, Remark, follow, follow_with
from omniray.engine.line.owner import Incarnation, take_over
from omniray.engine.line.sidecar import Sidecar, SidecarIntent, Sidecars, SidecarTable
from omniray.engine.maintenance.orphans import Amount, Evidence, Kind, Listing, judge, kind_of, sort_out
from omniray.engine.maintenance.sweep import Sweeper, SweepReport
from omniray.engine.store.object_store import ObjectStore, StoredFile
from omniray.engine.tables import old_versions, versions
from omniray.engine.tables.storage import StagedVersion
from omniray.engine.tables.version_names import final_path
from omniray.engine.writes.lease import Lease
from tests.graphs import AGE, DELETE, PERSON, Parts, create_store, insert, parts_of, people, rows_of
from tests.stores import Root

HOUR_US = 3600 * 10**6
DAY_US = 24 * HOUR_US
PEOPLE, CITIES = "nodes/Person.lance", "nodes/City.lance"
INDEX = "_indices/9ac57ecd-30a4-47e3-9ec8-310cea923d9c"


# Deciding


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("data/0010.lance", Kind.REFERABLE),
        ("_deletions/1-2-3.arrow", Kind.REFERABLE),
        ("_deletions/1-2-3.bin", Kind.REFERABLE),
        ("_transactions/3-uuid.txn", Kind.REFERABLE),
        ("_staged/uuid/18446744073709551612.manifest", Kind.STAGING),
        ("_versions/18446744073709551612.manifest-uuid", Kind.STAGING),
        ("_branches/01J/uuid/18446744073709551612.manifest", Kind.ON_BRANCH),
        ("_versions/18446744073709551612.manifest", Kind.MANIFEST),
        ("_history/18446744073709551612.manifest", Kind.MANIFEST),
        ("_aside/1a2b3c/18446744073709551612.manifest", Kind.MANIFEST),
        ("_versions/latest_version_hint.json", Kind.KEPT),
        ("data/.tmpAb12Cd", Kind.TEMPORARY),
        ("_history/.tmp-1a2b3c", Kind.TEMPORARY),
        ("_versions/18446744073709551612.manifest-uuid#1", Kind.TEMPORARY),
        ("data/deeper/0010.lance", Kind.UNKNOWN),
        ("data/notes.txt", Kind.UNKNOWN),
        (f"{INDEX}/page_data.lance", Kind.REFERABLE),
        ("notes", Kind.UNKNOWN),
    ],
)
def test_a_file_of_a_table_is_known_by_its_name(path: str, kind: Kind) -> None:
    assert kind_of(PEOPLE, f"{PEOPLE}/{path}") is kind


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("__commits/01J/18446744073709551614.json", Kind.KEPT),
        ("__commits/01J/.tmp-1a2b3c", Kind.TEMPORARY),
        ("__recovery/01J.json", Kind.KEPT),
        ("__recovery/unreadable/01J.json", Kind.KEPT),
        ("__schema/1a2b.pg", Kind.KEPT),
        ("__graph.json", Kind.KEPT),
        (".tmp-1a2b3c", Kind.TEMPORARY),
        ("nodes/Stranger/data/0010.lance", Kind.UNKNOWN),
        ("data/0010.lance", Kind.UNKNOWN),
    ],
)
def test_outside_of_the_tables_only_temporary_files_may_go(path: str, kind: Kind) -> None:
    assert kind_of("", path) is kind


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (f"{INDEX}/page_data.lance", Kind.REFERABLE),
        ("_indices/notes/page_data.lance", Kind.UNKNOWN),
        (f"{INDEX}/deeper/page_data.lance", Kind.UNKNOWN),
        ("data/0010.lance", Kind.REFERABLE),
    ],
)
def test_only_the_tables_of_omniray_s_own_have_indexes_that_it_made(path: str, kind: Kind) -> None:
    assert kind_of("__manifest", f"__manifest/{path}") is kind


def stored(path: str, modified_us: int = 0) -> StoredFile:
    return StoredFile(path, modified_us, 10)


def test_files_are_sorted_by_table_and_the_young_are_no_candidates() -> None:
    files = [
        stored(f"{PEOPLE}/data/old.lance", 99),
        stored(f"{PEOPLE}/data/young.lance", 100),
        stored("__manifest/data/old.lance"),
        stored("nodes/Other/data/old.lance"),
        stored("__commits/01J/.tmp-x"),
        stored(f"{PEOPLE}/_versions/18446744073709551612.manifest"),
        stored(f"{CITIES}/_versions/3.manifest"),
    ]
    found = sort_out(files, {PEOPLE, CITIES, "__manifest"}, before_us=100)
    assert found.candidates == {PEOPLE: [files[0]], "__manifest": [files[2]], "": [files[4]]}
    assert found.manifests == {PEOPLE: {files[5].path}}
    assert found.unknown == [files[3], files[6]]
    assert list(found.strange) == [CITIES]


def test_only_tables_with_files_that_versions_speak_for_are_read() -> None:
    staging = stored(f"{CITIES}/_staged/x/18446744073709551612.manifest")
    listing = Listing({PEOPLE: [stored(f"{PEOPLE}/data/a.lance")], CITIES: [staging]})
    assert listing.to_be_read(()) == [PEOPLE]
    assert listing.to_be_read({PEOPLE: "why"}) == []


def test_what_goes_is_what_nothing_speaks_for() -> None:
    paths = [
        f"{PEOPLE}/data/referred.lance",
        f"{PEOPLE}/data/orphan.lance",
        f"{PEOPLE}/_staged/pinned/18446744073709551612.manifest",
        f"{PEOPLE}/_staged/orphan/18446744073709551612.manifest",
        f"{PEOPLE}/data/.tmpAb12Cd",
    ]
    listing = Listing({PEOPLE: [stored(path) for path in paths], CITIES: [stored(f"{CITIES}/data/orphan.lance")]})
    evidence = Evidence(
        spared={CITIES: "somebody is at work"}, references={PEOPLE: {"data/referred.lance"}}, pinned_staging={paths[2]}
    )
    person, city = judge(listing, evidence)
    assert [file.path for file in person.orphans] == [paths[1], paths[3], paths[4]]
    assert (person.found, person.deleted, person.spared) == (Amount(5, 50), Amount(3, 30), "")
    assert (city.found, city.deleted, city.spared) == (Amount(1, 10), Amount(0, 0), "somebody is at work")


def test_the_files_of_an_index_go_with_its_folder() -> None:
    other = "_indices/00000000-30a4-47e3-9ec8-310cea923d9c"
    paths = [
        f"__manifest/{folder}/{file}" for folder in (INDEX, other) for file in ("page_data.lance", "page_lookup.lance")
    ]
    listing = Listing({"__manifest": [stored(path) for path in paths]})
    (found,) = judge(listing, Evidence({}, {"__manifest": {INDEX}}, ()))
    assert [file.path for file in found.orphans] == paths[2:]


# Sweeping


@dataclass
class Aged:
    """A store whose listing shows some files as a day old, and may do something in the middle of it."""

    inner: ObjectStore
    old: set[str] = field(default_factory=set)
    at: tuple[str, Callable[[], None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def age(self) -> None:
        """Everything that is there is old from now on; what is written later is young."""
        self.old = {file.path for file in self.inner.files("")}

    def files(self, folder: str, *, after: str = "") -> Iterator[StoredFile]:
        for file in self.inner.files(folder, after=after):
            if self.at is not None and self.at[0] in file.path:
                (_, do), self.at = self.at, None
                do()
            yield replace(file, modified_us=file.modified_us - DAY_US * (file.path in self.old))


@dataclass
class Swept:
    """A graph with one write that never came to Phase C, and the means to sweep it."""

    store: Aged
    parts: Parts
    left: list[str]
    version: StagedVersion

    def sweep(self, *, dry_run: bool = False, ahead_us: int = 0) -> SweepReport:
        return self.sweeper.sweep(now_us=time.time_ns() // 1000 + ahead_us, older_than_s=3600, dry_run=dry_run)

    @property
    def sweeper(self) -> Sweeper:
        branch: Any = replace(self.parts.branch, store=self.store)
        return Sweeper(branch, self.parts.tip, self.parts.finaliser)

    def paths(self) -> set[str]:
        return {file.path for file in self.store.inner.files("")}

    def still_there(self) -> list[str]:
        return sorted(set(self.left) & self.paths())


def stage_people(parts: Parts, *names: str) -> StagedVersion:
    """Phase B of a write that adds people and deletes one; whoever staged it ends here."""
    table = parts.cache.open(PERSON, parts.newest().pins[PERSON])
    doomed = table.scan(["id"], "id = 'b'", addresses=True).read_all()
    change = parts.storage.stage_merge(table, rows_of(table.type, names), doomed)
    return parts.storage.commit_staged(table, change, str(uuid.uuid4()))


@contextlib.contextmanager
def swept_graph(root: Root) -> Iterator[Swept]:
    store = create_store(root)
    with omniray.open(store.uri, storage_options=root.storage_options) as graph:
        insert(graph, *"ab")
    parts, aged = parts_of(store), Aged(store)
    before = {file.path for file in store.files("")}
    version = stage_people(parts, "z")
    left = sorted({file.path for file in store.files("")} - before)
    parts.cache.drop(PERSON)
    aged.age()
    try:
        yield Swept(aged, parts, left, version)
    finally:
        parts.close()


@pytest.fixture
def swept(any_root: Root) -> Iterator[Swept]:
    with swept_graph(any_root) as graph:
        yield graph


@pytest.fixture
def on_disk(disk: Root) -> Iterator[Swept]:
    with swept_graph(disk) as graph:
        yield graph


def verdict(report: SweepReport, table: str) -> Any:
    return next(one for one in report.tables if one.table == table)


def archive_all_but_the_newest(store: ObjectStore) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(old_versions, "KEPT_VERSIONS", 1)
        old_versions.archive(store, PEOPLE)


def archived(swept: Swept) -> int:
    return sum(f"{PEOPLE}/_history/" in path for path in swept.paths())


def test_what_a_write_left_that_never_came_to_phase_c_is_deleted_and_nothing_else(swept: Swept) -> None:
    before = swept.paths()
    report = swept.sweep()
    gone = before - swept.paths()
    assert sorted(gone) == swept.left
    assert {path.split("/")[2] for path in gone} == {"data", "_transactions", "_staged"}
    assert report.deleted.files == len(gone)
    assert report.deleted.bytes > 0
    assert swept.parts.rows() == ["a", "b"]


def test_a_dry_run_writes_nothing_and_says_what_would_go(swept: Swept) -> None:
    before, newest = swept.paths(), swept.parts.newest()
    tried = swept.sweep(dry_run=True)
    assert (swept.paths(), swept.parts.newest()) == (before, newest)
    assert tried.dry_run
    done = swept.sweep()
    assert [one.orphans for one in tried.tables] == [one.orphans for one in done.tables]


def test_files_that_were_restored_after_a_sweep_stay(on_disk: Swept) -> None:
    """They are younger than the manifests of all versions that refer to them, which that sweep has read."""
    on_disk.sweep()
    files = {path for path in on_disk.paths() if path.startswith(f"{PEOPLE}/data/")}
    on_disk.store.old -= files
    report = on_disk.sweeper.sweep(now_us=time.time_ns() // 1000, older_than_s=0)
    assert verdict(report, PEOPLE).found.files >= len(files) > 0
    assert files <= on_disk.paths()


def test_young_files_stay(on_disk: Swept) -> None:
    on_disk.store.old -= set(on_disk.left)
    on_disk.sweep()
    assert on_disk.still_there() == on_disk.left


def test_a_clock_that_is_ahead_of_the_store_s_makes_no_file_older(on_disk: Swept) -> None:
    on_disk.store.old.clear()
    report = on_disk.sweep(ahead_us=DAY_US)
    assert on_disk.still_there() == on_disk.left
    assert report.swept_before_us < time.time_ns() // 1000


def test_the_time_is_in_the_line_and_never_goes_back(on_disk: Swept) -> None:
    on_disk.sweep()
    first = on_disk.parts.newest().swept_before_us
    assert first > 0
    on_disk.sweep(ahead_us=-DAY_US)
    assert on_disk.parts.newest().swept_before_us == first


def test_a_clock_that_is_ahead_does_not_refuse_what_is_staged_until_its_time_has_come(on_disk: Swept) -> None:
    on_disk.sweep(ahead_us=DAY_US)
    assert on_disk.parts.newest().swept_before_us <= time.time_ns() // 1000


@pytest.mark.parametrize("age_s", [-1e9, -1e-6, float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dry_run", [False, True])
def test_no_age_puts_a_time_to_come_into_the_line(on_disk: Swept, age_s: float, dry_run: bool) -> None:
    """Every load of staged files would be refused until then."""
    before = on_disk.parts.newest()
    with pytest.raises(InputError, match="give 0 or more"):
        on_disk.sweeper.sweep(now_us=time.time_ns() // 1000, older_than_s=age_s, dry_run=dry_run)
    assert on_disk.parts.newest() == before


def test_an_age_of_more_than_all_time_finds_nothing(on_disk: Swept) -> None:
    report = on_disk.sweeper.sweep(now_us=time.time_ns() // 1000, older_than_s=1e308)
    assert (report.deleted.files, on_disk.parts.newest().swept_before_us) == (0, 0)


def test_files_of_old_versions_stay_wherever_their_manifests_lie(any_root: Root) -> None:
    """Deletion files, replaced data files and transactions of versions that only the history shows."""
    with swept_graph(any_root) as swept:
        root = {"storage_options": any_root.storage_options}
        with omniray.open(swept.store.uri, **root) as graph:
            insert(graph, "c")
            graph.mutate(AGE, {"name": "a", "age": 3})
            graph.mutate(DELETE, {"name": "c"})
            insert(graph, "d")
            commits = [entry.commit_id for entry in graph.history()]
            rows = [people(graph.snapshot(at=commit_id)) for commit_id in commits]
        archive_all_but_the_newest(swept.store.inner)
        assert archived(swept) == 6
        assert any("/_deletions/" in path for path in swept.paths())
        swept.store.age()
        swept.sweep()
        assert swept.still_there() == []
        with omniray.open(swept.store.uri, **root) as graph:
            assert [people(graph.snapshot(at=commit_id)) for commit_id in commits] == rows


def test_a_deletion_file_that_one_version_refers_to_stays_and_an_orphan_goes(on_disk: Swept) -> None:
    with omniray.open(on_disk.store.uri) as graph:
        graph.load([{"name": f"{number:04}"} for number in range(1100)], type="Person")
        graph.mutate(DELETE, {"name": "0007"})
    needed = {path for path in on_disk.paths() if "/_deletions/" in path}
    table = on_disk.parts.cache.open(PERSON, on_disk.parts.newest().pins[PERSON])
    replaced = table.scan(["id"], "id = '0008'", addresses=True).read_all()
    on_disk.parts.storage.stage_delete(table, replaced)
    assert len({path for path in on_disk.paths() if "/_deletions/" in path}) == len(needed) + 1
    on_disk.store.age()
    on_disk.sweep()
    assert {path for path in on_disk.paths() if "/_deletions/" in path} == needed
    assert len(on_disk.parts.rows()) == 1101


def index_files(swept: Swept) -> set[str]:
    return {path for path in swept.paths() if path.startswith("__manifest/_indices/")}


@pytest.mark.parametrize("sees_indexes", [True, False])
def test_live_indexes_of_the_lineage_stay_and_those_that_nothing_refers_to_go(
    any_root: Root, monkeypatch: pytest.MonkeyPatch, sees_indexes: bool
) -> None:
    """The twin sees no indexes in versions: then the live ones go, and look-ups fail."""
    monkeypatch.setattr(lineage_levels, "SEALED_ROWS", 2)
    monkeypatch.setattr(lineage_levels, "FAN_IN", 2)
    monkeypatch.setattr(manifest, "TAIL_ROWS_MAX", 2)
    monkeypatch.setattr(cas_table, "KEPT_VERSIONS", 1)
    if not sees_indexes:
        monkeypatch.setattr(versions, "_index_folders", lambda dataset: ())
    with swept_graph(any_root) as swept:
        options = {"storage_options": any_root.storage_options}
        for name in "cdefgh":
            with omniray.open(swept.store.uri, **options) as graph:
                insert(graph, name)
        with armed({Point.D_UPKEEP_STAGED: Action(fail, 2)}), contextlib.suppress(FailpointHit):
            lineage_upkeep.keep_up(swept.parts.manifest._table)
        old_versions.discard(swept.store.inner, "__manifest", keep=1)
        swept.store.age()
        before = index_files(swept)
        report = swept.sweep()
        assert verdict(report, "__manifest").spared == ""
        assert report.unknown.files == 0
        assert index_files(swept) < before
        assert bool(index_files(swept)) == sees_indexes
        dataset = lance.dataset(f"{swept.store.uri}/__manifest", **options)
        found = [dataset.count_rows(f"seq = {seq}") if sees_indexes else 1 for seq in range(1, 9)]
        assert all(found)


def test_a_table_that_a_sidecar_names_is_spared_as_a_whole(swept: Swept) -> None:
    table = SidecarTable(PERSON, PEOPLE, 3, "uuid")
    sidecar = Sidecar(new_ulid(), "Load", swept.parts.branch.graph_id, 1, EMBEDDED, this_process(), 0, (), (table,))
    Sidecars(swept.store.inner).put(sidecar)
    report = swept.sweep()
    assert swept.still_there() == swept.left
    assert verdict(report, PEOPLE).spared == f"in use by {sidecar}"
    assert verdict(report, CITIES).spared == ""


def test_a_table_that_a_load_has_a_lease_of_is_spared_until_it_is_released(on_disk: Swept) -> None:
    parts = on_disk.parts
    lease = Lease(parts.sidecars, parts.newest())
    lease.take(SidecarIntent(new_ulid(), "ann"), parts.cache.open(PERSON, parts.newest().pins[PERSON]))
    on_disk.sweep()
    assert on_disk.still_there() == on_disk.left
    lease.release()
    on_disk.sweep()
    assert on_disk.still_there() == []


def test_while_a_coordinator_owns_the_line_nothing_is_swept(on_disk: Swept) -> None:
    take_over(on_disk.parts.tip, str(Incarnation.new("ray://head:10001")))
    newest = on_disk.parts.newest()
    with pytest.raises(LineOwned, match="a coordinator owns this branch"):
        on_disk.sweep()
    assert on_disk.still_there() == on_disk.left
    assert on_disk.parts.newest() == newest


def test_a_table_whose_version_can_t_be_read_is_spared_and_the_others_are_not(on_disk: Swept) -> None:
    version_1 = f"{PEOPLE}/_versions/18446744073709551614.manifest"
    on_disk.store.inner.put(version_1, b"garbage")
    on_disk.store.inner.put(f"{CITIES}/data/orphan.lance", b"")
    on_disk.store.age()
    report = on_disk.sweep()
    assert on_disk.still_there() == on_disk.left
    assert version_1 in verdict(report, PEOPLE).spared
    assert f"{CITIES}/data/orphan.lance" not in on_disk.paths()


def test_a_table_whose_pinned_version_is_nowhere_is_spared(on_disk: Swept) -> None:
    version = on_disk.parts.newest().pins[PERSON].version
    on_disk.store.delete(f"{PEOPLE}/_versions/{2**64 - 1 - version:020}.manifest")
    report = on_disk.sweep()
    assert on_disk.still_there() == on_disk.left
    assert f"version {version}" in verdict(report, PEOPLE).spared


def test_files_that_are_none_of_ours_are_counted_and_never_touched(on_disk: Swept) -> None:
    strangers = ["notes.txt", "nodes/Stranger/data/a.lance", f"{CITIES}/data/notes.txt", "backup/_schema.pg"]
    for path in strangers:
        on_disk.store.put(path, b"seven b")
    on_disk.store.age()
    report = on_disk.sweep()
    assert set(strangers) <= on_disk.paths()
    assert report.unknown == Amount(4, 28)


def test_a_manifest_of_an_unknown_name_speaks_for_all_files_of_its_table(on_disk: Swept) -> None:
    on_disk.store.put(f"{PEOPLE}/_versions/7.manifest", b"")
    report = on_disk.sweep()
    assert on_disk.still_there() == on_disk.left
    assert "7.manifest" in verdict(report, PEOPLE).spared


def test_a_manifest_that_was_set_aside_still_speaks_for_its_files(on_disk: Swept) -> None:
    manifest = on_disk.version.manifest
    aside = f"{PEOPLE}/_aside/1a2b3c/{manifest.rpartition('/')[2]}"
    on_disk.store.put(aside, on_disk.store.get(manifest))
    on_disk.sweep()
    assert on_disk.still_there() == sorted(set(on_disk.left) - {manifest})


def test_temporary_files_go_wherever_they_are(on_disk: Swept) -> None:
    left = [
        ".tmp-1a2b3c",
        f"__commits/{on_disk.parts.branch.graph_id}/.tmp-1a2b3c",
        "__recovery/.tmp-1a2b3c",
        "__manifest/data/.tmpAb12Cd",
        f"{PEOPLE}/data/.tmpAb12Cd",
        f"{PEOPLE}/_versions/18446744073709551000.manifest-uuid#1",
    ]
    for path in left:
        on_disk.store.put(path, b"")
    on_disk.store.age()
    on_disk.store.old.remove(left[0])
    on_disk.sweep()
    assert set(left) & on_disk.paths() == {left[0]}  # it is young


def test_what_the_manifest_has_replaced_goes_and_the_history_can_be_read(swept: Swept) -> None:
    store = swept.store.inner
    old_versions.discard(store, "__manifest", keep=1)
    swept.store.age()
    report = swept.sweep()
    assert verdict(report, "__manifest").deleted.files > 0
    fresh = parts_of(store)
    assert [entry.kind for entry in fresh.branch.ancestry.entries()] == ["Mutation", "Mutation", "Init"]
    fresh.close()


def test_a_sweep_that_is_cut_short_leaves_the_rest_to_the_next(on_disk: Swept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omniray.engine.maintenance.sweep.DELETE_FILES", 1)
    with armed({Point.SWEEP_AFTER_DELETE: Action(fail, nth=2)}), pytest.raises(FailpointHit):
        on_disk.sweep()
    assert len(on_disk.still_there()) == len(on_disk.left) - 2
    on_disk.sweep()
    assert on_disk.still_there() == []


# Sidecars that can't be read


def operation_of(days_ago: float) -> str:
    """The id of an operation that began so long ago."""
    return str(ULID.from_timestamp(time.time() - days_ago * 24 * 3600))


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("has_guard", [True, False], ids=["guarded", "twin"])
def test_what_is_younger_than_a_sidecar_that_can_t_be_read_is_spared(
    on_disk: Swept, monkeypatch: pytest.MonkeyPatch, has_guard: bool, dry_run: bool
) -> None:
    """Nobody knows which tables it speaks of. The twin does not ask, and takes what it may have announced."""
    if not has_guard:
        monkeypatch.setattr(Sidecars, "unreadable_since_us", lambda self: None)
    unreadable = operation_of(days_ago=2)
    on_disk.store.put(f"__recovery/{unreadable}.json", b"{")
    orphans = {file.path for table in on_disk.sweep(dry_run=dry_run).tables for file in table.orphans}
    assert not orphans & set(on_disk.left) if has_guard else orphans >= set(on_disk.left)
    aside = f"__recovery/unreadable/{unreadable}.json"
    assert (aside in on_disk.paths()) != dry_run, "a dry run moves nothing"
    again = on_disk.sweep(dry_run=dry_run)  # by now it has been set aside
    assert not set(on_disk.left) & {file.path for table in again.tables for file in table.orphans} or not has_guard


def test_what_is_older_than_a_sidecar_that_can_t_be_read_is_swept(on_disk: Swept) -> None:
    on_disk.store.put(f"__recovery/{operation_of(days_ago=0)}.json", b"{")
    on_disk.sweep()
    assert on_disk.still_there() == []


# Beside others


def at(point: Point, do: Callable[[], object]) -> contextlib.AbstractContextManager[None]:
    """Do something the first time that a point is reached."""
    return armed({point: Action(lambda: (do(), None)[1], nth=1)})


def pinned(swept: Swept, version: StagedVersion) -> Pin:
    before = swept.parts.newest().pins[PERSON]
    return replace(
        before, version=version.version, transaction=version.transaction, rows=version.rows, content=new_ulid()
    )


def commit(swept: Swept, version: StagedVersion) -> None:
    """Phase C of a staged version, without any of the checks that a writer makes."""
    newest = swept.parts.newest()
    obj = follow(newest, op_id=new_ulid(), changed={PERSON: pinned(swept, version)}, commits=(), finalised_through=0)
    assert swept.parts.log.put(obj) == "created"


def test_a_commit_that_lands_just_before_the_announcement_keeps_its_old_files(swept: Swept) -> None:
    """It lies in the line below the sweep's object, with its manifest under a staging name until Phase D is through."""
    with at(Point.SWEEP_BEFORE_PUT, lambda: commit(swept, swept.version)):
        swept.sweep()
    assert [bool(obj.swept_before_us) for obj in swept.parts.line()[-2:]] == [False, True]
    assert swept.parts.rows() == ["a", "z"]


def test_whoever_built_on_an_older_object_finds_its_number_taken(on_disk: Swept) -> None:
    """The put decides: a version that was staged before the sweep can't be committed after it."""
    newest = on_disk.parts.newest()
    changed = {PERSON: pinned(on_disk, on_disk.version)}
    late = follow(newest, op_id=new_ulid(), changed=changed, commits=(), finalised_through=0)
    on_disk.sweep()
    assert on_disk.parts.log.put(late) == "refused"


def test_a_fold_that_was_staged_before_the_sweep_finds_its_number_taken(on_disk: Swept) -> None:
    """Its data files may be swept, so it must not land: the sweep's own object is folded before anything is deleted."""
    store = on_disk.store.inner
    before = old_versions.newest_version(store, "__manifest")
    seen: list[int] = []
    with at(Point.SWEEP_BEFORE_DELETE, lambda: seen.append(old_versions.newest_version(store, "__manifest"))):
        on_disk.sweep()
    assert seen == [before + 1]


def test_a_sidecar_that_comes_while_files_are_listed_spares_its_table(on_disk: Swept) -> None:
    parts = on_disk.parts
    lease = Lease(parts.sidecars, parts.newest())
    table = parts.cache.open(PERSON, parts.newest().pins[PERSON])
    with at(Point.SWEEP_AFTER_FILES, lambda: lease.take(SidecarIntent(new_ulid(), "ann"), table)):
        on_disk.sweep()
    assert on_disk.still_there() == on_disk.left


def test_a_staging_name_that_an_object_pins_while_sidecars_are_read_stays(on_disk: Swept) -> None:
    with at(Point.SWEEP_AFTER_SIDECARS, lambda: commit(on_disk, on_disk.version)):
        on_disk.sweep()
    assert on_disk.version.manifest in on_disk.paths()


@pytest.mark.parametrize("followed_by", [0, 2])
def test_a_staging_name_that_an_unfinished_object_pins_stays(on_disk: Swept, followed_by: int) -> None:
    """Of its own accord or repeated by the objects after it."""

    def commit_and_go_on() -> None:
        commit(on_disk, on_disk.version)
        for _ in range(followed_by):
            on_disk.parts.log.put(follow_with(on_disk.parts.newest(), Remark(new_ulid())))

    with at(Point.SWEEP_AFTER_SIDECARS, commit_and_go_on):
        on_disk.sweep()
    assert on_disk.version.manifest in on_disk.paths()


def test_versions_that_are_archived_after_the_listing_are_read_in_the_history(on_disk: Swept) -> None:
    before = on_disk.paths()
    with at(Point.SWEEP_AFTER_SIDECARS, lambda: archive_all_but_the_newest(on_disk.store.inner)):
        report = on_disk.sweep()
    assert archived(on_disk) == 2
    assert verdict(report, PEOPLE).spared == ""
    assert sorted(path for path in before - on_disk.paths() if "/_versions/" not in path) == on_disk.left


def test_versions_that_are_archived_while_their_folder_is_listed_still_speak_for_their_files(on_disk: Swept) -> None:
    """`_history/` was listed before they came there, and `_versions/` after they had gone."""
    before = on_disk.paths()
    on_disk.store.at = (f"{PEOPLE}/_transactions/", lambda: archive_all_but_the_newest(on_disk.store.inner))
    on_disk.sweep()
    assert archived(on_disk) == 2
    assert sorted(path for path in before - on_disk.paths() if "/_versions/" not in path) == on_disk.left


def test_a_version_that_vanishes_altogether_spares_its_table(on_disk: Swept) -> None:
    first = f"{PEOPLE}/_versions/18446744073709551614.manifest"
    with at(Point.SWEEP_AFTER_SIDECARS, lambda: on_disk.store.delete(first)):
        report = on_disk.sweep()
    assert on_disk.still_there() == on_disk.left
    assert first in verdict(report, PEOPLE).spared


def test_a_dry_run_spares_a_table_that_has_a_version_without_a_final_name(on_disk: Swept) -> None:
    commit(on_disk, on_disk.version)
    report = on_disk.sweep(dry_run=True)
    assert verdict(report, PEOPLE).spared == "Phase D of its newest version is not finished"


def test_a_table_that_somebody_else_wrote_to_is_repaired_first(on_disk: Swept) -> None:
    """Phase D can't be finished, so nobody can tell what a version refers to that has no final name."""
    final = final_path(PEOPLE, on_disk.version.version)
    on_disk.store.put(final, b"foreign")
    commit(on_disk, on_disk.version)
    with pytest.raises(TableDrift, match="omniray repair"):
        on_disk.sweep()
    assert on_disk.still_there() == on_disk.left
    on_disk.store.put(final, on_disk.store.get(on_disk.version.manifest))
