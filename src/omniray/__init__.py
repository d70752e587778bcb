"""omniray: graphs of Lance tables, with one atomic commit over all of them for any number of writers.

Names are imported when they are first used: `omniray --help` should not wait for Lance and DuckDB to load.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omniray.coordinator.client.client import Client, connect
    from omniray.engine.base.errors import (
        BranchExists,
        BranchGone,
        Conflict,
        ConstraintViolation,
        ExpectedVersionMismatch,
        GraphExists,
        InputError,
        KeyConflict,
        MergeConflicts,
        NotFound,
        OmnirayError,
        OutcomeUnknown,
        Overloaded,
        ParseError,
        RecordError,
        RecoveryRequired,
        StorageError,
    )
    from omniray.engine.branches.branches import BranchChange
    from omniray.engine.branches.diff import GraphDiff
    from omniray.engine.branches.listing import BranchInfo
    from omniray.engine.branches.merge_result import MergeResult
    from omniray.engine.graph import Graph, init, open
    from omniray.engine.history.lineage_entry import LineageEntry
    from omniray.engine.judge.resolution import Outcome, WriteResult
    from omniray.engine.line.commit_object import Recovery
    from omniray.engine.reading.snapshot import Snapshot
    from omniray.engine.reading.sql import SqlLimits

try:
    __version__ = version("omniray")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"

__all__ = [
    "BranchChange",
    "BranchExists",
    "BranchGone",
    "BranchInfo",
    "Client",
    "Conflict",
    "ConstraintViolation",
    "ExpectedVersionMismatch",
    "Graph",
    "GraphDiff",
    "GraphExists",
    "InputError",
    "KeyConflict",
    "LineageEntry",
    "MergeConflicts",
    "MergeResult",
    "NotFound",
    "OmnirayError",
    "Outcome",
    "OutcomeUnknown",
    "Overloaded",
    "ParseError",
    "RecordError",
    "Recovery",
    "RecoveryRequired",
    "Snapshot",
    "SqlLimits",
    "StorageError",
    "WriteResult",
    "__version__",
    "connect",
    "init",
    "open",
]

_HOMES = {
    "BranchChange": "engine.branches.branches",
    "BranchInfo": "engine.branches.listing",
    "Client": "coordinator.client.client",
    "Graph": "engine.graph",
    "GraphDiff": "engine.branches.diff",
    "LineageEntry": "engine.history.lineage_entry",
    "MergeResult": "engine.branches.merge_result",
    "Outcome": "engine.judge.resolution",
    "Recovery": "engine.line.commit_object",
    "Snapshot": "engine.reading.snapshot",
    "SqlLimits": "engine.reading.sql",
    "WriteResult": "engine.judge.resolution",
    "connect": "coordinator.client.client",
    "init": "engine.graph",
    "open": "engine.graph",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'omniray' has no attribute {name!r}")
    return getattr(import_module(f"omniray.{_HOMES.get(name, 'engine.base.errors')}"), name)


def __dir__() -> list[str]:
    return __all__
