"""What lies behind a coordinator's door: hands writes to the publishers' rounds, and carries out all other calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from omniray.coordinator.actors.incarnations import Incarnations
from omniray.coordinator.actors.line_service import LineService
from omniray.coordinator.actors.metrics import exposition
from omniray.coordinator.door import calls
from omniray.coordinator.door.answers import encode_reply
from omniray.coordinator.door.app import Reply
from omniray.coordinator.door.calls import (
    Call,
    CreateTerms,
    DeleteTerms,
    MergeCall,
    OfWrite,
    RenameTerms,
    RepairTerms,
    RevertCall,
    StageTerms,
    SweepTerms,
)
from omniray.coordinator.door.record import find_door
from omniray.coordinator.door.status import Rates, Status
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine.base.errors import Fenced, OmnirayError
from omniray.engine.base.principal import Author
from omniray.engine.base.ulids import checked_txn_id
from omniray.engine.branches.branches import BranchChange, Branches
from omniray.engine.branches.merge_result import MergeResult, MergeTerms
from omniray.engine.branches.starts import StartOf
from omniray.engine.judge.resolution import Outcome
from omniray.engine.line.commit_object import EMBEDDED
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.part_message import encode_part
from omniray.engine.writes.write_requests import MutationRequest, Request
from omniray.workers.staging import FileTerms, stage_file

log = logging.getLogger("omniray")

Given = TypeVar("Given")
Read = TypeVar("Read")

STAGED_AT_ONCE = 8  # files that wait for a worker; more would only wait in Ray
END_AFTER_S = 0.5
LARGE_BYTES = 256 << 10  # decoded on a thread, since it would hold up the others
LONG_TEXT_CHARS = 4 << 10  # as long a query takes some ten milliseconds to parse


@dataclass(frozen=True, slots=True)
class _Verb:
    """How a call is carried out for a line. `opens`: also for a branch that is not open yet."""

    carry_out: Callable[[LineService, Any], Any]
    opens: bool = True


class CoordinatorHouse:
    """Serves one graph from this process."""

    def __init__(self, incarnations: Incarnations, url: str, end: Callable[[], object]) -> None:
        self._of, self._url, self._end = incarnations, url, end
        self._staging = ThreadPoolExecutor(STAGED_AT_ONCE, thread_name_prefix="omniray-staging")
        self._verbs: Mapping[Call, _Verb] = {
            calls.NEWEST: _Verb(lambda of, _: of.admit().newest.seq),
            calls.FLUSH: _Verb(lambda of, _: of.reconciler.flush()),
            calls.RECOVER: _Verb(lambda of, terms: of.reconciler.recover(terms.grace_s)),
            calls.OUTCOME: _Verb(_outcome),
            calls.ABANDON: _Verb(_abandon, opens=False),
            calls.HOLD: _Verb(_hold, opens=False),
            calls.REPAIR: _Verb(_repair),
            calls.MERGE: _Verb(_merge),
            calls.REVERT: _Verb(_revert),
        }
        self._of_graph: Mapping[Call, Callable[[str, Any], Any]] = {
            calls.STATUS: lambda line, _: self._status(line),
            calls.SWEEP: lambda _, terms: self._sweep(terms),
            calls.DOWN: lambda _, __: self.down(),
            calls.BRANCH_CREATE: lambda _, terms: self._create_branch(terms),
            calls.BRANCH_DELETE: lambda _, terms: self._change_branches(_delete, terms),
            calls.BRANCH_RENAME: lambda _, terms: self._change_branches(_rename, terms),
        }

    @property
    def line(self) -> str:
        return self._of.line

    @property
    def places(self) -> Collection[str]:
        return self._of.door_places

    def newest_of(self, line: str) -> int | None:
        if line == self.line:
            return self._of.publisher.newest.seq
        with self._of.hosted.used(line) as branch:
            return None if branch is None else branch.publisher.newest.seq

    @property
    def is_ready(self) -> bool:
        return self._of.is_serving

    def metrics(self) -> str:
        served: list[LineService] = [self._of, *self._of.hosted.open]
        return exposition(
            self._of.totals,
            waiting=sum(one.publisher.waiting for one in served),
            behind=sum(one.publisher.newest.seq - one.finalised.through for one in served),
            branches=len(served),
        )

    # Writes

    async def write(self, line: str, sent: bytes, version: int) -> Reply:
        """Take a write as it arrives, and answer in its version; one that can't be read is refused alone."""
        try:
            answer: WriteAnswer | OmnirayError = await self._written(line, sent)
        except OmnirayError as error:
            answer = await self._told(error)
        status = answer.http_status if isinstance(answer, OmnirayError) else 200
        return Reply(status, encode_reply(answer, version))

    async def _written(self, line: str, sent: bytes) -> WriteAnswer:
        if line == self.line:
            return await asyncio.wrap_future(await self._taken(self._of, sent))
        while True:
            with self._of.hosted.used(line) as branch:
                if branch is not None:
                    taken = await self._taken(branch, sent)
                    break
            await asyncio.wrap_future(self._of.hosted.opening(line))
        return await asyncio.wrap_future(taken)

    async def _taken(self, of: LineService, sent: bytes) -> Future[WriteAnswer]:
        request: Request = await _read(of, of.decoder.decode, sent, is_large=len(sent) >= LARGE_BYTES)
        if isinstance(request, MutationRequest):
            is_long = len(request.text) >= LONG_TEXT_CHARS
            request = await _read(of, of.decoder.scoped, request, is_large=is_long)
        return of.admit(request.header.commit_id).submit(request)

    async def _told(self, error: OmnirayError) -> OmnirayError:
        """The error as a client is told it."""
        if not isinstance(error, Fenced):
            return error
        told: Fenced = await self._of.threads.run("owner", self._fenced, error)
        return told

    def _fenced(self, error: Fenced) -> Fenced:
        """The error, with the owner of main's line and the url of its door, as far as they can be read."""
        facts = dict(error.facts)
        with contextlib.suppress(OmnirayError):  # else a write whose fate is open would seem to have failed
            newest = self._of.branch.tip.another().refresh()
            facts["owner"] = newest.owner
            if newest.owner != EMBEDDED and (door := find_door(self._of.branch.store, newest)) is not None:
                facts["url"] = door.record.url
        return Fenced(error.message, **facts)

    # Calls

    async def call(self, line: str, call: Call, arguments: bytes) -> Reply:
        try:
            given = calls.decode_arguments(call, arguments)
            result = await self._called(line, call, given)
        except OmnirayError as error:
            told = error if call is calls.NEWEST else await self._told(error)  # that one is answered at once
            return Reply(told.http_status, calls.encode_error(told))
        except Exception as error:  # a bug: told to the caller, and nobody else suffers from it
            log.exception("event=call_failed call=%s", call.name)
            bug = _bug(call, error)
            return Reply(bug.http_status, calls.encode_error(bug))
        return Reply(200, calls.encode(result))

    async def _called(self, line: str, call: Call, given: msgspec.Struct) -> Any:
        if call in self._of_graph:
            return await self._of.threads.run(call.name, self._of_graph[call], line, given)
        verb = self._verbs[call]
        if line == self.line:
            return await _carried_out(call, verb, self._of, given)
        while True:
            with self._of.hosted.used(line) as branch:
                if branch is not None:
                    return await _carried_out(call, verb, branch, given)
            if not verb.opens:
                return None
            await asyncio.wrap_future(self._of.hosted.opening(line))

    async def stage(self, line: str, arguments: bytes) -> Reply:
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
            stage = partial(stage_file, of.uri, of.options, of.graph_id, line, asked)
            return Reply(200, await asyncio.get_running_loop().run_in_executor(self._staging, stage))
        except OmnirayError as error:
            return Reply(error.http_status, encode_part(error))
        except Exception as error:
            log.exception("event=call_failed call=%s", calls.STAGE.name)
            bug = _bug(calls.STAGE, error)
            return Reply(bug.http_status, encode_part(bug))

    def down(self) -> None:
        """Drain, hand all lines back, and end all actors, this one a moment later: its answer is on the way."""
        self._of.drain()
        self._of.queues.end()
        self._of.reconciler.end()
        ending = threading.Timer(END_AFTER_S, self._end)
        ending.daemon = True
        ending.start()

    def _create_branch(self, terms: Any) -> BranchChange:
        return self._change_branches(partial(_create, self._of.start_of(terms.start)), terms)

    def _change_branches(self, verb: Callable[[Any, Branches], BranchChange], terms: Any) -> BranchChange:
        return self._of.change_branches(partial(verb, terms), terms.txn_id, terms.began)

    def _sweep(self, terms: msgspec.Struct) -> Any:
        assert isinstance(terms, SweepTerms)
        self._of.admit()
        return self._of.reconciler.sweep(terms.older_than_s, terms.dry_run)

    # Status

    def _status(self, line: str) -> Status:
        if line == self.line:
            return self._status_of(self._of)
        with self._of.hosted.used(line) as branch:
            return self._unhosted(line) if branch is None else self._status_of(branch)

    def _status_of(self, one: LineService) -> Status:
        one.reconciler.ask()
        gauges, newest = one.gauges, one.publisher.newest
        return Status(
            uri=self._of.storage.uri,
            url=self._url,
            address=self._of.address,
            owner=newest.owner,
            epoch=newest.epoch,
            seq=newest.seq,
            head=newest.head,
            waiting=one.publisher.waiting,
            rounds=gauges.rounds,
            commits=gauges.commits,
            refusals=dict(gauges.refusals),
            rates=gauges.rates(),
            finalised_through=one.finalised.through,
            drifted=tuple(one.finalised.drifted),
            recovered=one.reconciler.recovered,
            trouble=one.reconciler.trouble,
            queue_owners=self._of.queues.made,
            branch=self._of.name_of(one.line),
            hosted=self._hosted(),
        )

    def _unhosted(self, line: str) -> Status:
        """The status of a branch that nobody writes to: looking at it does not open it."""
        found = self._of.look_at(line)
        newest = found.newest
        return Status(
            uri=self._of.storage.uri,
            url=self._url,
            address=self._of.address,
            owner=newest.owner,
            epoch=newest.epoch,
            seq=newest.seq,
            head=newest.head,
            waiting=0,
            rounds=0,
            commits=0,
            refusals={},
            rates=Rates(),
            finalised_through=newest.finalised_through,
            drifted=(),
            recovered=0,
            trouble="",
            queue_owners=self._of.queues.made,
            branch=found.branch.name,
            hosted=self._hosted(),
        )

    def _hosted(self) -> tuple[str, ...]:
        return tuple(sorted(self._of.name_of(branch.line) for branch in self._of.hosted.open))


async def _read(of: LineService, read: Callable[[Given], Read], given: Given, *, is_large: bool) -> Read:
    """Read a write, or a part of it, at once, or on a thread if that takes long."""
    if not is_large:
        return read(given)
    return await of.threads.run("read", read, given)


def _bug(call: Call, error: Exception) -> OmnirayError:
    return OmnirayError(f"a bug in omniray: '{call.name}' failed: {error!r}")


async def _carried_out(call: Call, verb: _Verb, of: LineService, given: msgspec.Struct) -> Any:
    if call is calls.NEWEST:  # by it clients find the coordinator, however many calls wait for something
        return verb.carry_out(of, given)
    return await of.threads.run(call.name, verb.carry_out, of, given)


def _outcome(of: LineService, asked: OfWrite) -> Outcome:
    txn_id = checked_txn_id(asked.txn_id)
    return Outcome(txn_id, of.admit(txn_id).settle(txn_id))


def _abandon(of: LineService, asked: OfWrite) -> None:
    of.publisher.abandon(checked_txn_id(asked.txn_id))


def _hold(of: LineService, asked: OfWrite) -> None:
    of.publisher.hold(asked.txn_id)


def _repair(of: LineService, terms: RepairTerms) -> Any:
    return of.repair(terms)


def _merge(of: LineService, asked: MergeCall) -> MergeResult:
    return of.merge(asked.source, _terms(asked), asked.began)


def _revert(of: LineService, asked: RevertCall) -> MergeResult:
    return of.revert(asked.commit_id, _terms(asked), asked.began)


def _terms(asked: MergeCall | RevertCall) -> MergeTerms:
    return MergeTerms.checked(Author(asked.actor, asked.tenant), asked.message, asked.txn_id, asked.on_conflict)


def _create(start_of: StartOf, terms: CreateTerms, branches: Branches) -> BranchChange:
    return branches.create(
        terms.name, terms.start, author=Author(terms.actor, terms.tenant), message=terms.message, txn_id=terms.txn_id,
        start_of=start_of,
    )  # fmt: skip


def _delete(terms: DeleteTerms, branches: Branches) -> BranchChange:
    author = Author(terms.actor, terms.tenant)
    if terms.line:
        line, head = terms.line, terms.only_at
        return branches.delete_merged(line, head, author=author, message=terms.message, txn_id=terms.txn_id)
    return branches.delete(terms.name, force=terms.force, author=author, message=terms.message, txn_id=terms.txn_id)


def _rename(terms: RenameTerms, branches: Branches) -> BranchChange:
    return branches.rename(
        terms.name, terms.new_name, author=Author(terms.actor, terms.tenant), message=terms.message,
        txn_id=terms.txn_id,
    )  # fmt: skip
