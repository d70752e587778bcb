"""Lists in a graph: a row for each value, identified by its list and its place in it.

An append adds rows behind the values that its writer knows of; if another one has taken a place since, the row's key is
there and nothing is written. So no place is left out, and the rows give the order of a list. Lists lie in two tables by
turns, so that many commits of several appends concern both.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import pyarrow.compute as pc

from omniray.coordinator.stress.operation import StressedGraph
from omniray.coordinator.stress.transactions import Append, Key, Read, Value
from omniray.engine.reading.snapshot import Snapshot

TYPES = ("EvenItem", "OddItem")
SCHEMA = "".join(
    f"""\
node {type} {{
  list: I64
  place: I64
  value: I64
  @key(list, place)
}}
"""
    for type in TYPES
)


def read_lists(snapshot: Snapshot, keys: Iterable[Key]) -> tuple[Read, ...]:
    """The lists of these keys in one snapshot, by a filter on each table that holds some of them."""
    wanted = tuple(dict.fromkeys(keys))
    found: dict[Key, tuple[Value, ...]] = {}
    for type in {_type_of(key) for key in wanted}:
        found.update(_lists(snapshot, type, [key for key in wanted if _type_of(key) == type]))
    return tuple(Read(key, found.get(key, ())) for key in wanted)


def all_lists(snapshot: Snapshot) -> Mapping[Key, tuple[Value, ...]]:
    """Every list that has a row, by full scans."""
    return {key: values for type in TYPES for key, values in _lists(snapshot, type).items()}


def append(graph: StressedGraph, ops: Sequence[Append], lengths: Mapping[Key, int]) -> None:
    """Append in one commit, behind as many values as each list is known to have; `KeyConflict` if it has more."""
    places = Counter({op.key: lengths.get(op.key, 0) for op in ops})
    records = []
    for op in ops:
        data = {"list": op.key, "place": places[op.key], "value": op.value}
        records.append({"type": _type_of(op.key), "data": data})
        places[op.key] += 1
    graph.load(records, mode="append", expected_versions=None, txn_id=None)


def _type_of(key: Key) -> str:
    return TYPES[int(key) % len(TYPES)]


def _lists(snapshot: Snapshot, type: str, keys: Sequence[Key] | None = None) -> Mapping[Key, tuple[Value, ...]]:
    chosen = None if keys is None else pc.field("list").isin(list(keys))
    rows = snapshot.table(type, ["list", "place", "value"], filter=chosen).to_pylist()
    found: defaultdict[Key, list[Value]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["list"], row["place"])):
        found[row["list"]].append(row["value"])
    return {key: tuple(values) for key, values in found.items()}
