"""Java for Spark: from the environment, the PATH or a Python package; else one line that says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from omniray.engine.base.errors import InputError
from omniray.workers.spark import session
from omniray.workers.spark.session import java_home


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def fake_java(folder: Path) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o700)
    return java


def test_the_environment_names_java(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(nowhere / "jdk")
    monkeypatch.setenv("JAVA_HOME", str(nowhere / "jdk"))
    assert java_home() == nowhere / "jdk"


def test_an_environment_that_names_no_java_is_refused(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(nowhere / "gone"))
    with pytest.raises(InputError, match=r"there is no Java at .*gone, which JAVA_HOME names: correct it, or unset it"):
        java_home()


def test_java_is_found_on_the_path_behind_links(nowhere: Path) -> None:
    (nowhere / "java").symlink_to(fake_java(nowhere / "jdk"))
    assert java_home() == nowhere / "jdk"


def test_a_machine_without_java_is_told_what_to_install(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="Spark needs Java 17 or newer, and there is none: install one"):
        java_home()


def test_a_machine_without_java_takes_the_packaged_one_without_the_module_that_it_lacks(nowhere: Path) -> None:
    java = java_home() / "bin" / "java"
    command = [java, "--add-modules=jdk.incubator.vector", "-Dname=a b", "--version"]
    said = subprocess.run(command, env=os.environ | {"PATH": os.defpath}, capture_output=True, text=True, check=True)
    assert "OpenJDK" in said.stdout


def test_without_pyspark_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"Spark is not installed: pip install 'omniray\[spark\]'"):
        session.session("test")


def test_a_java_that_can_t_start_spark_is_one_line(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o700)
    code = "from omniray.spark import session; session('none')"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment | {"JAVA_HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert f"InputError: the Java at {tmp_path} can't start Spark, which needs Java 17 or newer" in ended.stderr
