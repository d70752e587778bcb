"""One behaviour suite over both stores, and what is particular to each."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from omniray.engine.base.errors import InputError, StorageError
from omniray.engine.store.directory import DirectoryStore
from omniray.engine.store.object_store import TEMPORARY, Answer, Durability, ObjectStore
from omniray.engine.store.open_store import open_store
from omniray.engine.store.s3_options import resolve_options
from tests.stores import Root

THREADS = 16
TIMEOUT_S = 60
KEY = {"aws_access_key_id": "key", "aws_secret_access_key": "s3cr3t"}


@pytest.fixture(scope="module")
def opened(lasting_root: Root) -> ObjectStore:
    """A store, opened once: a client of S3 takes its time."""
    return open_store(f"{lasting_root.uri}/graph", lasting_root.storage_options)


@pytest.fixture
def store(opened: ObjectStore) -> Iterator[ObjectStore]:
    """An empty store."""
    yield opened
    opened.delete_all([file.path for file in opened.files("")])
    opened.delete_empty_folders()


# Every store


def test_an_object_is_read_back_and_a_missing_one_is_none(store: ObjectStore) -> None:
    store.put("folder/object", b"one")
    assert store.get("folder/object") == b"one"
    assert store.get("folder/other") is None
    assert store.get("nowhere/object") is None


def test_the_size_of_an_object_is_known_and_of_a_missing_one_none(store: ObjectStore) -> None:
    store.put("folder/object", b"one")
    assert store.size("folder/object") == len(b"one")
    assert store.size("folder/other") is None
    assert store.size("nowhere/object") is None


def test_a_put_replaces(store: ObjectStore) -> None:
    store.put("object", b"one")
    store.put("object", b"two")
    assert store.get("object") == b"two"


def test_a_put_if_absent_is_refused_where_something_is_and_changes_nothing(store: ObjectStore) -> None:
    assert store.put_if_absent("object", b"one") is Answer.CREATED
    assert store.put_if_absent("object", b"two") is Answer.REFUSED
    assert store.get("object") == b"one"


def test_of_sixteen_threads_that_put_one_object_exactly_one_wins(store: ObjectStore) -> None:
    barrier = threading.Barrier(THREADS)

    def put(number: int) -> Answer:
        barrier.wait()
        return store.put_if_absent("folder/object", f"{number}".encode() * 1000)

    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(put, range(THREADS)))
    assert sorted(answers) == [Answer.CREATED] + [Answer.REFUSED] * (THREADS - 1)
    assert store.get("folder/object") == f"{answers.index(Answer.CREATED)}".encode() * 1000


def test_a_copy_gives_the_same_bytes_a_second_name(store: ObjectStore) -> None:
    store.put("source", b"one")
    assert store.copy_if_absent("source", "target") is Answer.CREATED
    assert (store.get("source"), store.get("target")) == (b"one", b"one")


def test_a_copy_is_refused_where_something_is(store: ObjectStore) -> None:
    store.put("source", b"one")
    store.put("target", b"two")
    assert store.copy_if_absent("source", "target") is Answer.REFUSED
    assert store.get("target") == b"two"


def test_a_copy_of_nothing_is_none(store: ObjectStore) -> None:
    assert store.copy_if_absent("source", "target") is None
    assert store.get("target") is None


def test_the_copy_stays_when_the_source_goes(store: ObjectStore) -> None:
    store.put("source", b"one")
    store.copy_if_absent("source", "target")
    store.delete("source")
    assert (store.get("source"), store.get("target")) == (None, b"one")


def test_names_are_in_byte_order_whatever_the_order_of_the_puts(store: ObjectStore) -> None:
    for name in ("b", "a", "B", "10", "9", "sub/x", "sub/y", "ä"):
        store.put(f"folder/{name}", b"")
    assert list(store.names("folder")) == ["10", "9", "B", "a", "b", "sub/", "ä"]
    assert list(store.names("folder/")) == list(store.names("folder"))
    assert list(store.names("")) == ["folder/"]
    assert list(store.names("nowhere")) == []


def test_the_first_name_is_the_first_of_the_names(store: ObjectStore) -> None:
    assert store.first_name("folder") is None
    for name in ("3", "1", "2"):
        store.put(f"folder/{name}", b"")
    assert store.first_name("folder") == "1"


def test_a_folder_is_not_its_namesake_with_more_letters(store: ObjectStore) -> None:
    store.put("folder-2/a", b"")
    assert list(store.names("folder")) == []
    assert store.first_name("folder") is None


def test_all_files_below_a_folder_are_listed_in_byte_order_of_their_paths(store: ObjectStore) -> None:
    for path in ("folder/b", "folder/a/x", "folder/a/y/z", "folder/a-b/x", "folder/a.txt", "folder-2/x", "top"):
        store.put(path, path.encode())
    expected = ["folder/a-b/x", "folder/a.txt", "folder/a/x", "folder/a/y/z", "folder/b"]
    assert [file.path for file in store.files("folder")] == expected
    assert [file.path for file in store.files("folder/")] == expected
    assert [file.path for file in store.files("")] == ["folder-2/x", *expected, "top"]
    assert [file.size for file in store.files("folder")] == [len(path) for path in expected]
    assert list(store.files("nowhere")) == []


@pytest.mark.parametrize(
    ("after", "left"),
    [("a-b", ["a-b/x", "a.txt", "a/x", "b"]), ("a-b/x", ["a.txt", "a/x", "b"]), ("a.txt", ["a/x", "b"]), ("b", [])],
)
def test_files_are_listed_from_behind_a_name(store: ObjectStore, after: str, left: list[str]) -> None:
    for name in ("b", "a/x", "a-b/x", "a.txt"):
        store.put(f"folder/{name}", b"")
    assert [file.path for file in store.files("folder", after=after)] == [f"folder/{name}" for name in left]


def test_files_are_dated_in_microseconds_of_the_epoch(store: ObjectStore) -> None:
    store.put("file", b"")
    assert abs(next(store.files("")).modified_us - time.time_ns() // 1000) < 24 * 3600 * 1e6


def test_deleting_is_quiet_about_what_is_not_there(store: ObjectStore) -> None:
    for name in "abc":
        store.put(name, b"")
    store.delete("a")
    store.delete("a")
    store.delete_all(["b", "nothing"])
    store.delete_all([])
    assert list(store.names("")) == ["c"]


def test_all_that_is_listed_can_be_deleted_and_the_neighbour_with_more_letters_stays(any_root: Root) -> None:
    store, neighbour = (open_store(f"{any_root.uri}/{name}", any_root.storage_options) for name in ("graph", "graph2"))
    for path in ("a", "folder/b", "folder/deeper/c"):
        store.put(path, b"")
        neighbour.put(path, b"")
    store.delete_all([file.path for file in store.files("")])
    assert list(store.files("")) == []
    assert [file.path for file in neighbour.files("")] == ["a", "folder/b", "folder/deeper/c"]


# A disk


@pytest.fixture
def directory(disk: Root) -> DirectoryStore:
    return DirectoryStore(Path(disk.uri))


def test_a_file_that_was_left_half_written_is_never_listed(directory: DirectoryStore) -> None:
    directory.put("folder/object", b"whole")
    (directory.root / "folder" / f"{TEMPORARY}left").write_bytes(b"ha")
    assert list(directory.names("folder")) == ["object"]
    assert directory.first_name("folder") == "object"


@pytest.mark.parametrize("verb", ["put", "put_if_absent", "put_hint"])
def test_a_write_that_fails_half_way_leaves_neither_object_nor_temporary_file(
    directory: DirectoryStore, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(os, "fsync" if verb == "put_if_absent" else "replace", out_of_space)
    with pytest.raises(StorageError, match="No space left"):
        getattr(directory, verb)("object", b"data")
    assert os.listdir(directory.root) == []


def out_of_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_link_that_fails_is_no_clear_answer(directory: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system may have made it all the same."""
    monkeypatch.setattr(os, "link", out_of_space)
    assert directory.put_if_absent("object", b"data") is Answer.UNCLEAR
    assert os.listdir(directory.root) == []


def test_an_object_that_is_there_and_whose_folder_can_t_be_synced_is_no_clear_answer(
    directory: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for a failure, the write would be discarded while everybody reads it."""
    powerful = DirectoryStore(directory.root, Durability.POWER)
    fsync = os.fsync

    def fails_for_folders(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            out_of_space()
        fsync(handle)

    monkeypatch.setattr(os, "fsync", fails_for_folders)
    assert powerful.put_if_absent("object", b"data") is Answer.UNCLEAR
    assert powerful.get("object") == b"data"


@pytest.mark.parametrize(
    ("durability", "lasting", "synced"),
    [("process", True, True), ("process", False, False), ("power", True, True), ("power", False, True)],
)
def test_what_need_not_last_is_waited_for_only_where_everything_is(
    directory: DirectoryStore, monkeypatch: pytest.MonkeyPatch, durability: str, lasting: bool, synced: bool
) -> None:
    handles: list[int] = []
    monkeypatch.setattr(os, "fsync", handles.append)
    DirectoryStore(directory.root, Durability(durability)).put_if_absent("object", b"data", lasting=lasting)
    assert bool(handles) == synced


def test_data_is_synced_before_the_object_gets_its_name(
    directory: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, link = os.fsync, os.link
    monkeypatch.setattr(os, "fsync", lambda handle: (events.append("sync"), fsync(handle)))
    monkeypatch.setattr(os, "link", lambda source, target: (events.append("link"), link(source, target)))
    directory.put_if_absent("object", b"data")
    assert events == ["sync", "link"]


def test_a_path_below_a_file_holds_nothing_and_takes_nothing(directory: DirectoryStore) -> None:
    directory.put("file", b"")
    assert directory.get("file/object") is None
    for write in (directory.put, directory.put_if_absent):
        with pytest.raises(StorageError, match="check the path"):
            write("file/object", b"")
    with pytest.raises(StorageError, match="can't list"):
        directory.names("file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_named(directory: DirectoryStore) -> None:
    directory.root.chmod(stat.S_IRUSR)
    try:
        with pytest.raises(StorageError, match="Permission denied") as refusal:
            directory.put_if_absent("object", b"")
    finally:
        directory.root.chmod(stat.S_IRWXU)
    assert refusal.value.facts["path"] == str(directory.root / "object")


def test_temporary_files_are_shown_among_the_files_alone(directory: DirectoryStore) -> None:
    """They are no objects, yet the sweep must find those that a kill left."""
    directory.put("folder/object", b"")
    (directory.root / "folder" / f"{TEMPORARY}x").write_bytes(b"half")
    assert list(directory.names("folder")) == ["object"]
    assert [file.path for file in directory.files("")] == [f"folder/{TEMPORARY}x", "folder/object"]


def test_a_file_on_disk_has_the_time_of_its_last_change(directory: DirectoryStore) -> None:
    directory.put("file", b"")
    os.utime(directory.root / "file", ns=(1_000, 5_000_000))
    assert next(directory.files("")).modified_us == 5_000


def test_empty_folders_are_deleted_and_those_with_files_stay(directory: DirectoryStore) -> None:
    directory.put("kept/file", b"")
    for folder in ("empty/deeper", "kept/empty"):
        (directory.root / folder).mkdir(parents=True)
    directory.delete_empty_folders()
    assert sorted(path.name for path in directory.root.rglob("*")) == ["file", "kept"]
    directory.delete("kept/file")
    directory.delete_empty_folders()
    assert not directory.root.exists()


def test_empty_folders_are_deleted_from_a_folder_downward(directory: DirectoryStore) -> None:
    for folder in ("empty/deeper", "other"):
        (directory.root / folder).mkdir(parents=True)
    directory.delete_empty_folders("empty")
    assert [path.name for path in directory.root.iterdir()] == ["other"]


def test_a_folder_that_is_deleted_just_before_a_file_is_put_into_it_is_made_again(
    directory: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever deletes empty folders can't know that somebody has just made one."""
    mkstemp = tempfile.mkstemp
    deleted: list[Path] = []

    def late(**options: Any) -> tuple[int, str]:
        if not deleted:
            deleted.append(options["dir"])
            directory.delete_empty_folders()
        return mkstemp(**options)

    monkeypatch.setattr(tempfile, "mkstemp", late)
    assert directory.put_if_absent("a/b/file", b"1") is Answer.CREATED
    assert directory.get("a/b/file") == b"1"
    assert deleted


def test_an_object_is_whole_although_the_system_writes_a_few_bytes_at_a_time(
    directory: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:3]))
    directory.put("folder/object", b"0123456789")
    assert directory.get("folder/object") == b"0123456789"


def test_a_file_that_vanishes_while_they_are_listed_is_left_out(directory: DirectoryStore) -> None:
    for name in "abc":
        directory.put(f"folder/{name}", b"")
    listed = directory.files("folder")
    assert next(listed).path == "folder/a"
    directory.delete("folder/b")
    assert [file.path for file in listed] == ["folder/c"]


# Options


def test_what_was_given_stands_above_the_environment() -> None:
    options = resolve_options({"aws_region": "eu-central-1"}, {"AWS_REGION": "us-west-2", "AWS_ACCESS_KEY_ID": "key"})
    assert (options["aws_region"], options["aws_access_key_id"]) == ("eu-central-1", "key")


@pytest.mark.parametrize("name", ["endpoint", "endpoint_url", "aws_endpoint", "AWS_ENDPOINT_URL"])
def test_an_endpoint_is_known_under_each_of_its_names_and_may_be_http(name: str) -> None:
    options = resolve_options({name: "http://localhost:9000"}, {})
    assert options == {"aws_endpoint": "http://localhost:9000", "allow_http": "true", "aws_region": "us-east-1"}


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
def test_an_endpoint_may_come_from_the_environment(variable: str) -> None:
    assert resolve_options({}, {variable: "https://store"})["aws_endpoint"] == "https://store"
    assert "allow_http" not in resolve_options({}, {variable: "https://store"})


def test_the_environment_s_more_particular_variable_wins() -> None:
    environment = {"AWS_ENDPOINT_URL": "http://all", "AWS_ENDPOINT_URL_S3": "http://s3", "AWS_DEFAULT_REGION": "b"}
    options = resolve_options({}, environment)
    assert (options["aws_endpoint"], options["aws_region"]) == ("http://s3", "b")


def test_a_given_key_is_never_paired_with_the_environment_s_secret_or_token() -> None:
    environment = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "c"}
    given = {"access_key_id": "mine", "secret_access_key": "my secret"}
    options = resolve_options(given, environment)
    assert options["aws_access_key_id"] == "mine"
    assert options["aws_secret_access_key"] == "my secret"
    assert "aws_session_token" not in options
    assert resolve_options({}, environment)["aws_session_token"] == "c"


@pytest.mark.parametrize(
    "uri",
    ["", "gs://bucket/graph", "http://host/graph", "s3://bucket", "s3://bucket/", "s3:///graph", "file://host/graph"],
)
def test_a_uri_that_is_no_place_for_a_graph_is_refused(uri: str) -> None:
    with pytest.raises(InputError, match=r"use a path|with both"):
        open_store(uri)


@pytest.mark.parametrize("prefix", ["a%20b", "a#b", "a?b", "a//b", "a/../b", "./b"])
def test_a_prefix_that_lance_would_read_otherwise_is_refused(prefix: str) -> None:
    """The tables would lie in one folder and the commits in another."""
    with pytest.raises(InputError, match="write the prefix as the bucket has it"):
        open_store(f"s3://bucket/{prefix}", KEY)


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_folder_is_a_path_or_a_file_uri_and_may_have_blanks_in_it(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "with blank"
    uri = form.format(str(folder).replace(" ", "%20") if "file" in form else folder)
    assert open_store(uri).uri == str(folder)


def test_a_temporary_file_that_can_t_be_removed_does_not_deny_that_the_object_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller would believe that nothing was written, and delete what the object refers to."""
    store = DirectoryStore(tmp_path)

    def failing(path: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("omniray.engine.store.directory.os.unlink", failing)
    assert store.put_if_absent("a", b"1") is Answer.CREATED
    assert store.put_if_absent("a", b"2") is Answer.REFUSED
