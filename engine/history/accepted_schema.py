"""The accepted schemas of a graph as files, each named by its content: `__schema/<hash of the text>.pg`.

The line says which of them is in force: each object names the file and the canonical hash of its meaning. So each
branch, and each old snapshot, has its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from omniray.engine.base.errors import InvariantViolation, SchemaError, StorageError
from omniray.engine.line.commit_object import SchemaRef
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.printer import schema_hash
from omniray.engine.schema.types import Schema
from omniray.engine.store.object_store import Answer, ObjectStore

FOLDER = "__schema"


@dataclass(frozen=True, slots=True)
class AcceptedSchema:
    """A schema as its author wrote it, what it means, and how the line names it."""

    schema: Schema
    text: str
    ref: SchemaRef


def accept(text: str, version: int) -> AcceptedSchema:
    """A schema to be named by an object of the line, once its file is there."""
    schema = parse_schema(text)
    file = hashlib.sha256(text.encode()).hexdigest()
    return AcceptedSchema(schema, text, SchemaRef(file, schema_hash(schema), version))


def path_of(ref: SchemaRef) -> str:
    return f"{FOLDER}/{ref.file}.pg"


def put_schema(store: ObjectStore, accepted: AcceptedSchema) -> None:
    """Write the file; any number of processes write the same bytes."""
    path = path_of(accepted.ref)
    if store.put_if_absent(path, accepted.text.encode()) is Answer.UNCLEAR and store.get(path) is None:
        raise StorageError(f"no clear answer to putting {path}; try again", path=path)


def read_schema(store: ObjectStore, ref: SchemaRef) -> AcceptedSchema:
    """The schema that an object of the line names."""
    path = path_of(ref)
    data = store.get(path)
    if data is None:
        raise InvariantViolation(f"{store.uri}/{path} is gone; restore it from a backup", path=path)
    if hashlib.sha256(data).hexdigest() != ref.file:
        raise SchemaError(
            f"{store.uri}/{path} is not the accepted schema: it was edited by hand; put the original text back"
        )
    text = data.decode()
    return AcceptedSchema(parse_schema(text), text, ref)
