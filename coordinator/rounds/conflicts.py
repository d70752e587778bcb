"""Decides which writes of a round conflict: each is judged on top of the earlier ones.

    a keyed append whose key exists              KeyConflict, with the commit that brought it if that is in this round
    merges of one key                            all land, the last one in the order of the queue wins
    a strict write whose table has moved         ExpectedVersionMismatch; of two in one round the first wins
    an update or delete                          reads the state after the earlier writes
    a read of a table that drifted               TableDrift
    a row that does not fit its type             RecordError
    a broken constraint, an edge to a node that
    an earlier write of the round deletes        ConstraintViolation
    an edge to a node that an earlier one brings lands

Pure: the same writes on the same state give the same answers. An error refuses one write; the others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from omniray.coordinator.rounds.fairness import RoundLimits
from omniray.coordinator.rounds.fitting import misfits
from omniray.coordinator.rounds.together import judge_together, runs
from omniray.engine.base.errors import (
    BranchGone,
    Conflict,
    ExpectedVersionMismatch,
    GraphGone,
    InputError,
    NotFound,
    OmnirayError,
    TableDrift,
)
from omniray.engine.judge.overlay import Overlay
from omniray.engine.judge.pinned import State
from omniray.engine.judge.resolution import Resolution, TableWrite, WriteResult
from omniray.engine.judge.verdict import Violation
from omniray.engine.schema.types import Schema
from omniray.engine.writes.write_requests import MutationRequest, Request

log = logging.getLogger("omniray")


@dataclass(frozen=True, slots=True)
class WriteAnswer:
    """The answer to a client's write: the result, and the rejected records."""

    result: WriteResult
    unfit: tuple[Violation, ...] = ()


@dataclass(frozen=True, slots=True)
class JudgedRound:
    """The judgement on each write of a round, and the accepted writes combined by table."""

    accepted: tuple[tuple[Request, Resolution], ...] = ()
    answers: Mapping[str, WriteAnswer | OmnirayError] = field(default_factory=dict)  # of writes that commit nothing
    writes: Mapping[str, TableWrite] = field(default_factory=dict)
    matched: Mapping[str, int] = field(default_factory=dict)  # the rows that a write's conditions met
    unjudged: frozenset[str] = frozenset()


def judge_round(
    requests: Sequence[Request], state: State, schema: Schema, limits: RoundLimits | None = None
) -> JudgedRound:
    """Resolve the writes in their order. Raises only errors that no write caused, such as an unreadable store.

    A write that the overlay can't take, because of a bug, is refused alone: the others are judged again without it.
    Mutations may match far more than was known when the round began: what is beyond its limits is left unjudged.
    """
    fallen: dict[str, WriteAnswer | OmnirayError] = {**misfits(requests, schema)}
    left = [request for request in requests if request.header.commit_id not in fallen]
    while True:
        round = _Round(Overlay(state, schema), schema, limits or RoundLimits())
        try:
            _judge_in_order(left, round, schema)
        except _NotLaidOver as found:
            fallen[found.request.header.commit_id] = not_judged(found.request, found.error)
            left.remove(found.request)
        else:
            answers, unjudged = {**fallen, **round.answers}, frozenset(round.unjudged)
            return JudgedRound(tuple(round.accepted), answers, round.overlay.writes(), round.matched, unjudged)


def _judge_in_order(requests: Sequence[Request], round: _Round, schema: Schema) -> None:
    for run in runs(requests, schema):
        if round.is_full:
            round.unjudged += [request.header.commit_id for request in run]
            continue
        together = _judged_together(run, round.overlay, schema)
        if together is None:
            for request in run:
                round.judge(request)
        else:
            for request, resolution in zip(run, together, strict=True):
                round.settle(request, resolution)


class _NotLaidOver(Exception):
    """The overlay can't take the resolution of a write."""

    def __init__(self, request: Request, error: Exception) -> None:
        super().__init__(request.header.commit_id)
        self.request, self.error = request, error


class _Round:
    """A round under judgement: the writes accepted so far, and the state after them."""

    def __init__(self, overlay: Overlay, schema: Schema, limits: RoundLimits) -> None:
        self.overlay, self._schema, self._limits = overlay, schema, limits
        self.accepted: list[tuple[Request, Resolution]] = []
        self.answers: dict[str, WriteAnswer | OmnirayError] = {}
        self.matched: dict[str, int] = {}
        self.unjudged: list[str] = []
        self._made_bytes = 0  # by mutations: what loads bring was known when the round began
        self._last_writer: dict[str, str] = {}

    @property
    def is_full(self) -> bool:
        """Whether the mutations so far have met or made more than a round should."""
        return self.overlay.matched >= self._limits.rows or self._made_bytes >= self._limits.size_bytes

    def judge(self, request: Request) -> None:
        matched_before = self.overlay.matched
        try:
            self._judge(request)
        finally:
            if matched := self.overlay.matched - matched_before:
                self.matched[request.header.commit_id] = matched

    def _judge(self, request: Request) -> None:
        try:
            _check_versions(request.header.expected_versions, self.overlay, self._schema, self._last_writer)
            resolution = request.resolve(self.overlay, self._schema)
        except (GraphGone, BranchGone):  # bad input to whoever opens a graph or a branch, but here the publisher ends
            raise
        except (InputError, Conflict, TableDrift) as error:  # drift refuses only the writes that read the table
            self.answers[request.header.commit_id] = _naming_winner(error, self.overlay)
        except OmnirayError:
            raise
        except Exception as error:  # nothing of it is in the overlay yet: it is refused alone
            log.exception("event=write_not_judged commit_id=%s", request.header.commit_id)
            self.answers[request.header.commit_id] = not_judged(request, error)
        else:
            self.settle(request, resolution)

    def settle(self, request: Request, resolution: Resolution) -> None:
        """Accept a write, or answer that it has no effect."""
        commit_id = request.header.commit_id
        if not resolution.tables:
            result = WriteResult(None, 0, 0, resolution.rejected)
            self.answers[commit_id] = WriteAnswer(result, resolution.unfit)
            return
        try:
            self.overlay.take(resolution.tables, commit_id)
        except Exception as error:
            log.exception("event=write_not_laid_over commit_id=%s", commit_id)
            raise _NotLaidOver(request, error) from error
        if isinstance(request, MutationRequest):
            made = (write.rows for write in resolution.tables.values())
            self._made_bytes += sum(rows.nbytes for rows in made if isinstance(rows, pa.Table))
        self._last_writer.update(dict.fromkeys(resolution.tables, commit_id))
        self.accepted.append((request, resolution))


def _judged_together(run: Sequence[Request], overlay: Overlay, schema: Schema) -> list[Resolution] | None:
    """`judge_together`; after a bug or drift, None: judging one by one then finds the write that causes it."""
    try:
        return judge_together(run, overlay, schema)
    except TableDrift:
        return None
    except OmnirayError:
        raise
    except Exception:
        log.exception("event=run_not_judged writes=%d", len(run))
        return None


def _check_versions(
    expected: Mapping[str, int], state: Overlay, schema: Schema, last_writer: Mapping[str, str]
) -> None:
    for table_key, version in expected.items():
        if table_key not in schema.by_table_key:
            known = ", ".join(schema.by_table_key)
            raise NotFound(f"no table {table_key!r}; the graph has {known}", table_key=table_key)
        if state.version(table_key) != version:
            mismatch = ExpectedVersionMismatch(table_key, version, state.version(table_key))
            mismatch.facts |= {"winner": last_writer[table_key]} if table_key in last_writer else {}
            raise mismatch


def _naming_winner(error: InputError | Conflict | TableDrift, overlay: Overlay) -> OmnirayError:
    """The error with the commit id of the winning write, if that is in the same round."""
    winner = overlay.writer_of(error.facts.get("table_key", ""), error.facts.get("key", ""))
    if winner is not None:
        error.facts["winner"] = winner
    return error


def not_judged(request: Request, error: Exception) -> OmnirayError:
    """The answer to a write that could not be judged because of a bug."""
    commit_id = request.header.commit_id
    return OmnirayError(
        f"a bug in omniray kept write {commit_id} from being judged: {error!r}; nothing of it was written, and sent "
        "again as it is it would fail again",
        txn_id=commit_id,
    )
