"""`omniray.testing` does what docs/testing.md says, for a script and for pytest, and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import omniray
from omniray.coordinator.stress.list_checker import check_lists
from omniray.coordinator.stress.recorder import read_recorded
from omniray.coordinator.testing import served_graph as served_graph_module
from omniray.coordinator.testing.served_graph import served_graph
from omniray.engine.base.errors import StorageError
from omniray.engine.line.commit_object import EMBEDDED
from tests.commands import TIMEOUT_S, environment
from tests.edn import read_edn
from tests.processes.test_readme import blocks, finish, promised

DOCUMENT = "docs/testing.md"
SCHEMA = "node Person { name: String @key }"

pytestmark = pytest.mark.timeout(300)


def script() -> str:
    (code,) = [block for block in blocks(DOCUMENT, "python") if not block.startswith("# ")]
    return code


def test_the_example_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    output = finish([sys.executable, "-W", "error::DeprecationWarning", "-c", script()], tmp_path)
    assert output.splitlines() == promised(script()) != []
    events = read_recorded(tmp_path / "history")
    assert {event.writer for event in events} == {0, 1, 2}
    assert check_lists(events).ok
    lines = [read_edn(line) for line in (tmp_path / "history.edn").read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(len(events)))


def test_the_examples_for_pytest_pass(tmp_path: Path) -> None:
    files = [block for block in blocks(DOCUMENT, "python") if block.startswith("# ")]
    for text in files:
        (tmp_path / text.partition("\n")[0].removeprefix("# ")).write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=2 * TIMEOUT_S
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_a_graph_without_a_schema_says_which_fixture_is_missing(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        'import omniray.testing\npytest_plugins = ["omniray.testing"]\n'  # imported first, which pytest may warn about
    )
    (tmp_path / "test_it.py").write_text("def test_it(omniray_graph):\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S)
    assert "define a fixture omniray_schema" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("missing", "named"), [(("moto",), "moto"), (("pytest",), "pytest"), (("moto", "pytest"), "moto and pytest")]
)
def test_without_the_extra_one_line_says_what_to_install(missing: tuple[str, ...], named: str, tmp_path: Path) -> None:
    code = (
        "import importlib.util as util; found = util.find_spec\n"
        f"util.find_spec = lambda name, package=None: None if name in {missing!r} else found(name, package)\n"
        "try: import omniray.testing\n"
        "except ImportError as error: print(error)\n"
    )
    output = finish([sys.executable, "-c", code], tmp_path)
    assert output == f"{named} not installed: pip install 'omniray[testing]'\n"


TWO_GRAPHS = f"""
from omniray.testing import served_graph
for name in ("first", "second"):
    with served_graph(name, {SCHEMA!r}) as graph, graph.connect(actor=name) as client:
        client.load([{{"name": name}}], type="Person")
        with graph.open() as reader:
            print(reader.snapshot().table("Person")["name"].to_pylist())
"""


def test_one_process_may_have_one_served_graph_after_another(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWO_GRAPHS], cwd=tmp_path, env=environment(), capture_output=True, text=True,
        timeout=2 * TIMEOUT_S,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["['first']", "['second']"], done.stderr
    for name in ("first", "second"):
        with omniray.open(tmp_path / name, read_only=True) as graph:
            assert graph.owner == EMBEDDED, "the branch was handed back"


def test_a_coordinator_ends_with_the_process_that_wanted_it(tmp_path: Path) -> None:
    """Fault: the process is killed. Oracle: the branch is handed back, which the coordinator does last."""
    code = (
        "import time\nfrom omniray.testing import served_graph\n"
        f"with served_graph('graph', {SCHEMA!r}):\n    print('serves', flush=True)\n    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        try:
            assert one.stdout.readline() == b"serves\n"
        finally:
            one.send_signal(signal.SIGKILL)
    with omniray.open(tmp_path / "graph", read_only=True) as graph:
        deadline = time.monotonic() + TIMEOUT_S
        while graph.owner != EMBEDDED:
            assert time.monotonic() < deadline, "the coordinator goes on"
            time.sleep(0.1)


def test_a_coordinator_that_can_not_begin_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_graph_module, "ON_A_RAY_OF_ITS_OWN", {"RAY_ADDRESS": "127.0.0.1:1"})
    with (
        pytest.raises(StorageError, match=r"no coordinator serves .*, exit code 5: its error is above"),
        served_graph(tmp_path / "graph", SCHEMA),
    ):
        pytest.fail("it serves")
