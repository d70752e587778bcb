"""Processes that end without a word, and processes that fork: what is left of a script, and what a child is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import omniray
from omniray.coordinator.client.under_way import AT_ONCE
from omniray.engine.line.sidecar import FOLDER as SIDECARS
from omniray.engine.store.open_store import open_store
from tests.commands import TIMEOUT_S, environment
from tests.foreign import plain_ids
from tests.graphs import files_below, new_graph
from tests.stores import Root

_WRITES = """
import sys, omniray
graph = omniray.open(sys.argv[1])
graph.load([{"name": "ann"}, {"name": "bob"}], type="Person")
"""

_CHILD = """
import os, sys, warnings
warnings.simplefilter("ignore")
import pytest

import omniray
from omniray.coordinator.client import client as client_module

class Link:
    url = "nowhere"
    def __init__(self, *_): pass
    def open(self, **_): pass
    def close(self): pass

client_module.Link = Link
graph, reader = omniray.open(sys.argv[1]), omniray.open(sys.argv[1], read_only=True)
client = omniray.connect(sys.argv[1])
person = dict(source=[{"name": "ann"}], type="Person")
uses = {
    "write": lambda: graph.load(**person), "read": lambda: graph.snapshot(), "flush": lambda: graph.flush(),
    "read only": lambda: reader.snapshot(), "history": lambda: reader.history(),
    "client's write": lambda: client.load(**person), "client's future": lambda: client.submit_load(**person),
    "client's read": lambda: client.snapshot(), "client's status": lambda: client.status(),
}
child = os.fork()
if child == 0:
    for name, use in uses.items():
        try:
            use()
        except omniray.InputError as error:
            print(name, "|", error, flush=True)
    graph.close(), reader.close(), client.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
graph.load([{"name": "zoe"}], type="Person")
print("the parent goes on", flush=True)
"""


def run(code: str, uri: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, uri]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S)


def test_a_script_that_ends_without_closing_leaves_nothing_to_be_finished(disk: Root) -> None:
    with new_graph(disk) as graph:
        pass
    done = run(_WRITES, graph.uri)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert files_below(Path(graph.uri) / SIDECARS) == []
    assert not [file for file in files_below(graph.uri) if "/_staged/" in file]
    assert plain_ids(open_store(graph.uri)) == ["ann", "bob"]


_FORKS = """
import os, pathlib, sys, tempfile, omniray
graph = omniray.open(sys.argv[1])
graph.load([{"name": "ann"}], type="Person")
mirrors = lambda: sorted(pathlib.Path(tempfile.gettempdir()).glob("omniray-scratch-*/mirror-*"))
before = mirrors()
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
assert before and mirrors() == before, (before, mirrors())
graph.close()
"""


def test_a_fork_that_ends_leaves_the_mirrors_of_its_parent_alone(
    disk: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_graph(disk) as graph:
        pass
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = run(_FORKS, graph.uri)
    assert done.returncode == 0, done.stderr


def test_the_test_of_scripts_can_fail(disk: Root) -> None:
    """The twin: a script that is ended before its exit hooks run leaves its sidecar; whoever comes next finishes it."""
    with new_graph(disk) as graph:
        pass
    done = run(_WRITES + "import os; os._exit(0)", graph.uri)
    assert done.returncode == 0
    assert files_below(Path(graph.uri) / SIDECARS) != []
    omniray.open(graph.uri).close()
    assert files_below(Path(graph.uri) / SIDECARS) == []
    assert plain_ids(open_store(graph.uri)) == ["ann", "bob"]


def test_a_forked_child_that_uses_what_its_parent_opened_is_told_so_at_once(disk: Root) -> None:
    with new_graph(disk) as graph:
        pass
    done = run(_CHILD, graph.uri)
    assert (done.returncode, done.stderr) == (0, "")
    *told, last = done.stdout.splitlines()
    assert last == "the parent goes on"
    assert [line.partition(" | ")[0] for line in told] == [
        "write", "read", "flush", "read only", "history",
        "client's write", "client's future", "client's read", "client's status",
    ]  # fmt: skip
    assert all("before this process was forked" in line and "again" in line for line in told)
    assert plain_ids(open_store(graph.uri)) == ["zoe"]


_SUBMITS = """
import sys
from omniray.coordinator.client.under_way import UnderWay
from omniray.coordinator.client.waits import Pause

def write(number):
    yield Pause(0.2)
    yield Pause(0)
    print(number, flush=True)

under_way = UnderWay()
futures = [under_way.submit(write(number)) for number in range(int(sys.argv[1]))]
"""


def test_a_script_that_ends_has_its_submitted_writes_carried_out() -> None:
    """Also those whose turn comes when no more threads can be had."""
    done = run(_SUBMITS, str(AT_ONCE + 3))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(map(int, done.stdout.split())) == list(range(AT_ONCE + 3))
