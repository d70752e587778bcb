"""Rules for the ends of edges: a written edge needs both nodes; a node that a remaining edge needs can't be removed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.base.errors import ConstraintViolation
from omniray.engine.judge.relations import Relation, shown, text
from omniray.engine.judge.table_judgement import Bench, Case, one_per_row
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import DST, ID, SRC, EdgeType

Nodes = Mapping[str, Case]
"""The judged node tables by type name."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The nodes at an edge type, as far as the rules need them, whichever of the written edges are rejected.

    `absent`: for each node type, the ids (id) that written edges name and that do not exist after the write.
    `stranded`: for each end whose nodes may be removed, the pinned edges (id and that end) at a removed node.
    """

    absent: Mapping[str, Relation]
    stranded: Mapping[str, Relation]


def look_up_ends(bench: Bench, edge: EdgeType, case: Case, nodes: Nodes) -> Ends:
    """Look up each node type at the edge, once."""
    absent = {}
    for name, ends in _ends_by_node_type(edge).items():
        unknown = _not_landing(bench, case.written, ends, nodes[name].live)
        is_all = nodes[name].mode is Mode.OVERWRITE
        absent[name] = unknown if is_all else _not_pinned(bench, nodes[name], unknown)
    removing = {end: nodes[name] for end, name in _ends(edge) if nodes[name].removes}
    if not removing or case.mode is Mode.OVERWRITE or bench.pinned.state.count(edge.table_key) == 0:
        return Ends(absent, {})
    return Ends(absent, {end: _edges_at_gone_nodes(bench, edge, end, node) for end, node in removing.items()})


def endpoint_violations(bench: Bench, edge: EdgeType, case: Case, ends: Ends) -> pa.Table:
    """Written edges whose node does not exist after the write; then one such pinned edge, if any, without a row.

    No record is to blame for the latter: the write deletes the node, or replaces its table.
    """
    written = [
        bench.violations(
            f"select row, record, source, '{ConstraintViolation.kind}' as kind, coalesce(l.id, '') as key,"
            f" '{end} ' || {shown(f'l.{end}')} || {text(f' not found in {node}')} as reason"
            f" from {{live}} l semi join {{absent}} a on a.id = l.{end}",
            live=case.live,
            absent=ends.absent[node],
        )
        for end, node in _ends(edge)
        if ends.absent[node].rows
    ]
    pinned = [
        bench.blameless(
            f"select e.id as key, '{end} ' || {shown(f'e.{end}')} || {text(f' not found in {node}: edge ')}"
            f" || {shown('e.id')} || {text(f' of {edge.name} still needs it')} as reason"
            " from {edges} e anti join {displaced} d on d.id = e.id",
            edges=ends.stranded[end],
            displaced=case.displaced,
        )
        for end, node in _ends(edge)
        if end in ends.stranded and ends.stranded[end].rows
    ]
    return pa.concat_tables([one_per_row(*written), *pinned])


def _ends(edge: EdgeType) -> tuple[tuple[str, str], ...]:
    return (SRC, edge.source), (DST, edge.target)


def _ends_by_node_type(edge: EdgeType) -> Mapping[str, tuple[str, ...]]:
    return {edge.source: (SRC, DST)} if edge.source == edge.target else {edge.source: (SRC,), edge.target: (DST,)}


def _edges_at_gone_nodes(bench: Bench, edge: EdgeType, end: str, node: Case) -> Relation:
    if node.mode is Mode.DELETE:
        return bench.pinned.meeting(edge, node.deleted, {end: ID}, (ID, end))
    sql = f"select e.id, e.{end} from {{edges}} e anti join {{nodes}} n on n.id = e.{end}"
    return bench.sets.derive(sql, small=False, edges=bench.pinned.all(edge, (ID, end)), nodes=node.live)


def _not_landing(bench: Bench, written: Relation, ends: tuple[str, ...], landing: Relation) -> Relation:
    """The ids at the ends of written edges that no node of the same write has, each once."""
    if written.arrow is not None and landing.arrow is not None:
        ids = pa.chunked_array([chunk for end in ends for chunk in written.arrow[end].chunks], pa.string()).unique()
        return Relation.of(_ids(ids.filter(pc.invert(pc.is_in(ids, value_set=landing.arrow[ID])))))
    passes = bench.sets.passes(landing.rows)
    found = [_not_landing_in(bench, written, ends, landing, number, passes) for number in range(passes)]
    if passes == 1:
        return found[0]
    together = {f"part_{number}": part for number, part in enumerate(found)}
    sql = " union all ".join(f"select id from {{{name}}}" for name in together)
    return bench.sets.derive(sql, small=False, **together)


def _not_landing_in(
    bench: Bench, written: Relation, ends: tuple[str, ...], landing: Relation, number: int, passes: int
) -> Relation:
    """One pass: the ids whose hash belongs to it, on both sides."""
    own = "true" if passes == 1 else f"hash(id) % {passes} = {number}"
    named = " union all ".join(f"select {end} as id from {{written}}" for end in ends)
    sql = (
        f"select distinct v.id from (from ({named}) where {own}) v"
        f" anti join (select id from {{landing}} where {own}) n on n.id = v.id"
    )
    return bench.sets.derive(sql, small=False, written=written, landing=landing)


def _not_pinned(bench: Bench, node: Case, unknown: Relation) -> Relation:
    """The ids that no pinned node has, or only one that the write deletes."""
    found = bench.pinned.present(node.type, unknown)
    if unknown.arrow is not None and found.arrow is not None and node.deleted.arrow is not None:
        ids = unknown.arrow[ID]
        goes = pc.is_in(ids, value_set=node.deleted.arrow[ID])
        return Relation.of(_ids(ids.filter(pc.or_(goes, pc.invert(pc.is_in(ids, value_set=found.arrow[ID]))))))
    staying = "select f.id from {found} f anti join {deleted} d on d.id = f.id"
    sql = f"select u.id from {{unknown}} u anti join ({staying}) s on s.id = u.id"
    return bench.sets.derive(sql, small=False, unknown=unknown, found=found, deleted=node.deleted)


def _ids(ids: pa.Array | pa.ChunkedArray) -> pa.Table:
    return pa.table({ID: ids})
