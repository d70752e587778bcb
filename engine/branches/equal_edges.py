"""Edges that both sides inserted, equal in everything but their ids: one of each two stays, the target's.

Edges without a unique rule are kept both: nobody says that they are the same. Where a rule allows only one of them, two
that are equal agree, as equal edits do; two that differ are a violation, which the check of the merged state finds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.branches.table_merge import LOOKUP_IDS_MAX, NO_IDS
from omniray.engine.judge.keylog import key_columns
from omniray.engine.judge.relations import Relation, Sets
from omniray.engine.reading.table_diff import Ids, Part, apart, differing
from omniray.engine.schema.types import ID, EdgeType, ElementType, Unique
from omniray.engine.tables.table import Table


def agreeing_edges(type: ElementType, source: Table, target: Table) -> pa.Array:
    """The ids of the source's new edges in whose place an equal one of the target stays."""
    uniques = [rule for rule in type.constraints if isinstance(rule, Unique)]
    if not isinstance(type, EdgeType) or not uniques:
        return NO_IDS
    there, here = apart(source, target)
    if not there.rows or not here.rows:
        return NO_IDS
    with Sets() as sets:
        relations = {"there": _keys(sets, type, there), "here": _keys(sets, type, here)}
        of_rules = " union ".join(_pairs(type, rule) for rule in uniques)
        pairs = sets.query(f"select source, min(target) as target from ({of_rules}) group by source", **relations)
    found = [_equal(pairs.slice(at, LOOKUP_IDS_MAX), there, here) for at in range(0, pairs.num_rows, LOOKUP_IDS_MAX)]
    return pa.chunked_array(found, pa.string()).combine_chunks()


def _keys(sets: Sets, type: EdgeType, part: Part) -> Relation:
    """The keys of a part's rows, under their names in statements."""
    names = key_columns(type)
    fields = [pa.field(name, type.arrow.field(column).type) for column, name in names.items()]

    def batches() -> Iterator[pa.RecordBatch]:
        for rows in part.read(columns=list(names)):
            yield from rows.rename_columns(list(names.values())).cast(schema).to_batches()

    schema = pa.schema(fields)
    return sets.derive("from {r}", small=False, r=pa.RecordBatchReader.from_batches(schema, batches()))


def _pairs(type: EdgeType, rule: Unique) -> str:
    """The statement for the pairs of new edges that a rule does not allow beside each other."""
    equal = " and ".join(f"s.{c} = t.{c}" for c in (key_columns(type)[name] for name in rule.properties))
    return (
        f"select s.id as source, t.id as target from {{there}} s join {{here}} t on {equal}"
        " where s.id not in (select id from {here}) and t.id not in (select id from {there})"
    )


def _equal(pairs: pa.Table, there: Part, here: Part) -> pa.Array:
    """Of some pairs those whose edges are equal, as the ids of the source's."""
    columns = [name for name in there.table.type.arrow.names if name != ID]
    source, target = (_rows(part, pairs[name]) for part, name in ((there, "source"), (here, "target")))
    differs = np.zeros(pairs.num_rows, np.bool_)
    for name in columns:
        differs |= differing(source[name], target[name])
    return pairs["source"].combine_chunks().filter(pa.array(~differs))


def _rows(part: Part, ids: pa.ChunkedArray) -> pa.Table:
    """The rows of some ids, in their order."""
    wanted = ids.combine_chunks()
    rows = part.read_all(Ids(among=wanted.unique()))
    return rows.take(pc.index_in(wanted, value_set=rows[ID].combine_chunks()))
