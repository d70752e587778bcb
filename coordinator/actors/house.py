"""What lies behind a coordinator's door: hands writes to the publisher's rounds, and carries out all other calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec

from omniray.coordinator.actors.incarnations import Incarnations
from omniray.coordinator.actors.metrics import exposition
from omniray.coordinator.door import calls
from omniray.coordinator.door.answers import encode_reply
from omniray.coordinator.door.app import Reply
from omniray.coordinator.door.calls import Call, OfWrite, RepairTerms, StageTerms, SweepTerms
from omniray.coordinator.door.status import Status
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine.base.errors import Fenced, OmnirayError
from omniray.engine.base.ulids import checked_txn_id
from omniray.engine.judge.resolution import Outcome
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.part_message import encode_part
from omniray.engine.writes.write_requests import Request
from omniray.workers.staging import FileTerms, stage_file

log = logging.getLogger("omniray")

THREADS = 16
STAGED_AT_ONCE = 8  # files that wait for a worker; more would only wait in Ray
END_AFTER_S = 0.5
LARGE_BYTES = 256 << 10  # decoded on a thread, since it would hold up the others


class CoordinatorHouse:
    """Serves one branch from this process."""

    def __init__(self, incarnations: Incarnations, url: str, end: Callable[[], object]) -> None:
        self._of, self._url, self._end = incarnations, url, end
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="omniray-call")
        self._staging = ThreadPoolExecutor(STAGED_AT_ONCE, thread_name_prefix="omniray-staging")
        self._verbs: Mapping[Call, Callable[[Any], Any]] = {
            calls.NEWEST: lambda _: self._of.admit().newest.seq,
            calls.STATUS: lambda _: self._status(),
            calls.FLUSH: lambda _: self._of.reconciler.flush(),
            calls.RECOVER: lambda _: self._of.reconciler.recover(),
            calls.OUTCOME: self._outcome,
            calls.ABANDON: self._abandon,
            calls.HOLD: self._hold,
            calls.SWEEP: self._sweep,
            calls.REPAIR: self._repair,
            calls.DOWN: lambda _: self.down(),
        }

    @property
    def line(self) -> str:
        return self._of.storage.line

    @property
    def places(self) -> Collection[str]:
        return self._of.door_places

    @property
    def newest(self) -> int:
        return self._of.publisher.newest.seq

    @property
    def is_ready(self) -> bool:
        return self._of.is_serving

    def metrics(self) -> str:
        behind = self._of.publisher.newest.seq - self._of.finalised.through
        return exposition(self._of.gauges, waiting=self._of.publisher.waiting, behind=behind)

    # Writes

    async def write(self, sent: bytes) -> Reply:
        """Take a write as it arrives; one that can't be read is refused alone."""
        try:
            answer: WriteAnswer | OmnirayError = await self._written(sent)
        except Fenced as error:
            answer = await asyncio.get_running_loop().run_in_executor(self._pool, self._fenced, error)
        except OmnirayError as error:
            answer = error
        status = answer.http_status if isinstance(answer, OmnirayError) else 200
        return Reply(status, encode_reply(answer))

    async def _written(self, sent: bytes) -> WriteAnswer:
        if len(sent) < LARGE_BYTES:
            request = self._decoded(sent)
        else:
            request = await asyncio.get_running_loop().run_in_executor(self._pool, self._decoded, sent)
        publisher = self._of.admit(request.header.commit_id)
        return await asyncio.wrap_future(publisher.submit(request))

    def _decoded(self, sent: bytes) -> Request:
        return self._of.decoder.decode(sent)

    def _fenced(self, error: Fenced) -> Fenced:
        """The error, with the owner who was read from the line if that can be read: its door is the one to ask."""
        with contextlib.suppress(OmnirayError):  # else a write whose fate is open would seem to have failed
            error = Fenced(error.message, **{**error.facts, "owner": self._of.branch.tip.another().refresh().owner})
        return error

    # Calls

    async def call(self, call: Call, arguments: bytes) -> Reply:
        try:
            given = calls.decode_arguments(call, arguments)
            if call is calls.NEWEST:  # by it clients find the coordinator, however many calls wait for something
                result = self._verbs[call](given)
            else:
                result = await asyncio.get_running_loop().run_in_executor(self._pool, self._verbs[call], given)
        except OmnirayError as error:
            return Reply(error.http_status, calls.encode_error(error))
        except Exception as error:  # a bug: told to the caller, and nobody else suffers from it
            log.exception("event=call_failed call=%s", call.name)
            bug = OmnirayError(f"a bug in omniray: '{call.name}' failed: {error!r}")
            return Reply(bug.http_status, calls.encode_error(bug))
        return Reply(200, calls.encode(result))

    async def stage(self, arguments: bytes) -> Reply:
        """Have a file staged by the workers; its part, or what is wrong with its rows, is a message of theirs."""
        try:
            terms = calls.decode_arguments(calls.STAGE, arguments)
            assert isinstance(terms, StageTerms)
            asked = FileTerms(
                terms.source, terms.proof, LoadOptions.sent(terms.mode, terms.on_error), terms.since_us, terms.type,
                terms.format,
            )  # fmt: skip
            self._of.admit()
            of = self._of.storage
            stage = partial(stage_file, of.uri, of.options, of.graph_id, asked)
            return Reply(200, await asyncio.get_running_loop().run_in_executor(self._staging, stage))
        except OmnirayError as error:
            return Reply(error.http_status, encode_part(error))

    def _status(self) -> Status:
        of = self._of
        of.reconciler.ask()
        gauges, newest = of.gauges, of.publisher.newest
        return Status(
            uri=of.storage.uri,
            url=self._url,
            address=of.address,
            owner=newest.owner,
            epoch=newest.epoch,
            seq=newest.seq,
            head=newest.head,
            waiting=of.publisher.waiting,
            rounds=gauges.rounds,
            commits=gauges.commits,
            refusals=dict(gauges.refusals),
            rates=gauges.rates(),
            finalised_through=of.finalised.through,
            drifted=tuple(of.finalised.drifted),
            recovered=of.reconciler.recovered,
            trouble=of.reconciler.trouble,
            queue_owners=of.queues.made,
        )

    def _outcome(self, asked: msgspec.Struct) -> Outcome:
        assert isinstance(asked, OfWrite)
        txn_id = checked_txn_id(asked.txn_id)
        return Outcome(txn_id, self._of.admit(txn_id).settle(txn_id))

    def _abandon(self, asked: msgspec.Struct) -> None:
        assert isinstance(asked, OfWrite)
        self._of.publisher.abandon(checked_txn_id(asked.txn_id))

    def _hold(self, asked: msgspec.Struct) -> None:
        assert isinstance(asked, OfWrite)
        self._of.publisher.hold(asked.txn_id)

    def down(self) -> None:
        """Drain, hand the line back, and end all actors, this one a moment later: its answer is on the way."""
        self._of.drain()
        self._of.queues.end()
        self._of.reconciler.end()
        ending = threading.Timer(END_AFTER_S, self._end)
        ending.daemon = True
        ending.start()

    def _sweep(self, terms: msgspec.Struct) -> Any:
        assert isinstance(terms, SweepTerms)
        self._of.admit()
        return self._of.reconciler.sweep(terms.older_than_s, terms.dry_run)

    def _repair(self, terms: msgspec.Struct) -> Any:
        assert isinstance(terms, RepairTerms)
        return self._of.repair(terms)
