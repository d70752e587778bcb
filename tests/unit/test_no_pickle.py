"""No module of ours unpickles: what one process sends to another is a message that is checked where it arrives.

Ray and Spark pickle what is ours to hand to them: arguments of actors, functions of tasks. Values that must not get
into such a pickle, or only as something else, say so by `__reduce__`, which needs no import.
"""

from __future__ import annotations

import pytest

from tests.source import LAYERS, imported_modules, python_files, relative

PICKLERS = frozenset(
    {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve"}
)


def picklers(source: str) -> list[str]:
    """The imports by which a module could unpickle, as `line: name`; those from another package too."""
    return [f"{line}: {name}" for line, name in imported_modules(source) if PICKLERS & set(name.split("."))]


def test_nothing_is_unpickled() -> None:
    found = {relative(path): wrong for path in python_files(*LAYERS) if (wrong := picklers(path.read_text()))}
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "def late():\n    import cloudpickle",
        "from ray import cloudpickle",
        "from pyspark.cloudpickle import dumps",
        "if TYPE_CHECKING:\n    import pickle",
        "import importlib\nimportlib.import_module('pickle')",
        "import marshal",
    ],
)
def test_the_walker_finds_a_planted_import(source: str) -> None:
    assert picklers(source) != []


def test_the_walker_lets_a_proper_import_pass() -> None:
    assert picklers("import msgspec, pickled\nfrom omniray.engine.base.messages import Form\n# pickle") == []
