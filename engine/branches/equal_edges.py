"""Edges that are the same on both sides of a merge, although each side gave them an id of its own.

Edges without a unique rule are kept both: nobody says that they are the same. Where a rule allows only one of them:

- Two that both sides inserted, equal in everything but their ids, agree, as equal edits do: the target's stays. Two
  that differ are a violation, which the check of the merged state finds.
- An edge of a base that one side lacks, while it has inserted one between the same nodes, was replaced: the new one
  takes its place. So what the other side did to the old one meets the new one, also after a merge in which two agreed.

An edge that a base has was inserted by nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.judge.keylog import key_columns
from omniray.engine.judge.relations import Relation, Sets
from omniray.engine.reading.table_diff import Part, apart, differing
from omniray.engine.rows.casts import Mask
from omniray.engine.schema.types import DST, ID, SRC, EdgeType, ElementType, Unique
from omniray.engine.tables.table import ROWADDR, Table

PAIRS_AT_ONCE = 1 << 14
_NO_IDS = pa.array([], pa.string())


@dataclass(frozen=True, slots=True)
class Replaced:
    """Edges that others are in the place of: their ids, and the others' ids and addresses."""

    ids: pa.Array = field(default_factory=lambda: _NO_IDS)
    by: pa.Array = field(default_factory=lambda: _NO_IDS)
    addresses: npt.NDArray[np.uint64] = field(default_factory=lambda: np.array([], np.uint64))


@dataclass(frozen=True, slots=True)
class EqualEdges:
    """`agreed` are the source's new edges for which equal ones of the target stay: `by`."""

    agreed: Replaced = field(default_factory=Replaced)
    on_source: Replaced = field(default_factory=Replaced)
    on_target: Replaced = field(default_factory=Replaced)

    def rests_on(self, ids: pa.Array) -> bool:
        """Whether one of these of the target's is equal to one of the source's."""
        return any(pc.any(pc.is_in(ids, value_set=edges.by)).as_py() for edges in (self.agreed, self.on_target))


def equal_edges(type: ElementType, source: Table, target: Table, bases: Sequence[Table]) -> EqualEdges:
    """The edges of a type that are the same on both sides under different ids."""
    uniques = [rule for rule in type.constraints if isinstance(rule, Unique)]
    if not isinstance(type, EdgeType) or not uniques:
        return EqualEdges()
    with Sets() as sets:
        there, here = (_Side(sets, type, side, bases) for side in (source, target))
        agreed = _agreed(sets, type, uniques, there, here)
        of_ends = [rule for rule in uniques if {SRC, DST} <= set(rule.properties)]
        on_source = _replaced(sets, type, of_ends, bases, there, here)
        on_target = _replaced(sets, type, of_ends, bases, here, there)
    return EqualEdges(agreed, on_source, on_target)


class _Side:
    """The keys of one side's edges beside each base (`gone`, `come`), and of those that no base has (`inserted`)."""

    def __init__(self, sets: Sets, type: EdgeType, table: Table, bases: Sequence[Table]) -> None:
        self.table = table
        parts = [apart(base, table) for base in bases]
        self.beside = [(_keys(sets, type, gone), _keys(sets, type, come)) for gone, come in parts]
        self.inserted = self.beside[0][1]
        for gone, come in self.beside:
            self.inserted = sets.derive(
                "from {inserted} i semi join {come} c on c.id = i.id anti join {gone} g on g.id = i.id",
                small=False, inserted=self.inserted, come=come, gone=gone,
            )  # fmt: skip


def _keys(sets: Sets, type: EdgeType, part: Part) -> Relation:
    """The keys of a part's rows, under their names in statements, and their addresses as `address`."""
    names = key_columns(type)
    fields = [pa.field(name, type.arrow.field(column).type) for column, name in names.items()]
    schema = pa.schema([*fields, pa.field("address", pa.uint64())])

    def batches() -> Iterator[pa.RecordBatch]:
        for rows in part.read(columns=list(names), addresses=True):
            yield from rows.select([*names, ROWADDR]).rename_columns(schema.names).cast(schema).to_batches()

    return sets.derive("from {r}", small=False, r=pa.RecordBatchReader.from_batches(schema, batches()))


def _same(type: EdgeType, rule: Unique, one: str, other: str) -> str:
    """The condition for two rows that a rule does not allow beside each other."""
    names = key_columns(type)
    return " and ".join(f"{one}.{names[name]} = {other}.{names[name]}" for name in rule.properties)


# Agreed


def _agreed(sets: Sets, type: EdgeType, rules: Sequence[Unique], there: _Side, here: _Side) -> Replaced:
    if not there.inserted.rows or not here.inserted.rows:
        return Replaced()
    of_rules = " union ".join(
        f"select s.id, s.address, t.id as other, t.address as other_address from {{there}} s join {{here}} t on"
        f" {_same(type, rule, 's', 't')}"
        " where s.id not in (select id from {here}) and t.id not in (select id from {there})"
        for rule in rules
    )
    sql = (
        "select id, any_value(address) as address, min(other) as other, arg_min(other_address, other) as other_address"
        f" from ({of_rules}) group by id order by address"
    )
    pairs = sets.query(sql, there=there.inserted, here=here.inserted)
    equal = _equal(there.table, pairs["address"], here.table, pairs["other_address"])
    found = pairs.filter(pa.array(equal))
    return Replaced(found["id"].combine_chunks(), found["other"].combine_chunks(), found["other_address"].to_numpy())


def _equal(one: Table, addresses: pa.ChunkedArray, other: Table, others: pa.ChunkedArray) -> Mask:
    """Which rows of two versions, by their addresses, are equal in all columns but the id."""
    columns = [name for name in one.type.arrow.names if name != ID]
    found = [np.array([], np.bool_)]
    for start in range(0, len(addresses), PAIRS_AT_ONCE):
        here, there = (column.slice(start, PAIRS_AT_ONCE).combine_chunks() for column in (addresses, others))
        rows, other_rows = one.rows_at(here, columns), other.rows_at(there, columns)
        found.append(~np.logical_or.reduce([differing(rows[name], other_rows[name]) for name in columns]))
    return np.concatenate(found)


# Replaced


def _replaced(
    sets: Sets, type: EdgeType, rules: Sequence[Unique], bases: Sequence[Table], side: _Side, other: _Side
) -> Replaced:
    """The edges of every base that one side has replaced, and the other has changed or deleted, but not replaced."""
    if not side.inserted.rows:
        return Replaced()
    found = [
        pa.concat_tables(_replaced_since(sets, type, rule, base, n, side, other) for n, base in enumerate(bases))
        for rule in rules
    ]
    in_every_base = " union ".join(
        f"select id, new_id, any_value(address) as address from {{pairs_{n}}} group by id, new_id"
        f" having count(*) = {len(bases)}"
        for n, pairs in enumerate(found)
        if pairs.num_rows
    )
    if not in_every_base:
        return Replaced()
    sql = (
        "select * from (select id, min(new_id) as new_id, arg_min(address, new_id) as address"
        f" from ({in_every_base}) group by id) qualify row_number() over (partition by new_id order by id) = 1"
    )
    pairs = sets.query(sql, **{f"pairs_{n}": Relation.of(pairs) for n, pairs in enumerate(found)})
    return Replaced(pairs["id"].combine_chunks(), pairs["new_id"].combine_chunks(), pairs["address"].to_numpy())


def _replaced_since(
    sets: Sets, type: EdgeType, rule: Unique, base: Table, number: int, side: _Side, other: _Side
) -> pa.Table:
    """The edges of one base, by one rule, with the ids and addresses of those that replaced them."""
    (gone, come), (gone_there, come_there) = side.beside[number], other.beside[number]
    sql = f"""
        select s.id, t.id as new_id, t.address, s.address as in_base, o.address as there
        from {{gone_there}} s join {{inserted}} t on {_same(type, rule, "s", "t")}
        semi join {{gone}} g on g.id = s.id
        anti join {{come}} c on c.id = s.id
        anti join {{inserted_there}} i on i.id = t.id
        anti join {{inserted_there}} j on {_same(type, rule, "j", "s")}
        left join {{come_there}} o on o.id = s.id
        order by in_base"""
    found = sets.query(
        sql, gone=gone, come=come, gone_there=gone_there, come_there=come_there,
        inserted=side.inserted, inserted_there=other.inserted,
    )  # fmt: skip
    is_there = found["there"].is_valid()
    kept = found.filter(is_there)
    is_kept = _equal(base, kept["in_base"], other.table, kept["there"])
    changed = kept.filter(pa.array(~is_kept))
    return pa.concat_tables([found.filter(pc.invert(is_there)), changed]).select(["id", "new_id", "address"])
