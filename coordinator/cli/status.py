"""The status of a coordinator for `omniray status`: rows for a person, one document for a program."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from omniray.coordinator.cli.output import counted
from omniray.coordinator.client.client import connect_to_serving
from omniray.coordinator.client.link import none_serves
from omniray.engine.base.errors import OmnirayError
from omniray.engine.line.branch_id import MAIN

if TYPE_CHECKING:
    from omniray import Client, Graph
    from omniray.coordinator.door.status import Rates, Status

COLUMNS = ("coordinator", "")
LOOK_TIMEOUT_S = 10.0
LOOK_EVERY_S = 1.0

Row = tuple[str, str]


class Lookout:
    """Reads the status of a graph's coordinator, and finds it again after it has moved."""

    def __init__(self, graph: Graph, uri: str, options: Mapping[str, str], branch: str = MAIN) -> None:
        self._graph, self._uri, self._options, self._branch = graph, uri, options, branch
        self._client: Client | None = None

    def look(self) -> Status:
        """The status now; raises `Unreachable` if no coordinator serves the graph, or it does not answer."""
        try:
            self._client = self._client or self._connected()
            return self._client.status(branch=self._branch)
        except OmnirayError:
            self.leave()  # the remembered client may be of a coordinator that is gone
            raise

    def keep_looking(self) -> Iterator[Status | OmnirayError]:
        """The status or the error, once a second, for as long as the caller iterates."""
        while True:
            next_at = time.monotonic() + LOOK_EVERY_S
            try:
                yield self.look()
            except OmnirayError as error:
                yield error
            time.sleep(max(0.0, next_at - time.monotonic()))

    def leave(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> Client:
        if not self._graph.served:
            raise none_serves(self._graph.uri)
        return connect_to_serving(self._uri, self._options, timeout_s=LOOK_TIMEOUT_S)


def document(status: Status) -> dict[str, Any]:
    """A status as `--json` shows it."""
    return {**asdict(status), "pending_finalisations": status.pending_finalisations}


def rows(status: Status) -> list[Row]:
    """A status as rows for a person, the most important first."""
    from omniray.engine.line.owner import Incarnation

    rates = status.rates
    return [
        ("graph", status.uri),
        ("door", status.url),
        ("address", status.address),
        ("owner", f"{Incarnation.parse(status.owner).process}, epoch {status.epoch}"),
        ("line", f"{counted(status.seq, 'object')}, head {status.head}{_of_branch(status)}"),
        *([("branches", f"{', '.join(status.hosted)} open beside main")] if status.hosted else []),
        ("waiting", f"{counted(status.waiting, 'write')}, {counted(status.queue_owners, 'owner')} of write queues"),
        ("rounds", f"{status.rounds:,}, {rates.rounds_per_s:,.1f}/s"),
        ("commits", f"{status.commits:,}, {rates.commits_per_s:,.1f}/s, {rates.group_size:,.1f} in a round"),
        ("latency", _latencies(rates)),
        ("refused", _refusals(status.refusals)),
        ("Phase D", f"{counted(status.pending_finalisations, 'object')} behind"),
        ("recovered", counted(status.recovered, "operation")),
        ("drifted", f"{', '.join(status.drifted)}; 'omniray repair' shows what" if status.drifted else "no table"),
        *([("trouble", status.trouble)] if status.trouble else []),
    ]


def _of_branch(status: Status) -> str:
    return "" if status.branch == MAIN else f", of branch {status.branch}"


def unreachable_rows(error: OmnirayError) -> list[Row]:
    return [("unreachable", error.message)]


def _latencies(rates: Rates) -> str:
    return (
        f"{rates.round_ms:,.1f} ms a round ({rates.round_ms_p99:,.1f} ms p99): judge {rates.judge_ms:,.1f}, "
        f"stage {rates.stage_ms:,.1f}, put {rates.put_ms:,.1f}"
    )


def _refusals(refusals: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in sorted(refusals.items())) or "nothing"
