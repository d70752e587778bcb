"""A Ray that omniray starts serves its user alone: by token, on loopback only, or not at all."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from omniray.coordinator.actors import listening, ray_token
from omniray.coordinator.actors.cluster import LOOPBACK
from omniray.coordinator.actors.ray_token import MODE, TOKEN_PATH
from omniray.engine.base.errors import StorageError
from tests.commands import environment

SHARED = pytest.mark.xdist_group("ray")  # the others need no Ray, or one of their own
TIMEOUT_S = 240

STARTS = """
from omniray.coordinator.actors import cluster, listening, ray_token
from omniray.engine.base.errors import Unreachable
import os
def opened():
    ports = listening._listening(listening._PROC / "net" / "tcp")
    mine = {one for pid in listening.descendants([os.getpid()]) for one in listening._sockets_of(pid)}
    return sorted({address.rpartition(":")[0] for inode, address in ports if inode in mine})
"""


def python(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process that knows nothing of this one's Ray."""
    inherited = {name: value for name, value in environment(**variables).items() if not name.startswith("RAY_")}
    command = [sys.executable, "-W", "ignore", "-c", program]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env={**inherited, **variables}, check=False
    )


@SHARED
def test_the_token_is_in_no_argument_of_a_process_and_in_no_file_that_others_read(ray_address: str) -> None:
    path = Path(os.environ[TOKEN_PATH])
    token = path.read_text()
    assert len(token) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    arguments = [one.read_bytes() for one in Path("/proc").glob("[0-9]*/cmdline") if one.parent.exists()]
    assert sum(b"raylet" in one for one in arguments) > 0
    assert not [one for one in arguments if token.encode() in one]
    session = Path("/tmp/ray/session_latest").resolve()
    logs = [one for one in session.rglob("*") if one.is_file() and one.stat().st_size < 1 << 24]
    assert logs
    assert not [one for one in logs if token.encode() in one.read_bytes()]
    assert not Path.home().joinpath(".ray", "auth_token").exists()


@SHARED
def test_every_process_of_it_listens_on_loopback_only(ray_address: str) -> None:
    processes = listening.descendants([os.getpid()])
    names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in processes if Path(f"/proc/{pid}").exists()}
    assert {"gcs_server", "raylet"} <= names
    assert listening.open_to_others(processes) == []


@SHARED
def test_a_process_of_the_same_user_finds_the_token_by_the_address(ray_address: str) -> None:
    joins = f"from omniray.coordinator.actors import cluster\nprint(cluster.join({ray_address!r}), cluster.address())"
    answer = python(joins)
    assert answer.stdout.split() == ["False", ray_address], answer.stderr


@SHARED
def test_who_has_another_token_is_kept_out(ray_address: str) -> None:
    joins = f"""
from ray._raylet import GcsClient
try:
    GcsClient(address={ray_address!r}).internal_kv_keys(b"", None, timeout=20)
except Exception as error:
    print(type(error).__name__, error)
else:
    print("let in")
"""
    assert "let in" not in python(joins, RAY_AUTH_MODE="disabled").stdout
    wrong = python(joins, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
    assert "let in" not in wrong.stdout
    assert "nauthenticated" in wrong.stdout + wrong.stderr
    right = python(joins, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=os.environ[TOKEN_PATH])
    assert "let in" in right.stdout, right.stderr


@pytest.mark.parametrize("first", ["", "import ray\n"], ids=["omniray first", "ray first"])
def test_a_ray_of_our_own_is_closed_whatever_was_imported_first(first: str, tmp_path: Path) -> None:
    program = f"""{first}{STARTS}
assert cluster.join("local")
print(opened(), os.environ["{MODE}"], sorted(p.suffix for p in ray_token.folder().iterdir()))
cluster.leave()
print(list(ray_token.folder().iterdir()), "{MODE}" in os.environ)
"""
    answer = python(program, XDG_CACHE_HOME=str(tmp_path))
    assert answer.stdout.splitlines() == [f"['{LOOPBACK}'] token ['.address', '.token']", "[] False"], answer.stderr


def test_a_ray_that_other_machines_would_reach_is_ended_again(tmp_path: Path) -> None:
    program = f"""{STARTS}
before = listening.descendants([os.getpid()])
try:
    with cluster.starting():
        cluster._init(address="local", include_dashboard=False, _node_ip_address="{own_address()}")
except Unreachable as error:
    print(error)
print(cluster.ray().is_initialized(), list(ray_token.folder().iterdir()))
"""
    answer = python(program, XDG_CACHE_HOME=str(tmp_path))
    told, after = answer.stdout.splitlines()
    assert "Ray was ended again: it would have listened for other machines (" in told, answer.stderr
    assert "gcs_server" in told
    assert after == "False []"


def own_address() -> str:
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no network")
        return str(one.getsockname()[0])


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1", False), ("0.0.0.0", True), ("::1", False), ("::", True), ("127.0.0.9", False)]
)
def test_a_port_is_open_to_others_unless_it_is_on_loopback(host: str, expected: bool) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
        try:
            one.bind((host, 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        one.listen()
        port = one.getsockname()[1]
        found = [told for told in listening.open_to_others([os.getpid()]) if told.endswith(f":{port}")]
        assert bool(found) is expected


def test_a_folder_that_others_may_read_holds_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert stat.S_IMODE(ray_token.folder().stat().st_mode) == 0o700
    ray_token.folder().chmod(0o755)
    with pytest.raises(StorageError, match="must be a folder that only you can use"):
        ray_token.folder()


def test_a_mode_that_the_user_has_set_is_kept(tmp_path: Path) -> None:
    program = f"""{STARTS}
ray_token.begin()
ray_token.find("127.0.0.1:1")
print(os.environ["{MODE}"], "{TOKEN_PATH}" in os.environ)
"""
    answer = python(program, XDG_CACHE_HOME=str(tmp_path), RAY_AUTH_MODE="disabled")
    assert answer.stdout.split() == ["disabled", "False"], answer.stderr
