"""The identities of types and properties: what a rename keeps, and a name that is dropped and added again does not.

Branches are merged by them. The commit that adds a type or a property mints its identity from its own id; those of the
schema that a graph was created with follow from the ids of its tables. Interfaces have none: they are known by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated, TypeAlias

import msgspec

from omniray.engine.base.errors import InvariantViolation
from omniray.engine.schema.plan import SchemaPlan
from omniray.engine.schema.types import Schema

BYTES_MAX = 1 << 25
"""Of a file of identities: a schema's text has at most 1 MiB, and an identity takes little more than a name."""

_Identity: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.-]+\Z", max_length=300)]


@dataclass(frozen=True, slots=True)
class TypeIdentity:
    """The identity of a type, and those of its properties by their names."""

    id: _Identity
    properties: Mapping[str, _Identity] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Identities:
    """The identities of a schema's types by their names, which are one each over nodes and edges."""

    types: Mapping[str, TypeIdentity]

    def names(self, schema: Schema) -> bool:
        """Whether these are identities of just the types and properties of a schema."""
        named = {type.name: {p.name for p in type.properties} for type in schema}
        return named == {name: set(one.properties) for name, one in self.types.items()}


class _Strict(msgspec.Struct, forbid_unknown_fields=True):
    id: _Identity
    properties: dict[str, _Identity]


class _StrictFile(msgspec.Struct, forbid_unknown_fields=True):
    types: dict[str, _Strict]


# Made here, by one thread: msgspec inspects a type on first use, and two threads that do so at once crash.
_read = msgspec.json.Decoder(_StrictFile).decode


def encode(identities: Identities) -> bytes:
    """The identities as JSON: the same bytes for the same ones, whoever writes them."""
    return msgspec.json.encode(identities, order="sorted")


def decode(data: bytes, schema: Schema, *, where: str) -> Identities:
    """The identities in a file that belongs to a schema; raises `InvariantViolation` for anything else."""
    try:
        if len(data) > BYTES_MAX:
            raise ValueError(f"it has {len(data)} bytes, of at most {BYTES_MAX}")
        found = _read(data)
        identities = Identities({name: TypeIdentity(one.id, one.properties) for name, one in found.types.items()})
        _refuse_repeated(identities)
        if not identities.names(schema):
            raise ValueError("it names other types or properties than the schema beside it")
    except (ValueError, RecursionError) as error:
        raise InvariantViolation(
            f"{where} does not hold the identities of its schema: {error}; put back what was there", path=where
        ) from error
    return identities


def initial(schema: Schema, table_ids: Mapping[str, str]) -> Identities:
    """The identities of the schema that a graph was created with, by the ids of its tables."""
    found = {}
    for type in schema:
        table_id = table_ids[type.table_key]
        found[type.name] = TypeIdentity(table_id, {p.name: f"{table_id}.{p.name}" for p in type.properties})
    return Identities(found)


def after(plan: SchemaPlan, identities: Identities, commit_id: str) -> Identities:
    """The identities after a change: what is added gets one of the commit, everything else keeps its own."""
    numbers = count(1)

    def minted() -> str:
        return f"{commit_id}-{next(numbers)}"

    altered = {one.after.name: one for one in plan.altered}
    created = {type.name for type in plan.created}
    found = {}
    for type in plan.after:
        if type.name in created:
            found[type.name] = TypeIdentity(minted(), {p.name: minted() for p in type.properties})
        elif (one := altered.get(type.name)) is None:
            found[type.name] = identities.types[type.name]
        else:
            before = identities.types[one.before.name]
            properties = {}
            for p in type.properties:
                old = one.old_name(p.name)
                properties[p.name] = minted() if old is None else before.properties[old]
            found[type.name] = TypeIdentity(before.id, properties)
    return Identities(found)


def _refuse_repeated(identities: Identities) -> None:
    seen: set[str] = set()
    for one in identities.types.values():
        for identity in (one.id, *one.properties.values()):
            if identity in seen:
                raise ValueError(f"the identity {identity} is there twice")
            seen.add(identity)
