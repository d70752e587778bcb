"""Uniqueness rules: no duplicate id, no existing id in an append, and every `@unique`."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.base.errors import ConstraintViolation, KeyConflict
from omniray.engine.judge.keylog import key_columns
from omniray.engine.judge.relations import Relation, repeating, shown, text
from omniray.engine.judge.table_judgement import NO_VIOLATIONS, Bench, Case, one_per_row
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import ElementType, NodeType, Unique


def key_violations(bench: Bench, case: Case) -> pa.Table:
    """Rows with the id of an earlier row or, if appended, of a pinned row. None in a merge: the last of an id wins."""
    if case.mode is Mode.MERGE:
        return NO_VIOLATIONS
    taken = _existing_ids(bench, case) if case.mode is Mode.APPEND else NO_VIOLATIONS
    return one_per_row(taken, _repeated_ids(bench, case))


def unique_violations(bench: Bench, case: Case, unique: Unique) -> pa.Table:
    """Rows with the same values as a remaining pinned row, or as an earlier row that lands."""
    name = ",".join(unique.properties)
    start = f"{text(f'@unique violation on {case.type.name}.{name}: ')} || {_tuple(case.type, unique)}"
    columns = [key_columns(case.type)[name] for name in unique.properties]
    repeated = NO_VIOLATIONS
    if bench.sets.may_repeat(case.live, *columns):
        whole = " and ".join(f"{column} is not null" for column in columns)
        repeated = _repeated(bench, case, ", ".join(columns), whole, f"{start} || ' is also at '")
    return one_per_row(_taken_values(bench, case, unique, start), repeated)


def _existing_ids(bench: Bench, case: Case) -> pa.Table:
    if case.same_id().rows == 0:
        return NO_VIOLATIONS
    return bench.violations(
        f"select row, record, source, '{KeyConflict.kind}' as kind, l.id as key,"
        f" {text(f'key conflict on {case.type.table_key}: ')} || {shown('l.id')} || ' exists already' as reason"
        " from {live} l semi join {same_id} p on p.id = l.id",
        live=case.live,
        same_id=case.same_id(),
    )


def _repeated_ids(bench: Bench, case: Case) -> pa.Table:
    if not bench.sets.may_repeat(case.live, "id"):
        return NO_VIOLATIONS
    name = ",".join(case.type.key if isinstance(case.type, NodeType) and case.type.key else ("id",))
    start = f"{text(f'@unique violation on {case.type.name}.{name}: duplicate key ')} || {shown('l.id')}"
    return _repeated(bench, case, "id", "id is not null", f"{start} || ', first at '")


def _taken_values(bench: Bench, case: Case, unique: Unique, start: str) -> pa.Table:
    pinned = case.same_values(unique.properties)
    if pinned.rows == 0 or _all_displaced(case, pinned):
        return NO_VIOLATIONS
    equal = " and ".join(f"p.{c} = l.{c}" for c in (key_columns(case.type)[name] for name in unique.properties))
    return bench.violations(
        f"select distinct on (row) row, record, source, '{ConstraintViolation.kind}' as kind,"
        f" coalesce(l.id, '') as key, {start} || ' is taken by ' || {shown('p.id')} as reason"
        f" from {{live}} l join (from {{pinned}} q anti join {{live}} s on s.id = q.id) p on {equal}"
        " order by row, p.id",
        live=case.live,
        pinned=pinned,
    )


def _all_displaced(case: Case, pinned: Relation) -> bool:
    """Whether the landing rows surely displace all given pinned rows: a merge mostly finds the rows it replaces."""
    if pinned.arrow is None or case.live.arrow is None:
        return False
    return bool(pc.all(pc.is_in(pinned.arrow["id"], value_set=case.live.arrow["id"])).as_py())


def _repeated(bench: Bench, case: Case, columns: str, where: str, reason: str) -> pa.Table:
    """Of rows that agree in the columns, all but the first; the reason ends with the place of the first."""
    numbered = f"""
        select *, row_number() over same as n, first_value(record) over same as first_record,
               first_value(source) over same as first_source
        from ({repeating(columns, where)}) window same as (partition by {columns} order by row)"""
    return bench.violations(
        f"select row, record, l.source, '{ConstraintViolation.kind}' as kind, coalesce(l.id, '') as key,"
        f" {reason} || place || first_record as reason"
        f" from ({numbered}) l join {{places}} o on o.source = first_source where n > 1",
        r=case.live,
        places=Relation.of(bench.places()),
    )


def _tuple(type: ElementType, unique: Unique) -> str:
    """The SQL expression that shows a row's values: one as it is, several in parentheses."""
    columns = key_columns(type)
    values = [shown(f"l.{columns[n]}", quoted=pa.types.is_string(type.arrow.field(n).type)) for n in unique.properties]
    return values[0] if len(values) == 1 else "'(' || " + " || ', ' || ".join(values) + " || ')'"
