"""The demonstration behind `make demo`: two tenants, eight writers, one graph on S3, and processes that are killed.

Ray and an S3 server are started on this machine. Eight processes write through the coordinator; one of them is killed,
and so are the publisher just before a commit, and an owner of table queues. At the end everything is counted: the demo
fails if a claim that it prints is false.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import SpawnProcess
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

import omniray
from omniray.coordinator.actors import cluster
from omniray.coordinator.actors.cluster import Place, ray
from omniray.coordinator.actors.hosting import host
from omniray.coordinator.demo.narrator import Narrator
from omniray.engine.base import failpoints
from omniray.engine.base.failpoints import Point
from omniray.engine.base.printable import printable
from omniray.engine.line.owner import Incarnation

SCHEMA = """\
node Person { name: String @key  age: I32  @range(age, 0..150) }
node City { name: String @key }
edge LivesIn: Person -> City { since: Date? }
"""
CITIES = ("Aachen", "Berlin", "Cottbus", "Dresden")
TENANTS = ("blue", "green")
WRITERS = 8
LOADS_EACH = 24
PEOPLE_PER_LOAD = 5
TIMEOUT_S = 60.0
BUCKET = "demo"
STORAGE = {
    "aws_access_key_id": "demo",
    "aws_secret_access_key": "demo",
    "aws_region": "us-east-1",
    "aws_allow_http": "true",
}


@dataclass(frozen=True, slots=True)
class Home:
    """Where the graph is."""

    uri: str
    storage_options: Mapping[str, str] = field(repr=False)

    def connect(self, **options: Any) -> omniray.Client:
        return omniray.connect(self.uri, storage_options=self.storage_options, timeout_s=TIMEOUT_S, **options)


def people_of(writer: int, load: int) -> list[str]:
    """The people of one load of one writer: the graph must hold all of them or none."""
    return [f"person {writer}.{load}.{number}" for number in range(PEOPLE_PER_LOAD)]


def records_of(writer: int, load: int) -> list[dict[str, Any]]:
    """People and where they live: three tables are touched, and all writers merge the same cities."""
    city = CITIES[load % len(CITIES)]
    people = people_of(writer, load)
    nodes = [{"type": "Person", "data": {"name": name, "age": 20 + load}} for name in people]
    edges = [{"edge": "LivesIn", "from": name, "to": city, "data": {}} for name in people]
    return [{"type": "City", "data": {"name": city}}, *nodes, *edges]


# The writers


def write(graph: Home, writer: int, told: Any) -> None:
    """The main function of a writer process: load after load, reporting each acknowledged one."""
    with graph.connect(actor=f"writer {writer}", tenant=TENANTS[writer % 2]) as client:
        told.put((writer, -1))
        for load in range(LOADS_EACH):
            client.load(records_of(writer, load), mode="merge")
            told.put((writer, load))


class Crew:
    """The writer processes, and the loads that were acknowledged to them."""

    def __init__(self, graph: Home) -> None:
        context = multiprocessing.get_context("spawn")
        self._told: Any = context.Queue()
        self.processes: list[SpawnProcess] = [
            context.Process(target=write, args=(graph, writer, self._told)) for writer in range(1, WRITERS + 1)
        ]
        self.acknowledged: set[tuple[int, int]] = set()
        self.ready = 0

    def listen(self) -> None:
        """Read the writers' reports since the last call."""
        while not self._told.empty():
            writer, load = self._told.get()
            if load < 0:
                self.ready += 1
            else:
                self.acknowledged.add((writer, load))

    def is_done(self) -> bool:
        return all(not process.is_alive() for process in self.processes)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


# Kills


def kill_writer(crew: Crew) -> str:
    victim = crew.processes[-1]
    victim.kill()
    return f"writer {WRITERS} (process {victim.pid})"


def kill_publisher_before_its_commit(client: omniray.Client) -> str:
    """Kill the publisher after a round is staged and before its object is put."""
    _inside(_place(client).publisher, _arm, str(Point.C_BEFORE_PUT))
    return "the publisher, between Phase B and Phase C of its next round"


def kill_queue_owner(client: omniray.Client) -> str:
    pid = _inside(_place(client).queues(0), _pid)
    os.kill(pid, signal.SIGKILL)
    return f"the owner of the write queues (process {pid})"


def _inside(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in an actor's process, with the actor as its first argument."""
    actor: Any = cluster.find(name)
    return ray().get(actor.__ray_call__.remote(function, *arguments), timeout=TIMEOUT_S)


def _arm(actor: object, point: str) -> None:
    failpoints.arm(f"{point}=kill")


def _pid(actor: object) -> int:
    return os.getpid()


def _place(client: omniray.Client) -> Place:
    return Place(client.graph_id)  # main's line has the graph's id


# The story


def main() -> None:
    began = time.monotonic()
    tell = Narrator(Console(file=sys.stdout, highlight=False))
    tell.console.print(
        "[bold]omniray[/]: any number of writers, one graph of Lance tables, one atomic commit at a time."
    )
    with s3_server() as endpoint:
        graph = Home(f"s3://{BUCKET}/graph", {**STORAGE, "aws_endpoint": endpoint})
        tell.step("Start")
        with omniray.init(graph.uri, schema=SCHEMA, storage_options=graph.storage_options, actor="demo") as created:
            tell.say(f"a graph of three tables at {graph.uri} (an S3 server on {endpoint})")
            hosted = host(created, graph.uri, graph.storage_options, cluster.LOCAL)
        tell.say(f"a coordinator on a Ray of this machine; its door is {hosted.url}")
        with graph.connect(actor="demo") as client:
            killed = write_and_kill(tell, graph, client)
            heal_and_count(tell, client, *killed)
            client.down()
        read_without_us(tell, graph)
    tell.end(time.monotonic() - began)


def write_and_kill(tell: Narrator, graph: Home, client: omniray.Client) -> tuple[Crew, str]:
    """Let the writers write, kill three processes on the way, and show the coordinator meanwhile."""
    tell.step(f"{WRITERS} processes of two tenants write; three things are killed")
    first_owner = client.status().owner
    crew = Crew(graph)
    for process in crew.processes:
        process.start()
    total = WRITERS * LOADS_EACH
    plan = {
        total // 8: lambda: kill_writer(crew),
        total // 4: lambda: kill_publisher_before_its_commit(client),
        total // 2: lambda: kill_queue_owner(client),
    }
    killed: list[str] = []
    try:
        with Live(console=tell.console, refresh_per_second=4, transient=not tell.console.is_terminal) as live:
            while not crew.is_done():
                crew.listen()
                for due in [due for due in plan if len(crew.acknowledged) >= due]:
                    killed.append(plan.pop(due)())
                live.update(_shown(client, crew, killed))
                time.sleep(0.25)
            crew.listen()
            live.update(_shown(client, crew, killed))
    finally:
        crew.end()
    tell.show(not plan, f"killed under way: {'; '.join(killed)}")
    return crew, first_owner


def _shown(client: omniray.Client, crew: Crew, killed: Sequence[str]) -> Group:
    table = Table("acknowledged", "epoch", "rounds/s", "commits/s", "group size", "waiting", box=box.SIMPLE_HEAD)
    try:
        status = client.status()
        rates = status.rates
        cells = (
            str(status.epoch), f"{rates.rounds_per_s:.1f}", f"{rates.commits_per_s:.0f}", f"{rates.group_size:.1f}",
            str(status.waiting),
        )  # fmt: skip
    except omniray.StorageError:
        cells = ("-", "-", "-", "-", "the coordinator is being restarted")
    table.add_row(f"{len(crew.acknowledged)} of {WRITERS * LOADS_EACH}", *cells)
    return Group(table, *(Text(printable(f"   killed: {what}"), style="red") for what in killed))


def heal_and_count(tell: Narrator, client: omniray.Client, crew: Crew, first_owner: str) -> None:
    """Prove that each acknowledged load is there once, and each other one as a whole or not at all."""
    tell.step("Heal, and count")
    client.recover()
    client.flush()
    status = client.status()
    before, after = (Incarnation.parse(owner).process.pid for owner in (first_owner, status.owner))
    tell.show(before != after, f"a new publisher (process {after}) took the line over in epoch {status.epoch}")
    history = [entry for entry in client.history() if entry.actor.startswith("writer")]
    by_round = Counter(entry.seq for entry in history)
    tell.show(
        max(by_round.values()) > 1,
        f"{len(history)} commits in {len(by_round)} rounds, up to {max(by_round.values())} writers in one",
    )
    snapshot = client.snapshot()
    names = Counter(snapshot.table("Person", ["name"])["name"].to_pylist())
    whole = {
        (writer, load)
        for writer in range(1, WRITERS + 1)
        for load in range(LOADS_EACH)
        if all(names[name] == 1 for name in people_of(writer, load))
    }
    tell.show(crew.acknowledged <= whole, f"all {len(crew.acknowledged)} acknowledged writes are there")
    tell.show(
        sum(names.values()) == PEOPLE_PER_LOAD * len(whole), "every write is in as a whole and once, or not at all"
    )
    tell.show(len(history) == len(whole), "the history has one commit for each of them")
    living = range(1, WRITERS)
    tell.show(
        all((writer, load) in crew.acknowledged for writer in living for load in range(LOADS_EACH)),
        f"none of the {len(living)} writers that lived noticed anything but a pause",
    )
    ends = snapshot.table("LivesIn", ["src", "dst"]).to_pylist()
    tell.show(
        {end["src"] for end in ends} == set(names) and {end["dst"] for end in ends} <= set(CITIES),
        f"{len(ends)} edges, none of them dangling",
    )
    recoveries = client.recoveries()
    for recovery in recoveries:
        tell.say(f"{recovery.recovery_kind}: operation {recovery.operation_id} for {recovery.recovery_for_actor}")
    tell.show(
        bool(recoveries), f"the audit tells of {len(recoveries)} recovered operation(s), by {recoveries[0].actor}"
    )


# Run by a process that does not import omniray.
_PLAIN_LANCE = """
import sys, json, lance
options = json.loads(sys.argv[1])
for path in sys.argv[2:]:
    print(lance.dataset(path, storage_options=options).to_table().num_rows)
"""


def read_without_us(tell: Narrator, graph: Home) -> None:
    """Show that plain Lance reads the tables when the coordinator is gone."""
    tell.step("Read without the coordinator, and without omniray")
    with omniray.open(graph.uri, read_only=True, storage_options=graph.storage_options) as embedded:
        ours = {t["table_key"]: t["row_count"] for t in embedded.snapshot().describe()["tables"]}
        paths = [f"{graph.uri}/{embedded.schema.by_table_key[key].first_path}" for key in ours]
    command = [sys.executable, "-c", _PLAIN_LANCE, json.dumps(dict(graph.storage_options)), *paths]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S).stdout
    counted = dict(zip(ours, map(int, output.split()), strict=True))
    tell.show(counted == ours, f"plain lance.dataset(path) reads the same rows: {_listed(ours)}")


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{key} {count}" for key, count in counts.items())


# The S3 server


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """A moto server with an empty bucket, in a process of its own; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(command, stdout=quiet, stderr=quiet)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        _make_bucket(endpoint, server)
        yield endpoint
    finally:
        server.kill()
        server.wait()


def _make_bucket(endpoint: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urlopen(Request(f"{endpoint}/{BUCKET}", method="PUT"), timeout=TIMEOUT_S).close()
            return
        except HTTPError:
            raise
        except OSError:  # not listening yet
            threading.Event().wait(0.1)
    raise SystemExit("the S3 server of the demo did not start: is moto[server] installed? 'make demo' installs it")


if __name__ == "__main__":
    main()
