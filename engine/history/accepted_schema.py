"""The schema of a graph as files at its root. What they hold was accepted by an object of the line, and Phase D writes
them: for readers that know no line, and so that opening a graph reads no further back.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from omniray.engine.base.errors import NotFound, SchemaError, StorageError
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import FORMAT, AcceptedSchema, check_format
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.printer import schema_hash
from omniray.engine.schema.types import Schema
from omniray.engine.store.object_store import Answer, ObjectStore

SCHEMA_TEXT = "_schema.pg"
SCHEMA_STATE = "__schema_state.json"
BIRTH_SEQ = 1


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The accepted schema: identity, hash, version, and the storage format it was born with."""

    graph_id: str
    schema_hash: str
    schema_version: int
    format: int


_read_state = msgspec.json.Decoder(SchemaState).decode  # made here, by one thread: see `line.py`


def put_schema(store: ObjectStore, accepted: AcceptedSchema) -> None:
    """Write the files; any number of processes write the same bytes."""
    for path, data in ((SCHEMA_TEXT, accepted.text.encode()), (SCHEMA_STATE, msgspec.json.encode(_state(accepted)))):
        if store.put_if_absent(path, data) is Answer.UNCLEAR and store.get(path) is None:
            raise StorageError(f"no clear answer to putting {path}; try again", path=path)


def read_schema(store: ObjectStore, log: CommitLog) -> tuple[Schema, str, SchemaState]:
    """The schema of a graph, as text too; what is not a graph, or one of another format, is refused."""
    text_file, state_file = store.get(SCHEMA_TEXT), store.get(SCHEMA_STATE)
    if text_file is None or state_file is None:
        accepted = _accepted_at_birth(store, log)
        text, state = accepted.text, _state(accepted)
    else:
        text, state = _text(store, text_file), _decoded(store, state_file)
    check_format(state.format, where=f"{store.uri}/{SCHEMA_STATE}")
    schema = parse_schema(text)
    if schema_hash(schema) != state.schema_hash:
        raise SchemaError(
            f"{store.uri}/{SCHEMA_TEXT} is not the accepted schema: it was edited by hand; put the original text back"
        )
    return schema, text, state


def _accepted_at_birth(store: ObjectStore, log: CommitLog) -> AcceptedSchema:
    """A creator that died after its commit left no files: object 1 has what belongs in them."""
    birth = log.read(BIRTH_SEQ)
    if birth is None or birth.schema is None:
        raise NotFound(f"no graph at {store.uri}; create one with 'omniray init'", uri=store.uri)
    return birth.schema


def _state(accepted: AcceptedSchema) -> SchemaState:
    return SchemaState(accepted.graph_id, accepted.schema_hash, accepted.schema_version, FORMAT)


def _decoded(store: ObjectStore, data: bytes) -> SchemaState:
    try:
        return _read_state(data)
    except msgspec.DecodeError as error:
        raise StorageError(f"{store.uri}/{SCHEMA_STATE} can't be read: {error}; restore it from a backup") from error


def _text(store: ObjectStore, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SchemaError(
            f"{store.uri}/{SCHEMA_TEXT} is not UTF-8 (byte {error.start}): put the original text back"
        ) from error
