"""The Ray actors: thin shells around publisher, table queues and reconciler.

All of them are named, detached and restarted by Ray. None of them is believed to be the only one: a publisher takes the
line over by epoch when it begins, and what the others keep can be read from storage again. Calls of their own kind
(`admin`) are answered while writes are under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any
from zlib import crc32

from omniray.coordinator.cluster import NAMESPACE, Place, Storage, find, ray
from omniray.coordinator.conflicts import WriteAnswer
from omniray.coordinator.gauges import Rates
from omniray.coordinator.metrics import ExportedGauges
from omniray.coordinator.publisher import Publisher
from omniray.coordinator.reconciler import Finalised, Mouth, Reconciler
from omniray.coordinator.round_steps import Remark
from omniray.coordinator.table_queues import Base, Question, StagedPin, TableQueues, TableStage, Taken
from omniray.engine.clock import suspension_aware_clock
from omniray.engine.commit_log import MAIN, MAIN_BRANCH, CommitLog
from omniray.engine.errors import Fenced, LineOwned, NotFound, OmnirayError, StorageError, Unreachable
from omniray.engine.heal import GRACE_S, RecoveryReport
from omniray.engine.line import EMBEDDED, CommitObject
from omniray.engine.lineage import Lineage
from omniray.engine.manifest import Manifest
from omniray.engine.owner import Incarnation, is_owner_known_dead, release, take_over
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
AWAY_PAUSE_S = 0.2  # between looks for an actor that Ray restarts


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
            self._wait_for(by_owner)
            raise StorageError(f"the owner of a write queue is gone: {first_line(error)}; tried again") from error
        return answers

    def _wait_for(self, owners: Iterable[int]) -> None:
        """Wait until owners are back: a round is tried a few times only, and Ray needs seconds to restart one."""
        module, deadline = ray(), time.monotonic() + CALL_TIMEOUT_S
        for owner in owners:
            while time.monotonic() < deadline:
                try:
                    module.get(self._owner(owner).drop.remote([]), timeout=CALL_TIMEOUT_S)
                    break
                except (module.exceptions.RayError, ValueError):
                    with self._lock:
                        self._actors.clear()
                    time.sleep(AWAY_PAUSE_S)

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
        self._place, self._storage = place, storage
        self._turn = threading.Lock()
        self._reconciler, self._owner = self._begin()

    def notice(self, landed: CommitObject, operation_id: str) -> Finalised:
        return self._behind(landed).notice(landed, operation_id)

    def flush(self) -> Finalised:
        reconciler = self._behind(self._ask_newest())
        reconciler.flush()
        return reconciler.finalised()

    def recover(self) -> RecoveryReport:
        return self._behind(self._ask_newest()).recover()

    def report(self) -> tuple[Finalised, int]:
        """How far Phase D is, and how many operations were recovered."""
        return self._reconciler.finalised(), self._reconciler.recovered

    def sweep(self, older_than_s: float, dry_run: bool) -> SweepReport:
        return self._behind(self._ask_newest()).sweep(older_than_s=older_than_s, dry_run=dry_run)

    def close(self) -> None:
        self._reconciler.close()

    def _begin(self) -> tuple[Reconciler, str]:
        store = open_store(self._storage.uri, self._storage.options, self._storage.durability)
        commit_log = CommitLog(store, MAIN_BRANCH)
        schema, _, _ = read_schema(store, commit_log)
        mouth = Mouth(self._ask_newest, self._say)
        owner = mouth.newest.owner
        return Reconciler(store, schema, commit_log, Manifest(store, MAIN), mouth, grace_s=GRACE_S), owner

    def _behind(self, newest: CommitObject) -> Reconciler:
        """The reconciler that works for the owner of this object: another life of the publisher needs another one."""
        with self._turn:
            if newest.owner != self._owner:
                before = self._reconciler
                self._reconciler, self._owner = self._begin()
                threading.Thread(target=_close_quietly, args=(before,), daemon=True).start()
            return self._reconciler

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


class RemoteReconciler:
    """The reconciler in its actor: it is told of every object that lands, however often it dies."""

    def __init__(self, place: Place, storage: Storage, on_finalised: Callable[[Finalised], None]) -> None:
        self._place, self._storage, self._on_finalised = place, storage, on_finalised
        self._untold: SimpleQueue[tuple[CommitObject, str]] = SimpleQueue()
        self._actor: Any = None
        self.recovered = 0
        threading.Thread(target=self._tell, name="omniray-tell-reconciler", daemon=True).start()

    def notice(self, landed: CommitObject, operation_id: str) -> None:
        self._untold.put((landed, operation_id))

    async def ask(self) -> None:
        """Hear how far it is, unless it is away."""
        if self._actor is None:
            return
        with contextlib.suppress(ray().exceptions.RayError):
            finalised, self.recovered = await self._actor.report.remote()
            self._on_finalised(finalised)

    def close(self) -> None:
        """Finish Phase D and end. One that is away leaves the rest to the next writer, which finds it in storage."""
        try:
            for method in ("flush", "close"):
                ray().get(getattr(self._found(), method).remote(), timeout=CALL_TIMEOUT_S)
        except ray().exceptions.RayError as error:
            log.warning("event=reconciler_not_closed error=%s", first_line(error))

    def _tell(self) -> None:
        while True:
            landed, operation_id = self._untold.get()
            while (finalised := self._told(landed, operation_id)) is None:
                time.sleep(AWAY_PAUSE_S)
            self._on_finalised(finalised)

    def _told(self, landed: CommitObject, operation_id: str) -> Finalised | None:
        try:
            noticed = self._found().notice.remote(landed, operation_id)
            finalised: Finalised = ray().get(noticed, timeout=CALL_TIMEOUT_S)
        except (ray().exceptions.RayError, ValueError) as error:
            log.warning("event=reconciler_away error=%s", first_line(error))
            self._actor = None
            return None
        return finalised

    def _found(self) -> Any:
        if self._actor is None:
            self._actor = _create(
                ReconcilerActor, self._place.reconciler, self._place, self._storage, max_concurrency=8
            )
        return self._actor


class PublisherActor:
    """Publishes one branch; every call answers with a value or with the error to raise."""

    def __init__(self, place: Place, storage: Storage, address: str, queue_owners: int, instead_of: str) -> None:
        self._storage, self._address, self._instead_of = storage, address, instead_of
        self._store = open_store(storage.uri, storage.options, storage.durability)
        self._log = CommitLog(self._store, MAIN_BRANCH)
        self._schema, _, self._state = read_schema(self._store, self._log)
        self._queues = RemoteQueues(place, storage, queue_owners)
        self._finalised = Finalised(0, {})
        self._reconciler = RemoteReconciler(place, storage, self._noticed)
        self._life = threading.Lock()
        self._has_ended = self._is_leaving = False
        self._gauges = ExportedGauges(storage.uri, place.branch)
        self._open()

    def _open(self) -> None:
        """Begin a new life: take the line over, and know nothing but what is in storage."""
        read_at = suspension_aware_clock()
        newest = self._log.newest()
        if newest is None:
            raise NotFound(f"no graph at {self._store.uri}; create one with 'omniray init'", uri=self._store.uri)
        self._refuse_usurping(newest)
        manifest = Manifest(self._store, MAIN)
        self._tip = Tip(self._log, manifest, newest, read_at=read_at)
        self._owner = str(Incarnation.new(self._address))
        taken = take_over(self._tip, self._owner)
        self._publisher = Publisher(
            self._store, self._tip, Lineage(self._log, manifest, self._tip.refresh), Sidecars(self._store),
            self._schema, self._state.schema_hash, self._queues, self._landed,
            branch=str(MAIN_BRANCH), owner=self._owner, on_ended=self._ended, gauges=self._gauges,
        )  # fmt: skip
        self._has_ended = False
        self._reconciler.notice(taken, taken.op_id)  # and so Phase D of what the life before has left

    def _refuse_usurping(self, newest: CommitObject) -> None:
        """Never take the line from the coordinator of another cluster, unless it is the one that was to be replaced.

        Ray restarts a publisher whenever it can, also long after another cluster has taken over.
        """
        owner = newest.owner
        if owner in (EMBEDDED, self._instead_of) or is_owner_known_dead(owner):
            return
        if (address := Incarnation.parse(owner).address) != self._address:
            raise LineOwned(
                f"a coordinator serves this graph from the cluster at {address}: connect to that one", address=address
            )

    def _ended(self, error: OmnirayError) -> None:
        """Begin anew, unless somebody else has taken over: then this actor only says so, to whoever asks."""
        self._has_ended = True
        if not (isinstance(error, Fenced) or self._is_leaving):
            threading.Thread(target=self._begin_anew, name="omniray-begin-anew", daemon=True).start()

    def _begin_anew(self) -> None:
        pause_s = 0.1
        while True:
            try:
                return self._open_if_ended()
            except LineOwned as error:
                return log.warning("event=begin_refused error=%s", error)
            except OmnirayError as error:
                log.warning("event=begin_failed error=%s", error)
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, BEGIN_PAUSE_S_MAX)

    def _open_if_ended(self) -> None:
        with self._life:
            if self._has_ended:
                self._open()

    # Writes

    async def submit(self, request: Request) -> WriteAnswer | OmnirayError:
        if self._is_leaving and self._publisher.under_way(request.header.commit_id) is None:
            return _leaving(self._address)
        if self._has_ended:
            return Fenced("this life of the publisher has ended; send the write again with the same id")
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
        await self._reconciler.ask()
        gauges, newest = self._publisher.gauges, self._publisher.newest
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
            recovered=self._reconciler.recovered,
            queue_owners=self._queues.made,
        )

    async def begin(self, instead_of: str) -> OmnirayError | None:
        """Be there for a client; a life that has ended is begun anew, if the line may be taken."""
        if self._is_leaving:
            return _leaving(self._address)
        self._instead_of = instead_of
        try:
            return await asyncio.to_thread(self._open_if_ended)
        except OmnirayError as error:
            return error

    async def drain(self) -> None:
        """Take nothing more, finish what is under way, and hand the line back to everybody."""
        self._is_leaving = True
        while not self._publisher.is_idle:
            await asyncio.sleep(0.01)
        self._publisher.end(_leaving(self._address))
        await asyncio.to_thread(self._hand_back)

    def _hand_back(self) -> None:
        self._reconciler.close()
        release(self._tip, self._owner)

    # Phase D

    def _landed(self, landed: CommitObject, operation_id: str) -> None:
        self._reconciler.notice(landed, operation_id)

    def _noticed(self, finalised: Finalised) -> None:
        self._finalised = finalised
        self._publisher.finalised(finalised.through, finalised.drifted)


def create_publisher(place: Place, storage: Storage, address: str, queue_owners: int, instead_of: str) -> Any:
    """The publisher of a branch: the one that is there, or a new one, which takes over from `instead_of` if need be."""
    groups = {"concurrency_groups": {"admin": 64}}
    return _create(
        PublisherActor, place.publisher, place, storage, address, queue_owners, instead_of, groups=groups,
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


def _close_quietly(reconciler: Reconciler) -> None:
    try:
        reconciler.close()
    except OmnirayError as error:  # its successor does what it leaves
        log.warning("event=reconciler_not_closed error=%s", error)


def _leaving(address: str) -> Unreachable:
    return Unreachable(
        f"the coordinator at {address} was taken down and takes no more writes; nothing was written: connect again, "
        "which starts one, or write with 'omniray.open'",
        address=address,
    )


def _part(base: Base, table_keys: Sequence[str]) -> Base:
    return Base({key: base.pins[key] for key in table_keys}, base.landed_through)


def _as_ours(error: Any) -> OmnirayError:
    cause = error.cause
    return cause if isinstance(cause, OmnirayError) else StorageError(f"a write queue failed: {cause!r}")


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
