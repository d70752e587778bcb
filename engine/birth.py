"""The birth of a graph, and what every later open finds out about it.

Nothing counts before object 1 of main's line is there; until then a failed init takes everything back. The first put,
of the schema state with the graph's id, is the claim: of two inits at once one wins, and the other is told so.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from omniray.engine.commit_log import MAIN, MAIN_BRANCH, CommitLog
from omniray.engine.errors import GraphExists, NotFound, OmnirayError, SchemaError, StorageError
from omniray.engine.identity import new_ulid
from omniray.engine.line import EMBEDDED, FORMAT, Answer, Commit, CommitObject, Fate, Pin, check_format, fate
from omniray.engine.manifest import Manifest
from omniray.engine.schema import ElementType, Schema
from omniray.engine.schema_parser import parse_schema
from omniray.engine.schema_printer import schema_hash
from omniray.engine.store import ObjectStore
from omniray.engine.tables import TableStorage

SCHEMA_TEXT = "_schema.pg"
SCHEMA_STATE = "__schema_state.json"
PROBE = "__probe"


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The accepted schema: identity, hash, version, and the storage format it was born with."""

    graph_id: str
    schema_hash: str
    schema_version: int
    format: int


def give_birth(store: ObjectStore, schema_text: str, *, actor: str = "") -> None:
    """Create a graph where nothing is; whatever goes wrong, nothing is left."""
    schema = parse_schema(schema_text)
    if any(True for _ in store.names("")):
        _refuse_occupied(store)
    _claim(store, SchemaState(new_ulid(), schema_hash(schema), 1, FORMAT))
    try:
        _prove(store)
        store.put(SCHEMA_TEXT, schema_text.encode())
        _build(store, schema, actor)
    except BaseException:
        with contextlib.suppress(OmnirayError):
            store.delete_tree()
        raise


def _claim(store: ObjectStore, state: SchemaState) -> None:
    """Be the one who creates the graph. No two claims are alike, so what is there tells a lost answer from a loss."""
    data = msgspec.json.encode(state)
    if store.put_if_absent(SCHEMA_STATE, data) is Answer.CREATED:
        return
    found = store.get(SCHEMA_STATE)
    if found is None:
        raise StorageError(f"no clear answer from {store.uri} to the birth of the graph; try again")
    if found != data:
        raise GraphExists(f"{store.uri} is being created by somebody else; open it instead", uri=store.uri)


def _refuse_occupied(store: ObjectStore) -> None:
    if CommitLog(store, MAIN_BRANCH).newest() is not None:
        raise GraphExists(f"there is a graph at {store.uri} already; open it, or choose another place", uri=store.uri)
    if store.get(SCHEMA_STATE) is not None:
        raise GraphExists(unfinished(store), uri=store.uri)
    raise GraphExists(f"{store.uri} is not empty: a graph needs a place of its own; choose another", uri=store.uri)


def unfinished(store: ObjectStore) -> str:
    """What to say where an init began and did not come to its end."""
    return (
        f"the creation of the graph at {store.uri} is under way, or was not finished: wait, or delete it and init again"
    )


def _prove(store: ObjectStore) -> None:
    """Prove that the store honours put-if-absent and lists in order: every commit rests on both."""
    low, high = f"{PROBE}/0-{new_ulid()}", f"{PROBE}/1-{new_ulid()}"
    answers = [store.put_if_absent(path, b"1") for path in (high, low)]
    second = store.put_if_absent(low, b"2")
    kept, first = store.get(low), store.first_name(PROBE)
    store.delete_all([low, high])
    if Answer.UNCLEAR in (*answers, second):
        raise StorageError(f"{store.uri} gives no clear answers to conditional puts; try again")
    if answers != [Answer.CREATED] * 2 or second is not Answer.REFUSED or kept != b"1":
        raise StorageError(f"{store.uri} does not honour put-if-absent (If-None-Match: *); a graph can't live on it")
    if first is None or not low.endswith(first):
        raise StorageError(f"{store.uri} does not list names in order; a graph can't live on it")


def _build(store: ObjectStore, schema: Schema, actor: str) -> None:
    storage = TableStorage(store)

    def create(type: ElementType) -> tuple[str, Pin]:
        table = storage.create(type)
        return type.table_key, Pin(table.version, table.transaction, since=1, rows=0)

    with ThreadPoolExecutor(8) as pool:
        pins = dict(pool.map(create, schema))
    commit_id = new_ulid()
    commit = Commit(commit_id, "Init", actor, time.time_ns() // 1000, tuple(pins))
    first = CommitObject(1, "", new_ulid(), 1, EMBEDDED, pins, (commit,), finalised_through=1, head=commit_id)
    Manifest.create(store, MAIN, schema, first)
    log = CommitLog(store, MAIN_BRANCH)
    answer = log.put(first)
    if fate(first, answer, None if answer is Answer.CREATED else log.read(first.seq)) is not Fate.LANDED:
        raise StorageError(f"no clear answer from {store.uri} to the birth of the graph; try again")


def read_schema(store: ObjectStore) -> tuple[Schema, str, SchemaState]:
    """The schema of a graph, as text too; what is not a graph, or one of another format, is refused."""
    text, state_json = store.get(SCHEMA_TEXT), store.get(SCHEMA_STATE)
    if text is None and state_json is not None:
        raise NotFound(unfinished(store), uri=store.uri)
    if text is None or state_json is None:
        raise NotFound(f"no graph at {store.uri}; create one with 'omniray init'", uri=store.uri)
    try:
        state = msgspec.json.decode(state_json, type=SchemaState)
    except msgspec.DecodeError as error:
        raise StorageError(f"{store.uri}/{SCHEMA_STATE} can't be read: {error}; restore it from a backup") from error
    check_format(state.format, where=f"{store.uri}/{SCHEMA_STATE}")
    schema = parse_schema(text.decode())
    if schema_hash(schema) != state.schema_hash:
        raise SchemaError(
            f"{store.uri}/{SCHEMA_TEXT} is not the accepted schema: it was edited by hand; put the original text back"
        )
    return schema, text.decode(), state
