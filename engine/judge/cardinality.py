"""The cardinality rule: each source node that a write touches ends up with as many edges as `@card` allows."""

from __future__ import annotations

import pyarrow as pa

from omniray.engine.base.errors import ConstraintViolation
from omniray.engine.judge.relations import Relation, shown, text
from omniray.engine.judge.table_judgement import NO_VIOLATIONS, Bench, Case, one_per_row
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import SRC, Cardinality, EdgeType


def look_up_degrees(bench: Bench, edge: EdgeType, case: Case) -> Relation:
    """The pinned edges (src) of all sources that the write may touch, whichever of its rows are rejected.

    An overwrite touches every source that has an edge and removes these edges: each source is listed once.
    """
    if case.mode is Mode.OVERWRITE:
        # A source that loses its edges can only have too few.
        if edge.cardinality.low == 0 or bench.pinned.state.count(edge.table_key) == 0:
            return bench.pinned.nothing(edge, (SRC,))
        return bench.sets.derive("select distinct src from {edges}", small=False, edges=bench.pinned.all(edge, (SRC,)))
    touched = case.written
    if case.same_id().rows:
        sql = "select src from {written} union select src from {same_id}"
        small = case.written.arrow is not None and case.same_id().arrow is not None
        touched = bench.sets.derive(sql, small=small, written=case.written, same_id=case.same_id())
    return bench.pinned.meeting(edge, touched, {SRC: SRC}, (SRC,))


def cardinality_violations(bench: Bench, edge: EdgeType, case: Case, node: Case, pinned: Relation) -> pa.Table:
    """The rows that give a source too few or too many edges; then one such source without written rows, if any."""
    if _is_surely_kept(edge.cardinality, case, pinned):
        return NO_VIOLATIONS
    sources = _unbalanced(bench, edge.cardinality, case, node, pinned)
    if sources.rows == 0:
        return NO_VIOLATIONS
    select = (
        f"select row, record, source, '{ConstraintViolation.kind}' as kind, coalesce(id, '') as key,"
        f" {_reason(edge)} as reason"
    )
    too_few = bench.violations(
        f"{select} from (select l.*, n from {{live}} l join {{sources}} s on s.src = l.src"
        f" where n < {edge.cardinality.low})",
        live=case.live,
        sources=sources,
    )
    found = one_per_row(too_few, _latest_of_too_many(bench, edge.cardinality, case, sources, select))
    untouched = f"select {_reason(edge)} as reason, src as key from {{sources}} where lands = 0"
    nobody = bench.blameless(untouched, sources=sources)
    return pa.concat_tables([found, nobody])


def _latest_of_too_many(bench: Bench, bounds: Cardinality, case: Case, sources: Relation, select: str) -> pa.Table:
    """Just enough rows of each source with too many edges; rows that only update an edge come last: they add none."""
    if bounds.high is None:
        return NO_VIOLATIONS
    ranked = """
        select l.*, n, row_number() over (partition by l.src order by d.id is not null, l.row desc) as latest
        from {live} l join {sources} s on s.src = l.src left join {displaced} d on d.id = l.id and d.src = l.src"""
    return bench.violations(
        f"{select} from ({ranked}) where latest <= n - {bounds.high}",
        live=case.live,
        sources=sources,
        displaced=case.displaced,
    )


def _is_surely_kept(bounds: Cardinality, case: Case, pinned: Relation) -> bool:
    """Whether the row counts alone prove that no source breaks the bounds."""
    never_too_many = bounds.high is None or case.live.rows + pinned.rows <= bounds.high
    loses_none = case.mode is not Mode.OVERWRITE and case.displaced.rows == 0
    # A source that only gains edges has at least one.
    never_too_few = bounds.low == 0 or (bounds.low == 1 and loses_none)
    return never_too_many and never_too_few


def _unbalanced(bench: Bench, bounds: Cardinality, case: Case, node: Case, pinned: Relation) -> Relation:
    """Touched sources (src, lands, n) that exist after the write with `n` edges out of bounds, `lands` of them new."""
    leaves = 1 if case.mode is Mode.OVERWRITE else 0
    relations = {"live": case.live, "pinned": pinned, "displaced": case.displaced}
    exists = "true"
    if node.mode is Mode.DELETE:
        exists, relations["nodes"] = "src not in (select id from {nodes})", node.deleted
    elif node.mode is Mode.OVERWRITE:
        exists, relations["nodes"] = "src in (select id from {nodes})", node.live
    too_many = f" or n > {bounds.high}" if bounds.high is not None else ""
    sql = f"""
        select src, lands, n from (
            select src, sum(lands)::bigint as lands, sum(leaves) as leaves, sum(lands + stays - leaves)::bigint as n
            from (select src, 1 as lands, 0 as leaves, 0 as stays from {{live}}
                  union all select src, 0, 1, 0 from {{displaced}}
                  union all select src, 0, {leaves}, 1 from {{pinned}})
            group by src)
        where lands + leaves > 0 and (n < {bounds.low}{too_many}) and {exists}"""
    return bench.sets.derive(sql, small=case.written.arrow is not None, **relations)


def _reason(edge: EdgeType) -> str:
    allowed = f"{edge.cardinality.low}..{'*' if edge.cardinality.high is None else edge.cardinality.high}"
    start, end = text(f"@card violation on edge {edge.name}: source "), text(f" edges, allowed {allowed}")
    return f"{start} || {shown('src')} || ' has ' || n || {end}"
