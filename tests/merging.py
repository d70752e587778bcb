"""A graph to branch and merge, and its rows as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import omniray
from omniray.engine.branches.merge_result import MergeResult
from omniray.engine.store.open_store import open_store
from tests.coordination import serving
from tests.stores import Root

SCHEMA = """
node Person {
    name: String @key
    age: I32?
    city: String?
    email: String? @unique
    tags: [String]?
    place: Vector(2)?
    photo: Blob?
}
node Company {
    name: String @key
}
edge Knows: Person -> Person {
    since: I32?
}
edge WorksAt: Person -> Company {
    role: String?
    @unique(src, dst)
}
edge Owns: Person -> Company @card(0..2)
edge Leads: Person -> Company @card(1..)
"""

SET = "query set($name: String, $value: I32?) { update Person set { age: $value } where name = $name }"
MOVE = "query move($name: String, $value: String?) { update Person set { city: $value } where name = $name }"
REMOVE = "query remove($name: String) { delete Person where name = $name }"

Rows: TypeAlias = dict[str, dict[str, Any]]
State: TypeAlias = dict[str, Rows]


def people(*names: str, **values: Any) -> list[dict[str, Any]]:
    return [{"name": name, **values} for name in names]


def seeded(root: Root, name: str = "graph") -> omniray.Graph:
    """A graph with four people, two companies and one edge of each type."""
    graph = omniray.init(f"{root.uri}/{name}", schema=SCHEMA, storage_options=root.storage_options)
    graph.load(people("ann", "bob", "cid", "dan", age=30, city="Bonn"), type="Person")
    graph.load([{"name": "acme"}, {"name": "bolt"}], type="Company")
    graph.load([{"id": "k1", "from": "ann", "to": "bob", "since": 1}], type="Knows")
    graph.load([{"id": "w1", "from": "ann", "to": "acme", "role": "dev"}], type="WorksAt")
    graph.load([{"id": "o1", "from": "bob", "to": "acme"}], type="Owns")
    return graph


def state_of(graph: omniray.Graph, branch: str = "main") -> State:
    """All rows by type and id, without the values that are null."""
    snapshot = graph.snapshot(branch=branch)
    found: State = {}
    for type in graph.schema:
        rows = snapshot.table(type.name).to_pylist()
        found[type.name] = {
            row.pop("id"): {name: value for name, value in row.items() if value is not None} for row in rows
        }
        assert len(found[type.name]) == len(rows) == snapshot.count(type.name), "an id is there twice"
    return found


def ages(graph: omniray.Graph, branch: str = "main") -> dict[str, int | None]:
    return {id: row.get("age") for id, row in state_of(graph, branch)["Person"].items()}


def set_age(graph: omniray.Graph, name: str, value: int | None, branch: str = "main") -> None:
    graph.mutate(SET, {"name": name, "value": value}, branch=branch)


def move(graph: omniray.Graph, name: str, value: str | None, branch: str = "main") -> None:
    graph.mutate(MOVE, {"name": name, "value": value}, branch=branch)


def remove(graph: omniray.Graph, name: str, branch: str = "main") -> None:
    graph.mutate(REMOVE, {"name": name}, branch=branch)


def committed_together(uri: str, *names: str) -> tuple[str, ...]:
    """The commits of a coordinator that puts a person each into one object of main's line."""
    with serving(open_store(uri)) as service:
        writes = [service.load_request([{"name": name}], type="Person") for name in names]
        service.in_one_round(writes)
    return tuple(write.header.commit_id for write in writes)


def conflicts_of(result: MergeResult | omniray.OmnirayError) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """The conflicts of a result or an error: kind, type, id and properties."""
    if isinstance(result, MergeResult):
        found: list[Mapping[str, Any]] = [one.as_json() for one in result.conflicts]
    else:
        found = result.facts["conflicts"]
    return [(one["kind"], one["type"], one["id"], tuple(one["properties"])) for one in found]


@contextmanager
def unchanged(graph: omniray.Graph, branch: str = "main") -> Iterator[None]:
    """Nothing that happens in here changes a branch."""
    before = graph.snapshot(branch=branch), state_of(graph, branch)
    yield
    after = graph.snapshot(branch=branch)
    assert (after.commit_id, after.versions) == (before[0].commit_id, before[0].versions)
    assert state_of(graph, branch) == before[1]
