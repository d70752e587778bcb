"""What a fresh process knows of the types that it will read."""

from __future__ import annotations

import os
import subprocess
import sys

_LOOKED_AT_BY_IMPORT = """
from omniray.engine.line.commit_object import Binding, Commit, CommitObject, MergedParent, Pin, Recovery, SchemaRef
from omniray.engine.line.graph_identity import GraphIdentity
from omniray.engine.line.sidecar import Process, Sidecar, SidecarIntent, SidecarTable
types = {Binding, Commit, CommitObject, MergedParent, Pin, Recovery, SchemaRef, GraphIdentity}
types |= {Process, Sidecar, SidecarIntent, SidecarTable}
assert all("__msgspec_cache__" in type.__dict__ for type in types)
"""


def test_what_threads_read_at_once_was_looked_at_before_any_of_them_runs() -> None:
    """Msgspec looks at a type when it first decodes one; where two threads came to that at once, a process crashed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", _LOOKED_AT_BY_IMPORT], env=environment, check=True)
