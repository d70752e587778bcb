"""The rows that other writers moved in the target while a merge is under way: a few, by their keys.

A plan that was made on an earlier head stands, if the source changed none of these; and of what the plan writes and
removes, only what has a key in common with them is checked again. So a race that a merge loses costs little, however
large the merge is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.branches.merge_keys import REMOVED, WRITTEN, MergeKeys
from omniray.engine.judge.keylog import key_columns
from omniray.engine.judge.relations import Relation, Sets
from omniray.engine.reading.table_diff import BYTES_AT_ONCE, apart, differing
from omniray.engine.schema.types import DST, ID, SRC, EdgeType, ElementType, NodeType, Schema, Unique
from omniray.engine.tables.table import ROWADDR, Table

Addresses = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class MovedRows:
    """The rows of one table that came and went between two versions, with the columns that rules need.

    A row that a small write merely moved, with the tail of the table, neither came nor went: `was` and `moved` are its
    addresses in both versions.
    """

    come: pa.Table
    gone: pa.Table
    was: Addresses
    moved: Addresses

    @classmethod
    def between(cls, before: Table, now: Table, *, rows_max: int) -> MovedRows | None:
        """None if they are too many."""
        parts = apart(before, now)
        if sum(part.rows for part in parts) > rows_max or sum(part.size_bytes for part in parts) > BYTES_AT_ONCE:
            return None
        gone, come = (part.read_all(addresses=True) for part in parts)
        old_ids, new_ids = gone[ID].combine_chunks(), come[ID].combine_chunks()
        found = pc.index_in(new_ids, value_set=old_ids)
        old, new = gone.take(found.drop_null()), come.filter(found.is_valid())
        is_other = [differing(old[name], new[name]) for name in before.type.arrow.names]
        is_same = pa.array(~np.logical_or.reduce([*is_other, np.zeros(old.num_rows, np.bool_)]))
        old, new = old.filter(is_same).sort_by(ROWADDR), new.filter(is_same)
        new = new.take(pc.index_in(old[ID], value_set=new[ID].combine_chunks()))
        columns = list(key_columns(before.type))
        is_moved = (pc.is_in(ids, value_set=old[ID].combine_chunks()) for ids in (new_ids, old_ids))
        came, went = (rows.filter(pc.invert(those)) for rows, those in zip((come, gone), is_moved, strict=True))
        return cls(came.select(columns), went.select(columns), old[ROWADDR].to_numpy(), new[ROWADDR].to_numpy())

    @property
    def rows(self) -> pa.Table:
        return pa.concat_tables([self.come, self.gone])

    @property
    def ids(self) -> pa.Array:
        return self.rows[ID].unique()

    def followed(self, elsewhere: Callable[[Addresses], Addresses]) -> Callable[[Addresses], Addresses]:
        """Where rows are now that neither came nor went; `elsewhere` says it of those in files of both versions."""

        def moved(addresses: Addresses) -> Addresses:
            place = np.searchsorted(self.was, addresses)
            is_here = np.zeros(len(addresses), np.bool_)
            inside = place < len(self.was)
            is_here[inside] = self.was[place[inside]] == addresses[inside]
            found = addresses.copy()
            found[is_here] = self.moved[place[is_here]]
            found[~is_here] = elsewhere(addresses[~is_here])
            return found

        return moved

    def then(self, later: MovedRows) -> MovedRows:
        """With those that came and went after them."""
        come, gone = pa.concat_tables([self.come, later.come]), pa.concat_tables([self.gone, later.gone])
        return MovedRows(come, gone, later.was, later.moved)


def may_agree(edge: EdgeType, keys: MergeKeys, moved: MovedRows) -> bool:
    """Whether an edge that came may stand for one that the merge writes."""
    where, come = _equal(edge, moved)
    with keys.sets() as sets:
        return bool(_selected(sets, keys, edge, f"k.record = {WRITTEN} and ({where})", come=come).num_rows)


def concerned(schema: Schema, keys: MergeKeys, moved: Mapping[str, MovedRows]) -> MergeKeys:
    """Of a merge's keys, those that a rule may join with moved rows.

    They are all that is needed to find each violation that was not there before, if there was none.
    """
    nodes = {node.name: _touched(schema, node, moved) for node in schema.nodes}
    found = MergeKeys(schema)
    with keys.sets() as sets:
        for edge in schema.edges:
            at_them = "k.src in (select id from {at_src}) or k.dst in (select id from {at_dst})"
            equal, come = _equal(edge, moved.get(edge.table_key))
            ends = {"at_src": Relation.of(nodes[edge.source]), "at_dst": Relation.of(nodes[edge.target])}
            rows = _selected(sets, keys, edge, f"{at_them} or {equal}", come=come, **ends)
            _add(found, edge, rows)
            written = rows.filter(pc.field("record") == WRITTEN)
            for end, name in ((SRC, edge.source), (DST, edge.target)):
                nodes[name] = pa.concat_tables([nodes[name], _ids(written[end])])
        for node in schema.nodes:
            equal, come = _equal(node, moved.get(node.table_key))
            named = Relation.of(nodes[node.name])
            _add(
                found,
                node,
                _selected(sets, keys, node, f"k.id in (select id from {{named}}) or {equal}", come=come, named=named),
            )
    return found


def _touched(schema: Schema, node: NodeType, moved: Mapping[str, MovedRows]) -> pa.Table:
    """The nodes of a type that were moved, or are at a moved edge."""
    found = [_ids(moved[node.table_key].rows[ID])] if node.table_key in moved else []
    for edge in schema.edges_at(node.name):
        if edge.table_key in moved:
            ends = [end for end, name in ((SRC, edge.source), (DST, edge.target)) if name == node.name]
            found += [_ids(moved[edge.table_key].rows[end]) for end in ends]
    return pa.concat_tables([_ids(pa.chunked_array([], pa.string())), *found])


def _ids(values: pa.ChunkedArray) -> pa.Table:
    return pa.table({ID: values.cast(pa.string())})


def _equal(type: ElementType, moved: MovedRows | None) -> tuple[str, Relation]:
    """The condition for keys with the values of a unique rule in common with a row that came, and these rows."""
    if moved is None:
        return "false", Relation.of(pa.table({ID: pa.array([], pa.string())}))
    names = key_columns(type)
    rules = (rule.properties for rule in type.constraints if isinstance(rule, Unique))
    equal = (" and ".join(f"c.{names[name]} = k.{names[name]}" for name in properties) for properties in rules)
    conditions = [f"exists (select 1 from {{come}} c where {one})" for one in equal]
    come = moved.come.rename_columns([names[column] for column in moved.come.column_names])
    return " or ".join(conditions) or "false", Relation.of(come)


def _selected(sets: Sets, keys: MergeKeys, type: ElementType, where: str, **relations: Relation) -> pa.Table:
    return sets.query(f"select k.* from {{keys}} k where {where}", keys=keys.of(type), **relations)


def _add(found: MergeKeys, type: ElementType, rows: pa.Table) -> None:
    columns = key_columns(type)
    for which in (WRITTEN, REMOVED):
        some = rows.filter(pc.field("record") == which).select(list(columns.values())).rename_columns(list(columns))
        nothing = some.slice(0, 0)
        found.add(type, some if which == WRITTEN else nothing, nothing if which == WRITTEN else some)
