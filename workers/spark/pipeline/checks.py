"""The rules over many rows as distributed joins: keys, `@unique`, the ends of edges, `@card`.

The engine judges the whole commit again, by the same rules, and refuses it as a whole. Here the rows that it would
refuse are found first and taken out, each with its reason. A rule mostly finds few rows, so its findings are cached and
joined with the rows of a type, of which there may be any number; no rows come to the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Self

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from omniray.engine.base.errors import ConstraintViolation
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import ANY_CARDINALITY, DST, ID, SRC, EdgeType, Unique
from omniray.workers.spark.pipeline.config import Keep
from omniray.workers.spark.pipeline.conforming import BY, DETAIL, REASON, ROW
from omniray.workers.spark.pipeline.pinned import PinnedGraph
from omniray.workers.spark.pipeline.plan import TypePlan
from omniray.workers.spark.pipeline.reasons import Reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHOOSES_PARTITIONS = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"
PASSES_MAX = 64
_SHOWN_CHARS_MAX = 80
_SHOWN_KEYS_MAX = 3
_RANK, _USED, _COUNT, _AHEAD, _ADOPTED = "#rank", "#used", "#count", "#ahead", "#adopted"


class Held:
    """Frames that are cached until the run ends.

    Meanwhile Spark may choose their number of partitions. Otherwise it makes hundreds for the few rows that a rule
    finds, and each later job needs as many tasks to read them, which takes longer than all the work.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._conf = spark.conf
        self._chose = str(self._conf.get(CHOOSES_PARTITIONS))
        self._frames: list[DataFrame] = []

    def __enter__(self) -> Self:
        self._conf.set(CHOOSES_PARTITIONS, "true")
        return self

    def __exit__(self, *_: object) -> None:
        self._conf.set(CHOOSES_PARTITIONS, self._chose)
        while self._frames:
            self._frames.pop().unpersist()

    def hold(self, frame: DataFrame, level: StorageLevel = StorageLevel.DISK_ONLY) -> DataFrame:
        self._frames.append(frame.persist(level))
        return frame

    def found(self, frame: DataFrame) -> DataFrame | None:
        """The findings of a rule, computed now; None if there are none."""
        return frame if self.hold(frame, StorageLevel.MEMORY_AND_DISK).count() else None


@dataclass(frozen=True, slots=True)
class Fault:
    """A broken rule: its code, and a sentence for each row."""

    reason: Reason
    detail: Column


@dataclass
class Judgement:
    """One type under judgement: the remaining rows, and the rejected ones as (reason, detail, row).

    `refused` are the rows that do not fit their type; `fallen` are the rows that the rules here reject.
    """

    plan: TypePlan
    held: Held
    refused: DataFrame
    live: DataFrame
    fallen: list[DataFrame] = field(default_factory=list)

    @classmethod
    def of(cls, plan: TypePlan, conformed: DataFrame, held: Held) -> Judgement:
        refused = conformed.where(F.col(REASON).isNotNull()).select(REASON, DETAIL, ROW)
        return cls(plan, held, refused, conformed.where(F.col(REASON).isNull()).drop(REASON, DETAIL, ROW))

    def drop(self, met: DataFrame, on: Sequence[str], fault: Fault) -> None:
        """Reject all rows that match the findings of a rule."""
        self._fall(self.live.join(met, list(on), "inner"), fault)
        self.live = self.live.join(met, list(on), "left_anti")

    def keep_first(
        self,
        met: DataFrame,
        on: Sequence[str],
        fault: Fault,
        most: Column | int = 1,
        ahead: DataFrame | None = None,
    ) -> None:
        """Of the rows that match each row of `met`, keep `most` in the file's order, those in `ahead` first."""
        within, order = self.live.join(met, list(on), "inner"), self._order()
        if ahead is not None:
            within = within.join(ahead.withColumn(_AHEAD, F.lit(True)), ahead.columns, "left")
            order = [F.asc_nulls_last(_AHEAD), *order]
        ranked = within.withColumn(_RANK, F.row_number().over(Window.partitionBy(*on).orderBy(*order)))
        self.held.hold(ranked, StorageLevel.MEMORY_AND_DISK)
        self._fall(ranked.where(F.col(_RANK) > most), fault)
        kept = ranked.where(F.col(_RANK) <= most).select(self.live.columns)
        self.live = self.live.join(met, list(on), "left_anti").unionByName(kept)

    def _fall(self, rows: DataFrame, fault: Fault) -> None:
        row = F.to_json(F.struct(*self.plan.columns))
        reason = F.lit(fault.reason.value)
        self.fallen.append(rows.select(reason.alias(REASON), fault.detail.alias(DETAIL), row.alias(ROW)))

    def _order(self) -> list[Column]:
        """The order of rows with one key: as in the file, then by all their values, so that every run decides alike."""
        last = self.plan.mapping.deduplicate.keep is Keep.LAST
        by = [F.desc_nulls_last(BY) if last else F.asc_nulls_last(BY)] if BY in self.live.columns else []
        return [*by, F.to_json(F.struct(*self.plan.columns))]


def judge(judgement: Judgement, nodes: Mapping[str, DataFrame], pinned: PinnedGraph) -> None:
    """Reject every row that breaks a rule; `nodes` are the ids of the nodes that this run accepts, by type."""
    type = judgement.plan.type
    if isinstance(type, EdgeType):
        _drop_orphans(judgement, type, nodes, pinned)
        _adopt_ids(judgement, type, pinned)
    if judgement.plan.identity(pinned.mode):
        _drop_existing(judgement, pinned)
        _drop_duplicates(judgement, pinned.mode)
    for _ in range(PASSES_MAX):
        before = len(judgement.fallen)
        for constraint in _uniques(judgement.plan, pinned.mode):
            _drop_taken(judgement, constraint, pinned)
            _drop_repeated(judgement, constraint)
        # A rejected row of a merge no longer displaces the graph's row, whose values are then taken again.
        if pinned.mode is not Mode.MERGE or len(judgement.fallen) == before:
            break
    else:
        raise ConstraintViolation(
            f"{type.name}: rows still break @unique after {PASSES_MAX} passes; correct the source"
        )
    if isinstance(type, EdgeType) and type.cardinality != ANY_CARDINALITY:
        _drop_crowded(judgement, type, pinned)
        _drop_sparse(judgement, type, pinned)


def _drop_orphans(judgement: Judgement, edge: EdgeType, nodes: Mapping[str, DataFrame], pinned: PinnedGraph) -> None:
    """Reject edges without one of their nodes. Only the ids at their ends are shuffled, each once."""
    ends = ((SRC, edge.source), (DST, edge.target))
    missing = {
        node: _missing(judgement, [end for end, name in ends if name == node], node, nodes, pinned)
        for node in {edge.source, edge.target}
    }
    for end, node in ends:
        absent = missing[node]
        if absent is not None:
            detail = F.concat(F.lit(f"{end} '"), _shown(end), F.lit(f"' not found in {node}"))
            judgement.drop(absent.withColumnRenamed(ID, end), [end], Fault(Reason.ORPHAN, detail))


def _missing(
    judgement: Judgement, ends: Sequence[str], node: str, nodes: Mapping[str, DataFrame], pinned: PinnedGraph
) -> DataFrame | None:
    """The ids at the ends that neither an accepted node nor a remaining node of the graph has."""
    ids = judgement.live.select(F.explode(F.array(*ends)).alias(ID)).distinct()
    if node in nodes:
        ids = ids.join(nodes[node], ID, "left_anti")
    if pinned.has(node):
        ids = ids.join(pinned.rows(node, (ID,)), ID, "left_anti")
    return judgement.held.found(ids)


def _adopt_ids(judgement: Judgement, edge: EdgeType, pinned: PinnedGraph) -> None:
    """In a merge where some edges have ids, give the other edges the id of the edge that they replace."""
    given = judgement.plan.has_ids and edge.unique_by_endpoints
    if pinned.mode is not Mode.MERGE or not given or not pinned.has(edge.name):
        return
    known = pinned.rows(edge.name, (ID, SRC, DST)).withColumnRenamed(ID, _ADOPTED)
    found = judgement.live.join(known, [SRC, DST], "left")
    judgement.live = found.withColumn(ID, F.coalesce(ID, _ADOPTED)).select(judgement.live.columns)


def _drop_existing(judgement: Judgement, pinned: PinnedGraph) -> None:
    """Reject appended rows whose id exists in the graph."""
    name = judgement.plan.name
    if pinned.mode is not Mode.APPEND or not pinned.has(name):
        return
    taken = judgement.held.found(pinned.rows(name, (ID,)).join(judgement.live.select(ID), ID, "left_semi"))
    if taken is not None:
        detail = F.concat(F.lit(f"{name} '"), _shown(ID), F.lit("' exists already; mode 'merge' would replace it"))
        judgement.drop(taken, [ID], Fault(Reason.EXISTS, detail))


def _drop_duplicates(judgement: Judgement, mode: Mode) -> None:
    """Reject all rows of a key but the first in the file's order."""
    on, name = judgement.plan.identity(mode), judgement.plan.name
    repeated = _repeated(judgement, on)
    if repeated is None:
        return
    if judgement.plan.mapping.deduplicate.keep is Keep.FAIL:
        keys = [" -> ".join(row) for row in repeated.limit(_SHOWN_KEYS_MAX).collect()]
        raise ConstraintViolation(
            f"{name}: several rows have the key {', '.join(map(repr, keys))}, and deduplicate is 'fail'; correct the "
            "source, or say which one stays: `deduplicate: last by COLUMN`",
            type=name,
        )
    detail = F.concat(F.lit(f"another row of {name} '"), _shown(*on), F.lit("' stays"))
    judgement.keep_first(repeated, on, Fault(Reason.DUPLICATE, detail))


def _uniques(plan: TypePlan, mode: Mode) -> list[Unique]:
    """The `@unique` rules, without the one that identifies merged edges, which was checked before."""
    known = set(plan.identity(mode))
    return [c for c in plan.type.constraints if isinstance(c, Unique) and set(c.properties) != known]


def _drop_taken(judgement: Judgement, unique: Unique, pinned: PinnedGraph) -> None:
    """Reject rows with the values of a remaining row of the graph."""
    name, on = judgement.plan.name, unique.properties
    if not pinned.has(name):
        return
    there = _staying(judgement, pinned, on)
    taken = judgement.held.found(there.select(*on).join(judgement.live.select(*on), list(on), "left_semi").distinct())
    if taken is not None:
        detail = F.concat(F.lit(f"@unique violation on {name}.{','.join(on)}: '"), _shown(*on), F.lit("' is taken"))
        judgement.drop(taken, on, Fault(Reason.UNIQUE, detail))


def _drop_repeated(judgement: Judgement, unique: Unique) -> None:
    """Reject all but the first of the rows with equal values."""
    name, on = judgement.plan.name, unique.properties
    repeated = _repeated(judgement, on)
    if repeated is not None:
        detail = F.concat(
            F.lit(f"@unique violation on {name}.{','.join(on)}: another row has '"), _shown(*on), F.lit("'")
        )
        judgement.keep_first(repeated, on, Fault(Reason.UNIQUE, detail))


def _drop_crowded(judgement: Judgement, edge: EdgeType, pinned: PinnedGraph) -> None:
    """Reject just enough edges of each source with too many. An edge that replaces another does not add one."""
    most = edge.cardinality.high
    if most is None:
        return
    degrees = _degrees(judgement, pinned)
    crowded = judgement.held.found(degrees.where(F.col(_COUNT) + F.col(_USED) > most).select(SRC, _USED))
    if crowded is None:
        return
    on = judgement.plan.identity(pinned.mode)
    replaces = pinned.mode is Mode.MERGE and on and pinned.has(edge.name)
    ahead = pinned.rows(edge.name, on) if replaces else None
    judgement.keep_first(crowded, [SRC], _card(edge), F.lit(most) - F.col(_USED), ahead)


def _drop_sparse(judgement: Judgement, edge: EdgeType, pinned: PinnedGraph) -> None:
    """Reject all edges of each source with too few."""
    least = edge.cardinality.low
    if least <= 1:
        return  # a source with a written edge has at least one
    sparse = judgement.held.found(_degrees(judgement, pinned).where(F.col(_COUNT) + F.col(_USED) < least).select(SRC))
    if sparse is not None:
        judgement.drop(sparse, [SRC], _card(edge))


def _degrees(judgement: Judgement, pinned: PinnedGraph) -> DataFrame:
    """For each source of a written edge: how many edges are written, and how many of the graph's remain."""
    counts = judgement.live.groupBy(SRC).agg(F.count("*").alias(_COUNT))
    if not pinned.has(judgement.plan.name):
        return counts.withColumn(_USED, F.lit(0))
    there = _staying(judgement, pinned, (SRC,)).groupBy(SRC).agg(F.count("*").alias(_USED))
    return counts.join(there, SRC, "left").fillna(0, [_USED])


def _staying(judgement: Judgement, pinned: PinnedGraph, columns: Sequence[str]) -> DataFrame:
    """The rows of the graph that no row of this run replaces."""
    on = judgement.plan.identity(pinned.mode)
    rows = pinned.rows(judgement.plan.name, tuple(dict.fromkeys((*on, *columns))))
    if pinned.mode is not Mode.MERGE or not on:
        return rows
    return rows.join(judgement.live.select(*on), list(on), "left_anti")


def _repeated(judgement: Judgement, on: Sequence[str]) -> DataFrame | None:
    """The values, none of them null, that several rows share."""
    whole = reduce(and_, (F.col(name).isNotNull() for name in on))  # `dropna` would treat NaN as null
    counts = judgement.live.where(whole).groupBy(*on).agg(F.count("*").alias(_COUNT))
    return judgement.held.found(counts.where(F.col(_COUNT) > 1).select(*on))


def _shown(*columns: str) -> Column:
    texts = [F.col(name).cast("string").substr(1, _SHOWN_CHARS_MAX) for name in columns]
    return F.concat_ws(", ", *texts)


def _card(edge: EdgeType) -> Fault:
    bounds = f"{edge.cardinality.low}..{'*' if edge.cardinality.high is None else edge.cardinality.high}"
    start, end = f"@card violation on edge {edge.name}: source '", f"' has too few or too many edges, allowed {bounds}"
    return Fault(Reason.CARDINALITY, F.concat(F.lit(start), _shown(SRC), F.lit(end)))
