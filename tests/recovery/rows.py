"""What a graph of the kill matrix should hold: writes as pure changes of rows, told apart by their actors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import omniray
from tests.graphs import AGE, DELETE, INSERT

Rows = dict[str, dict[str, Any]]
"""By type: by id: what else the row holds."""

TABLES = {"Person": "nodes/Person.lance", "City": "nodes/City.lance", "Knows": "edges/Knows.lance"}
NOTHING: Rows = {"Person": {}, "City": {}, "Knows": {}}


@dataclass(frozen=True, slots=True)
class Deed:
    """One write: its actor, by whom the history knows it; what is asked of the graph; what that makes of the rows."""

    actor: str
    ask: Callable[[omniray.Graph], object]
    effect: Callable[[Rows], None]


def after(deeds: Iterable[Deed]) -> Rows:
    """The rows of a graph after these writes."""
    rows = copy.deepcopy(NOTHING)
    for deed in deeds:
        deed.effect(rows)
    return rows


def read_rows(read: Callable[[str], pa.Table]) -> Rows:
    """The rows of all tables, as they are read by type name; a row that is there twice is no row at all."""
    found: Rows = {}
    for type_name in TABLES:
        listed = [_row(type_name, row) for row in read(type_name).to_pylist()]
        found[type_name] = dict(listed)
        assert len(found[type_name]) == len(listed), f"{type_name} has a row twice: {sorted(listed)}"
    return found


def _row(type_name: str, row: Mapping[str, Any]) -> tuple[str, Any]:
    if type_name == "Person":
        return row["name"], row["age"]
    if type_name == "City":
        return row["name"], None
    return row["id"], (row["src"], row["dst"])


def insert(actor: str, name: str, age: int) -> Deed:
    def effect(rows: Rows) -> None:
        rows["Person"][name] = age

    return Deed(actor, lambda graph: graph.mutate(INSERT, {"name": name, "age": age}, actor=actor), effect)


def update(actor: str, name: str, age: int) -> Deed:
    def effect(rows: Rows) -> None:
        rows["Person"][name] = age

    return Deed(actor, lambda graph: graph.mutate(AGE, {"name": name, "age": age}, actor=actor), effect)


def delete(actor: str, name: str) -> Deed:
    """Delete a person, and with it the edges that it has."""

    def effect(rows: Rows) -> None:
        del rows["Person"][name]
        rows["Knows"] = {id: ends for id, ends in rows["Knows"].items() if name not in ends}

    return Deed(actor, lambda graph: graph.mutate(DELETE, {"name": name}, actor=actor), effect)


def load(
    actor: str,
    *,
    people: Mapping[str, int] | None = None,
    cities: Iterable[str] = (),
    knows: Mapping[str, tuple[str, str]] | None = None,
    mode: str = "append",
) -> Deed:
    loaded: Rows = {"Person": dict(people or {}), "City": dict.fromkeys(cities), "Knows": dict(knows or {})}
    records: list[dict[str, Any]] = [
        *({"type": "Person", "data": {"name": name, "age": age}} for name, age in loaded["Person"].items()),
        *({"type": "City", "data": {"name": name}} for name in loaded["City"]),
        *({"edge": "Knows", "id": id, "from": src, "to": dst} for id, (src, dst) in loaded["Knows"].items()),
    ]

    def effect(rows: Rows) -> None:
        for type_name, new in loaded.items():
            if new:
                rows[type_name] = ({} if mode == "overwrite" else rows[type_name]) | new

    return Deed(actor, lambda graph: graph.load(records, mode=mode, actor=actor), effect)
