"""The two writers that are compared: of a graph, and of a bare Lance dataset with the same rows."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import lance
import pyarrow as pa

import omniray

_PERSON = "email: String @key  city: String  age: I32  score: F64"
SCHEMA = f"""\
node Person {{ {_PERSON} }}
node Author {{ {_PERSON} }}
node Editor {{ {_PERSON} }}
edge Knows: Person -> Person {{ weight: I32 }}
"""
_VALUES = 'city: "Berlin", age: 42, score: 0.5'
ONE_TABLE = f"query one($email: String) {{ insert Person {{ email: $email, {_VALUES} }} }}"
THREE_TABLES = f"""\
query three($email: String) {{
  insert Person {{ email: $email, {_VALUES} }}
  insert Author {{ email: $email, {_VALUES} }}
  insert Editor {{ email: $email, {_VALUES} }}
}}
"""
EDGE = "query knows($from: String, $to: String) { insert Knows { from: $from, to: $to, weight: 1 } }"


class OurWriter:
    """A fresh graph, and single-row writes to it; every write brings a new key."""

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._storage_options = None if storage_options is None else dict(storage_options)
        self.graph = omniray.init(uri, schema=SCHEMA, storage_options=storage_options)
        self._keys = (f"user-{number:08}@example.org" for number in itertools.count())
        self._known = next(self._keys)
        self.graph.mutate(ONE_TABLE, {"email": self._known})

    def insert(self) -> None:
        self.graph.mutate(ONE_TABLE, {"email": next(self._keys)})

    def load(self) -> None:
        data = {"email": next(self._keys), "city": "Berlin", "age": 42, "score": 0.5}
        self.graph.load([{"type": "Person", "data": data}], mode="append")

    def insert_three(self) -> None:
        self.graph.mutate(THREE_TABLES, {"email": next(self._keys)})

    def insert_edge(self) -> None:
        self.graph.mutate(EDGE, {"from": self._known, "to": self._known})

    def insert_and_flush(self, count: int) -> None:
        """Commit `count` times, each with a Phase D of its own, and close the graph to finish all housekeeping."""
        for _ in range(count):
            self.insert_many(1)
        self.graph.close()

    def insert_many(self, count: int) -> None:
        """Commit `count` times, then flush."""
        for _ in range(count):
            self.insert()
        self.graph.flush()

    @property
    def fragments(self) -> int:
        """How many fragments the table of `insert` has, as plain Lance sees it."""
        uri = f"{self.graph.uri}/{self.graph.schema.type('Person').first_path}"
        return len(lance.dataset(uri, storage_options=self._storage_options).get_fragments())

    def close(self) -> None:
        self.graph.close()


class BareWriter:
    """A fresh Lance dataset with the same columns, and one-row appends on its open handle."""

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._row = pa.table(
            {
                "id": ["user-00000000@example.org"],
                "email": ["user-00000000@example.org"],
                "city": ["Berlin"],
                "age": pa.array([42], pa.int32()),
                "score": [0.5],
            }
        )
        options = None if storage_options is None else dict(storage_options)
        self._dataset = lance.write_dataset(self._row, uri, storage_options=options, data_storage_version="2.1")

    @property
    def fragments(self) -> int:
        return len(self._dataset.get_fragments())

    def append(self) -> None:
        self._dataset = lance.write_dataset(self._row, self._dataset, mode="append")

    def append_many(self, count: int) -> None:
        for _ in range(count):
            self.append()
