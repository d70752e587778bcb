"""Edges that both sides inserted, equal in everything but their ids: one of each two stays, the target's.

Edges without a unique rule are kept both: nobody says that they are the same. Where a rule allows only one of them, two
that are equal agree, as equal edits do; two that differ are a violation, which the check of the merged state finds. An
edge that a base has was inserted by nobody: a side that lacks it has deleted it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from omniray.engine.branches.table_merge import NO_IDS
from omniray.engine.judge.keylog import key_columns
from omniray.engine.judge.relations import Relation, Sets
from omniray.engine.reading.table_diff import Part, apart, differing
from omniray.engine.schema.types import ID, EdgeType, ElementType, Unique
from omniray.engine.tables.table import ROWADDR, Table

PAIRS_AT_ONCE = 1 << 14


def agreeing_edges(type: ElementType, source: Table, target: Table, bases: Sequence[Table]) -> pa.Array:
    """The ids of the source's new edges in whose place an equal one of the target stays."""
    uniques = [rule for rule in type.constraints if isinstance(rule, Unique)]
    if not isinstance(type, EdgeType) or not uniques:
        return NO_IDS
    with Sets() as sets:
        there = _inserted(sets, type, source, bases)
        here = _inserted(sets, type, target, bases) if there.rows else there
        if not here.rows:
            return NO_IDS
        of_rules = " union ".join(_pairs(type, rule) for rule in uniques)
        sql = (
            f"select source, any_value(source_at) as source_at, arg_min(target_at, target) as target_at"
            f" from ({of_rules}) group by source order by source_at"
        )
        pairs = sets.query(sql, there=there, here=here)
    found = [_equal(pairs.slice(at, PAIRS_AT_ONCE), source, target) for at in range(0, pairs.num_rows, PAIRS_AT_ONCE)]
    return pa.chunked_array(found, pa.string()).combine_chunks()


def _inserted(sets: Sets, type: EdgeType, side: Table, bases: Sequence[Table]) -> Relation:
    """The keys and the addresses of a side's rows that no base has."""
    found: Relation | None = None
    for base in bases:
        gone, come = apart(base, side)
        relations = {"come": _keys(sets, type, come), "gone": _keys(sets, type, gone)}
        new = sets.derive("from {come} c anti join {gone} g on g.id = c.id", small=False, **relations)
        found = new if found is None else sets.derive(
            "from {found} f semi join {new} n on n.id = f.id", small=False, found=found, new=new
        )  # fmt: skip
    assert found is not None, "a merge has a base"
    return found


def _keys(sets: Sets, type: EdgeType, part: Part) -> Relation:
    """The keys of a part's rows, under their names in statements, and their addresses as `at`."""
    names = key_columns(type)
    fields = [pa.field(name, type.arrow.field(column).type) for column, name in names.items()]
    schema = pa.schema([*fields, pa.field("at", pa.uint64())])

    def batches() -> Iterator[pa.RecordBatch]:
        for rows in part.read(columns=list(names), addresses=True):
            yield from rows.select([*names, ROWADDR]).rename_columns(schema.names).cast(schema).to_batches()

    return sets.derive("from {r}", small=False, r=pa.RecordBatchReader.from_batches(schema, batches()))


def _pairs(type: EdgeType, rule: Unique) -> str:
    """The statement for the pairs of new edges that a rule does not allow beside each other."""
    equal = " and ".join(f"s.{c} = t.{c}" for c in (key_columns(type)[name] for name in rule.properties))
    return (
        "select s.id as source, s.at as source_at, t.id as target, t.at as target_at"
        f" from {{there}} s join {{here}} t on {equal}"
        " where s.id not in (select id from {here}) and t.id not in (select id from {there})"
    )


def _equal(pairs: pa.Table, source: Table, target: Table) -> pa.Array:
    """Of some pairs those whose edges are equal, as the ids of the source's."""
    columns = [name for name in source.type.arrow.names if name != ID]
    there = source.rows_at(pairs["source_at"].combine_chunks(), columns)
    here = target.rows_at(pairs["target_at"].combine_chunks(), columns)
    differs = np.zeros(pairs.num_rows, np.bool_)
    for name in columns:
        differs |= differing(there[name], here[name])
    return pairs["source"].combine_chunks().filter(pa.array(~differs))
