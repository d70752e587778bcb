"""Loads from end to end: sources, modes, rejected records, and sizes that go through files and spilled keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import omniray
from omniray import ConstraintViolation, Graph, InputError, KeyConflict, RecordError
from omniray.engine.writes import row_sink
from tests.graphs import files_below

SCHEMA = """
node Person { name: String @key   age: I32?   photo: Blob?   born: DateTime?   day: Date?   @range(age, 0..150) }
node Note { text: String }
edge Knows: Person -> Person { since: I32?   @unique(src, dst) }
edge Wrote: Person -> Note
"""


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Graph]:
    with omniray.init(str(tmp_path / "g"), schema=SCHEMA) as graph:
        yield graph


def person(name: str, **data: object) -> dict[str, object]:
    return {"type": "Person", "data": {"name": name, **data}}


def knows(source: str, target: str, **data: object) -> dict[str, object]:
    return {"edge": "Knows", "from": source, "to": target, "data": data}


def names(graph: Graph) -> list[str]:
    found: list[str] = sorted(graph.snapshot().table("Person")["name"].to_pylist())
    return found


def ages(graph: Graph) -> dict[str, int | None]:
    return {row["name"]: row["age"] for row in graph.snapshot().table("Person").to_pylist()}


def _files(folder: Path) -> dict[str, object]:
    folder.mkdir(exist_ok=True)
    table = pa.table({"name": ["x", "y"], "age": pa.array([1, None], pa.int32())})
    pq.write_table(table, folder / "Person.parquet")
    (folder / "Person.csv").write_text("name,age\nx,1\ny,\n")
    (folder / "p.jsonl").write_text("".join(json.dumps(person(n, age=a)) + "\n" for n, a in (("x", 1), ("y", None))))
    return {
        "jsonl": folder / "p.jsonl",
        "csv": folder / "Person.csv",
        "parquet": folder / "Person.parquet",
        "arrow": table,
        "reader": table.to_reader(),
        "pandas": pd.DataFrame({"name": ["x", "y"], "age": pd.array([1, None], dtype="Int32")}),
        "dicts": [{"name": "x", "age": 1}, {"name": "y", "age": None}],
    }


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "arrow", "reader", "pandas", "dicts"])
def test_every_kind_of_source_gives_the_same_rows(graph: Graph, tmp_path: Path, kind: str) -> None:
    source = _files(tmp_path / "files")[kind]
    result = graph.load(source, type=None if kind == "jsonl" else "Person")
    assert (result.affected_nodes, ages(graph)) == (2, {"x": 1, "y": None})


def test_several_files_are_one_commit(graph: Graph, tmp_path: Path) -> None:
    files = _files(tmp_path / "files")
    edges = tmp_path / "edges.jsonl"
    edges.write_text(json.dumps(knows("x", "y")) + "\n")
    graph.load([files["parquet"], str(edges)], actor="loader")
    assert [(entry.kind, entry.actor) for entry in graph.history()] == [("Load", "loader"), ("Init", "")]


def test_an_append_refuses_a_key_that_exists_and_names_it(graph: Graph) -> None:
    graph.load([person("a")])
    with pytest.raises(KeyConflict, match="'a' exists already") as conflict:
        graph.load([person("b"), person("a")])
    assert conflict.value.facts == {"table_key": "node:Person", "key": "a"}
    assert names(graph) == ["a"]


def test_an_append_refuses_the_same_key_twice(graph: Graph) -> None:
    with pytest.raises(ConstraintViolation, match=r"record 3: @unique violation on Person\.name: duplicate key 'a'"):
        graph.load([person("a"), person("b"), person("a")])


def test_a_merge_replaces_nodes_by_key_and_the_last_one_wins(graph: Graph) -> None:
    graph.load([person("a", age=1), person("b", age=2)])
    result = graph.load([person("a", age=3), person("a", age=4), person("c", age=5)], mode="merge")
    assert ages(graph) == {"a": 4, "b": 2, "c": 5}
    assert result.affected_nodes == 2


def test_a_merge_knows_edges_by_id_else_by_their_ends_else_takes_them_for_new(graph: Graph) -> None:
    graph.load(
        [person("a"), person("b"), {"type": "Note", "id": "n1", "data": {"text": "t"}}, knows("a", "b", since=1)]
    )
    (before,) = graph.snapshot().table("Knows").to_pylist()
    wrote = {"edge": "Wrote", "from": "a", "to": "n1"}
    graph.load([knows("a", "b", since=2), wrote, wrote, {**wrote, "id": "w"}, {**wrote, "id": "w"}], mode="merge")
    (after,) = graph.snapshot().table("Knows").to_pylist()
    assert (after["id"], after["since"]) == (before["id"], 2)
    assert graph.snapshot().count("Wrote") == 3


def test_an_overwrite_replaces_the_touched_tables_only(graph: Graph) -> None:
    graph.load([person("a"), {"type": "Note", "data": {"text": "t"}}])
    graph.load([person("z")], mode="overwrite")
    assert (names(graph), graph.snapshot().count("Note")) == (["z"], 1)


def test_an_overwrite_with_nothing_empties_the_table(graph: Graph) -> None:
    graph.load([person("a")])
    graph.load(pa.table({"name": pa.array([], pa.string())}), type="Person", mode="overwrite")
    assert names(graph) == []


def test_an_overwrite_that_would_leave_edges_to_nobody_is_refused(graph: Graph) -> None:
    graph.load([person("a"), person("b"), knows("a", "b")])
    with pytest.raises(ConstraintViolation, match="'b' not found in Person"):
        graph.load([person("a")], mode="overwrite")


def test_rejected_records_go_to_a_file_with_line_and_reason_and_the_others_land(graph: Graph, tmp_path: Path) -> None:
    source = tmp_path / "mixed.jsonl"
    records = [person("a"), person("b", age=200), person("a"), knows("a", "nobody"), knows("a", "b"), person("c")]
    source.write_text("".join(json.dumps(r) + "\n" for r in records) + "{broken\n")
    result = graph.load(source, on_error="reject", rejects=tmp_path / "bad.jsonl")
    assert (names(graph), graph.snapshot().count("Knows"), result.rejected) == (["a", "c"], 0, 5)
    rejected = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert sorted(r["line"] for r in rejected) == [2, 3, 4, 5, 7]
    reasons = {r["line"]: r["reason"] for r in rejected}
    assert reasons[2].startswith("@range violation on Person.age")
    assert reasons[3].startswith("@unique violation on Person.name")
    assert reasons[5].startswith("dst 'b' not found in Person"), "b was rejected, so its edge is too"


def test_a_load_that_rejects_nothing_writes_no_file(graph: Graph, tmp_path: Path) -> None:
    graph.load([person("a")], on_error="reject", rejects=tmp_path / "bad.jsonl")
    assert not (tmp_path / "bad.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "upsert"}, "use append, merge or overwrite"),
        ({"on_error": "skip"}, "use fail or reject"),
        ({"on_error": "reject"}, "give rejects=PATH"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(graph: Graph, options: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        graph.load([person("a")], **options)  # type: ignore[arg-type]


@pytest.fixture
def staged_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sink, "INLINE_ROWS_MAX", 10)


@pytest.mark.usefixtures("staged_early")
def test_a_large_load_that_fails_late_leaves_no_files(graph: Graph, tmp_path: Path) -> None:
    before = files_below(tmp_path / "g" / "nodes")
    rows = [person(f"p{n}") for n in range(200_000)]
    with pytest.raises(RecordError, match="record 200001: @range"):
        graph.load([*rows, person("last", age=151)])
    with pytest.raises(ConstraintViolation, match="record 200001: @unique"):
        graph.load([*rows, person("p0")])
    assert files_below(tmp_path / "g" / "nodes") == before


@pytest.mark.usefixtures("staged_early")
def test_a_large_merge_drops_superseded_rows_and_keeps_the_ids_of_edges(graph: Graph) -> None:
    people = [person(f"p{n}", age=n % 100) for n in range(300)]
    graph.load([*people, *(knows(f"p{n}", f"p{n + 1}", since=n) for n in range(200))])
    ids = {(r["src"], r["dst"]): r["id"] for r in graph.snapshot().table("Knows").to_pylist()}
    again = [*people[:50], *people[:50], *(knows(f"p{n}", f"p{n + 1}", since=-1) for n in range(250))]
    graph.load(again, mode="merge")
    after = graph.snapshot().table("Knows").to_pylist()
    assert (graph.snapshot().count("Person"), len(after)) == (300, 250)
    assert all(r["since"] == -1 and ids.get((r["src"], r["dst"]), r["id"]) == r["id"] for r in after)


def test_an_export_loads_back_to_the_same_rows_of_every_type(graph: Graph, tmp_path: Path) -> None:
    graph.load(
        [
            person("a", age=1, photo="base64:AAH/", born="2020-02-29T12:00:00.000001Z", day="1969-12-31"),
            person("b'\"\n"),
            {"type": "Note", "data": {"text": ""}},
            knows("a", "b'\"\n", since=-5),
        ]
    )
    dump = tmp_path / "dump.jsonl"
    dump.write_bytes(b"".join(graph.snapshot().export()))
    with omniray.init(str(tmp_path / "copy"), schema=SCHEMA) as copy:
        copy.load(dump)
        for type in graph.schema:
            assert copy.snapshot().table(type.name).sort_by("id") == graph.snapshot().table(type.name).sort_by("id")


def test_progress_is_told_while_a_source_is_read(graph: Graph, tmp_path: Path) -> None:
    source = tmp_path / "people.jsonl"
    source.write_text("".join(json.dumps(person(f"p{n}")) + "\n" for n in range(10)))
    seen: list[tuple[int, int, int | None]] = []
    graph.load(source, progress=lambda source, records: seen.append((records, source.bytes_done, source.bytes_total)))
    size = source.stat().st_size
    assert seen[-1] == (10, size, size)


def test_a_rejects_file_that_can_t_be_written_stops_the_load_before_it_commits(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't write rejected records"):
        graph.load([person("a"), knows("a", "nobody")], on_error="reject", rejects=tmp_path / "nowhere" / "bad.jsonl")
    assert names(graph) == []


def test_a_rejected_record_is_in_the_file_itself(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [person("a", age=200), person("b"), knows("b", "nobody", since=7), person("b", age=3)]
    for rows_max in (100, 0):
        monkeypatch.setattr(row_sink, "INLINE_ROWS_MAX", rows_max)
        graph.load([], type="Knows", mode="overwrite")
        graph.load([], type="Person", mode="overwrite")
        graph.load(records, on_error="reject", rejects=tmp_path / "bad.jsonl")
        lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
        found = {line["line"]: line["record"] for line in lines}
        assert found[1] == {"name": "a", "age": 200}
        assert found[4] == {"id": "b", "name": "b", "age": 3}
        assert {k: found[3][k] for k in ("src", "dst", "since")} == {"src": "b", "dst": "nobody", "since": 7}


def test_a_file_of_an_earlier_load_does_not_pass_for_this_one(graph: Graph, tmp_path: Path) -> None:
    rejects = tmp_path / "bad.jsonl"
    graph.load([person("a", age=200)], on_error="reject", rejects=rejects)
    assert rejects.exists()
    graph.load([person("a")], on_error="reject", rejects=rejects)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g"]


def test_a_graph_that_was_forked_is_refused_instead_of_waiting_for_ever(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("omniray.engine.graph.os.getpid", lambda: -1)
        with pytest.raises(InputError, match="open it again here"):
            graph.load([person("a")])
        graph.close()
    graph.load([person("a")])


@pytest.mark.usefixtures("staged_early")
def test_a_sink_that_fails_to_close_does_not_keep_the_others_open(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread waits for rows: left alone, it would keep the process from ending."""
    close, closed = row_sink.RowSink.close, []

    def failing(sink: row_sink.RowSink, *, used: bool) -> None:
        close(sink, used=used)
        closed.append(sink)
        raise KeyboardInterrupt

    monkeypatch.setattr(row_sink.RowSink, "close", failing)
    notes = [{"type": "Note", "data": {"text": "t"}} for _ in range(50)]
    with pytest.raises(KeyboardInterrupt):
        graph.load([*(person(f"p{n}") for n in range(50)), *notes, person("p0")])
    assert len(closed) == 2
