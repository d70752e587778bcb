"""Foreign writers: what plain Lance does to a graph's table, behind the graph's back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import lance
import pyarrow as pa

from omniray.engine.line.commit_object import EMBEDDED
from omniray.engine.line.line_end import Tip
from omniray.engine.recovery.repair import Repair
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.types import DST, ID, SRC
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from tests.graphs import DELETE, KNOWS, PERSON, SCHEMA, Adding, Parts, insert, new_graph, parts_of, rows_of
from tests.stores import Root

PEOPLE, FRIENDS = "nodes/Person.lance", "edges/Knows.lance"
_TYPES = parse_schema(SCHEMA).by_table_key
_PERSON, _KNOWS = _TYPES[PERSON], _TYPES[KNOWS]


def plain(store: ObjectStore, path: str = PEOPLE) -> lance.LanceDataset:
    """What a reader sees who knows nothing of the graph."""
    return lance.dataset(f"{store.uri}/{path}", storage_options=store.lance_options)


def plain_ids(store: ObjectStore, path: str = PEOPLE) -> list[str]:
    found: list[str] = sorted(plain(store, path).to_table(columns=[ID])[ID].to_pylist())
    return found


def write(store: ObjectStore, rows: pa.Table, path: str = PEOPLE, *, mode: str = "append", **options: Any) -> None:
    lance.write_dataset(rows, f"{store.uri}/{path}", mode=mode, storage_options=store.lance_options, **options)


def people(*ids: str, age: int = 0) -> pa.Table:
    """Rows as the graph itself would have written them."""
    return rows_of(_PERSON, ids, age)


def edges(*ends: tuple[str, str], id: str = "edge") -> pa.Table:
    columns = {ID: [f"{id}{n}" for n in range(len(ends))], SRC: [src for src, _ in ends], DST: [dst for _, dst in ends]}
    return pa.table(columns, schema=_KNOWS.arrow)


def append(store: ObjectStore, *ids: str) -> None:
    write(store, people(*ids))


FOREIGN: Mapping[str, Callable[[ObjectStore], None]] = {
    "append": lambda store: append(store, "mallory"),
    "delete": lambda store: plain(store).delete("id = 'ann'"),
    "update": lambda store: plain(store).update({"age": "99"}, where="id = 'ann'"),
    "overwrite": lambda store: write(store, people("mallory"), mode="overwrite"),
    "restore": lambda store: plain(store).checkout_version(2).restore(),
    "compaction": lambda store: plain(store).optimize.compact_files(),
    "add_columns": lambda store: plain(store).add_columns({"extra": "age + 1"}),
}
"""Each kind of foreign write to a Person table that `with_people` has made."""


def with_people(root: Root) -> ObjectStore:
    """A graph with ann and bob, and with the deletion file of somebody who is gone; Phase D is through."""
    with new_graph(root) as graph:
        insert(graph, "ann", "bob", "cid")
        graph.mutate(DELETE, {"name": "cid"})
        return open_store(graph.uri, root.storage_options)


class NoPhaseD:
    """Stands in for the finaliser of a process that died after Phase C."""

    finalised_through = 0

    def notice(self, landed: object, operation_id: str | None = None) -> None:
        pass

    def refuse_drifted(self, table_keys: object) -> None:
        pass


def commit_and_die(store: ObjectStore, *names: str) -> Parts:
    """A process that commits each person and dies before Phase D of any."""
    parts = parts_of(store)
    finaliser: Any = NoPhaseD()
    parts.writer._finaliser = finaliser
    for name in names:
        parts.writer.commit(Adding(parts.schema, {PERSON: [name]}))
    parts.writer.close()
    return parts


def repair_of(parts: Parts) -> Repair:
    """A repair by this process, with a tip of its own."""
    tip = Tip(parts.log, parts.newest(), is_folded=parts.manifest.is_folded)
    return Repair(parts.branch, tip, parts.finaliser, parts.writer.attempts, owner=EMBEDDED)
