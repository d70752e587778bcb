"""The Ray actors: thin shells around publisher, table queues and reconciler.

All of them are named, detached and restarted by Ray. None of them is believed to be the only one: a publisher takes the
line over by epoch when it begins, and what the others keep can be read from storage again. Calls of their own kind
(`admin`) are answered while writes are under way.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from omniray.coordinator.cluster import NAMESPACE, Place, Storage, find, ray
from omniray.coordinator.conflicts import WriteAnswer
from omniray.coordinator.gauges import Rates
from omniray.coordinator.metrics import ExportedGauges
from omniray.coordinator.publisher import Publisher, Remark
from omniray.coordinator.reconciler import Finalised, Mouth, Reconciler
from omniray.coordinator.table_queues import Base, Question, StagedPin, TableQueues, TableStage, Taken
from omniray.engine.clock import suspension_aware_clock
from omniray.engine.commit_log import MAIN, MAIN_BRANCH, CommitLog
from omniray.engine.errors import Fenced, NotFound, OmnirayError, StorageError
from omniray.engine.heal import GRACE_S, RecoveryReport
from omniray.engine.line import CommitObject
from omniray.engine.lineage import Lineage
from omniray.engine.manifest import Manifest
from omniray.engine.owner import Incarnation, release, take_over
from omniray.engine.request import Request
from omniray.engine.schema_files import read_schema
from omniray.engine.sidecar import Sidecars
from omniray.engine.store import open_store
from omniray.engine.sweep import SweepReport
from omniray.engine.tip import Tip

log = logging.getLogger("omniray")

WRITES_MAX = 50_000
QUEUE_THREADS = 8
CALL_TIMEOUT_S = 120.0
BEGIN_PAUSE_S_MAX = 5.0


@dataclass(frozen=True, slots=True)
class Status:
    """A coordinator at one moment."""

    uri: str
    address: str
    owner: str
    epoch: int
    seq: int
    head: str
    waiting: int
    rounds: int
    commits: int
    refusals: dict[str, int]
    rates: Rates
    finalised_through: int
    drifted: tuple[str, ...]
    recovered: int
    queue_owners: int

    @property
    def pending_finalisations(self) -> int:
        return self.seq - self.finalised_through


class RemoteQueues:
    """The write queues in their actors: each table has one owner, found by the hash of its name."""

    def __init__(self, place: Place, storage: Storage, owners: int) -> None:
        self._place, self._storage, self._owners = place, storage, owners
        self._actors: dict[int, Any] = {}
        self._lock = threading.Lock()

    @property
    def made(self) -> int:
        return len(self._actors)

    def read(self, base: Base, questions: Sequence[Question]) -> list[Any]:
        return self._each(
            questions,
            lambda q: q.table_key,
            lambda owner, part: owner.read.remote(_part(base, [q.table_key for q in part]), part),
        )

    def stage(self, base: Base, stages: Sequence[TableStage]) -> list[StagedPin | Taken | OmnirayError]:
        return self._each(
            stages,
            lambda s: s.announced.table_key,
            lambda owner, part: owner.stage.remote(_part(base, [s.announced.table_key for s in part]), part),
        )

    def drop(self, table_keys: Sequence[str]) -> None:
        """Best effort: an owner that is gone has nothing to forget, and what it keeps is compared with its pin."""
        try:
            self._each(table_keys, lambda key: key, lambda owner, part: owner.drop.remote(part))
        except StorageError as error:
            log.warning("event=drop_failed error=%s", error)

    def _each(
        self, parts: Sequence[Any], key: Callable[[Any], str], call: Callable[[Any, list[Any]], Any]
    ) -> list[Any]:
        """One call for each owner, all at once; the answers in the order of the parts."""
        by_owner: defaultdict[int, list[int]] = defaultdict(list)
        for index, part in enumerate(parts):
            by_owner[crc32(key(part).encode()) % self._owners].append(index)
        answers: list[Any] = [None] * len(parts)
        module = ray()
        try:
            calls = {
                owner: call(self._owner(owner), [parts[i] for i in indexes]) for owner, indexes in by_owner.items()
            }
            for owner, answered in zip(calls, module.get(list(calls.values()), timeout=CALL_TIMEOUT_S), strict=True):
                for index, answer in zip(by_owner[owner], answered or [], strict=False):
                    answers[index] = answer
        except module.exceptions.RayTaskError as error:
            raise _as_ours(error) from error
        except (module.exceptions.RayError, ValueError) as error:
            with self._lock:
                self._actors.clear()
            raise StorageError(f"the owner of a write queue is gone: {first_line(error)}; tried again") from error
        return answers

    def _owner(self, number: int) -> Any:
        with self._lock:
            if number not in self._actors:
                self._actors[number] = _create(
                    QueuesActor, self._place.queues(number), self._storage, max_concurrency=QUEUE_THREADS
                )
            return self._actors[number]


class QueuesActor:
    """Owns the write queues of some tables."""

    def __init__(self, storage: Storage) -> None:
        store = open_store(storage.uri, storage.options, storage.durability)
        schema, _, _ = read_schema(store, CommitLog(store, MAIN_BRANCH))
        self._queues = TableQueues(store, schema)

    def read(self, base: Base, questions: Sequence[Question]) -> list[Any]:
        return self._queues.read(base, questions)

    def stage(self, base: Base, stages: Sequence[TableStage]) -> list[StagedPin | Taken | OmnirayError]:
        return self._queues.stage(base, stages)

    def drop(self, table_keys: Sequence[str]) -> list[None]:
        self._queues.drop(table_keys)
        return [None for _ in table_keys]


class ReconcilerActor:
    """Heals behind one publisher."""

    def __init__(self, place: Place, storage: Storage) -> None:
        store = open_store(storage.uri, storage.options, storage.durability)
        commit_log = CommitLog(store, MAIN_BRANCH)
        schema, _, _ = read_schema(store, commit_log)
        self._place = place
        mouth = Mouth(self._ask_newest, self._say)
        self._reconciler = Reconciler(store, schema, commit_log, Manifest(store, MAIN), mouth, grace_s=GRACE_S)

    def notice(self, landed: CommitObject, operation_id: str) -> Finalised:
        return self._reconciler.notice(landed, operation_id)

    def flush(self) -> Finalised:
        self._reconciler.flush()
        return self._reconciler.finalised()

    def recover(self) -> RecoveryReport:
        return self._reconciler.recover()

    def recovered(self) -> int:
        return self._reconciler.recovered

    def sweep(self, older_than_s: float, dry_run: bool) -> SweepReport:
        return self._reconciler.sweep(older_than_s=older_than_s, dry_run=dry_run)

    def close(self) -> None:
        self._reconciler.close()

    def _ask_newest(self) -> CommitObject:
        newest: CommitObject = self._ask(lambda publisher: publisher.newest.options(concurrency_group="admin").remote())
        return newest

    def _say(self, remark: Remark) -> None:
        self._ask(lambda publisher: publisher.remark.options(concurrency_group="admin").remote(remark))

    def _ask(self, call: Callable[[Any], Any]) -> Any:
        module = ray()
        publisher = find(self._place.publisher)
        if publisher is None:
            raise StorageError("the publisher is gone; it is asked again")
        try:
            answer = module.get(call(publisher), timeout=CALL_TIMEOUT_S)
        except module.exceptions.RayError as error:
            raise StorageError(f"the publisher does not answer: {first_line(error)}; it is asked again") from error
        if isinstance(answer, OmnirayError):
            raise answer
        return answer


class PublisherActor:
    """Publishes one branch; every call answers with a value or with the error to raise."""

    def __init__(self, place: Place, storage: Storage, address: str, queue_owners: int) -> None:
        self._place, self._storage, self._address, self._queue_owners = place, storage, address, queue_owners
        self._store = open_store(storage.uri, storage.options, storage.durability)
        self._log = CommitLog(self._store, MAIN_BRANCH)
        self._schema, _, self._state = read_schema(self._store, self._log)
        self._queues = RemoteQueues(place, storage, queue_owners)
        self._finalised = Finalised(0, {})
        self._reconciler: Any = None
        self._gauges = ExportedGauges(storage.uri, place.branch)
        self._open()

    def _open(self) -> None:
        """Begin a new life: take the line over, and know nothing but what is in storage."""
        read_at = suspension_aware_clock()
        newest = self._log.newest()
        if newest is None:
            raise NotFound(f"no graph at {self._store.uri}; create one with 'omniray init'", uri=self._store.uri)
        manifest = Manifest(self._store, MAIN)
        self._tip = Tip(self._log, manifest, newest, read_at=read_at)
        self._owner = str(Incarnation.new(self._address))
        take_over(self._tip, self._owner)
        self._publisher = Publisher(
            self._store, self._tip, Lineage(self._log, manifest, self._tip.refresh), Sidecars(self._store),
            self._schema, self._state.schema_hash, self._queues, self._landed,
            branch=str(MAIN_BRANCH), owner=self._owner, on_ended=self._ended, gauges=self._gauges,
        )  # fmt: skip

    def _ended(self, error: OmnirayError) -> None:
        """Begin anew, unless somebody else has taken over: then this actor only says so, to whoever asks."""
        if not isinstance(error, Fenced):
            threading.Thread(target=self._begin_anew, name="omniray-begin-anew", daemon=True).start()

    def _begin_anew(self) -> None:
        pause_s = 0.1
        while True:
            try:
                return self._open()
            except OmnirayError as error:
                log.warning("event=begin_failed error=%s", error)
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, BEGIN_PAUSE_S_MAX)

    # Writes

    async def submit(self, request: Request) -> WriteAnswer | OmnirayError:
        try:
            return await asyncio.wrap_future(self._publisher.submit(request))
        except OmnirayError as error:
            return error

    async def submit_all(self, requests: Sequence[Request]) -> list[WriteAnswer | OmnirayError]:
        return await asyncio.gather(*(self.submit(request) for request in requests))

    async def abandon(self, commit_id: str) -> None:
        self._publisher.abandon(commit_id)

    # Admin

    async def remark(self, remark: Remark) -> WriteAnswer | OmnirayError:
        try:
            return await asyncio.wrap_future(self._publisher.remark(remark))
        except OmnirayError as error:
            return error

    async def newest(self) -> CommitObject:
        return self._publisher.newest

    async def is_committed(self, commit_id: str) -> bool | None:
        """Whether a write is in the line; None while it is under way."""
        if self._publisher.is_committed(commit_id):
            return True
        return None if self._publisher.under_way(commit_id) is not None else False

    async def status(self) -> Status:
        gauges, newest = self._publisher.gauges, self._publisher.newest
        recovered = await self._reconciler.recovered.remote() if self._reconciler is not None else 0
        return Status(
            uri=self._storage.uri,
            address=self._address,
            owner=newest.owner,
            epoch=newest.epoch,
            seq=newest.seq,
            head=newest.head,
            waiting=self._publisher.waiting,
            rounds=gauges.rounds,
            commits=gauges.commits,
            refusals=dict(gauges.refusals),
            rates=gauges.rates(),
            finalised_through=self._finalised.through,
            drifted=tuple(self._finalised.drifted),
            recovered=recovered,
            queue_owners=self._queues.made,
        )

    async def begin(self) -> None:
        """Have the reconciler start: it asks this actor for the end of the line, so this one has to be there."""
        await asyncio.to_thread(self._reconcile)

    async def drain(self) -> None:
        """Finish what is under way, take nothing more, and hand the line back to everybody."""
        while not self._publisher.is_idle:
            await asyncio.sleep(0.01)
        self._publisher.end(Fenced("the coordinator was taken down; start it again with 'omniray up'"))
        await asyncio.to_thread(self._hand_back)

    def _hand_back(self) -> None:
        if self._reconciler is not None:
            ray().get(self._reconciler.flush.remote(), timeout=CALL_TIMEOUT_S)
            ray().get(self._reconciler.close.remote(), timeout=CALL_TIMEOUT_S)
        release(self._tip, self._owner)

    # Phase D

    def _reconcile(self) -> None:
        self._reconciler = _create(
            ReconcilerActor, self._place.reconciler, self._place, self._storage, max_concurrency=8
        )

    def _landed(self, landed: CommitObject, operation_id: str) -> None:
        if self._reconciler is None:
            self._reconcile()
        noticed: Future[Finalised] = self._reconciler.notice.remote(landed, operation_id).future()
        noticed.add_done_callback(self._noticed)

    def _noticed(self, noticed: Future[Finalised]) -> None:
        if noticed.exception() is None:
            self._finalised = noticed.result()
            self._publisher.finalised(self._finalised.through, self._finalised.drifted)


def create_publisher(place: Place, storage: Storage, address: str, queue_owners: int) -> Any:
    """The publisher of a branch: the one that is there, or a new one."""
    groups = {"concurrency_groups": {"admin": 64}}
    return _create(
        PublisherActor, place.publisher, place, storage, address, queue_owners, groups=groups,
        max_concurrency=WRITES_MAX,
    )  # fmt: skip


def _create(
    actor: type, name: str, *arguments: Any, max_concurrency: int, groups: Mapping[str, Any] | None = None
) -> Any:
    shell = ray().remote(**groups)(actor) if groups else ray().remote(actor)
    return shell.options(
        name=name, namespace=NAMESPACE, get_if_exists=True, lifetime="detached",
        max_restarts=-1, max_task_retries=0, num_cpus=0, max_concurrency=max_concurrency,
    ).remote(*arguments)  # fmt: skip


def _part(base: Base, table_keys: Sequence[str]) -> Base:
    return Base({key: base.pins[key] for key in table_keys}, base.landed_through)


def _as_ours(error: Any) -> OmnirayError:
    cause = error.cause
    return cause if isinstance(cause, OmnirayError) else StorageError(f"a write queue failed: {cause!r}")


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
