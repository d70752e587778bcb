"""Each fault does what it says, to the store and to Lance alike: what the tests that use them prove depends on it."""

from __future__ import annotations

import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import lance
import pytest

from omniray.coordinator.stress.fault_proxy import FaultProxy, running_proxy
from omniray.coordinator.stress.request_faults import RequestFault, StoreFault
from omniray.engine.base.errors import StorageError
from omniray.engine.store.directory import DirectoryStore
from omniray.engine.store.object_store import Answer, ObjectStore
from omniray.engine.store.open_store import open_store
from tests.faults.clients import TOO_LONG_MS, impatience, impatient
from tests.kit.faulty_store import CallFault, Crashed, Effect, FaultyStore
from tests.lance_tables import ids, rows
from tests.stores import Root, new_bucket

ONCE, ALWAYS = 1, 0
APPLIED = {StoreFault.LOST_ANSWER, StoreFault.FALSE_ERROR, StoreFault.CUT_BODY}
HOLDING = {StoreFault.TIME_OUT, StoreFault.DELAY}
FAILING = [kind for kind in StoreFault if kind is not StoreFault.TWICE]


@pytest.fixture(scope="module")
def proxy(s3_endpoint: str) -> Iterator[FaultProxy]:
    with running_proxy(s3_endpoint, seed=0) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def bucket(proxy: FaultProxy) -> Root:
    return impatient(new_bucket(proxy.endpoint))


@pytest.fixture(scope="module")
def store(bucket: Root) -> Iterator[ObjectStore]:
    with impatience():
        yield open_store(f"{bucket.uri}/graph", bucket.storage_options)


@pytest.fixture
def key(proxy: FaultProxy) -> Iterator[str]:
    """A name that no other test uses."""
    yield f"object-{uuid.uuid4()}"
    proxy.disarm()


@pytest.fixture
def table(bucket: Root, key: str) -> str:
    return f"{bucket.uri}/{key}"


def armed(proxy: FaultProxy, kind: StoreFault, pattern: str, times: int) -> None:
    proxy.arm(RequestFault(kind, pattern, times=times, wait_ms=TOO_LONG_MS))


def met(proxy: FaultProxy) -> int:
    return sum(1 for seen in proxy.log() if seen.fault)


# Through the store


@pytest.mark.parametrize("kind", StoreFault)
def test_a_put_that_fails_once_is_repeated_and_may_be_refused_because_of_itself(
    proxy: FaultProxy, store: ObjectStore, key: str, kind: StoreFault
) -> None:
    armed(proxy, kind, f"PUT .*/{key}", ONCE)
    answer = store.put_if_absent(key, b"ours")
    if kind in HOLDING:  # a conditional put that got no answer in time is not repeated by the client
        assert answer is Answer.UNCLEAR
        proxy.disarm()
        answer = store.put_if_absent(key, b"ours")
    assert answer is (Answer.REFUSED if kind in APPLIED | {StoreFault.DELAY, StoreFault.TWICE} else Answer.CREATED)
    proxy.disarm()
    assert met(proxy) == 1
    assert store.get(key) == b"ours"


@pytest.mark.parametrize("kind", FAILING)
def test_a_put_that_fails_each_time_has_no_clear_answer_and_has_happened_or_not(
    proxy: FaultProxy, store: ObjectStore, key: str, kind: StoreFault
) -> None:
    armed(proxy, kind, f"PUT .*/{key}", ALWAYS)
    assert store.put_if_absent(key, b"ours") is Answer.UNCLEAR
    proxy.disarm()
    assert met(proxy) == 1 if kind in HOLDING else met(proxy) > 1
    assert store.get(key) == (b"ours" if kind in APPLIED | {StoreFault.DELAY} else None)


@pytest.mark.parametrize("kind", [kind for kind in FAILING if kind not in HOLDING])
@pytest.mark.parametrize("times", [ONCE, ALWAYS])
def test_a_read_that_fails_gives_all_of_the_bytes_or_an_error(
    proxy: FaultProxy, store: ObjectStore, key: str, kind: StoreFault, times: int
) -> None:
    store.put(key, b"half" * 100)
    armed(proxy, kind, f"GET .*/{key}", times)
    try:
        assert store.get(key) == b"half" * 100
        assert times == ONCE
    except StorageError:
        assert times == ALWAYS
    assert met(proxy) > 0


def test_a_request_that_comes_late_is_through_when_the_proxy_is_disarmed(
    proxy: FaultProxy, store: ObjectStore, key: str
) -> None:
    target = f"{proxy.endpoint}/{store.uri.removeprefix('s3://')}/{key}"
    put = urllib.request.Request(target, b"late", {"Content-Type": "binary/octet-stream"}, method="PUT")
    armed(proxy, StoreFault.DELAY, f"PUT .*/{key}", ALWAYS)
    with pytest.raises(TimeoutError):
        urllib.request.urlopen(put, timeout=0.1)
    proxy.disarm()
    assert store.get(key) == b"late"


def test_only_the_nth_request_that_fits_is_broken(proxy: FaultProxy, store: ObjectStore, key: str) -> None:
    proxy.arm(RequestFault(StoreFault.CUT, f"PUT .*/{key}/o", nth=2, times=ALWAYS))
    answers = [store.put_if_absent(f"{key}/{name}", b"") for name in ("one", "two", "out")]
    assert answers == [Answer.CREATED, Answer.CREATED, Answer.UNCLEAR]
    assert {seen.path.rsplit("/", 1)[1] for seen in proxy.log() if seen.fault} == {"out"}


def test_the_log_has_every_request_as_it_was_sent(proxy: FaultProxy, store: ObjectStore, key: str) -> None:
    proxy.watch()
    store.put_if_absent(f"{key} b/ü", b"x")
    list(store.names(f"{key} b"))
    store.delete_all([f"{key} b/ü"])
    put, listing, deletion = proxy.log()
    assert (put.method, put.is_conditional) == ("PUT", True)
    assert put.path.endswith(f"/graph/{key} b/ü")
    assert (listing.method, listing.is_conditional) == ("GET", False)
    assert f"prefix=graph/{key}" in listing.query
    assert (deletion.method, deletion.query) == ("POST", "delete")


# Through Lance


@pytest.mark.parametrize("kind", StoreFault)
def test_lance_writes_a_file_again_whose_put_failed_once(
    proxy: FaultProxy, bucket: Root, table: str, kind: StoreFault
) -> None:
    armed(proxy, kind, "PUT .*/data/", ONCE)
    lance.write_dataset(rows("a"), table, storage_options=bucket.storage_options)
    proxy.disarm()
    assert met(proxy) == 1
    assert ids(lance.dataset(table, storage_options=bucket.storage_options)) == ["a"]


@pytest.mark.parametrize("kind", FAILING)
def test_lance_gives_up_on_a_file_whose_put_fails_each_time(
    proxy: FaultProxy, bucket: Root, table: str, kind: StoreFault
) -> None:
    lance.write_dataset(rows("a"), table, storage_options=bucket.storage_options)
    armed(proxy, kind, "PUT .*/data/", ALWAYS)
    with pytest.raises(OSError, match="PUT"):
        lance.write_dataset(rows("b"), table, mode="append", storage_options=bucket.storage_options)
    proxy.disarm()
    assert ids(lance.dataset(table, storage_options=bucket.storage_options)) == ["a"]


@pytest.mark.parametrize("kind", [kind for kind in FAILING if kind not in HOLDING])
@pytest.mark.parametrize("times", [ONCE, ALWAYS])
def test_lance_reads_all_of_a_table_or_fails(
    proxy: FaultProxy, bucket: Root, table: str, kind: StoreFault, times: int
) -> None:
    lance.write_dataset(rows("a", "b"), table, storage_options=bucket.storage_options)
    armed(proxy, kind, "GET .*/data/", times)
    opened = lance.dataset(table, storage_options=bucket.storage_options)
    try:
        assert ids(opened) == ["a", "b"]
        assert times == ONCE
    except (OSError, ValueError):  # Lance's errors, and Arrow's around them
        assert times == ALWAYS
    assert met(proxy) > 0


# The store that fails by itself


@pytest.fixture
def faulty(tmp_path: Path) -> FaultyStore:
    return FaultyStore(DirectoryStore(tmp_path))


def test_a_faulty_store_has_every_method_of_a_store() -> None:
    wanted = {name for name in vars(ObjectStore) if not name.startswith("_")}
    assert wanted - set(vars(FaultyStore)) == set()


def test_a_faulty_store_passes_everything_on_until_it_is_armed(faulty: FaultyStore) -> None:
    assert faulty.put_if_absent("folder/a", b"1") is Answer.CREATED
    assert faulty.copy_if_absent("folder/a", "folder/b") is Answer.CREATED
    assert list(faulty.names("folder")) == ["a", "b"]
    assert [file.path for file in faulty.files("folder", after="a")] == ["folder/b"]
    faulty.delete_all(["folder/a", "folder/b"])
    assert faulty.get("folder/a") is None
    assert [call.method for call in faulty.calls] == (
        ["put_if_absent", "copy_if_absent", "names", "files", "delete_all", "get"]
    )


@pytest.mark.parametrize(
    ("effect", "answer", "there"),
    [(Effect.FAIL, None, False), (Effect.UNCLEAR, Answer.UNCLEAR, False), (Effect.LOSE, Answer.UNCLEAR, True)],
)
def test_a_put_if_absent_is_broken_as_the_effect_says(
    faulty: FaultyStore, effect: Effect, answer: Answer | None, there: bool
) -> None:
    faulty.arm(CallFault(effect, frozenset({"put_if_absent"})))
    if answer is None:
        with pytest.raises(StorageError):
            faulty.put_if_absent("a", b"1")
    else:
        assert faulty.put_if_absent("a", b"1") is answer
    assert (faulty.get("a") is not None) is there


def test_a_method_without_an_unclear_answer_raises_though_it_happened(faulty: FaultyStore) -> None:
    faulty.arm(CallFault(Effect.LOSE, frozenset({"put"})))
    with pytest.raises(StorageError):
        faulty.put("a", b"1")
    assert faulty.get("a") == b"1"


def test_only_the_nth_call_that_fits_and_its_followers_are_broken(faulty: FaultyStore) -> None:
    faulty.arm(CallFault(Effect.UNCLEAR, path_contains="x", nth=2, times=2))
    names = ["x1", "other", "x2", "x3", "x4"]
    created = [name for name in names if faulty.put_if_absent(name, b"") is Answer.CREATED]
    assert created == ["x1", "other", "x4"]


def test_a_pause_runs_its_callback_before_the_call_happens(faulty: FaultyStore) -> None:
    faulty.put("a", b"1")
    faulty.arm(CallFault(Effect.PAUSE, frozenset({"get"}), pause=lambda: faulty.inner.put("a", b"2")))
    assert faulty.get("a") == b"2"


def test_a_killed_process_reaches_its_store_no_more_and_another_one_does(faulty: FaultyStore) -> None:
    faulty.arm(CallFault(Effect.KILL, frozenset({"delete"})))
    faulty.put("a", b"1")
    for call in (lambda: faulty.delete("a"), lambda: faulty.get("a"), lambda: faulty.put("b", b"2")):
        with pytest.raises(Crashed):
            call()
    assert faulty.is_dead
    assert [file.path for file in faulty.inner.files("")] == ["a"]
