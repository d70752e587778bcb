"""The key log: what it keeps of a write, where it keeps it, and what is left of it afterwards."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest

from omniray.engine.base.errors import InputError
from omniray.engine.judge import keylog
from omniray.engine.judge.constraints import judge
from omniray.engine.judge.keylog import KeyLog, KeyMemory
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import EdgeType, Key, NodeType, Property, Scalar, ScalarType, Schema, Unique
from tests.pinned_rows import PinnedRows

TEXT = ScalarType(Scalar.STRING)
PERSON = NodeType(
    "Person",
    (Property("name", TEXT), Property("bio", TEXT, True), Property("eMail", TEXT, True), Property("email", TEXT, True)),
    (),
    constraints=(Key(("name",)), Unique(("eMail",)), Unique(("email",))),
)
KNOWS = EdgeType("Knows", "Person", "Person", (Property("since", TEXT, True),))
SCHEMA = Schema((PERSON,), (KNOWS,))


@pytest.fixture
def spill_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(keylog, "scratch_folder", lambda purpose: Path(tempfile.mkdtemp(dir=tmp_path)))
    return tmp_path


def add_people(log: KeyLog, *names: str, source: str = "people.csv") -> None:
    rows = pa.Table.from_pylist([{"id": n, "name": n, "bio": "long", "email": n} for n in names], schema=PERSON.arrow)
    log.add(PERSON, rows, pa.array(range(2, 2 + len(names)), pa.int64()), source)


def keys_of(log: KeyLog, type_key: str) -> pa.Table:
    table = log.table(type_key)
    assert table is not None
    relation = log.written(table)
    if relation.arrow is not None:
        return relation.arrow
    with log.connect() as connection:
        return connection.sql(f"from {relation.table} order by row").to_arrow_table()


@pytest.mark.parametrize("memory_rows", [0, 100_000])
def test_the_log_keeps_positions_records_and_the_columns_that_rules_need(memory_rows: int) -> None:
    with KeyLog(SCHEMA, memory_rows=memory_rows) as log:
        log.begin(PERSON, Mode.APPEND)
        add_people(log, "a", "b")
        add_people(log, "c", source="more.parquet")
        keys = keys_of(log, "node:Person")
        assert keys.column_names == ["row", "record", "source", "id", "u0", "u1"]
        assert keys.to_pylist()[2] == {"row": 2, "record": 2, "source": 1, "id": "c", "u0": None, "u1": "c"}
        assert log.places().to_pylist() == [
            {"source": 0, "name": "people.csv", "place": "people.csv line "},
            {"source": 1, "name": "more.parquet", "place": "more.parquet row "},
        ]


def test_an_edge_table_keeps_its_ends() -> None:
    with KeyLog(SCHEMA) as log:
        log.begin(KNOWS, Mode.APPEND)
        log.add(KNOWS, pa.table({"id": ["1"], "src": ["a"], "dst": ["b"], "since": ["x"]}), pa.array([1]), "")
        assert keys_of(log, "edge:Knows").column_names == ["row", "record", "source", "id", "src", "dst"]


def test_up_to_memory_rows_stay_in_memory_and_one_more_goes_to_a_database(spill_directory: Path) -> None:
    with KeyLog(SCHEMA, memory_rows=2) as log:
        log.begin(PERSON, Mode.APPEND)
        add_people(log, "a", "b")
        table = log.table("node:Person")
        assert table is not None
        assert log.written(table).arrow is not None
        assert list(spill_directory.iterdir()) == []
        add_people(log, "c")
        assert log.written(table).arrow is None
        assert keys_of(log, "node:Person")["id"].to_pylist() == ["a", "b", "c"]
        assert len(list(spill_directory.iterdir())) == 1


def test_closing_leaves_nothing_on_disk(spill_directory: Path) -> None:
    log = KeyLog(SCHEMA, memory_rows=0)
    log.begin(PERSON, Mode.APPEND)
    add_people(log, "a")
    judge(log, SCHEMA, PinnedRows(SCHEMA, {}))
    assert len(list(spill_directory.iterdir())) == 1
    log.close()
    log.close()
    assert list(spill_directory.iterdir()) == []


def test_a_full_buffer_is_spilled_on_the_way_and_rows_keep_their_positions() -> None:
    with KeyLog(SCHEMA, memory_rows=100, memory=KeyMemory(0, 64)) as log:
        log.begin(PERSON, Mode.APPEND)
        for names in ("ab", "c", "da"):
            add_people(log, *names)
            table = log.table("node:Person")
            assert table is not None
            assert table.buffer == []
        assert keys_of(log, "node:Person")["row"].to_pylist() == [0, 1, 2, 3, 4]
        refusal = judge(log, SCHEMA, PinnedRows(SCHEMA, {})).refusal
        assert refusal is not None
        assert (refusal.row, refusal.key) == (4, "a")


def test_a_log_is_judged_again_on_a_newer_state() -> None:
    for memory_rows in (0, 100_000):
        with KeyLog(SCHEMA, memory_rows=memory_rows) as log:
            log.begin(PERSON, Mode.APPEND)
            add_people(log, "a", "b")
            assert judge(log, SCHEMA, PinnedRows(SCHEMA, {})).refusal is None
            newer = judge(log, SCHEMA, PinnedRows(SCHEMA, {"Person": [{"id": "b", "name": "b"}]})).refusal
            assert newer is not None
            assert newer.kind == "key_conflict"
            assert judge(log, SCHEMA, PinnedRows(SCHEMA, {})).refusal is None


def test_a_table_has_one_mode_in_a_write() -> None:
    with KeyLog(SCHEMA) as log:
        log.begin(PERSON, Mode.MERGE)
        log.begin(PERSON, Mode.MERGE)
        with pytest.raises(InputError, match="node:Person is written with mode 'merge' and 'append' at once"):
            log.begin(PERSON, Mode.APPEND)
        with pytest.raises(InputError, match="which deletes nothing"):
            log.delete(PERSON, pa.array(["a"]))


def test_a_table_that_gets_no_rows_has_a_verdict_all_the_same() -> None:
    with KeyLog(SCHEMA) as log:
        log.begin(PERSON, Mode.OVERWRITE)
        table = judge(log, SCHEMA, PinnedRows(SCHEMA, {"Person": [{"id": "b", "name": "b"}]})).tables["node:Person"]
        assert (table.counts.inserted, table.counts.deleted) == (0, 1)


def test_properties_that_differ_only_in_case_are_kept_apart() -> None:
    with KeyLog(SCHEMA) as log:
        log.begin(PERSON, Mode.APPEND)
        rows = [{"id": "a", "name": "a", "eMail": "x"}, {"id": "b", "name": "b", "email": "x"}]
        log.add(PERSON, pa.Table.from_pylist(rows, schema=PERSON.arrow), pa.array([1, 2]), "")
        assert judge(log, SCHEMA, PinnedRows(SCHEMA, {})).refusal is None


@pytest.mark.parametrize("files", [("a.csv", "b.csv"), ("a.csv", "a.csv")])
@pytest.mark.parametrize("at_once", [True, False])
def test_logs_that_are_put_together_are_as_if_all_had_been_added_to_one(files: tuple[str, str], at_once: bool) -> None:
    parts = []
    with KeyLog(SCHEMA) as whole, KeyLog(SCHEMA) as together:
        whole.begin(PERSON, Mode.APPEND)
        for number, file in enumerate(files):
            with KeyLog(SCHEMA) as part:
                part.begin(PERSON, Mode.APPEND)
                for log in (part, whole):
                    add_people(log, f"{number}x", f"{number}y", source=file)
                    add_people(log, f"{number}z", source="last.csv")
                parts.append(part.packed())
        for some in (parts,) if at_once else ([part] for part in parts):
            together.extend(*some)
        assert keys_of(together, "node:Person").to_pylist() == keys_of(whole, "node:Person").to_pylist()
        assert together.places() == whole.places()
