"""Look-ups of a judgement, each in one table: what is asked for, and which columns the answer has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from omniray.engine.judge.condition import Condition
from omniray.engine.judge.pinned import ROWADDR, State
from omniray.engine.judge.room import Room
from omniray.engine.schema.types import ID, ElementType

EXISTING = pa.schema({ID: pa.string()})
"""The columns of the answer to `Existing`."""


@dataclass(frozen=True, slots=True)
class Existing:
    """Which of these ids exist."""

    type: ElementType
    ids: pa.Array

    def answered_by(self, state: State) -> pa.Table:
        return pa.table({ID: state.existing(self.type.table_key, self.ids)})

    @property
    def columns_answered(self) -> pa.Schema:
        return EXISTING


@dataclass(frozen=True, slots=True)
class Matching:
    """The rows whose column is one of these values, with their addresses."""

    type: ElementType
    column: str
    values: pa.Array
    columns: tuple[str, ...]

    def answered_by(self, state: State) -> pa.Table:
        return state.matching(self.type.table_key, self.column, self.values, self.columns)

    @property
    def columns_answered(self) -> pa.Schema:
        return _addressed(self.type, self.columns)


@dataclass(frozen=True, slots=True)
class Scan:
    """All rows, with their addresses."""

    type: ElementType
    columns: tuple[str, ...]

    def answered_by(self, state: State) -> pa.Table:
        return state.scan(self.type.table_key, self.columns).read_all()

    @property
    def columns_answered(self) -> pa.Schema:
        return _addressed(self.type, self.columns)


@dataclass(frozen=True, slots=True)
class Select:
    """The rows that satisfy a condition, as far as there is room for them."""

    type: ElementType
    columns: tuple[str, ...]
    where: Condition
    room: Room

    def answered_by(self, state: State) -> pa.Table:
        return state.select(self.type.table_key, self.columns, self.where, self.room)

    @property
    def columns_answered(self) -> pa.Schema:
        return pa.schema([self.type.arrow.field(name) for name in self.columns])


Question: TypeAlias = Existing | Matching | Scan | Select


def _addressed(type: ElementType, columns: tuple[str, ...]) -> pa.Schema:
    return pa.schema([*(type.arrow.field(name) for name in columns), pa.field(ROWADDR, pa.uint64())])
