"""Checks the state that a merge would make, adopted tables included, by every rule over several rows.

Each side is valid by itself, so a rule can only be broken where the two meet: rows that the merge writes or removes,
held against the target's. These are looked up by key; no table is read as a whole for a few of them. All violations are
found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from omniray.engine.branches.conflicts import ConflictKind, Conflicts, MergeConflict, shown
from omniray.engine.branches.merge_keys import REMOVED, WRITTEN, MergeKeys
from omniray.engine.branches.table_merge import How
from omniray.engine.judge.constraints import LOOKUP_KEYS_MAX
from omniray.engine.judge.keylog import key_columns
from omniray.engine.judge.pinned import Pinned, State
from omniray.engine.judge.relations import Relation, Sets
from omniray.engine.rows.records import RawBatch, numbered
from omniray.engine.rows.row_validation import conform
from omniray.engine.schema.types import ANY_CARDINALITY, DST, ID, SRC, EdgeType, ElementType, Schema, Unique

ENDS = (SRC, DST)


@dataclass(frozen=True)
class MergeCheck:
    """The rules over a merge: what it does with each table, the keys of its rows, and the target's state.

    `is_as_source` says of a table whether it will be just as on the source; `degrees` how many edges of a type some
    nodes have there, of those that are there.
    """

    schema: Schema
    how: Mapping[str, How]
    is_as_source: Mapping[str, bool]
    keys: MergeKeys
    state: State
    degrees: Callable[[EdgeType, pa.Array], Mapping[str, int]]
    conflicts: Conflicts
    _gone: dict[str, Relation] = field(default_factory=dict)

    def run(self) -> None:
        """Find every violation."""
        with self.keys.sets() as sets:
            pinned = Pinned(self.state, sets, LOOKUP_KEYS_MAX)
            for type in self.schema:
                if self.how[type.table_key] is How.ROWS:
                    for rule in type.constraints:
                        if isinstance(rule, Unique):
                            self._unique(sets, pinned, type, rule)
                if isinstance(type, EdgeType):
                    self._ends(sets, pinned, type)
                    if self._may_break_cardinality(type):
                        self._cardinality(sets, pinned, type)

    # Ends

    def _ends(self, sets: Sets, pinned: Pinned, edge: EdgeType) -> None:
        nodes = {SRC: self.schema.node(edge.source), DST: self.schema.node(edge.target)}
        written = self._rows(sets, edge, WRITTEN)
        missing: list[str] = []
        relations = {"written": written}
        for end, node in nodes.items():
            # As on the source both, edges find their nodes. But a written edge may have an end that the target gave it.
            if written.rows and not (self.is_as_source[node.table_key] and self.is_as_source[edge.table_key]):
                relations[f"no_{end}"] = self._absent(sets, pinned, edge, end, node)
                missing.append(
                    f"select w.id, '{end}' as property, w.{end} as node from {{written}} w"
                    f" semi join {{no_{end}}} a on a.id = w.{end}"
                )
        self._orphans(sets, edge, missing, relations, "source", "one side deleted it")
        if self.is_as_source[edge.table_key] or self.state.count(edge.table_key) == 0:
            return
        stranded: list[str] = []
        relations = {"removed": self._rows(sets, edge, REMOVED)}
        for end, node in nodes.items():
            gone = self._gone_nodes(sets, node)
            if gone.rows:
                relations[f"at_{end}"] = pinned.meeting(edge, gone, {end: ID}, (ID, end))
                stranded.append(
                    f"select e.id, '{end}' as property, e.{end} as node from {{at_{end}}} e"
                    " anti join {removed} d on d.id = e.id"
                )
        self._orphans(sets, edge, stranded, relations, "target", "the source deleted it")

    def _orphans(
        self, sets: Sets, edge: EdgeType, found: Sequence[str], relations: Mapping[str, Relation], side: str, why: str
    ) -> None:
        if not found:
            return
        sql = (
            "select id, list(property order by property desc) as properties, list(node order by property desc) as nodes"
        )
        sql += f" from ({' union all '.join(found)}) group by id"
        used = {name: relation for name, relation in relations.items() if f"{{{name}}}" in sql}
        kinds = {SRC: edge.source, DST: edge.target}
        for row in self._listed(sets, sql, used):
            ends = dict(zip(row["properties"], row["nodes"], strict=True))
            at = " and ".join(f"{end} {node!r} of {kinds[end]}" for end, node in ends.items())
            values = shown(ends, tuple(ends))
            self._add(
                MergeConflict(
                    ConflictKind.ORPHAN_EDGE, edge.name, row["id"], tuple(ends),
                    source=values if side == "source" else None, target=values if side == "target" else None,
                    reason=f"needs {at}, and {why}",
                )
            )  # fmt: skip

    def _absent(self, sets: Sets, pinned: Pinned, edge: EdgeType, end: str, node: ElementType) -> Relation:
        """The nodes that written edges name at one end and that the merged state does not have."""
        named = sets.derive(
            f"select distinct e.{end} as id from {{edges}} e anti join {{nodes}} n on n.id = e.{end}",
            small=False, edges=self._rows(sets, edge, WRITTEN), nodes=self._rows(sets, node, WRITTEN),
        )  # fmt: skip
        found = pinned.present(node, named)
        sql = (
            "select n.id from {named} n anti join"
            " (select f.id from {found} f anti join {gone} g on g.id = f.id) s on s.id = n.id"
        )
        return sets.derive(sql, small=False, named=named, found=found, gone=self._gone_nodes(sets, node))

    def _gone_nodes(self, sets: Sets, node: ElementType) -> Relation:
        """The target's nodes that the merge removes for good."""
        if node.table_key not in self._gone:
            removed, written = (self._rows(sets, node, which) for which in (REMOVED, WRITTEN))
            self._gone[node.table_key] = sets.derive(
                "select distinct r.id from {removed} r anti join {written} w on w.id = r.id",
                small=removed.arrow is not None, removed=removed, written=written,
            )  # fmt: skip
        return self._gone[node.table_key]

    # Uniqueness

    def _unique(self, sets: Sets, pinned: Pinned, type: ElementType, rule: Unique) -> None:
        written = self._rows(sets, type, WRITTEN)
        if not written.rows:
            return
        names = key_columns(type)
        columns = [names[name] for name in rule.properties]
        wanted = dict(zip(rule.properties, columns, strict=True))
        standing = pinned.meeting(type, written, wanted, tuple(dict.fromkeys((ID, *rule.properties))))
        equal = " and ".join(f"w.{c} = o.{c}" for c in columns)
        values = ", ".join(f"w.{c}" for c in columns)
        sql = f"""
            select w.id, min(o.id) as other, {values} from {{written}} w join (
                select id, {", ".join(columns)} from {{standing}} s where id not in (select id from {{removed}})
                union all select id, {", ".join(columns)} from {{written}}
            ) o on {equal} and o.id <> w.id
            group by w.id, {values}"""
        relations = {"written": written, "standing": standing, "removed": self._rows(sets, type, REMOVED)}
        for row in self._listed(sets, sql, relations):
            properties = rule.properties
            same = shown({name: row[c] for name, c in wanted.items()}, properties)
            reason = f"{', '.join(properties)} must be unique, and {row['other']!r} has the same"
            kind = ConflictKind.UNIQUE_VIOLATION
            self._add(MergeConflict(kind, type.name, row["id"], properties, same, same, reason))

    # Cardinality

    def _may_break_cardinality(self, edge: EdgeType) -> bool:
        """Whether nodes may have too many or too few edges; of an adopted table only nodes that the source lacks."""
        if self.how[edge.table_key] is How.ADOPT:
            return edge.cardinality.low > 0 and not self.is_as_source[self.schema.node(edge.source).table_key]
        return self.how[edge.table_key] is How.ROWS and edge.cardinality != ANY_CARDINALITY

    def _cardinality(self, sets: Sets, pinned: Pinned, edge: EdgeType) -> None:
        keys = self.keys.of(edge)
        if not keys.rows:
            return
        touched = sets.derive("select distinct src from {keys}", small=keys.arrow is not None, keys=keys)
        standing = pinned.meeting(edge, touched, {SRC: SRC}, (ID, SRC))
        bounds = edge.cardinality
        too_many = "" if bounds.high is None else f" or n > {bounds.high}"
        sql = f"""
            select src as id, sum(here)::bigint as here, sum(n)::bigint as n from (
                select src, 1 as here, case when id in (select id from {{removed}}) then 0 else 1 end as n
                from {{standing}}
                union all select src, 0, 1 from {{written}}
                union all select src, 0, 0 from {{touched}})
            where src not in (select id from {{gone}}) group by src having n < {bounds.low}{too_many}"""
        relations = {
            "standing": standing,
            "removed": self._rows(sets, edge, REMOVED),
            "written": self._rows(sets, edge, WRITTEN),
            "touched": touched,
            "gone": self._gone_nodes(sets, self.schema.node(edge.source)),
        }
        found = sets.query(f"from ({sql}) order by id", **relations)
        for some in found.to_batches(max_chunksize=LOOKUP_KEYS_MAX):
            self._not_as_source(edge, some.to_pylist(), self.degrees(edge, some["id"]))

    def _not_as_source(self, edge: EdgeType, rows: Sequence[Mapping[str, Any]], there: Mapping[str, int]) -> None:
        """Add those nodes among some that have another number of edges than on the source, which is valid by itself.

        A node that was deleted and inserted anew may have none there, whatever the lower bound.
        """
        bounds = edge.cardinality
        allowed = f"{bounds.low}..{'*' if bounds.high is None else bounds.high}"
        for row in rows:
            if there.get(row["id"]) == row["n"]:
                continue
            reason = f"source {row['id']!r} would have {row['n']} edges, allowed {allowed}"
            source, target = {"edges": there.get(row["id"], 0)}, {"edges": row["here"]}
            kind = ConflictKind.CARDINALITY_VIOLATION
            self.conflicts.add((MergeConflict(kind, edge.name, row["id"], (SRC,), source, target, reason),), count=1)

    # Results

    def _rows(self, sets: Sets, type: ElementType, which: int) -> Relation:
        keys = self.keys.of(type)
        if not keys.rows:
            return keys
        sql = f"select * from {{keys}} where record = {which}"
        return sets.derive(sql, small=keys.arrow is not None, keys=keys)

    def _listed(self, sets: Sets, sql: str, relations: Mapping[str, Relation]) -> Iterator[Mapping[str, Any]]:
        """The first rows of a statement by id, as many as there is room for; all of them are counted."""
        found = sets.derive(sql, small=False, **relations)
        self.conflicts.add((), count=found.rows)
        if found.rows and self.conflicts.room:
            yield from sets.query(f"from {{r}} order by id limit {self.conflicts.room}", r=found).to_pylist()

    def _add(self, conflict: MergeConflict) -> None:
        self.conflicts.add((conflict,), count=0)


def refuse_values(type: ElementType, rows: pa.Table, conflicts: Conflicts) -> None:
    """Note the merged rows that break a rule over their own values."""
    if not rows.num_rows:
        return
    columns: dict[str, pa.Array] = {name: rows[name].combine_chunks() for name in rows.column_names}
    _, rejections = conform(RawBatch(type, columns, numbered(0, rows.num_rows), ""))
    found = (
        MergeConflict(ConflictKind.VALUE_CONSTRAINT_VIOLATION, type.name, id, reason=one.reason)
        for one, id in ((one, columns[ID][one.record].as_py()) for one in rejections)
    )
    conflicts.add(found, count=len(rejections))
