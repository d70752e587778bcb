"""Dependencies point one way: coordinator -> workers -> engine, and inside each of them from package to package.

Every import counts: inside functions, for type checkers, and through the facades `omniray` and `omniray.spark`, which
stand for the modules that their names come from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import omniray
from tests.source import LAYERS, REPOSITORY, belongs_to, imported_modules, python_files, relative

# What each package of the engine may import of the others; a module at the top of a layer may import all of it.
ENGINE = {
    "base": "",
    "store": "base",
    "schema": "base",
    "line": "base store",
    "rows": "base schema",
    "query": "base schema rows",
    "tables": "base store schema line",
    "history": "base store schema line tables",
    "judge": "base store schema line rows tables",
    "writes": "base store schema line rows query tables judge",
    "commit": "base store schema line rows tables history judge",
    "recovery": "base store schema line rows tables history judge commit",
    "maintenance": "base store schema line rows tables history judge commit",
    "reading": "base store schema line rows tables history",
    "branches": "base store schema line rows tables history judge commit reading",
}
COORDINATOR = {
    "rounds": "",
    "door": "rounds",
    "actors": "rounds door",
    "client": "rounds door",
    "cli": "client actors door stress",
    "demo": "client actors door stress",
    "stress": "client actors door",
    "testing": "stress",
}
WORKERS: dict[str, str] = {}
ON_DEMAND = {("omniray.coordinator.client.client", "omniray.coordinator.actors.cluster")}
"""Imports that a package must not have, for `Client.join_ray`: nothing else of a client needs Ray."""
PACKAGES = {"engine": ENGINE, "coordinator": COORDINATOR, "workers": WORKERS}
FORBIDDEN = {
    "engine": ("ray", "pyspark", "omniray.workers", "omniray.coordinator", "omniray.spark", "omniray.testing"),
    "workers": ("omniray.coordinator", "omniray.spark", "omniray.testing"),
    "coordinator": (),
}
EVERYWHERE = ("bench", "tests", *LAYERS)
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}


def named(path: Path) -> str:
    """A file as a module of the package."""
    return "omniray." + relative(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def known_modules() -> frozenset[str]:
    return frozenset(named(path) for path in python_files(*LAYERS))


def behind_the_facade(name: str) -> str:
    """The module that a name of `omniray` comes from."""
    first = name.removeprefix("omniray.").partition(".")[0]
    return f"omniray.{omniray._HOMES.get(first, 'engine.base.errors')}" if first in omniray.__all__ else name


def imported(source: str, known: Iterable[str]) -> set[str]:
    """The modules of omniray that a source imports."""
    found = set()
    for _, name in imported_modules(source):
        target = behind_the_facade(name) if belongs_to(name, "omniray") else name
        while target and target not in known:
            target = target.rpartition(".")[0]
        if target:
            found.add(target)
    return found


def package_of(module: str) -> tuple[str, str]:
    """The layer of a module, and its package in there; none for one at the top of its layer."""
    _, layer, *rest = module.split(".")
    is_package = bool(rest) and rest[0] in PACKAGES[layer]
    return layer, rest[0] if is_package else ""


def edges(known: frozenset[str]) -> Mapping[str, set[str]]:
    """Which package imports which, by every module."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in python_files(*LAYERS):
        here = "/".join(filter(None, package_of(named(path))))
        for target in imported(path.read_text(), known):
            there = "/".join(filter(None, package_of(target)))
            if here != there:
                found[here].add(there)
    return found


def wrong_packages(module: str, source: str, known: frozenset[str]) -> list[str]:
    """The imports of a module that its package must not have."""
    layer, package = package_of(module)
    if not package:
        return []
    allowed = {package, *PACKAGES[layer][package].split()}
    here = [target for target in imported(source, known) if package_of(target)[0] == layer]
    wrong = (target for target in here if package_of(target)[1] not in allowed)
    return sorted(target for target in wrong if (module, target) not in ON_DEMAND)


def wrong_imports(layer: str, source: str) -> list[str]:
    """Each import that the layer must not have, as `line: name`."""
    banned = (*FORBIDDEN[layer], *EVERYWHERE)
    return [
        f"{line}: {name}"
        for line, name in imported_modules(source)
        if name.startswith(".") or any(belongs_to(behind_the_facade(name), package) for package in banned)
    ]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_what_lies_below_it(layer: str) -> None:
    found = {relative(path): wrong for path in python_files(layer) if (wrong := wrong_imports(layer, path.read_text()))}
    assert found == {}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_package_imports_only_those_that_it_may(layer: str) -> None:
    known = known_modules()
    found = {
        relative(path): wrong
        for path in python_files(layer)
        if (wrong := wrong_packages(named(path), path.read_text(), known))
    }
    assert found == {}


def test_no_cycle_runs_through_packages_or_modules() -> None:
    known = known_modules()
    packages = edges(known)
    for package, targets in sorted(packages.items()):
        print(f"{package} -> {', '.join(sorted(targets))}")
    TopologicalSorter(packages).prepare()
    modules = {named(path): imported(path.read_text(), known) - {named(path)} for path in python_files(*LAYERS)}
    TopologicalSorter({module: targets - _parents(module) for module, targets in modules.items()}).prepare()


def _parents(module: str) -> set[str]:
    parts = module.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts))}


def test_every_module_of_the_engine_is_in_a_package() -> None:
    top = sorted(path.name for path in (REPOSITORY / "engine").glob("*.py"))
    assert top == [
        "__init__.py",
        "branch_handles.py",
        "branch_verbs.py",
        "graph.py",
        "load_stager.py",
        "reader.py",
        "writer.py",
    ]
    assert [path.name for path in (REPOSITORY / "coordinator").glob("*.py")] == ["__init__.py"]
    folders = {path.parent.name for layer in ("engine", "coordinator") for path in (REPOSITORY / layer).glob("*/*.py")}
    assert folders == {*ENGINE, *COORDINATOR}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("omniray.engine.line.owner", "from omniray.engine.history.manifest import Manifest"),
        ("omniray.engine.base.clock", "from omniray.engine.store import object_store"),
        ("omniray.engine.commit.staging", "def late():\n    from omniray.engine.writes.load import LoadIntent"),
        ("omniray.engine.rows.payload", "if TYPE_CHECKING:\n    from omniray import Graph"),
        ("omniray.coordinator.rounds.machine", "from omniray import Client"),
        ("omniray.coordinator.client.link", "def late():\n    from omniray.coordinator.actors import cluster"),
    ],
)
def test_the_walker_finds_a_planted_import_between_packages(module: str, source: str) -> None:
    assert wrong_packages(module, source, known_modules()) != []


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("engine", "import ray"),
        ("engine", "def f():\n    from pyspark.sql import DataFrame"),
        ("engine", "from omniray import coordinator"),
        ("engine", "from omniray import connect"),
        ("engine", "from omniray.spark import transaction"),
        ("engine", "from omniray.testing import Recorder"),
        ("engine", "from omniray.workers.staging import stage"),
        ("engine", "import importlib\nimportlib.import_module('ray')"),
        ("workers", "from omniray.coordinator.cli.app import main"),
        ("workers", "from omniray import Client"),
        ("workers", "from engine.base.errors import Conflict"),
        ("coordinator", "import engine"),
        ("coordinator", "from . import cli"),
        ("coordinator", "from bench.measure import Figure"),
        ("coordinator", "from tests.kit.s3server import running_server"),
    ],
)
def test_the_walker_finds_a_planted_import(layer: str, source: str) -> None:
    assert wrong_imports(layer, source) != []


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("engine", "import rayon, arrays"),
        ("engine", "from omniray.engine.base.errors import Conflict"),
        ("workers", "import ray\nfrom omniray.engine.base import errors"),
        ("workers", "from omniray import Graph"),
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
