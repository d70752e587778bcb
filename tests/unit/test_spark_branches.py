"""Spark on a branch, without a JVM: what goes from process to process names the branch by its ULID.

A `GraphSource` is used as Spark does: one that is made from the options alone, and copies of it in other processes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

import omniray
from omniray.engine.base.errors import BranchGone, GraphGone, InputError, NotFound
from omniray.engine.base.failpoints import Action, FailpointHit, Point, armed, fail
from omniray.engine.base.principal import Author
from omniray.engine.line.sidecar import STAGING, Sidecars
from omniray.engine.rows.mode import Mode
from omniray.engine.store.open_store import open_store
from omniray.engine.writes.load import LoadIntent
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.part import INLINE_ROWS_MAX, Part
from omniray.engine.writes.part_message import decode_part
from omniray.engine.writes.terms import WriteTerms
from omniray.spark import transaction
from omniray.workers.kept_graphs import kept_open
from omniray.workers.spark.commit import commit_on, commit_parts
from omniray.workers.spark.options import Target
from omniray.workers.spark.read import GraphReader
from omniray.workers.spark.source import GraphSource
from omniray.workers.spark.stage import Ticket, begin, stage_batches
from omniray.workers.spark.stream_read import ChangeStreamReader
from omniray.workers.spark.stream_write import BatchMessage, GraphStreamWriter
from omniray.workers.spark.types import spark_schema
from omniray.workers.spark.write import GraphWriter, PartMessage
from tests.graphs import files_below, insert, new_graph
from tests.stores import Root

FAIL = LoadOptions.checked("append", "fail", None)
MANY = INLINE_ROWS_MAX + 1  # so many are staged as data files


class Source(GraphSource):
    connect = staticmethod(omniray.connect)


@pytest.fixture
def graph(disk: Root) -> Iterator[omniray.Graph]:
    """A graph with a branch; only the branch has bob."""
    with new_graph(disk) as graph:
        insert(graph, "ann")
        graph.create_branch("trial")
        graph.load([{"name": "bob"}], type="Person", branch="trial")
        yield graph


def source(graph: omniray.Graph, **options: str) -> Source:
    """The data source, as it comes to another process."""
    given = {"uri": graph.uri, "type": "Person", "branch": "trial", **options}
    made: Source = pickle.loads(pickle.dumps(Source(given)))
    return made


def people(graph: omniray.Graph, branch: str = "trial") -> list[str]:
    """Who is on the branch that has the name now: a handle keeps the one that it found."""
    with omniray.open(graph.uri, branch=branch, read_only=True) as now:
        found: list[str] = sorted(now.snapshot().table("Person", ["name"])["name"].to_pylist())
    return found


def anew(graph: omniray.Graph) -> None:
    """Delete the branch, and create another one of its name."""
    graph.delete_branch("trial")
    graph.create_branch("trial")


def gone(graph: omniray.Graph) -> None:
    graph.delete_branch("trial")


def rows(*names: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"name": list(names)})


def columns(graph: omniray.Graph) -> StructType:
    return spark_schema(graph.schema.type("Person"), ["name"])


# Reading


def frame(made: Source) -> GraphReader:
    return made.reader(made.schema())


def names(reader: GraphReader | ChangeStreamReader, partitions: Any) -> list[str]:
    """The rows of partitions, each read by a task of its own."""
    found = []
    for partition in partitions:
        task, part = pickle.loads(pickle.dumps((reader, partition)))
        found += [name for batch in task.read(part) for name in batch.column("name").to_pylist()]
    return found


def test_a_frame_is_read_from_its_branch(graph: omniray.Graph) -> None:
    on_trial, on_main = frame(source(graph)), frame(source(graph, branch="main"))
    assert sorted(names(on_trial, on_trial.partitions())) == ["ann", "bob"]
    assert names(on_main, on_main.partitions()) == ["ann"]
    start = graph.history()[1].commit_id
    before = frame(source(graph, at=start))
    assert names(before, before.partitions()) == ["ann"], "the history of a branch goes on in its parent's"


def test_a_frame_stays_readable_when_its_branch_is_gone(graph: omniray.Graph) -> None:
    reader = frame(source(graph))
    partitions = reader.partitions()
    anew(graph)
    assert sorted(names(reader, partitions)) == ["ann", "bob"]


def test_a_branch_that_is_not_there_is_named_before_anything_is_planned(graph: omniray.Graph) -> None:
    with pytest.raises(NotFound, match="no branch 'trail': did you mean 'trial'"):
        source(graph, branch="trail")
    with pytest.raises(InputError, match="option 'uri' is missing"):
        Source({"branch": "trial"})


def test_a_name_is_resolved_once_for_all_that_spark_plans_with_it(graph: omniray.Graph) -> None:
    made = source(graph)
    graph.rename_branch("trial", "other")
    graph.create_branch("trial")
    reader = frame(made)
    assert sorted(names(reader, reader.partitions())) == ["ann", "bob"]
    graph.delete_branch("other")
    made = source(graph)
    anew(graph)
    for plan in (made.schema, lambda: made.writer(columns(graph), False)):
        with pytest.raises(BranchGone):
            plan()


def test_nothing_is_written_to_plan_or_read_on_a_branch_whose_creator_died(disk: Root) -> None:
    with new_graph(disk) as graph:
        insert(graph, "ann")
        with armed({Point.BRANCH_AFTER_BIND: Action(fail)}), pytest.raises(FailpointHit):
            graph.create_branch("trial")
    before = files_below(graph.uri)
    made = source(graph)
    reader = frame(made)
    assert names(reader, reader.partitions()) == ["ann"]
    changes = stream(graph, **{"from": "beginning"})
    offset = changes.latestOffset(changes.initialOffset(), ReadAllAvailable())
    assert names(changes, changes.partitions(changes.initialOffset(), offset)) == ["ann"]
    changes.stop()
    made.writer(columns(graph), False)
    assert files_below(graph.uri) == before


# Change streams


def stream(graph: omniray.Graph, **options: str) -> ChangeStreamReader:
    made = source(graph, changes="true", **options)
    return made.streamReader(made.schema())


@pytest.fixture
def opened(graph: omniray.Graph) -> Iterator[Callable[..., ChangeStreamReader]]:
    made: list[ChangeStreamReader] = []

    def reader(**options: str) -> ChangeStreamReader:
        made.append(stream(graph, **options))
        return made[-1]

    yield reader
    for each in made:
        each.stop()


def test_the_checkpoint_of_a_stream_holds_the_ulid_of_its_branch(graph: omniray.Graph, opened: Any) -> None:
    line = graph.snapshot(branch="trial").line
    started = opened(**{"from": "beginning"})
    begin = started.initialOffset()
    end = started.latestOffset(begin, ReadAllAvailable())
    assert (begin, end) == ({"line": line, "seq": 0}, {"line": line, "seq": 2})
    assert sorted(names(started, started.partitions(begin, end))) == ["ann", "bob"]
    assert opened().initialOffset() == end
    start = graph.snapshot(at=graph.history()[1].commit_id).commit_id
    assert opened(**{"from": start}).initialOffset() == {"line": line, "seq": 1}


@pytest.mark.parametrize("remove", [anew, gone])
def test_a_running_stream_ends_when_its_branch_is_deleted(
    graph: omniray.Graph, opened: Any, remove: Callable[[omniray.Graph], None]
) -> None:
    running = opened()
    offset = running.initialOffset()
    remove(graph)
    for use in (lambda: running.latestOffset(offset, ReadAllAvailable()), running.prepareForTriggerAvailableNow):
        with pytest.raises(BranchGone):
            use()


def test_a_checkpoint_is_refused_for_a_namesake(graph: omniray.Graph, opened: Any) -> None:
    old = opened().initialOffset()
    anew(graph)
    again = opened()
    now = again.initialOffset()
    for use in (
        lambda: again.latestOffset(old, ReadAllAvailable()),
        lambda: again.partitions(old, now),
        lambda: again.partitions(now, old),
        lambda: again.latestOffset({"seq": 1}, ReadAllAvailable()),
    ):
        with pytest.raises(BranchGone, match="the first was deleted or renamed"):
            use()


def test_a_stream_goes_on_under_the_new_name_of_its_branch(graph: omniray.Graph, opened: Any) -> None:
    running = opened()
    offset = running.initialOffset()
    graph.rename_branch("trial", "other")
    graph.create_branch("trial")
    graph.load([{"name": "cid"}], type="Person", branch="other")
    later = running.latestOffset(offset, ReadAllAvailable())
    assert names(running, running.partitions(offset, later)) == ["cid"], "one that runs needs no name"
    restarted = opened(branch="other")
    assert restarted.latestOffset(offset, ReadAllAvailable()) == later
    assert names(restarted, restarted.partitions(offset, later)) == ["cid"]


def test_a_task_of_a_stream_reads_its_branch_and_no_namesake(graph: omniray.Graph, opened: Any) -> None:
    running = opened(**{"from": "beginning"})
    offset = running.initialOffset()
    partitions = running.partitions(offset, running.latestOffset(offset, ReadAllAvailable()))
    anew(graph)
    with pytest.raises(BranchGone):
        names(running, partitions)


# Writing


def written(writer: GraphWriter, *given: str) -> list[PartMessage]:
    """What a task gives the driver, which another process has."""
    return [pickle.loads(pickle.dumps(writer)).write(iter([rows(*given)]))]


def many(prefix: str) -> list[str]:
    return [f"{prefix}{n:04}" for n in range(MANY)]


@pytest.mark.parametrize("given", [["cid"], many("p")], ids=["few", "many"])
def test_a_frame_lands_on_its_branch_alone(graph: omniray.Graph, given: list[str]) -> None:
    writer = source(graph).writer(columns(graph), False)
    writer.commit(written(writer, *given))
    assert people(graph) == sorted(["ann", "bob", *given])
    assert people(graph, "main") == ["ann"]
    assert graph.history(1, branch="trial")[0].actor == "spark"


@pytest.mark.parametrize("given", [["cid"], many("p")], ids=["few", "many"])
def test_a_frame_for_a_branch_that_was_deleted_lands_nowhere(graph: omniray.Graph, given: list[str]) -> None:
    writer = source(graph).writer(columns(graph), False)
    messages = written(writer, *given)
    anew(graph)
    with pytest.raises(BranchGone):
        writer.commit(messages)
    error = decode_part(written(writer, *given)[0].part, graph.schema)
    assert isinstance(error, BranchGone) or given == ["cid"], "its tasks stage no files any more"
    assert (people(graph), people(graph, "main")) == (["ann"], ["ann"])


def test_a_frame_lands_on_a_branch_that_was_renamed_since_it_was_planned(graph: omniray.Graph) -> None:
    writer = source(graph).writer(columns(graph), False)
    graph.rename_branch("trial", "other")
    graph.create_branch("trial")
    writer.commit(written(writer, "cid"))
    assert (people(graph, "other"), people(graph)) == (["ann", "bob", "cid"], ["ann"])


def test_a_frame_for_a_branch_of_a_graph_that_was_created_anew_is_told_so(graph: omniray.Graph, disk: Root) -> None:
    ticket = ticket_on(graph)
    with new_graph(disk, "other") as other, pytest.raises(GraphGone):
        commit_parts(Ticket(Target(other.uri, line=ticket.line), ticket.graph_id, ticket.mode, ticket.txn_id), [], [])


def ticket_on(graph: omniray.Graph, branch: str = "trial") -> Ticket:
    target = Target(graph.uri, branch=branch, line=graph.snapshot(branch=branch).line)
    return begin(target, graph.graph_id, Mode.APPEND)


def test_a_name_that_means_another_branch_by_now_is_not_committed_to(graph: omniray.Graph) -> None:
    """On a handle that found the name after the write had begun."""
    ticket = ticket_on(graph)
    part = stage_batches(ticket, "Person", [rows("cid")], "here")
    anew(graph)
    with omniray.open(graph.uri) as later:
        with pytest.raises(BranchGone, match="'trial' was deleted and created anew since this write began"):
            commit_on(later, ticket, ["Person"], [part])
        assert people(later) == ["ann"]


def test_a_worker_opens_the_branch_by_its_ulid(graph: omniray.Graph) -> None:
    ticket = ticket_on(graph)
    graph.rename_branch("trial", "other")
    stager = kept_open(graph.uri, None, graph.graph_id, ticket.line)
    assert stager._branch.branch.ulid == ticket.line
    assert kept_open(graph.uri, None, graph.graph_id, ticket.line) is stager
    assert kept_open(graph.uri, None, graph.graph_id) is not stager
    doomed = graph.create_branch("doomed").branch_id
    graph.delete_branch("doomed")
    with pytest.raises(BranchGone):
        kept_open(graph.uri, None, graph.graph_id, doomed)


# Streams into a branch


def test_a_batch_of_a_stream_lands_once_on_its_branch(graph: omniray.Graph) -> None:
    writer = source(graph).streamWriter(columns(graph), False)
    assert isinstance(writer, GraphStreamWriter)
    ticket = writer._ticket
    message = BatchMessage(stage_batches(ticket, "Person", [rows("cid")], "here"), ticket.line, "a query")
    for _ in range(2):
        writer.commit([message], 0)
    assert (people(graph), people(graph, "main")) == (["ann", "bob", "cid"], ["ann"])


def test_a_stream_that_runs_writes_to_no_namesake(graph: omniray.Graph) -> None:
    """Tasks of a batch look for the branch anew, the driver's side of it does not."""
    running = source(graph)
    running.streamWriter(columns(graph), False)
    graph.rename_branch("trial", "other")
    graph.create_branch("trial")
    other = source(graph).streamWriter(columns(graph), False)
    assert isinstance(other, GraphStreamWriter)
    theirs = other._ticket
    message = BatchMessage(stage_batches(theirs, "Person", [rows("cid")], "here"), theirs.line, "a query")
    writer = running.streamWriter(columns(graph), False)
    with pytest.raises(BranchGone, match="this stream writes to the branch with the id"):
        writer.commit([message], 1)
    assert people(graph) == ["ann"]


def test_the_writer_of_a_stream_whose_branch_was_deleted_says_so_and_can_be_aborted(graph: omniray.Graph) -> None:
    """An error of the abort would hide the one of the commit."""
    running = source(graph)
    anew(graph)
    writer = running.streamWriter(columns(graph), False)
    writer.abort([], 1)
    for use in (lambda: writer.write(iter([rows("cid")])), lambda: writer.commit([], 1)):
        with pytest.raises(BranchGone):
            use()


# Transactions


@dataclass
class Frame:
    """A frame of Spark, in this process."""

    schema: StructType
    batches: list[pa.RecordBatch]
    found: list[dict[str, Any]] = field(default_factory=list)

    def mapInArrow(self, task: Callable[..., Iterator[pa.RecordBatch]], schema: str) -> Self:
        self.found = [row for batch in task(iter(self.batches)) for row in batch.to_pylist()]
        return self

    def collect(self) -> list[dict[str, Any]]:
        return self.found


def test_a_transaction_lands_on_the_branch_that_it_names(graph: omniray.Graph) -> None:
    given: Any = Frame(columns(graph), [rows("cid")])
    with transaction(graph, branch="trial") as tx:
        tx.write(given, "Person")
    assert (people(graph), people(graph, "main")) == (["ann", "bob", "cid"], ["ann"])
    assert graph.history(1, branch="trial")[0].commit_id == tx.txn_id
    with omniray.open(graph.uri, branch="trial") as trial, transaction(trial) as tx:
        tx.write(Frame(columns(graph), [rows("dan")]), "Person")  # type: ignore[arg-type]
    assert people(graph) == ["ann", "bob", "cid", "dan"], "without a name it is the branch of the handle"


def test_a_transaction_on_a_branch_that_is_deleted_meanwhile_lands_nowhere(graph: omniray.Graph) -> None:
    given: Any = Frame(columns(graph), [rows("cid")])
    tx = transaction(graph, branch="trial")
    tx.write(given, "Person")
    anew(graph)
    with pytest.raises(BranchGone):
        tx.__exit__(None, None, None)
    assert people(graph) == ["ann"]


# Loads in parts


def begun(graph: omniray.Graph) -> LoadIntent:
    """A load on the branch with one part, whose rows a worker staged."""
    part = decode_part(stage_batches(ticket_on(graph), "Person", [rows(*many("p"))], "here"), graph.schema)
    assert isinstance(part, Part)
    intent = graph.begin_load(FAIL, WriteTerms(Author("ann")), announced=part.announced, branch="trial")
    intent.take_parts(["Person"], [part])
    return intent


def leases(graph: omniray.Graph) -> int:
    sidecars = Sidecars(open_store(graph.uri))
    return sum(sidecar.kind == STAGING for sidecar in sidecars.read_all(sidecars.listed()))


def test_a_load_is_committed_to_the_branch_that_it_was_begun_for(graph: omniray.Graph) -> None:
    graph.commit_load(begun(graph), branch="trial")
    assert (people(graph), people(graph, "main")) == (["ann", "bob", *many("p")], ["ann"])


@pytest.mark.parametrize("to", ["main", None, "trial"])
def test_a_load_that_was_begun_for_another_branch_is_refused(graph: omniray.Graph, to: str | None) -> None:
    intent = begun(graph)
    if to == "trial":
        anew(graph)
    assert leases(graph) == 1
    with pytest.raises(BranchGone, match=r"the load was begun for|was deleted"):
        graph.commit_load(intent, branch=to)
    assert people(graph, to or "main") == ["ann"]
    assert leases(graph) == 0, "nothing of it is left"
