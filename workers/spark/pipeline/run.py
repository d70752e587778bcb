"""A run of a pipeline: plans, reads, judges, writes the rejected rows, and commits the accepted ones exactly once.

The id of a run is the id of its commit. A run that died is run again under its id: if its commit has landed, nothing is
done; if not, everything is done anew; the rejects of a run are replaced, never doubled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from omniray.engine.base.errors import InputError, InvariantViolation, NotFound, StorageError
from omniray.engine.base.ulids import checked_txn_id, new_ulid
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import DST, ID, SRC, EdgeType
from omniray.workers.spark.options import Target
from omniray.workers.spark.own_errors import own_errors
from omniray.workers.spark.pipeline.checks import Held, Judgement, judge
from omniray.workers.spark.pipeline.config import Pipeline
from omniray.workers.spark.pipeline.conforming import DETAIL, REASON, ROW
from omniray.workers.spark.pipeline.frames import conformed_frames, sentence
from omniray.workers.spark.pipeline.pinned import PinnedGraph
from omniray.workers.spark.pipeline.plan import TypePlan, plan
from omniray.workers.spark.pipeline.reasons import Reason
from omniray.workers.spark.pipeline.report import Report, TypeCounts
from omniray.workers.spark.source import register
from omniray.workers.spark.transaction import transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from omniray.engine.judge.resolution import WriteResult
    from omniray.workers.graphs import Connect, WritableGraph

ACTOR = "pipeline"
REJECTS = "type string, reason string, detail string, row string"

Tell = Callable[[str], None]
"""Receives a sentence about each step."""


def _silently(sentence: str) -> None:
    """Ignore the sentence."""


def run(
    pipeline: Pipeline,
    spark: SparkSession,
    connect: Connect,
    *,
    branch: str | None = None,
    run_id: str | None = None,
    dry_run: bool = False,
    tell: Tell = _silently,
) -> Report:
    """Run a pipeline: one commit, or none at all. With `dry_run`, everything but the commit is done.

    `branch` is where it is committed, instead of the branch that the file names.
    """
    run_id = new_ulid() if run_id is None else checked_txn_id(run_id)
    place, branch = pipeline.graph, pipeline.branch if branch is None else branch
    report = Report(run_id, dry_run, pipeline.rejects, branch=branch)
    register(spark, connect)  # the caller's session may not have the data source
    target = Target(place.uri, place.storage_options, pipeline.actor or ACTOR, connect=connect, branch=branch)
    with target.opened() as graph, _plain_errors(), own_errors():
        tell(f"run {run_id} on {graph.uri}")
        if _is_committed(graph, branch, run_id):
            return replace(report, commit_id=run_id, repeated=True)
        with Held(spark) as held:
            return _Run(pipeline, spark, graph, report, held, tell).done()


def _is_committed(graph: WritableGraph, branch: str, run_id: str) -> bool:
    try:
        return graph.snapshot(branch=branch, at=run_id).commit_id == run_id
    except NotFound:
        return False


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn Spark's errors about data and expressions into one line; an error of our own Python code is not caught."""
    try:
        yield
    except PythonException:
        raise
    except PySparkException as error:
        raise InputError(f"Spark gave up on the pipeline: {sentence(error)}") from error
    except Py4JJavaError as error:
        raise StorageError(f"Spark gave up on the pipeline: {sentence(error)}; run it again with its run id") from error
    except Py4JNetworkError as error:
        raise StorageError("Spark's Java has ended; run the pipeline again with its run id") from error


@dataclass(frozen=True)
class _Run:
    """One run, step by step."""

    pipeline: Pipeline
    spark: SparkSession
    graph: WritableGraph
    report: Report
    held: Held
    tell: Tell

    def done(self) -> Report:
        plans = plan(self.pipeline, self.graph.snapshot(branch=self.report.branch).schema)
        frames = conformed_frames(self.spark, plans, self.pipeline.file)
        self._make_place_for_rejects()
        judged, counts = self._judged(plans, frames)
        self._write_rejects(judged, counts)
        report = replace(self.report, types=tuple(counts))
        self._refuse_emptying(counts)
        empties = self.pipeline.mode is Mode.OVERWRITE  # a source without rows empties its table
        if report.dry_run or not (empties or any(one.accepted for one in counts)):
            return report
        return self._committed(report, judged)

    def _judged(
        self, plans: Sequence[TypePlan], frames: dict[str, DataFrame]
    ) -> tuple[list[Judgement], list[TypeCounts]]:
        """Judge all types, nodes first: the accepted nodes are known before edges to them are judged."""
        place, written = self.pipeline.graph, [one.name for one in plans]
        snapshot = self.graph.snapshot(branch=self.report.branch)
        state = PinnedGraph(self.spark, self.graph.uri, place.storage_options, snapshot, self.pipeline.mode, written)
        judged, counts, nodes = [], [], dict[str, DataFrame]()
        for one in plans:
            self.tell(f"{one.name}: reading {one.mapping.source.name}")
            conformed = self.held.hold(frames[one.name])
            by_reason = _by_reason(conformed)
            judgement = Judgement.of(one, conformed, self.held)
            judge(judgement, nodes, state)
            judged.append(judgement)
            counts.append(self._counted(judgement, by_reason))
            self.tell(f"{one.name}: {counts[-1]}")
            if not isinstance(one.type, EdgeType):
                nodes[one.name] = judgement.live.select(ID).dropna()
        return judged, counts

    def _counted(self, judgement: Judgement, by_row: Mapping[str | None, int]) -> TypeCounts:
        """The counts of a type; `by_row` are the counts of the rules over single rows, under None the valid rows.

        The remaining rows are accepted. They are not counted here, which would take as long as a rule, but when staged.
        """
        found = Counter(by_row)
        if judgement.fallen:
            fallen = self.held.hold(reduce(DataFrame.unionByName, judgement.fallen))
            judgement.fallen = [fallen]
            let_fall = _by_reason(fallen)
            found.update(let_fall)
            found[None] -= sum(let_fall.values())
        rejected = {reason.value: found[reason.value] for reason in Reason if found[reason.value]}
        return TypeCounts(judgement.plan.name, sum(by_row.values()), found[None], rejected)

    def _make_place_for_rejects(self) -> None:
        """Create the folder for rejects, so that one that can't be written to fails before the work."""
        context = self.spark.sparkContext
        path = context._jvm.org.apache.hadoop.fs.Path(self._rejects_place)  # type: ignore[union-attr]
        try:
            path.getFileSystem(context._jsc.hadoopConfiguration()).mkdirs(path)
        except Py4JJavaError as error:
            raise InputError(f"rejects can't be written to {self.pipeline.rejects}: {sentence(error)}") from error

    @property
    def _rejects_place(self) -> str:
        return f"{self.pipeline.rejects}/run_id={self.report.run_id}"

    def _write_rejects(self, judged: Sequence[Judgement], counts: Sequence[TypeCounts]) -> None:
        """Replace the rejects of an earlier try of the same run, even if there are none now."""
        tables = [_rejects_of(one) for one, found in zip(judged, counts, strict=True) if found.rejected]
        rejects = reduce(DataFrame.unionByName, tables, self.spark.createDataFrame([], REJECTS))
        rejects.write.mode("overwrite").parquet(self._rejects_place)
        if tables:
            self.tell(f"rejected rows are in {self._rejects_place}")

    def _refuse_emptying(self, counts: Sequence[TypeCounts]) -> None:
        """Refuse an overwrite whose rows were all rejected: it would empty the table."""
        for one in counts:
            if self.pipeline.mode is Mode.OVERWRITE and one.read and not one.accepted:
                raise InputError(
                    f"all {one.read} rows of {one.type} were rejected, and mode 'overwrite' would leave it empty: "
                    f"see {self.pipeline.rejects}; nothing was committed",
                    type=one.type,
                )

    def _committed(self, report: Report, judged: Sequence[Judgement]) -> Report:
        actor, branch, mode = self.pipeline.actor or ACTOR, report.branch, self.pipeline.mode
        with transaction(self.graph, branch=branch, mode=mode, txn_id=report.run_id, actor=actor) as tx:
            for one, counted in zip(judged, report.types, strict=True):
                self.tell(f"{one.plan.name}: staging")
                _check_rows(counted, tx.write(_to_write(one), one.plan.name))
        self._confirm(tx.result, report)
        types = tuple(replace(one, committed=one.accepted) for one in report.types)
        return replace(report, commit_id=tx.result.commit_id, repeated=tx.result.repeated, types=types)

    def _confirm(self, result: WriteResult, report: Report) -> None:
        """Raise unless an append or a merge committed as many rows as were accepted."""
        affected, accepted = result.affected_nodes + result.affected_edges, sum(t.accepted for t in report.types)
        if self.pipeline.mode is not Mode.OVERWRITE and affected != accepted:
            raise InvariantViolation(
                f"run {report.run_id} committed {affected} rows, but {accepted} were accepted: look at what it wrote",
                commit_id=result.commit_id, affected=affected, accepted=accepted,
            )  # fmt: skip


def _check_rows(counted: TypeCounts, staged: int) -> None:
    """Raise if the source gave other rows than before: some would be lost or land twice."""
    if staged != counted.accepted:
        raise InputError(
            f"{counted.type}: {counted.accepted} of {counted.read} rows were accepted, but {staged} came to be staged; "
            "nothing was committed: the source or an expression gives other rows each time; let it give the same, "
            "without rand()"
        )


def _by_reason(rows: DataFrame) -> dict[str | None, int]:
    """The number of rows for each reason, under None those without one."""
    return {row[REASON]: row["count"] for row in rows.groupBy(REASON).count().collect()}


def _rejects_of(judgement: Judgement) -> DataFrame:
    rows = reduce(DataFrame.unionByName, judgement.fallen, judgement.refused)
    told = {"reason": REASON, "detail": DETAIL, "row": ROW}
    return rows.select(
        F.lit(judgement.plan.name).alias("type"), *(F.col(column).alias(name) for name, column in told.items())
    )


def _to_write(judgement: Judgement) -> DataFrame:
    """The columns that the file maps; ids derived from a key are derived again when the rows are staged."""
    columns = [SRC, DST] if isinstance(judgement.plan.type, EdgeType) else []
    return judgement.live.select(*dict.fromkeys([*columns, *judgement.plan.columns]))
