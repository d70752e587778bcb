"""Commits a prepared load: judged by the client, and again whenever a table that it was judged on has moved."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from omniray.coordinator.client.delivery import Answered, Delivery
from omniray.coordinator.client.waits import Waits
from omniray.engine.base.errors import Conflict, InputError, Moved, OutcomeUnknown
from omniray.engine.judge.resolution import Affected, Resolution
from omniray.engine.load_stager import LoadStager
from omniray.engine.reader import GraphReader
from omniray.engine.writes.load import LoadIntent
from omniray.engine.writes.write_requests import Header, PreparedRequest

JUDGEMENTS_MAX = 100


def sending_prepared(
    intent: LoadIntent, graph: GraphReader, stager: LoadStager, delivery: Delivery, timeout_s: float | None
) -> Waits[Answered]:
    """Judge the load and send its judgement, until no table has moved in between.

    All judgements are of one write: if that was reported as not committed since it was first sent, none may land.
    """
    began = 0
    for judgement in range(JUDGEMENTS_MAX):
        with delivery.holding(intent.commit_id) if judgement else contextlib.nullcontext():
            resolution, judged_on = _judged(intent, graph, stager)
        began = began or (yield from delivery.beginning(timeout_s))
        header = Header(
            intent.commit_id, intent.kind, intent.author, intent.expected_versions, intent.payload_hash,
            graph.schema_hash, fresh=judgement == 0 and not intent.resubmittable, began=began, message=intent.message,
        )  # fmt: skip
        with contextlib.suppress(Moved):
            return (yield from delivery.sending(PreparedRequest(header, resolution, judged_on), timeout_s))
    raise Moved(
        f"the load was judged {JUDGEMENTS_MAX} times and its tables moved each time; nothing was written: load "
        "again while fewer others write"
    )


def _judged(intent: LoadIntent, graph: GraphReader, stager: LoadStager) -> tuple[Resolution, Mapping[str, int]]:
    """Judge a load here. A committed load may conflict with its own rows: then it is sent without rows."""
    try:
        return stager.judge(intent)
    except (Conflict, InputError):
        with contextlib.suppress(OutcomeUnknown):
            graph.outcome(intent.commit_id)
            return Resolution({}, Affected()), {}
        raise
