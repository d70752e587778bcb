"""What a process leaves in its scratch folders is deleted: by itself at its end, by another if it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from omniray.engine.base.scratch import reap

MAKES_ONE = """
import sys
from omniray.engine.base.scratch import scratch_folder
folder = scratch_folder("test")
(folder / "file").write_text("left")
print(folder, flush=True)
sys.stdin.readline()
"""


def started(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a scratch folder, and waits."""
    environment = {**os.environ, "TMPDIR": str(parent)}
    process = subprocess.Popen(
        [sys.executable, "-c", MAKES_ONE], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def ended(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=60)


def test_a_process_that_ends_takes_its_folder_along(tmp_path: Path) -> None:
    process, folder = started(tmp_path)
    assert (folder / "file").exists()
    ended(process)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_process_is_deleted_by_the_next_one(tmp_path: Path) -> None:
    process, folder = started(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert (folder / "file").exists()
    another, _ = started(tmp_path)
    assert not folder.exists()
    ended(another)


def test_the_folder_of_a_living_process_stays(tmp_path: Path) -> None:
    process, folder = started(tmp_path)
    reap(tmp_path)
    assert (folder / "file").exists()
    ended(process)


def test_a_fork_that_ends_leaves_the_folder_of_its_parent_alone(tmp_path: Path) -> None:
    forks = MAKES_ONE.replace("print(", "import os\nif os.fork() == 0: sys.exit()\nos.wait()\nprint(")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", forks], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert (folder / "file").exists()
    ended(process)


@pytest.mark.parametrize("name", ["omniray-scratch-without-a-lock", "another"])
def test_what_is_no_scratch_folder_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    reap(tmp_path)
    assert (tmp_path / name).exists()
