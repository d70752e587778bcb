"""`__graph.json`: the identity of a graph. Put if absent when the graph is created, and never changed.

A handle knows its graph by this id: if the graph is deleted, or created anew at the same place, the handle commits
nothing into the new one.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from omniray.engine.base.errors import GraphGone, InvariantViolation, NotFound
from omniray.engine.line.commit_json import check_format
from omniray.engine.line.commit_object import FORMAT
from omniray.engine.line.stored_names import StoredName
from omniray.engine.store.object_store import ObjectStore

PATH = "__graph.json"
_STATE_OF_FORMAT_1 = "__schema_state.json"


@dataclass(frozen=True, slots=True)
class GraphIdentity:
    graph_id: StoredName
    format: int = FORMAT


_read = msgspec.json.Decoder(GraphIdentity).decode  # made here, by one thread: see `commit_object.py`


def encode(identity: GraphIdentity) -> bytes:
    return msgspec.json.encode(identity)


def read_identity(store: ObjectStore) -> GraphIdentity:
    """The identity of the graph in a store; raises if there is no graph, or one of another format."""
    found = look_up_identity(store)
    if found is not None:
        return found
    if store.get(_STATE_OF_FORMAT_1) is not None:
        check_format(1, where=store.uri)
    raise NotFound(f"no graph at {store.uri}; create one with 'omniray init'", uri=store.uri)


def look_up_identity(store: ObjectStore) -> GraphIdentity | None:
    """The same, or None if there is no graph."""
    data = store.get(PATH)
    if data is None:
        return None
    try:
        found = _read(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvariantViolation(
            f"{store.uri}/{PATH} can't be read: {error}; restore it from a backup", path=PATH
        ) from error
    check_format(found.format, where=f"{store.uri}/{PATH}")
    return found


def refuse_gone(store: ObjectStore, graph_id: str) -> None:
    """Raise `GraphGone` if the graph in a store is not the one that a handle was opened for."""
    found = look_up_identity(store)
    if found is None or found.graph_id != graph_id:
        fate = "was deleted" if found is None else "was deleted, and another one was created in its place"
        raise GraphGone(
            f"the graph {graph_id} at {store.uri} {fate}; nothing was written: open it again",
            uri=store.uri, graph_id=graph_id, found="" if found is None else found.graph_id,
        )  # fmt: skip
