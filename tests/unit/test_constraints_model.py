"""Random writes on random graphs, judged by the engine on every path and by a plain model that loops over rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omniray.engine.judge import relations as sets
from omniray.engine.judge.constraints import Verdict, judge
from omniray.engine.judge.keylog import KeyLog
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import (
    Cardinality,
    EdgeType,
    ElementType,
    Key,
    NodeType,
    Property,
    Scalar,
    ScalarType,
    Schema,
    Unique,
)
from tests.pinned_rows import FIRST_ADDRESS, Graph, PinnedRows, Row, nullable

TEXT, NUMBER = ScalarType(Scalar.STRING), ScalarType(Scalar.I64)
PERSON = NodeType(
    "Person",
    (
        Property("name", TEXT),
        Property("email", TEXT, True),
        Property("team", TEXT, True),
        Property("rank", NUMBER, True),
    ),
    (),
    constraints=(Key(("name",)), Unique(("email",)), Unique(("team", "rank"))),
)
COMPANY = NodeType("Company", (Property("tax", NUMBER, True),), (), constraints=(Unique(("tax",)),))
KNOWS = EdgeType("Knows", "Person", "Person", cardinality=Cardinality(0, 2), constraints=(Unique(("src", "dst")),))
WORKS = EdgeType(
    "Works", "Person", "Company", (Property("badge", NUMBER, True),), Cardinality(1, 2), (Unique(("badge",)),)
)
LIKES = EdgeType("Likes", "Company", "Person", cardinality=Cardinality(2, None))
SCHEMA = Schema((PERSON, COMPANY), (KNOWS, WORKS, LIKES))


@dataclass
class TableWrite:
    mode: Mode
    rows: list[Row] = field(default_factory=list)
    deletes: list[str] = field(default_factory=list)


Write = dict[str, TableWrite]


class Broken(Exception):
    """The write is refused: `(type, row or None, key)`."""


@dataclass
class ModelCase:
    """One table, judged row by row."""

    type: ElementType
    write: TableWrite
    pinned: list[Row]
    rejected: dict[int, str] = field(default_factory=dict)
    live: dict[int, Row] = field(default_factory=dict)
    superseded: set[int] = field(default_factory=set)
    adopted: dict[int, str] = field(default_factory=dict)
    displaced: set[str] = field(default_factory=set)

    @property
    def staying(self) -> list[Row]:
        if self.write.mode is Mode.OVERWRITE:
            return []
        return [row for row in self.pinned if row["id"] not in self.displaced]

    def settle(self) -> None:
        kept = {n: dict(row) for n, row in enumerate(self.write.rows) if n not in self.rejected}
        self.superseded, self.adopted, self.displaced = set(), {}, set(self.write.deletes)
        if self.write.mode is Mode.MERGE:
            by_ends = isinstance(self.type, EdgeType) and self.type.unique_by_endpoints
            last: dict[Any, int] = {}
            for n, row in kept.items():
                ends = (row.get("src"), row.get("dst"))
                if row["id"] is None and by_ends:
                    same = [p["id"] for p in self.pinned if (p["src"], p["dst"]) == ends]
                    if same:
                        row["id"] = self.adopted[n] = min(same)
                identity = row["id"] if row["id"] is not None else (ends if by_ends else n)
                if identity in last:
                    self.superseded.add(last[identity])
                last[identity] = n
            self.displaced = {row["id"] for row in kept.values()} & {row["id"] for row in self.pinned}
        self.live = {n: row for n, row in kept.items() if n not in self.superseded}
        self.adopted = {n: id for n, id in self.adopted.items() if n in self.live}

    def key_violations(self) -> dict[int, str]:
        found, seen = {}, set()
        pinned = {row["id"] for row in self.pinned} if self.write.mode is Mode.APPEND else set()
        if self.write.mode is not Mode.MERGE:
            for n, row in self.live.items():
                if row["id"] is None:
                    continue
                if row["id"] in pinned:
                    found[n] = "key_conflict"
                elif row["id"] in seen:
                    found[n] = "constraint"
                seen.add(row["id"])
        return found

    def unique_violations(self, unique: Unique) -> dict[int, str]:
        def values(row: Row) -> tuple[Any, ...] | None:
            found = tuple(row[name] for name in unique.properties)
            return None if None in found else found

        landing = {row["id"] for row in self.live.values()}
        taken = {values(row) for row in self.staying if row["id"] not in landing} - {None}
        found = {}
        for n, row in self.live.items():
            if values(row) is not None and values(row) in taken:
                found[n] = "constraint"
            taken.add(values(row))
        return found


class Model:
    """A whole write, judged as the rules read."""

    def __init__(self, graph: Graph, write: Write, *, reject: bool) -> None:
        self.reject = reject
        nothing = TableWrite(Mode.APPEND)
        self.cases = {t.name: ModelCase(t, write.get(t.name, nothing), graph.get(t.name, [])) for t in SCHEMA}
        self.refusal: tuple[str, int | None, str] | None = None
        try:
            for type in SCHEMA:
                self.judge_table(self.cases[type.name])
        except Broken as broken:
            self.refusal = broken.args[0]

    def graph(self) -> Graph:
        """The state after the write."""
        return {
            name: [*case.staying, *({**row, "id": row["id"] or f"new-{n}"} for n, row in case.live.items())]
            for name, case in self.cases.items()
        }

    def judge_table(self, case: ModelCase) -> None:
        while True:
            case.settle()
            for found, nobody in self.violations(case):
                if found and self.reject:
                    case.rejected |= found
                    break
                if found:
                    raise Broken((case.type.name, min(found), ""))
                if nobody is not None:
                    raise Broken((case.type.name, None, nobody))
            else:
                return

    def violations(self, case: ModelCase) -> Iterator[tuple[dict[int, str], str | None]]:
        yield case.key_violations(), None
        for constraint in case.type.constraints:
            if isinstance(constraint, Unique):
                yield case.unique_violations(constraint), None
        if isinstance(case.type, EdgeType):
            yield self.endpoint_violations(case, case.type)
            if case.type.cardinality != Cardinality():
                yield self.cardinality_violations(case, case.type)

    def nodes(self, name: str) -> set[str]:
        case = self.cases[name]
        return {row["id"] for row in (*case.staying, *case.live.values())}

    def endpoint_violations(self, case: ModelCase, edge: EdgeType) -> tuple[dict[int, str], str | None]:
        ends = (("src", self.nodes(edge.source)), ("dst", self.nodes(edge.target)))
        found = {n: "constraint" for n, row in case.live.items() if any(row[end] not in ids for end, ids in ends)}
        for end, ids in ends:
            dangling = sorted(row["id"] for row in case.staying if row[end] not in ids)
            if dangling:
                return found, dangling[0]
        return found, None

    def cardinality_violations(self, case: ModelCase, edge: EdgeType) -> tuple[dict[int, str], str | None]:
        low, high = edge.cardinality.low, edge.cardinality.high
        gone = [row for row in case.pinned if row not in case.staying]
        lands = Counter(row["src"] for row in case.live.values())
        number = lands + Counter(row["src"] for row in case.staying)
        found: dict[int, str] = {}
        nobody = []
        for source in ({row["src"] for row in gone} | lands.keys()) & self.nodes(edge.source):
            rows = [n for n, row in case.live.items() if row["src"] == source]
            was_here = {row["id"] for row in gone if row["src"] == source}
            if number[source] < low:
                found |= dict.fromkeys(rows, "constraint")
            elif high is not None and number[source] > high:
                rows.sort(key=lambda n: (case.live[n]["id"] in was_here, -n))
                found |= dict.fromkeys(rows[: number[source] - high], "constraint")
            else:
                continue
            nobody += [] if rows else [source]
        return found, min(nobody, default=None)


def texts(letters: str) -> st.SearchStrategy[str]:
    return st.sampled_from(letters)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values, values)


PEOPLE = st.builds(
    lambda id, email, team, rank: {"id": id, "name": id, "email": email, "team": team, "rank": rank},
    texts("abcde"),
    maybe(texts("wxyz")),
    maybe(texts("rb")),
    maybe(st.integers(0, 2)),
)
COMPANIES = st.builds(lambda id, tax: {"id": id, "tax": tax}, maybe(texts("ACM")), maybe(st.integers(0, 3)))


def edges(sources: str, targets: str, **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Row]:
    return st.fixed_dictionaries({"id": maybe(texts("1234")), "src": texts(sources), "dst": texts(targets), **more})


ROWS = {
    "Person": PEOPLE,
    "Company": COMPANIES,
    "Knows": edges("abcde", "abcde"),
    "Works": edges("abcde", "ACM", badge=maybe(st.integers(0, 4))),
    "Likes": edges("ACM", "abcde"),
}
IDS = {"Person": "abcde", "Company": "ACM", "Knows": "1234", "Works": "1234", "Likes": "1234"}


@st.composite
def writes(draw: st.DrawFn, modes: Sequence[Mode] = tuple(Mode)) -> Write:
    write = {}
    for name in draw(st.sets(st.sampled_from(sorted(ROWS)), min_size=1)):
        mode = draw(st.sampled_from(modes))
        if mode is Mode.DELETE:
            write[name] = TableWrite(mode, deletes=draw(st.lists(texts(IDS[name]), max_size=3)))
        else:
            write[name] = TableWrite(mode, draw(st.lists(ROWS[name], max_size=7)))
    return write


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A graph that keeps all rules: what is left of a random one when the model has rejected the rest."""
    rows = {name: TableWrite(Mode.OVERWRITE, draw(st.lists(ROWS[name], max_size=8))) for name in ROWS}
    return Model({}, rows, reject=True).graph()


def judged(graph: Graph, write: Write, *, reject: bool, memory_rows: int, lookup_keys_max: int) -> Verdict:
    with KeyLog(SCHEMA, memory_rows=memory_rows) as log:
        for type in SCHEMA:
            if type.name in write:
                table = write[type.name]
                log.begin(type, table.mode)
                for first in range(0, len(table.rows), 2):
                    part = pa.Table.from_pylist(table.rows[first : first + 2], schema=nullable(type.arrow))
                    log.add(
                        type, part, pa.array(range(first + 1, first + 1 + part.num_rows), pa.int64()), "graph.jsonl"
                    )
                if table.deletes:
                    log.delete(type, pa.array(table.deletes, pa.string()))
        state = PinnedRows(SCHEMA, graph, lookup_keys_max)
        verdict = judge(log, SCHEMA, state, reject=reject, lookup_keys_max=lookup_keys_max)
        assert judge(log, SCHEMA, state, reject=reject, lookup_keys_max=lookup_keys_max) == verdict
        return verdict


def check(graph: Graph, write: Write, *, reject: bool, memory_rows: int, lookup_keys_max: int) -> None:
    model = Model(graph, write, reject=reject)
    verdict = judged(graph, write, reject=reject, memory_rows=memory_rows, lookup_keys_max=lookup_keys_max)
    refusal = verdict.refusal
    if model.refusal is None:
        assert refusal is None
    else:
        name, row, key = model.refusal
        assert refusal is not None
        assert (refusal.table_key, refusal.row) == (SCHEMA.type(name).table_key, row)
        if row is None:
            assert refusal.key == key
        return
    fallen = {(v.table_key, v.row): v.kind for v in verdict.violations}
    expected = {(c.type.table_key, n): kind for c in model.cases.values() for n, kind in c.rejected.items()}
    assert fallen == expected
    assert verdict.tables.keys() == {SCHEMA.type(name).table_key for name in write}
    for name in write:
        case, table = model.cases[name], verdict.tables[SCHEMA.type(name).table_key]
        assert table.dropped.to_pylist() == sorted(case.superseded | case.rejected.keys())
        assert dict(zip(table.adopted["row"].to_pylist(), table.adopted["id"].to_pylist(), strict=True)) == case.adopted
        displaced = [n for n, row in enumerate(case.pinned) if row["id"] in case.displaced]
        assert sorted(table.replaced["_rowaddr"].to_pylist()) == [FIRST_ADDRESS + n for n in displaced]
        assert sorted(table.replaced["id"].to_pylist()) == sorted(case.pinned[n]["id"] for n in displaced)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    graphs(), writes(), st.booleans(), st.sampled_from([0, 4, 100_000]), st.sampled_from([0, 2, 5_000]),
    st.sampled_from([256, 1 << 28]),
)  # fmt: skip
def test_every_path_judges_a_random_write_as_the_model_does(
    graph: Graph, write: Write, reject: bool, memory_rows: int, lookup_keys_max: int, joined_row_bytes: int
) -> None:
    """Rows that are taken for large are joined in several passes."""
    with patch.object(sets, "JOINED_ROW_BYTES", joined_row_bytes):
        check(graph, write, reject=reject, memory_rows=memory_rows, lookup_keys_max=lookup_keys_max)
