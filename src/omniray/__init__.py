"""omniray: graphs of Lance tables, with one atomic commit over all of them for any number of writers.

Names are imported when they are first used: `omniray --help` should not wait for Lance and DuckDB to load.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omniray.engine.errors import (
        Conflict,
        ConstraintViolation,
        ExpectedVersionMismatch,
        GraphExists,
        InputError,
        KeyConflict,
        NotFound,
        OmnirayError,
        OutcomeUnknown,
        ParseError,
        PayloadMismatch,
        QueryError,
        RecordError,
        RecoveryRequired,
        SchemaError,
        StorageError,
    )
    from omniray.engine.graph import Graph, init, open
    from omniray.engine.line import Recovery
    from omniray.engine.manifest import LineageEntry
    from omniray.engine.snapshot import Snapshot
    from omniray.engine.write import Outcome, WriteResult

try:
    __version__ = version("omniray")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"

__all__ = [
    "Conflict",
    "ConstraintViolation",
    "ExpectedVersionMismatch",
    "Graph",
    "GraphExists",
    "InputError",
    "KeyConflict",
    "LineageEntry",
    "NotFound",
    "OmnirayError",
    "Outcome",
    "OutcomeUnknown",
    "ParseError",
    "PayloadMismatch",
    "QueryError",
    "RecordError",
    "Recovery",
    "RecoveryRequired",
    "SchemaError",
    "Snapshot",
    "StorageError",
    "WriteResult",
    "__version__",
    "init",
    "open",
]

_HOMES = {
    "Graph": "graph",
    "LineageEntry": "manifest",
    "Outcome": "write",
    "Recovery": "line",
    "Snapshot": "snapshot",
    "WriteResult": "write",
    "init": "graph",
    "open": "graph",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'omniray' has no attribute {name!r}")
    return getattr(import_module(f"omniray.engine.{_HOMES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return __all__
