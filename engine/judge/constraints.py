"""Judges a whole write by every rule that takes more than one row to decide.

Values have been checked before; these rules are keys, `@unique`, the ends of edges and `@card`, each within the write
and against the pinned state. Tables are judged one by one, nodes first, because edges depend on nodes and on no other
edges. A table's rules run in a fixed order, and the first broken rule decides: the write is refused or, where records
may be rejected, they are taken out and the table is judged again, since the remaining rows may now break another rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pyarrow as pa

from omniray.engine.base.errors import ConstraintViolation
from omniray.engine.judge.cardinality import cardinality_violations, look_up_degrees
from omniray.engine.judge.endpoints import endpoint_violations, look_up_ends
from omniray.engine.judge.keylog import KeyLog, no_keys
from omniray.engine.judge.pinned import Pinned, State
from omniray.engine.judge.relations import Relation, Sets
from omniray.engine.judge.table_judgement import Bench, Case
from omniray.engine.judge.uniqueness import key_violations, unique_violations
from omniray.engine.judge.verdict import VIOLATIONS, Counts, TableVerdict, Verdict, Violation
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import EdgeType, ElementType, Schema, Unique

__all__ = ["Counts", "State", "TableVerdict", "Verdict", "Violation", "judge"]

LOOKUP_KEYS_MAX = 5_000
PASSES_MAX = 64

Rule = Callable[[], pa.Table]


def judge(
    log: KeyLog, schema: Schema, state: State, *, reject: bool = False, lookup_keys_max: int = LOOKUP_KEYS_MAX
) -> Verdict:
    """Judge a write on a state. The log stays as it is, to be judged again on another state.

    With `reject`, records that break a rule are taken out, and so are records that break one only as a result. Up to
    `lookup_keys_max` keys are looked up in a table; for more keys the table is scanned.
    """
    written = {type.name: log.written(table) for type in schema if (table := log.table(type.table_key))}
    tables: dict[str, TableVerdict] = {}
    rejected = [VIOLATIONS.empty_table()]
    with Sets(log.connect, log.memory_limit_mb) as sets:
        bench = Bench(sets, Pinned(state, sets, lookup_keys_max), log.places, only_first=not reject)
        cases = _Cases(bench, log, schema, written)
        for type in cases.concerned():
            fallen, refusal = _judge_table(bench, type, cases, reject=reject)
            rejected += [_named(type, found, log) for found in fallen]
            if refusal is not None:
                first = Violation(**_named(type, refusal, log).to_pylist()[0])
                return Verdict({}, pa.concat_tables(rejected), first)
            if type.name in written:
                is_emptied = cases[type.name].mode is Mode.OVERWRITE
                tables[type.table_key] = cases[type.name].verdict(state.count(type.table_key) if is_emptied else 0)
    return Verdict(tables, pa.concat_tables(rejected))


class _Cases(dict[str, Case]):
    """The tables of a judgement by type name; an untouched table is added when it is first asked for."""

    def __init__(self, bench: Bench, log: KeyLog, schema: Schema, written: Mapping[str, Relation]) -> None:
        self._bench, self._log, self._schema, self._written = bench, log, schema, written

    def __missing__(self, name: str) -> Case:
        type = self._schema.type(name)
        case = Case(self._bench, type, self._log.table(type.table_key), self._written.get(name) or no_keys(type))
        self[name] = case
        return case

    def concerned(self) -> Iterator[ElementType]:
        """The types to judge, nodes first: written types, and edge types whose nodes may be removed."""
        for type in self._schema:
            if type.name in self._written or (isinstance(type, EdgeType) and self._loses_nodes(type)):
                yield type

    def _loses_nodes(self, edge: EdgeType) -> bool:
        return any(self[name].removes for name in {edge.source, edge.target} & self._written.keys())


def _judge_table(
    bench: Bench, type: ElementType, cases: _Cases, *, reject: bool
) -> tuple[list[pa.Table], pa.Table | None]:
    """The violations that reject records of a table, and the one that refuses the whole write."""
    case = cases[type.name]
    rules = _rules(bench, type, cases)
    fallen: list[pa.Table] = []
    for _ in range(PASSES_MAX):
        case.settle()
        broken = next((found for rule in rules if (found := rule()).num_rows), None)
        if broken is None:
            return fallen, None
        to_blame = broken.filter(broken["row"].is_valid())
        if not reject or to_blame.num_rows == 0:
            return fallen, broken.slice(0, 1)
        fallen.append(to_blame)
        case.reject(to_blame["row"])
    raise ConstraintViolation(
        f"{type.table_key}: records still break rules after {PASSES_MAX} passes, each over what the one before left;"
        " correct the source, or load it without rejecting to see the first of them",
        table_key=type.table_key, passes=PASSES_MAX,
    )  # fmt: skip


def _rules(bench: Bench, type: ElementType, cases: _Cases) -> list[Rule]:
    """The rules of a table in their order. The pinned rows that they need are looked up here, once."""
    case = cases[type.name]
    rules: list[Rule] = []
    if case.written.rows:
        rules.append(partial(key_violations, bench, case))
        rules += [partial(unique_violations, bench, case, c) for c in type.constraints if isinstance(c, Unique)]
    if isinstance(type, EdgeType):
        rules.append(partial(endpoint_violations, bench, type, case, look_up_ends(bench, type, case, cases)))
        if case.is_counted and case.mode is not None:
            pinned = look_up_degrees(bench, type, case)
            rules.append(partial(cardinality_violations, bench, type, case, cases[type.source], pinned))
    return rules


def _named(type: ElementType, found: pa.Table, log: KeyLog) -> pa.Table:
    """The violations with the names of their table and of their sources."""
    names = log.places()["name"].take(found["source"]).fill_null("")
    found = found.set_column(found.column_names.index("source"), "source", names)
    return found.add_column(0, "table_key", pa.array([type.table_key] * found.num_rows, pa.string())).cast(VIOLATIONS)
