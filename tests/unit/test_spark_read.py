"""What a read and a change stream refuse, on the driver and before any task runs."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import EqualTo, Filter, StringContains
from pyspark.sql.streaming.datasource import ReadAllAvailable

import omniray
from omniray.workers.spark.read import GraphReader, PinnedRead, ReadOptions
from omniray.workers.spark.stream_read import ChangeOptions, ChangeStreamReader, change_schema, runs
from tests.graphs import insert, new_graph
from tests.stores import Root


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[omniray.Graph]:
    with new_graph(Root(str(tmp_path_factory.mktemp("people")), {})) as graph:
        insert(graph, "ann")
        graph.flush()
        yield graph


def reader(people: omniray.Graph, **options: str) -> GraphReader:
    read = PinnedRead.of(ReadOptions.checked({"uri": people.uri, "type": "Person", **options}))
    return GraphReader(read, read.schema)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colums": "name"}, "no option 'colums'; did you mean 'columns'"),
        ({"type": "Persn"}, "no type 'Persn'; the schema has Person, City, Knows"),
        ({"type": ""}, "option 'type' is missing"),
        ({"columns": "name,agee"}, "Person has no column 'agee'; did you mean 'age'"),
        ({"columns": "name,name"}, "give names with commas between them, each once"),
        ({"columns": ""}, "give names with commas between them, each once"),
        ({"filter": "agee > 3"}, "can't filter Person by 'agee > 3'"),
        ({"at": "01J0000000000000000000000X"}, "no commit 01J0000000000000000000000X in the history"),
        ({"branch": "dev"}, "no branch 'dev'"),
        ({"with_commit_id": "yes"}, "option 'with_commit_id' is 'yes': give true or false"),
        ({"changes": "true"}, "read them with spark.readStream"),
    ],
    ids=str,
)
def test_a_read_that_can_not_be_is_refused(people: omniray.Graph, options: dict[str, str], message: str) -> None:
    with pytest.raises(omniray.InputError, match=message):
        reader(people, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"changes": "false"}, r"say so by .option\('changes', 'true'\)"),
        ({"form": "beginning"}, "no option 'form'; did you mean 'from'"),
        ({"steps_per_batch": "0"}, "option 'steps_per_batch' is '0': give a number, 1 or more"),
        ({"steps_per_batch": "many"}, "option 'steps_per_batch' is 'many'"),
        ({"type": "Persn"}, "no type 'Persn'"),
    ],
    ids=str,
)
def test_a_change_stream_that_can_not_be_is_refused(
    people: omniray.Graph, options: dict[str, str], message: str
) -> None:
    with pytest.raises(omniray.InputError, match=message):
        change_schema(ChangeOptions.checked({"uri": people.uri, "type": "Person", "changes": "true", **options}))


def test_what_is_not_pushed_down_is_given_back_and_beside_an_own_filter_everything_is(people: omniray.Graph) -> None:
    ours, sparks = EqualTo(("name",), "ann"), StringContains(("name",), "n")
    filters: list[Filter] = [ours, sparks]
    assert reader(people).pushFilters(filters) == [sparks]
    assert reader(people, filter="age is null").pushFilters(filters) == filters


def test_a_pinned_read_travels_as_a_small_value(people: omniray.Graph) -> None:
    made = reader(people, filter="age is null", with_commit_id="true")
    (partition,) = made.partitions()
    packed = pickle.dumps((made, partition))
    assert len(packed) < 5000
    again, part = pickle.loads(packed)
    (batch,) = again.read(part)
    assert batch.to_pylist() == [{"id": "ann", "name": "ann", "age": None, "_commit_id": people.snapshot().commit_id}]


@pytest.fixture
def stream(people: omniray.Graph) -> Iterator[Callable[..., ChangeStreamReader]]:
    """Change streams of a graph whose line ends at 2."""
    made: list[ChangeStreamReader] = []

    def reader(**options: str) -> ChangeStreamReader:
        checked = ChangeOptions.checked({"uri": people.uri, "type": "Person", "changes": "true", **options})
        made.append(ChangeStreamReader(checked, change_schema(checked)))
        return made[-1]

    yield reader
    for each in made:
        each.stop()


def at(graph: omniray.Graph, seq: int) -> dict[str, Any]:
    """An offset in the line of a graph."""
    return {"line": graph.line, "seq": seq}


def test_a_stream_starts_at_the_beginning_after_a_commit_or_at_the_head(stream: Any, people: omniray.Graph) -> None:
    birth = people.history()[-1].commit_id
    assert stream(**{"from": "beginning"}).initialOffset() == at(people, 0)
    assert stream(**{"from": birth.lower()}).initialOffset() == at(people, 1)
    assert stream().initialOffset() == at(people, 2)
    with pytest.raises(omniray.NotFound, match="no commit 01J0000000000000000000000X in the history"):
        stream(**{"from": "01J0000000000000000000000X"}).initialOffset()


def test_a_batch_of_the_stream_has_no_more_steps_than_it_may(stream: Any, people: omniray.Graph) -> None:
    limited = stream(steps_per_batch="1")
    limit = limited.getDefaultReadLimit()
    first, second, third = (at(people, seq) for seq in range(3))
    assert limited.latestOffset(first, limit) == second
    assert limited.latestOffset(second, limit) == limited.latestOffset(third, limit) == third
    assert stream().latestOffset(first, stream().getDefaultReadLimit()) == third
    limited._target = 1  # as of a query that reads what is there now
    assert limited.latestOffset(first, ReadAllAvailable()) == second


def test_a_checkpoint_that_is_ahead_of_the_graph_is_refused(stream: Any, people: omniray.Graph) -> None:
    """Also by a query that reads what is there now, whose end is fixed beforehand."""
    for prepare in (False, True):
        ahead = stream()
        if prepare:
            ahead.prepareForTriggerAvailableNow()
        with pytest.raises(omniray.InputError, match="the line ends at 2, and a reader has been at 7"):
            ahead.latestOffset(at(people, 7), ReadAllAvailable())


def test_a_stream_travels_without_what_it_has_open(stream: Any, people: omniray.Graph) -> None:
    opened = stream()
    (partition,) = opened.partitions(at(people, 0), at(people, 2))
    again, part = pickle.loads(pickle.dumps((opened, partition)))
    (batch,) = again.read(part)
    assert batch.select(["_change", "_seq", "name"]).to_pylist() == [{"_change": "insert", "_seq": 2, "name": "ann"}]


def test_many_steps_are_cut_into_a_few_runs_in_their_order() -> None:
    steps: Any = list(range(1000))
    cut = runs(steps)
    assert [step for run in cut for step in run] == steps
    assert (len(cut), len(runs(steps[:5])), runs([])) == (8, 1, [])
