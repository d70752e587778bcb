"""The verbs of the coordinator as far as they need no Ray: what they show, how they end, what they start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner

import omniray
from omniray.coordinator.actors import cluster, hosting
from omniray.coordinator.cli import status as cli_status
from omniray.coordinator.cli import upkeep
from omniray.coordinator.cli.output import Output
from omniray.coordinator.cli.service import _watch
from omniray.coordinator.cli.service import app as service_commands
from omniray.coordinator.cli.status import Lookout
from omniray.coordinator.cli.upkeep import DOUBTS_MAX, Fate, Idleness, Sighting
from omniray.coordinator.client import background, link, starting
from omniray.coordinator.client import client as client_module
from omniray.coordinator.door.status import Rates, Status
from omniray.engine.base.errors import Fenced, GraphGone, OmnirayError, StorageError, Unreachable
from omniray.engine.base.process import Process, this_process
from omniray.engine.base.ulids import new_ulid
from omniray.engine.judge.resolution import Outcome, WriteResult
from omniray.engine.line.owner import Incarnation, take_over
from omniray.engine.maintenance.orphans import NOTHING
from omniray.engine.maintenance.sweep import SweepReport
from omniray.engine.recovery.recoverer import RecoveryReport
from omniray.engine.recovery.repair import RepairReport
from omniray.engine.store.open_store import open_store
from tests.clocks import SleepersClock
from tests.commands import TIMEOUT_S, environment, omniray_command, run
from tests.graphs import INSERT, SCHEMA, new_graph, opened
from tests.stores import Root

HERE = "10.0.0.1:6379"
DOOR = "https://10.0.0.1:4321"
STATUS = Status(
    uri="s3://bucket/social",
    url=DOOR,
    address=HERE,
    owner=str(Incarnation("01K9ZQ5T7Z0000000000000000", Process("head/boot/pid", 77, "1"), HERE)),
    epoch=3,
    seq=1041,
    head="01K9ZQ5T7Z0000000000000001",
    waiting=12,
    rounds=1000,
    commits=32000,
    refusals={"overloaded": 1, "key_conflict": 1200},
    rates=Rates(20.0, 640.0, 32.0, 48.0, 95.5, 3.0, 22.0, 21.0),
    finalised_through=1039,
    drifted=(),
    recovered=1,
    trouble="",
    queue_owners=4,
)
ELSEWHERE = Process("elsewhere", 1, "1")
HEAVY = ("lance", "duckdb", "pyarrow", "numpy", "s3fs", "rich", "ray")


@pytest.fixture
def graph(disk: Root) -> str:
    with new_graph(disk) as graph:
        return graph.uri


@pytest.fixture
def closed_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def owned_by(uri: str, owner: Incarnation) -> None:
    """Let somebody own the line, as a coordinator does."""
    store = open_store(uri)
    take_over(opened(store).tip, str(owner))
    store.close()


# What is shown


def test_a_person_reads_what_a_coordinator_does() -> None:
    assert dict(cli_status.rows(STATUS)) == {
        "graph": "s3://bucket/social",
        "door": DOOR,
        "address": HERE,
        "owner": "process 77 on head, epoch 3",
        "line": "1,041 objects, head 01K9ZQ5T7Z0000000000000001",
        "waiting": "12 writes, 4 owners of write queues",
        "rounds": "1,000, 20.0/s",
        "commits": "32,000, 640.0/s, 32.0 in a round",
        "latency": "48.0 ms a round (95.5 ms p99): judge 3.0, stage 22.0, put 21.0",
        "refused": "1,200 key_conflict, 1 overloaded",
        "Phase D": "2 objects behind",
        "recovered": "1 operation",
        "drifted": "no table",
    }


def test_a_drifted_table_is_shown_with_what_to_do() -> None:
    shown = dict(cli_status.rows(replace(STATUS, drifted=("node:Person",))))
    assert shown["drifted"] == "node:Person; 'omniray repair' shows what"


def test_a_program_reads_everything_there_is() -> None:
    document = cli_status.document(STATUS)
    assert document["rates"]["commits_per_s"] == 640.0
    assert document["pending_finalisations"] == 2
    assert set(document) == {*Status.__dataclass_fields__, "pending_finalisations"}


class _Seen(Lookout):
    """Shows what it was given, then Ctrl-C."""

    def __init__(self, *seen: Status | StorageError) -> None:
        self._seen = seen

    def keep_looking(self) -> Iterator[Status | StorageError]:
        yield from self._seen
        raise KeyboardInterrupt


def test_watching_shows_a_coordinator_that_is_away_and_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    _watch(Output(as_json=False), _Seen(STATUS, Unreachable("no answer"), STATUS))
    out, err = capfd.readouterr()
    assert (out.count("32,000, 640.0/s"), out.count("no answer"), err) == (2, 1, "")


def test_watching_for_a_program_is_one_line_each_time(capfd: pytest.CaptureFixture[str]) -> None:
    _watch(Output(as_json=True), _Seen(STATUS, Unreachable("no answer")))
    first, second = map(json.loads, capfd.readouterr().out.splitlines())
    assert (first["epoch"], second["error"]["kind"]) == (3, "unreachable")


class _Mortal:
    """A client whose coordinator answers once."""

    def __init__(self, done: list[str]) -> None:
        self._answers: list[Status] = [STATUS]
        self._done = done

    def status(self, *, branch: str = "main") -> Status:
        if not self._answers:
            raise Unreachable("gone")
        return self._answers.pop()

    def close(self) -> None:
        self._done.append("close")


def test_a_coordinator_that_went_away_is_looked_for_from_the_beginning(
    graph: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(cli_status, "connect_to_serving", lambda *_, **__: (done.append("connect"), _Mortal(done))[1])
    owned_by(graph, Incarnation(new_ulid(), ELSEWHERE, HERE))
    with omniray.open(graph, read_only=True) as opened:
        lookout = Lookout(opened, graph, {})
        assert lookout.look() == STATUS
        with pytest.raises(Unreachable, match="gone"):
            lookout.look()
        assert lookout.look() == STATUS
        lookout.leave()
        lookout.leave()
    assert done == ["connect", "close", "connect", "close"]


# Graphs without a coordinator


def test_status_without_a_coordinator_says_how_to_start_one(graph: str) -> None:
    answer = omniray_command("status", graph)
    assert (answer.code, answer.out) == (5, "")
    assert answer.err == (
        "error: no coordinator serves this graph: start one with 'omniray up', or write to it without one\n"
    )
    assert omniray_command("status", graph, "--json").error["kind"] == "unreachable"


def test_there_is_nothing_to_take_down_where_no_coordinator_is(graph: str) -> None:
    assert run("down", graph).out == "no coordinator serves this graph\n"
    assert run("down", graph, "--json").document == {"uri": graph, "address": None, "url": None}


@pytest.mark.parametrize("verb", ["up", "status", "down"])
def test_a_graph_that_is_not_there_is_bad_input(disk: Root, verb: str) -> None:
    answer = omniray_command(verb, f"{disk.uri}/nowhere", "--json")
    assert (answer.code, answer.error["kind"]) == (3, "not_found")


@pytest.mark.parametrize("command", [["status"], ["down"], ["recover"], ["repair"], ["outcome", new_ulid()]])
def test_a_coordinator_elsewhere_that_does_not_answer_is_told_with_what_to_do(
    graph: str, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr(link, "time", SleepersClock())
    owned_by(graph, Incarnation(new_ulid(), ELSEWHERE, HERE))
    verb, *more = command
    answer = omniray_command(verb, graph, *more, "--json")
    assert (answer.code, answer.error["kind"]) == (5, "unreachable")
    assert "'omniray up --take-over'" in answer.error["message"]
    assert "'omniray recover --take-over'" in answer.error["message"]


def test_a_coordinator_that_is_known_to_be_dead_is_none(graph: str, closed_port: int) -> None:
    dead = Process(this_process().host, this_process().pid, "long ago")
    owned_by(graph, Incarnation(new_ulid(), dead, f"127.0.0.1:{closed_port}"))
    assert omniray_command("status", graph).code == 5
    assert run("down", graph).out == "no coordinator serves this graph\n"


def test_a_coordinator_elsewhere_is_not_replaced_unless_that_is_asked_for(
    graph: str, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not answer at its door; nor is there a Ray at its address that could be joined."""
    monkeypatch.setattr(link, "time", SleepersClock())
    address = f"127.0.0.1:{closed_port}"
    owned_by(graph, Incarnation(new_ulid(), ELSEWHERE, address))
    answer = omniray_command("up", graph, "--address", address, "--json")
    assert (answer.code, answer.error["kind"]) == (5, "unreachable")


def test_help_imports_nothing_heavy_and_shows_examples() -> None:
    verbs = ["up", "status", "down"]
    answer = _modules_after(HEAVY, *([verb, "--help"] for verb in verbs))
    assert answer.stderr == "[]\n"
    assert answer.stdout.count("One JSON document on stdout") == len(verbs)
    assert all(f"Examples:\n    omniray {verb}" in answer.stdout for verb in verbs)


OF_A_SERVER = ("ray", "uvicorn", "httptools", "uvloop", "cryptography")


def test_no_verb_imports_ray_or_a_server_where_there_is_no_coordinator(graph: str) -> None:
    verbs = ("status", "down", "snapshot", "recover", "repair")
    answer = _modules_after(OF_A_SERVER, *([verb, graph, "--json"] for verb in verbs))
    assert answer.stderr.splitlines()[-1] == "[]"


def _modules_after(names: tuple[str, ...], *commands: list[str]) -> subprocess.CompletedProcess[str]:
    """Run commands in a new process, which says at last which of some modules it has imported."""
    code = (
        "import contextlib, json, sys, omniray.coordinator.cli.app as cli\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        cli.app(command)\n"
        f"print(sorted(set({names!r}) & set(sys.modules)), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, json.dumps(commands)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment())


# How it ends


@pytest.mark.parametrize(
    ("line_is_at", "ray_answers", "has_publisher", "fate"),
    [
        (HERE, True, True, Fate.SERVING),
        (HERE, True, False, Fate.LOST),
        (HERE, False, False, Fate.LOST),
        (None, True, False, Fate.TAKEN_DOWN),
        (None, True, True, Fate.FENCED),
        ("10.0.0.2:6379", True, True, Fate.FENCED),
        ("10.0.0.2:6379", True, False, Fate.FENCED),
    ],
)
def test_what_became_of_a_coordinator_is_told_from_its_line_and_its_ray(
    line_is_at: str | None, ray_answers: bool, has_publisher: bool, fate: Fate
) -> None:
    assert Sighting(line_is_at, ray_answers, has_publisher).fate(HERE) is fate


@pytest.mark.parametrize(("ray_answers", "fate"), [(True, Fate.GRAPH_GONE), (False, Fate.LOST)])
def test_a_coordinator_whose_graph_is_gone_serves_no_more_whatever_its_line_says(ray_answers: bool, fate: Fate) -> None:
    """Without Ray there are no actors to end, so that is what counts then."""
    assert Sighting(HERE, ray_answers, ray_answers, graph_is_gone=True).fate(HERE) is fate


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_look_shows_that_the_graph_is_gone(graph: str, monkeypatch: pytest.MonkeyPatch, is_replaced: bool) -> None:
    """Its line alone does not: where nothing follows the newest object that is known, that one is the newest."""
    monkeypatch.setattr(cluster, "is_listening", lambda address: False)
    seen: Any = _Ended()
    owned_by(graph, Incarnation(new_ulid(), this_process(), HERE))
    with omniray.open(graph, read_only=True) as opened:
        assert upkeep.look(opened, seen) == Sighting(HERE, False, False)
        shutil.rmtree(graph)
        if is_replaced:
            omniray.init(graph, schema=SCHEMA).close()
        assert upkeep.look(opened, seen) == Sighting(HERE, False, False, graph_is_gone=True)


SERVING = Sighting(HERE, True, True)
DOWN = Sighting(None, True, False)
GONE = Sighting(HERE, True, True, graph_is_gone=True)
DRAINED = Sighting(None, True, True)


def staying(*sightings: Sighting | StorageError, idle: Idleness | None = None) -> Fate:
    """Stay while there is something to see; then somebody asks to end."""
    asked, left = threading.Event(), list(sightings)

    def look() -> Sighting:
        seen = left.pop(0)
        if not left:
            asked.set()
        if isinstance(seen, StorageError):
            raise seen
        return seen

    return upkeep.stay(look, HERE, asked, idle or Idleness(lambda: 1, None), every_s=0)


def test_up_stays_until_it_is_asked_to_end() -> None:
    assert staying(*[SERVING] * 50) is Fate.SERVING


def test_up_ends_with_a_coordinator_that_was_taken_down() -> None:
    assert staying(SERVING, DRAINED, DRAINED, DOWN, SERVING) is Fate.TAKEN_DOWN


def test_up_ends_when_it_was_fenced_for_good() -> None:
    assert staying(*[DRAINED] * (DOUBTS_MAX + 1)) is Fate.FENCED


def test_up_ends_when_its_graph_is_gone_for_good() -> None:
    assert staying(*[GONE] * (DOUBTS_MAX + 1)) is Fate.GRAPH_GONE
    assert staying(*[GONE] * (DOUBTS_MAX - 1), SERVING) is Fate.SERVING


def test_up_outlasts_what_passes() -> None:
    almost = [DRAINED] * (DOUBTS_MAX - 1)
    assert staying(*almost, SERVING, *almost, SERVING) is Fate.SERVING


def test_up_outlasts_a_store_that_fails() -> None:
    assert staying(*[StorageError("no route")] * 50, SERVING) is Fate.SERVING


# Idleness


class _Clients:
    """Counts clients as it was told to, while a time passes; an error is raised."""

    def __init__(self, clock: SleepersClock, *counts: int | StorageError) -> None:
        self._clock, self._counts = clock, list(counts)

    def __call__(self) -> int:
        self._clock.sleep(10)
        count = self._counts.pop(0)
        if isinstance(count, StorageError):
            raise count
        return count


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SleepersClock:
    clock = SleepersClock()
    monkeypatch.setattr(upkeep, "time", clock)
    return clock


def test_a_coordinator_is_idle_once_no_client_has_been_connected_for_so_long(clock: SleepersClock) -> None:
    idle = Idleness(_Clients(clock, 0, 0, 1, 0, 0, 0), 30)
    assert [idle.is_over() for _ in range(6)] == [False, False, False, False, False, True]


def test_a_coordinator_that_nobody_has_ever_connected_to_ends_too(clock: SleepersClock) -> None:
    """The client that has started it may have died meanwhile."""
    idle = Idleness(_Clients(clock, 0, 0, 0), 30)
    assert [idle.is_over() for _ in range(3)] == [False, False, True]


def test_without_a_limit_nobody_is_counted(clock: SleepersClock) -> None:
    assert not Idleness(_Clients(clock), None).is_over()


def test_up_ends_a_coordinator_that_serves_and_is_idle_and_drains_it(clock: SleepersClock) -> None:
    assert staying(*[SERVING] * 50, idle=Idleness(_Clients(clock, 1, 0, 0, 0), 30)) is Fate.SERVING
    assert clock.now_s == 40, "not when it was asked to"


def test_up_ends_a_coordinator_that_is_idle_although_its_store_has_gone(clock: SleepersClock) -> None:
    """Else one that a client has started would stay for ever."""
    gone = [StorageError("no route")] * 50
    assert staying(*gone, idle=Idleness(_Clients(clock, 1, 0, 0, 0), 30)) is Fate.SERVING
    assert clock.now_s == 40, "not when it was asked to"


def test_clients_that_can_not_be_counted_do_not_end_a_coordinator(clock: SleepersClock) -> None:
    """Ray may be restarting it. It ends all the same if none is connected once they can be counted again."""
    away = Unreachable("the coordinator gave no answer")
    idle = Idleness(_Clients(clock, 1, away, away, away, away, 1, 0, 0, 0), 30)
    assert staying(*[SERVING] * 50, idle=idle) is Fate.SERVING
    assert clock.now_s == 90


class _Ended:
    """A hosted coordinator that remembers how it was ended."""

    address = HERE

    def __init__(self) -> None:
        self.how: list[str] = []

    def down(self, timeout_s: float) -> None:
        self.how.append("drained")

    def end(self) -> None:
        self.how.append("ended")


@pytest.mark.parametrize(
    ("fate", "how"),
    [
        (Fate.SERVING, ["drained"]),
        (Fate.FENCED, ["ended"]),
        (Fate.GRAPH_GONE, ["ended"]),
        (Fate.TAKEN_DOWN, []),
        (Fate.LOST, []),
    ],
)
def test_only_a_coordinator_that_serves_is_drained(fate: Fate, how: list[str]) -> None:
    ended: Any = _Ended()
    upkeep.end(fate, ended, 1.0)
    assert ended.how == how


@pytest.mark.parametrize(
    ("fate", "error"), [(Fate.FENCED, Fenced), (Fate.GRAPH_GONE, GraphGone), (Fate.LOST, Unreachable)]
)
def test_an_end_that_nobody_asked_for_is_an_error(graph: str, fate: Fate, error: type[OmnirayError]) -> None:
    with omniray.open(graph, read_only=True) as opened:
        for fine in (Fate.SERVING, Fate.TAKEN_DOWN):
            upkeep.refuse_lost(fine, opened, HERE)
        with pytest.raises(error, match=HERE):
            upkeep.refuse_lost(fate, opened, HERE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_to_end_and_the_second_one_has_its_usual_effect(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with upkeep.asked_by_signals() as asked:
        assert signal.getsignal(number) != before
        os.kill(os.getpid(), number)
        assert asked.wait(TIMEOUT_S)
        assert signal.getsignal(number) == before
    assert signal.getsignal(number) == before


# In the background


def detach(tmp_path: Path, code: str, timeout_s: float = TIMEOUT_S) -> background.Detached:
    return background.detach([sys.executable, "-c", code], tmp_path / "cache" / "up.log", timeout_s)


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_process_in_the_background_is_left_when_it_serves(tmp_path: Path) -> None:
    code = "import time; print('noise', flush=True); print('{\"epoch\": 7}', flush=True); time.sleep(600)"
    detached = detach(tmp_path, code)
    try:
        assert detached.said == {"epoch": 7}
        assert os.getsid(detached.pid) == detached.pid, "it survives the terminal"
        assert detached.log.read_text() == 'noise\n{"epoch": 7}\n'
    finally:
        end(detached.pid)


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_the_options_of_the_store_reach_the_process_in_the_background_but_not_its_arguments(
    graph: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user of the machine can read the arguments of a process, and these options hold keys and secrets.

    The command runs in a process that stands in for the coordinator: it says its arguments and what it was given.
    """
    said = tmp_path / "said"
    stands_in = tmp_path / "python"
    stands_in.write_text(
        f'#!/bin/sh\ncat > {said}\nprintf \'%s\\n\' \'{{"epoch": 7, "joined": false, "uri": "", "url": "", '
        f'"address": "", "owner": "{STATUS.owner}"}}\'\nexec sleep 600\n'
    )
    stands_in.chmod(0o700)
    detached: list[background.Detached] = []
    real, arguments = background.detach, list[str]()

    def detach(command: Sequence[str], *args: Any, **options: Any) -> background.Detached:
        arguments.extend(command)
        detached.append(real(command, *args, **options))
        return detached[0]

    monkeypatch.setattr(background, "detach", detach)
    monkeypatch.setattr(sys, "executable", str(stands_in))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    secret = ["--storage-option", "aws_secret_access_key=hunter2"]
    result = CliRunner().invoke(service_commands, ["up", graph, "--detach", *secret])
    assert (result.exit_code, len(detached)) == (0, 1), result.output
    try:
        assert b"hunter2" not in Path(f"/proc/{detached[0].pid}/cmdline").read_bytes()
        assert json.loads(said.read_text()) == {"aws_secret_access_key": "hunter2"}
    finally:
        end(detached[0].pid)
    assert not [argument for argument in arguments if "hunter2" in argument]
    assert starting.OPTIONS_ON_STDIN in arguments


def test_up_takes_the_options_of_the_store_from_its_standard_input(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def host(_: object, __: object, options: object, *___: object, **____: object) -> NoReturn:
        asked.append(options)
        raise Unreachable("nothing is started here")

    monkeypatch.setattr(hosting, "host", host)
    arguments = ["up", graph, starting.OPTIONS_ON_STDIN]
    result = CliRunner().invoke(service_commands, arguments, input='{"aws_secret_access_key": "hunter2"}')
    assert (asked, result.exit_code) == ([{"aws_secret_access_key": "hunter2"}], Unreachable.exit_code)


def test_a_process_that_ends_before_it_serves_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "up.log").write_text('{"epoch": 1}\nof an earlier one\n')
    with pytest.raises(Unreachable, match="exit code 4") as caught:
        detach(tmp_path, "import sys; [print('line', n) for n in range(12)]; sys.exit(4)")
    shown = caught.value.message.splitlines()[1:]
    assert shown == [f"    line {n}" for n in range(2, 12)]


def test_a_process_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = f"import os, pathlib, time; pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(600)"
    with pytest.raises(Unreachable, match=r"no answer in 2 s"):
        detach(tmp_path, code, timeout_s=2)
    if pid.exists():  # else it was ended before it could begin
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


def test_a_process_that_would_only_watch_is_ended(tmp_path: Path) -> None:
    detached = detach(tmp_path, 'import time; print(\'{"epoch": 7, "joined": true}\', flush=True); time.sleep(600)')
    with pytest.raises(ProcessLookupError):
        os.kill(detached.pid, 0)


def test_the_log_lies_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/ann")
    assert background.log_of("01K9") == Path("/home/ann/.cache/omniray/up-01K9.log")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert background.log_of("01K9") == Path("/cache/omniray/up-01K9.log")


# Durability


@pytest.mark.parametrize("durability", ["process", "power"])
@pytest.mark.parametrize("detached", [False, True])
def test_up_passes_on_how_durable_the_coordinator_is_to_be(
    graph: str, monkeypatch: pytest.MonkeyPatch, durability: str, detached: bool
) -> None:
    """In the background it is the command that is started there which passes it on."""
    asked: list[str] = []

    def host(*_: object, durability: str, **__: object) -> NoReturn:
        asked.append(durability)
        raise Unreachable("nothing is started here")

    def detach(command: Sequence[str], log: Path, *, stdin: bytes) -> NoReturn:
        asked.append(command[command.index("--durability") + 1])
        raise Unreachable("nothing is started here")

    monkeypatch.setattr(hosting, "host", host)
    monkeypatch.setattr(background, "detach", detach)
    options = ["--detach"] if detached else []
    result = CliRunner().invoke(service_commands, ["up", graph, "--durability", durability, *options])
    assert (asked, result.exit_code) == ([durability], Unreachable.exit_code)


# Without Ray


@pytest.mark.parametrize("detached", [[], ["--detach"]])
def test_up_without_ray_says_how_to_install_it(
    graph: str, monkeypatch: pytest.MonkeyPatch, detached: list[str]
) -> None:
    monkeypatch.setattr(starting, "find_spec", lambda name: None)
    answer = omniray_command("up", graph, *detached, "--json")
    assert (answer.code, answer.error["kind"]) == (5, "unreachable")
    assert "pip install 'omniray[ray]'" in answer.error["message"]


@pytest.mark.parametrize("until_idle", [[], ["--until-idle", "60"]])
def test_up_in_the_background_passes_on_when_it_is_to_end(
    graph: str, monkeypatch: pytest.MonkeyPatch, until_idle: list[str]
) -> None:
    asked: list[Sequence[str]] = []

    def detach(command: Sequence[str], log: Path, *, stdin: bytes) -> NoReturn:
        asked.append(command)
        raise Unreachable("nothing is started here")

    monkeypatch.setattr(background, "detach", detach)
    omniray_command("up", graph, "--detach", "--take-over", *until_idle)
    ((*_, command),) = [asked]
    assert command[command.index("up") + 1] == graph
    assert "--take-over" in command
    assert ("--until-idle" in command) == bool(until_idle)


# What is served already


class _Answers:
    """A client of a coordinator that answers; what was asked of it is kept."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __enter__(self) -> _Answers:
        return self

    def __exit__(self, *_: object) -> None:
        self.asked.append("close")

    def status(self, *, branch: str = "main") -> Status:
        return STATUS

    def down(self, timeout_s: float) -> None:
        self.asked.append(("down", timeout_s))

    def recover(self, **terms: Any) -> RecoveryReport:
        self.asked.append(("recover", terms))
        return RecoveryReport(rolled_back=("01",))

    def repair(self, **terms: Any) -> RepairReport:
        self.asked.append(("repair", terms))
        return RepairReport(())

    def sweep(self, **terms: Any) -> SweepReport:
        self.asked.append(("sweep", terms))
        return SweepReport(7, (), NOTHING, dry_run=True)

    def outcome(self, txn_id: str, *, branch: str) -> Outcome:
        self.asked.append(("outcome", txn_id))
        return Outcome(txn_id, committed=False)

    def load(self, source: Any, **terms: Any) -> omniray.WriteResult:
        self.asked.append(("load", terms["mode"]))
        return WriteResult("01", 1, 0, versions={})

    def mutate(self, text: str, params: Any, **terms: Any) -> omniray.WriteResult:
        self.asked.append(("mutate", params))
        return WriteResult("01", 1, 0, versions={})


@pytest.fixture
def served(graph: str, monkeypatch: pytest.MonkeyPatch) -> _Answers:
    """The coordinator that serves the graph."""
    answers = _Answers()
    monkeypatch.setattr(client_module, "connect_to_serving", lambda *_, **__: answers)
    owned_by(graph, Incarnation(new_ulid(), ELSEWHERE, HERE))
    return answers


def test_down_says_which_coordinator_was_taken_down(graph: str, served: _Answers) -> None:
    answer = run("down", graph, "--timeout", "7")
    assert answer.out == f"the coordinator at {DOOR} was drained and taken down\n"
    assert served.asked == [("down", 7.0), "close"]
    assert run("down", graph, "--json").document == {"uri": graph, "address": HERE, "url": DOOR}


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        (["recover", "{}"], ("recover", {"grace_s": 600.0})),
        (["recover", "{}", "--grace", "30s"], ("recover", {"grace_s": 30.0})),
        (["repair", "{}"], ("repair", {"adopt": False, "discard": False, "tables": None, "actor": "tester"})),
        (["cleanup", "{}", "--orphans", "--dry-run"], ("sweep", {"older_than_s": 3600.0, "dry_run": True})),
        (["outcome", "{}", "01K9ZQ5T7Z0000000000000000"], ("outcome", "01K9ZQ5T7Z0000000000000000")),
        (["mutate", "{}", "-", "--params", '{{"name": "ann"}}'], ("mutate", {"name": "ann"})),
        (["load", "{}", "-", "--type", "Person", "--mode", "merge"], ("load", "merge")),
    ],
    ids=lambda one: one[0] if isinstance(one, list) else "",
)
def test_verbs_that_write_go_to_the_coordinator_of_a_served_graph(
    graph: str, served: _Answers, monkeypatch: pytest.MonkeyPatch, command: list[str], asked: Any
) -> None:
    """Before, they were refused there, or wrote beside it."""
    monkeypatch.setenv("OMNIRAY_ACTOR", "tester")
    stdin = '{"type": "Person", "data": {"name": "ann"}}' if command[0] == "load" else INSERT
    run(*(part.format(graph) for part in command), stdin=stdin)
    assert served.asked == [asked, "close"]
