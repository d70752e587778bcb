"""The wheel holds the whole package, although its sub-packages are links in the repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.source import LAYERS, REPOSITORY, python_files, relative

SOURCES = ("src", *LAYERS, "pyproject.toml", "README.md", "LICENSE")
PACKAGED_SUFFIXES = {".py", ".lark", ".typed"}
pytestmark = pytest.mark.xdist_group("wheel")  # so that it is built once
LEAVE_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built from a copy, because a build leaves its traces beside the sources."""
    copy = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        path = REPOSITORY / name
        if path.is_dir():
            shutil.copytree(path, copy / name, symlinks=True, ignore=LEAVE_OUT)
        else:
            shutil.copy(path, copy / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", "out", "."], cwd=copy, check=True, timeout=120)
    (built,) = (copy / "out").glob("omniray-*.whl")
    return zipfile.ZipFile(built)


def test_every_module_grammar_and_marker_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    layers = [path for layer in LAYERS for path in (REPOSITORY / layer).rglob("*")]
    top = list((REPOSITORY / "src" / "omniray").glob("*"))
    expected = {f"omniray/{relative(path)}" for path in layers if path.suffix in PACKAGED_SUFFIXES}
    expected |= {f"omniray/{path.name}" for path in top if path.suffix in PACKAGED_SUFFIXES}
    packaged = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packaged == expected


def test_the_wheel_holds_the_engine_and_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {"omniray/__init__.py", "omniray/py.typed", "omniray/engine/base/errors.py"} <= names


def test_the_wheel_brings_the_command_and_the_licence(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "omniray = omniray.coordinator.cli.app:main" in wheel.read(entry_points).decode()
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


def test_every_folder_of_the_layers_is_a_listed_package() -> None:
    """`pyproject.toml` lists the packages by name; a folder that is not listed would be left out of the wheel."""
    listed = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(REPOSITORY) for path in python_files(*LAYERS)}
    assert {"omniray", *(".".join(("omniray", *folder.parts)) for folder in folders)} == set(listed)


def test_the_links_lead_to_the_folders_at_the_top() -> None:
    package = REPOSITORY / "src" / "omniray"
    assert {layer: (package / layer).readlink() for layer in LAYERS} == {
        layer: Path("..", "..", layer) for layer in LAYERS
    }
