"""Dependencies point one way: coordinator -> workers -> engine."""

from __future__ import annotations

import pytest

from tests.source import LAYERS, belongs_to, imported_modules, python_files, relative

FORBIDDEN = {
    "engine": ("ray", "pyspark", "omniray.workers", "omniray.coordinator"),
    "workers": ("omniray.coordinator",),
    "coordinator": (),
}
EVERYWHERE = ("bench", "tests", *LAYERS)
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}


def wrong_imports(layer: str, source: str) -> list[str]:
    """Each import that the layer must not have, as `line: name`."""
    banned = (*FORBIDDEN[layer], *EVERYWHERE)
    return [
        f"{line}: {name}"
        for line, name in imported_modules(source)
        if name.startswith(".") or any(belongs_to(name, package) for package in banned)
    ]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_what_lies_below_it(layer: str) -> None:
    found = {relative(path): wrong for path in python_files(layer) if (wrong := wrong_imports(layer, path.read_text()))}
    assert found == {}


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("engine", "import ray"),
        ("engine", "def f():\n    from pyspark.sql import DataFrame"),
        ("engine", "from omniray import coordinator"),
        ("engine", "from omniray.workers.staging import stage"),
        ("engine", "import importlib\nimportlib.import_module('ray')"),
        ("workers", "from omniray.coordinator.cli import main"),
        ("workers", "from engine.errors import Conflict"),
        ("coordinator", "import engine"),
        ("coordinator", "from . import cli"),
        ("coordinator", "from bench.s3server import running_server"),
    ],
)
def test_the_walker_finds_a_planted_import(layer: str, source: str) -> None:
    assert wrong_imports(layer, source) != []


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("engine", "import rayon, arrays"),
        ("engine", "from omniray.engine.errors import Conflict"),
        ("workers", "import ray\nfrom omniray.engine import errors"),
        ("coordinator", "from omniray.workers import staging"),
    ],
)
def test_the_walker_lets_a_proper_import_pass(layer: str, source: str) -> None:
    assert wrong_imports(layer, source) == []


def test_tests_and_benchmarks_import_the_layers_under_their_one_name() -> None:
    found = {
        relative(path): name
        for path in python_files("tests", "bench")
        for _, name in imported_modules(path.read_text())
        if any(belongs_to(name, layer) for layer in LAYERS)
    }
    assert found == {}


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [relative(path) for path in python_files(*LAYERS, "bench") if path.stem in VAGUE_NAMES] == []
