"""A run of the stress test: a new graph, its coordinator, writers in processes, chaos if wanted, and the verdict."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from omniray.coordinator.actors.hosting import host
from omniray.coordinator.client.client import connect_to_serving
from omniray.coordinator.stress.chaos import Chaos
from omniray.coordinator.stress.fault_proxy import FaultProxy, running_proxy
from omniray.coordinator.stress.history import HistoryFile
from omniray.coordinator.stress.nodes import Nodes, running_nodes
from omniray.coordinator.stress.processes import Task, Writers
from omniray.coordinator.stress.recorder import export_edn
from omniray.coordinator.stress.report import Report
from omniray.coordinator.stress.schedule import schedule
from omniray.coordinator.stress.workloads import CHAOS, PARTS, WRITERS, Workload, list_events
from omniray.engine import graph as graphs
from omniray.engine.base.errors import InputError, OmnirayError, StorageError
from omniray.engine.graph import Graph

TICK_S = 0.1
TELL_EVERY_S = 1.0
HEAL_TIMEOUT_S = 180.0
LIFE_WRITES_EACH = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a run on a new graph; `folder` gets the histories, `edn` that of transactions over lists."""

    uri: str
    storage_options: Mapping[str, str] | None = field(repr=False)
    folder: Path
    writers: int
    seconds: float
    seed: int
    chaos: bool
    workload: Workload = Workload.GRAPH
    edn: Path | None = None

    @property
    def breakable_endpoint(self) -> str | None:
        """The endpoint of the store, if a proxy can be put in front of it."""
        if not self.uri.startswith("s3://"):
            return None
        from omniray.engine.store.s3_options import resolve_options

        endpoint = resolve_options(self.storage_options or {}, os.environ).get("aws_endpoint", "")
        return endpoint if urlsplit(endpoint).scheme == "http" else None


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run, to be shown."""

    elapsed_s: float
    acknowledged: int
    kills: int
    faults: int

    def __str__(self) -> str:
        rate = self.acknowledged / self.elapsed_s if self.elapsed_s else 0.0
        return (
            f"{self.elapsed_s:.0f} s: {self.acknowledged:,} writes acknowledged ({rate:,.0f} a second), "
            f"{self.kills} kills, {self.faults} faults"
        )


def run_stress(plan: Plan, tell: Callable[[Progress], None]) -> Report:
    """Carry out a plan and check the result; the graph stays, without a coordinator."""
    if any(plan.folder.glob("*.jsonl")):
        raise InputError(f"there are histories in {plan.folder} already: give a folder of its own to each run")
    parts = PARTS[plan.workload]
    graphs.init(plan.uri, schema=parts.schema, storage_options=plan.storage_options, actor="stress").close()
    plan.folder.mkdir(parents=True, exist_ok=True)
    with _store_in_weather(plan) as proxy, running_nodes() as nodes:
        _write(plan, nodes, proxy, tell)
    with _healed(plan) as graph:
        report = parts.judge(plan.folder, graph, plan.seed)
    if plan.edn is not None:
        export_edn(list_events(plan.folder), plan.edn)
    return report


@contextlib.contextmanager
def _store_in_weather(plan: Plan) -> Iterator[FaultProxy | None]:
    endpoint = plan.breakable_endpoint if plan.chaos else None
    if endpoint is None:
        yield None
        return
    with running_proxy(endpoint, plan.seed) as proxy:
        yield proxy


def _write(plan: Plan, nodes: Nodes, proxy: FaultProxy | None, tell: Callable[[Progress], None]) -> None:
    """Serve the graph, run writers and chaos, recover it, and take the coordinator down."""
    if plan.chaos:
        nodes.add()
    options = plan.storage_options
    if proxy is not None:
        options = {**(options or {}), "aws_endpoint": proxy.endpoint}
    with graphs.open(plan.uri, storage_options=options, read_only=True) as graph:
        hosted = host(graph, plan.uri, options, nodes.address)
        with (
            Writers(Task(hosted.storage.uri, options, nodes.address, plan.seed, plan.folder, plan.workload)) as writers,
            HistoryFile(plan.folder / CHAOS) as history,
        ):
            due = schedule(plan.seed, plan.seconds, store=proxy is not None) if plan.chaos else ()
            chaos = Chaos(
                due, sign_of_life=LIFE_WRITES_EACH * plan.writers, writers=writers, place=hosted.place, nodes=nodes,
                proxy=proxy, history=history,
            )  # fmt: skip
            writers.start(plan.writers)
            _disturb(plan, writers, chaos, tell)
            writers.wait()
    _take_down(plan.uri, options)


def _disturb(plan: Plan, writers: Writers, chaos: Chaos, tell: Callable[[Progress], None]) -> None:
    """Let the writers work for their time, with disturbances."""
    began, told_s, counter = time.monotonic(), 0.0, _Counter(plan)
    writers.send_off(plan.seconds)
    try:
        while (elapsed_s := time.monotonic() - began) < plan.seconds:
            acknowledged = counter.count()
            chaos.tick(elapsed_s, acknowledged)
            writers.tend()
            if elapsed_s - told_s >= TELL_EVERY_S:
                told_s = elapsed_s
                tell(Progress(elapsed_s, acknowledged, chaos.kills, chaos.faults))
            time.sleep(TICK_S)
    finally:
        chaos.end()


def _take_down(uri: str, options: Mapping[str, str] | None) -> None:
    """Finish Phase D, recover, and take the coordinator down; retries while it restarts."""
    deadline = time.monotonic() + HEAL_TIMEOUT_S
    while True:
        left_s = max(TELL_EVERY_S, deadline - time.monotonic())
        try:
            with connect_to_serving(uri, options, timeout_s=left_s) as client:
                client.flush()
                client.recover()
                return client.down()
        except OmnirayError as error:
            if error.retry != "safe" or time.monotonic() + TELL_EVERY_S > deadline:
                raise
            time.sleep(TELL_EVERY_S)


@contextlib.contextmanager
def _healed(plan: Plan) -> Iterator[Graph]:
    """The graph after all operations of killed writers are recovered."""
    deadline = time.monotonic() + HEAL_TIMEOUT_S
    with graphs.open(plan.uri, storage_options=plan.storage_options) as graph:
        while left := graph.recover().left:
            if time.monotonic() > deadline:
                raise StorageError(f"there are operations that can't be recovered: {', '.join(left)}; find out why")
            time.sleep(TELL_EVERY_S)
        yield graph


class _Counter:
    """Counts acknowledged writes in histories that grow."""

    def __init__(self, plan: Plan) -> None:
        self._folder, self._acknowledged = plan.folder, PARTS[plan.workload].acknowledged
        self._read: dict[Path, int] = {}
        self._count = 0

    def count(self) -> int:
        for path in self._folder.glob(WRITERS):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                lines = file.read()
            whole = lines.rfind(b"\n") + 1
            self._read[path] = self._read.get(path, 0) + whole
            self._count += self._acknowledged(lines[:whole])
        return self._count
