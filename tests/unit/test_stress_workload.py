"""The workload follows from its seed, makes writers meet, and its writes mean the same to the graph and the model."""

from __future__ import annotations

from itertools import islice

import msgspec
import pytest

import omniray
from omniray.coordinator.stress.model import Model
from omniray.coordinator.stress.operation import (
    ENDS,
    ROW_TYPES,
    SCHEMA,
    TABLE_KEYS,
    Account,
    Delete,
    Device,
    Follows,
    Load,
    Owns,
    Register,
    Row,
    Update,
    Write,
    decided_on,
    row_of,
)
from omniray.coordinator.stress.workload import CONTESTED, HOT, Look, Step, Submit, steps
from omniray.engine.base.ulids import is_ulid, new_ulid
from tests.stores import Root


def workload(seed: int, writer_no: int, count: int) -> list[Step]:
    return list(islice(steps(seed, writer_no, lambda: 1_700_000_000_000), count))


def writes(seed: int, writer_no: int, count: int) -> list[Write]:
    return [step.write for step in workload(seed, writer_no, count) if isinstance(step, Submit)]


def test_a_seed_tells_the_whole_workload() -> None:
    assert workload(7, 1, 300) == workload(7, 1, 300)
    assert workload(7, 1, 300) != workload(8, 1, 300)


def test_writers_of_one_seed_never_share_an_id() -> None:
    first, second = ({write.txn_id for write in writes(7, n, 500)} for n in (1, 2))
    assert first.isdisjoint(second)
    assert all(is_ulid(id) for id in first | second)


def test_the_same_id_is_only_ever_the_same_write() -> None:
    sent = writes(7, 1, 1000)
    assert len({write.txn_id for write in sent}) == len(set(sent)) < len(sent)


def test_every_kind_of_write_and_a_look_come_up() -> None:
    found = workload(7, 1, 400)
    kinds = {(type(w).__name__, getattr(w, "mode", "")) for w in writes(7, 1, 400)}
    assert kinds == {("Load", "append"), ("Load", "merge"), ("Register", ""), ("Update", ""), ("Delete", "")}
    assert any(isinstance(step, Look) for step in found)
    assert any(isinstance(step, Submit) and step.strictly for step in found)
    assert any(len(write.types) == 4 for write in writes(7, 1, 400))


def test_writers_meet_on_hot_and_contested_names() -> None:
    first, second = ({name for write in writes(7, n, 500) for name in write.names} for n in (1, 2))
    assert first & second >= {*HOT, *CONTESTED}


def test_a_strict_write_names_the_versions_of_all_tables_it_is_about() -> None:
    write = Delete(txn_id=new_ulid(), type="Device", name="d")
    strict = decided_on(write, "C", {key: n for n, key in enumerate(TABLE_KEYS.values())})
    assert strict.expected_versions == {"node:Device": 1, "edge:Owns": 2}
    assert write.expected_versions is None


def test_a_write_survives_its_way_through_json() -> None:
    for write in writes(7, 1, 200):
        assert msgspec.json.decode(msgspec.json.encode(write), type=Write) == write


# The model beside the graph


def account(name: str, txn_id: str) -> Account:
    return Account(name=name, owner="w", counter=1, stamp=txn_id)


def device(name: str, txn_id: str, slot: int | None = None) -> Device:
    return Device(name=name, owner="w", slot=slot, counter=1, stamp=txn_id)


def load(mode: str, *rows: Row) -> Load:
    return Load(txn_id=new_ulid(), mode=mode, rows=rows)  # type: ignore[arg-type]


def follows(source: str, target: str) -> Follows:
    return Follows(src=source, dst=target, counter=1, stamp="s")


def owns(id: str, source: str, target: str) -> Owns:
    return Owns(id=id, src=source, dst=target, counter=1, stamp="s")


def register(name: str, friend: str) -> Register:
    id = new_ulid()
    link = Follows(src=name, dst=friend, counter=1, stamp=id)
    return Register(txn_id=id, account=account(name, id), device=device(f"{name}'s", id), follows=link)


def touch(type: str, name: str) -> Update:
    return Update(txn_id=new_ulid(), type=type, name=name, counter=5)  # type: ignore[arg-type]


def remove(type: str, name: str) -> Delete:
    return Delete(txn_id=new_ulid(), type=type, name=name)  # type: ignore[arg-type]


SCRIPT = {
    "four tables at once": load(
        "append", account("a", "1"), account("b", "1"), device("d", "1", 7), owns("o1", "a", "d"), follows("a", "b")
    ),
    "an appended key that is there": load("append", account("a", "2")),
    "an appended edge whose id is there": load("append", owns("o1", "b", "d")),
    "an appended edge between the same ends": load("append", follows("a", "b")),
    "a merged edge between the same ends": load("merge", follows("a", "b")),
    "an edge to nobody": load("merge", follows("a", "nobody")),
    "an edge to a node that comes with it": load("append", account("c", "3"), follows("c", "a")),
    "a slot that is taken": load("merge", device("e", "4", 7)),
    "a slot that its holder gives up in the same write": load("merge", device("e", "5", 7), device("d", "5", 8)),
    "a slot that was given up": load("merge", device("d", "6"), device("f", "6", 8)),
    "more devices than one may own": load("append", *(owns(f"many-{n}", "a", "d") for n in range(3))),
    "as many devices as one may own": load("append", *(owns(f"some-{n}", "a", "d") for n in range(2))),
    "a mutation of three tables": register("g", "a"),
    "the same again, whose edge is there": register("g", "a"),
    "a mutation that replaces a node": register("b", "a"),
    "an update of a node": touch("Account", "a"),
    "an update of a device that keeps its slot": touch("Device", "f"),
    "an update of all edges from a node": touch("Follows", "a"),
    "an update of nobody": touch("Account", "nobody"),
    "a delete of edges": remove("Follows", "b"),
    "a delete of a device and the edges to it": remove("Device", "d"),
    "a delete of a node and the edges at both ends": remove("Account", "a"),
    "a delete of nobody": remove("Account", "a"),
    "a slot whose holder was deleted": load("append", device("h", "7", 8)),
}


def test_each_write_means_the_same_to_the_graph_and_to_the_model(disk: Root) -> None:
    model = Model()
    with omniray.init(f"{disk.uri}/graph", schema=SCHEMA) as graph:
        for what, write in SCRIPT.items():
            refusals, has_effect = model.refusals(write), model.has_effect(write)
            result = answer(write, graph)
            if isinstance(result, str):
                assert result in refusals, what
                continue
            assert (refusals, result.commit_id is not None) == (frozenset(), has_effect), what
            done = model.apply(write)
            assert (result.affected_nodes, result.affected_edges) == (done.nodes, done.edges), what
            assert rows_of(graph) == model.tables, what


def answer(write: Write, graph: omniray.Graph) -> omniray.WriteResult | str:
    """What came of a write: its result, or the kind of its error."""
    try:
        return write.apply(graph)
    except omniray.OmnirayError as error:
        return error.kind


def rows_of(graph: omniray.Graph) -> dict[str, dict[str, Row]]:
    snapshot = graph.snapshot()
    rows = {type: [row_of(type, columns) for columns in snapshot.table(type).to_pylist()] for type in ROW_TYPES}
    return {type: {row.key: row for row in found} for type, found in rows.items()}


def test_the_model_finds_edges_by_both_ends() -> None:
    model = Model()
    model.apply(load("append", account("a", "1"), account("b", "1"), follows("a", "b")))
    assert model.found("Follows", "b") == []
    assert [row.key for row in model.found("Follows", "b", "dst")] == ["a>b"]
    model.apply(remove("Account", "b"))
    assert all(not model.tables[edge] for edge in ENDS)


@pytest.mark.parametrize("type", ROW_TYPES)
def test_a_table_of_the_stress_graph_has_the_columns_of_its_rows(type: str, disk: Root) -> None:
    with omniray.init(f"{disk.uri}/graph", schema=SCHEMA) as graph:
        columns = set(graph.schema.type(type).arrow.names)
    assert columns - {"id"} == set(ROW_TYPES[type].__struct_fields__) - {"id"}  # type: ignore[index]
