"""omniray: graphs of Lance tables, with one atomic commit over all of them for any number of writers."""

from importlib.metadata import PackageNotFoundError, version

from omniray.engine.errors import (
    Conflict,
    ConstraintViolation,
    ExpectedVersionMismatch,
    InputError,
    KeyConflict,
    NotFound,
    OmnirayError,
    OutcomeUnknown,
    ParseError,
    RecordError,
    RecoveryRequired,
    StorageError,
)
from omniray.engine.graph import Graph, init, open
from omniray.engine.manifest import LineageEntry
from omniray.engine.snapshot import Snapshot
from omniray.engine.write import WriteResult

try:
    __version__ = version("omniray")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"

__all__ = [
    "Conflict",
    "ConstraintViolation",
    "ExpectedVersionMismatch",
    "Graph",
    "InputError",
    "KeyConflict",
    "LineageEntry",
    "NotFound",
    "OmnirayError",
    "OutcomeUnknown",
    "ParseError",
    "RecordError",
    "RecoveryRequired",
    "Snapshot",
    "StorageError",
    "WriteResult",
    "__version__",
    "init",
    "open",
]
