"""The rules of a round, each by writes that meet there: who lands, who is refused, and what a loser is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omniray.coordinator.rounds.conflicts import JudgedRound, WriteAnswer, judge_round
from omniray.coordinator.rounds.fairness import RoundLimits
from omniray.engine.base.errors import (
    ConstraintViolation,
    ExpectedVersionMismatch,
    KeyConflict,
    Moved,
    NotFound,
    OmnirayError,
    QueryError,
    StorageError,
    TableDrift,
)
from omniray.engine.judge.resolution import Affected, Resolution, TableWrite
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.types import DST, ID, SRC
from omniray.engine.tables.storage import NOTHING_REPLACED, StagedRows
from omniray.engine.writes import mutate as mutate_module
from omniray.engine.writes.write_requests import PreparedRequest, Request
from tests.coordination import Held, Sender

_SCHEMA = parse_schema("""
node Person {
    name: String @key
    age: I32?
    mail: String? @unique
}
node City { name: String @key }
edge Knows: Person -> Person @card(0..1)
""")
PERSON, CITY, KNOWS = _SCHEMA.by_table_key
INSERT = "query q($name: String, $age: I32?) { insert Person { name: $name, age: $age } }"
AGE = "query q($old: I32, $new: I32) { update Person set { age: $new } where age = $old }"
DELETE = "query q($name: String) { delete Person where name = $name }"
SENDER = Sender(_SCHEMA)


def people(**ages: int | None) -> pa.Table:
    rows = [{ID: name, "name": name, "age": age, "mail": None} for name, age in ages.items()]
    return pa.Table.from_pylist(rows, _SCHEMA.by_table_key[PERSON].arrow)


STATE = Held(_SCHEMA, {PERSON: people(ann=1, bob=2)})
"""Ann and Bob, every table at version 7."""


def load(*names: str, mode: str = "append", **header: Any) -> Request:
    return SENDER.load_request([{"name": name, "age": 0} for name in names], mode=mode, type="Person", **header)


def knows(source: str, target: str, **header: Any) -> Request:
    return SENDER.load_request([{"from": source, "to": target}], type="Knows", **header)


def mutate(text: str, **params: Any) -> Request:
    return SENDER.mutation(text, params)


def judged(*requests: Request, state: Held = STATE) -> JudgedRound:
    return judge_round(requests, state, _SCHEMA)


def judged_within(limits: RoundLimits, *requests: Request) -> JudgedRound:
    return judge_round(requests, STATE, _SCHEMA, limits)


def landed(round: JudgedRound) -> list[str]:
    return [request.header.commit_id for request, _ in round.accepted]


def refusal(round: JudgedRound, request: Request) -> OmnirayError:
    answer = round.answers[request.header.commit_id]
    assert isinstance(answer, OmnirayError)
    return answer


def ids_of(*requests: Request) -> list[str]:
    return [request.header.commit_id for request in requests]


def rows(round: JudgedRound, table_key: str = PERSON) -> dict[str, int | None]:
    """By id the ages that a round writes; of edges where they go."""
    value = DST if table_key == KNOWS else "age"
    key = SRC if table_key == KNOWS else ID
    return {row[key]: row[value] for row in round.writes[table_key].rows.to_pylist()}


# Keys


def test_an_append_of_a_key_that_is_there_is_a_conflict_that_nobody_in_the_round_has_won() -> None:
    loser, other = load("ann"), load("eve")
    round = judged(loser, other)
    error = refusal(round, loser)
    assert isinstance(error, KeyConflict)
    assert error.facts == {"table_key": PERSON, "key": "ann"}
    assert (landed(round), rows(round)) == (ids_of(other), {"eve": 0})


def test_of_two_appends_of_one_key_the_first_wins_and_the_second_is_told_by_whom() -> None:
    winner, loser = load("eve", "fay"), load("gil", "fay")
    round = judged(winner, loser)
    error = refusal(round, loser)
    assert isinstance(error, KeyConflict)
    assert error.facts == {"table_key": PERSON, "key": "fay", "winner": winner.header.commit_id}
    assert rows(round) == {"eve": 0, "fay": 0}, "a loser leaves no row behind"


def test_a_key_that_an_earlier_write_has_freed_may_be_appended() -> None:
    writes = [load("eve"), mutate(DELETE, name="eve"), mutate(DELETE, name="ann"), load("eve", "ann")]
    round = judged(*writes)
    assert landed(round) == ids_of(*writes)
    assert rows(round) == {"eve": 0, "ann": 0}
    assert round.writes[PERSON].replaced[ID].to_pylist() == ["ann"]


def test_merges_of_one_key_all_land_and_the_last_one_wins() -> None:
    writes = [mutate(INSERT, name="ann", age=age) for age in (5, 6, 7)]
    round = judged(*writes)
    assert landed(round) == ids_of(*writes)
    assert [resolution.affected for _, resolution in round.accepted] == [Affected(nodes=1)] * 3
    assert rows(round) == {"ann": 7}
    assert round.writes[PERSON].replaced.num_rows == 1


def test_merges_that_are_judged_together_replace_a_row_of_their_round_once() -> None:
    """They bring the same key, which a write before them has brought: the first of them takes its place."""
    insert = mutate("query q($name: String) { insert City { name: $name } }", name="bonn")
    merges = [SENDER.load_request([{"name": "bonn"}], mode="merge", type="City") for _ in range(3)]
    round = judged(insert, *merges)
    assert landed(round) == ids_of(insert, *merges)
    assert round.writes[CITY].rows[ID].to_pylist() == ["bonn"]


def test_an_id_that_another_write_of_the_round_was_given_is_taken() -> None:
    """Rows without a key get their ids where they are read; whoever names one of them means that row."""
    schema = parse_schema("node Note { text: String }")
    sender = Sender(schema)
    first = sender.load_request([{"text": "first"}], type="Note")
    taken = first.tables["node:Note"][ID][0].as_py()
    second = sender.load_request([{"id": taken, "text": "second"}], type="Note")
    round = judge_round([first, second], Held(schema), schema)
    assert isinstance(refusal(round, second), KeyConflict)
    assert round.writes["node:Note"].rows["text"].to_pylist() == ["first"]


# Versions


def test_of_two_strict_writes_on_one_version_the_first_wins_and_the_second_is_told_by_whom() -> None:
    winner, loser = (load(name, expected_versions={PERSON: 7}) for name in ("eve", "fay"))
    round = judged(winner, loser)
    error = refusal(round, loser)
    assert isinstance(error, ExpectedVersionMismatch)
    assert error.facts == {"table_key": PERSON, "expected": 7, "actual": 8, "winner": winner.header.commit_id}
    assert landed(round) == ids_of(winner)


def test_a_strict_write_loses_against_any_write_before_it_that_lands_and_against_no_other() -> None:
    refused, easy = load("ann"), load("eve")
    first, second = (load(name, expected_versions={PERSON: 7}) for name in ("fay", "gil"))
    assert landed(judged(refused, first)) == ids_of(first)
    round = judged(easy, second)
    assert landed(round) == ids_of(easy)
    assert refusal(round, second).facts["winner"] == easy.header.commit_id


def test_a_strict_write_whose_table_moved_before_the_round_has_lost_against_nobody_in_it() -> None:
    loser = load("eve", expected_versions={PERSON: 6})
    assert refusal(judged(loser), loser).facts == {"table_key": PERSON, "expected": 6, "actual": 7}


def test_a_strict_write_is_not_disturbed_by_writes_to_other_tables() -> None:
    writes = [load("eve"), SENDER.load_request([{"name": "rome"}], type="City", expected_versions={CITY: 7})]
    assert landed(judged(*writes)) == ids_of(*writes)


def test_a_version_of_a_table_that_does_not_exist_is_bad_input() -> None:
    lost = load("eve", expected_versions={"node:Dog": 1})
    assert isinstance(refusal(judged(lost), lost), NotFound)


# Updates and deletes


def test_an_update_reads_what_the_writes_before_it_have_left() -> None:
    writes = [mutate(INSERT, name="eve", age=1), mutate(AGE, old=1, new=3), mutate(AGE, old=3, new=4)]
    round = judged(*writes)
    assert landed(round) == ids_of(*writes)
    assert [resolution.affected.nodes for _, resolution in round.accepted] == [1, 2, 2]
    assert rows(round) == {"ann": 4, "eve": 4}


def test_a_write_that_finds_nothing_to_do_is_answered_and_commits_nothing() -> None:
    idle = mutate(AGE, old=99, new=1)
    round = judged(mutate(DELETE, name="ann"), idle)
    answer = round.answers[idle.header.commit_id]
    assert isinstance(answer, WriteAnswer)
    assert (answer.result.commit_id, answer.result.affected_nodes) == (None, 0)
    assert idle.header.commit_id not in landed(round)


def test_a_delete_takes_edges_along_that_the_same_round_brings() -> None:
    writes = [load("eve"), knows("ann", "eve"), knows("bob", "ann"), mutate(DELETE, name="eve")]
    round = judged(*writes)
    assert landed(round) == ids_of(*writes)
    assert round.accepted[-1][1].affected == Affected(nodes=1, edges=1)
    assert rows(round, KNOWS) == {"bob": "ann"}
    assert PERSON not in round.writes, "the only row that came has gone again"


# Constraints


def test_an_edge_to_a_node_that_an_earlier_write_brings_lands() -> None:
    writes = [load("eve"), knows("ann", "eve")]
    round = judged(*writes)
    assert landed(round) == ids_of(*writes)
    assert rows(round, KNOWS) == {"ann": "eve"}


def test_an_edge_to_a_node_that_an_earlier_write_deletes_is_refused() -> None:
    delete, edge = mutate(DELETE, name="bob"), knows("ann", "bob")
    round = judged(delete, edge)
    assert isinstance(refusal(round, edge), ConstraintViolation)
    assert landed(round) == ids_of(delete)
    assert landed(judged(edge, delete)) == ids_of(edge, delete), "in the other order the delete takes it along"


@pytest.mark.parametrize("broken", ["unique", "cardinality"])
def test_a_rule_that_an_earlier_write_of_the_round_makes_one_break_is_broken(broken: str) -> None:
    mails = [SENDER.load_request([{"name": name, "mail": "m"}], type="Person") for name in ("eve", "fay")]
    edges = [knows("ann", "bob"), knows("ann", "ann")]
    first, second = mails if broken == "unique" else edges
    assert landed(judged(second)) == ids_of(second), "by itself it is in order"
    round = judged(first, second)
    assert isinstance(refusal(round, second), ConstraintViolation)
    assert landed(round) == ids_of(first)


def test_a_loser_changes_nothing_for_those_after_it() -> None:
    """A load of several tables that is refused for one of them brings nothing into the others."""
    source = [{"type": "Person", "data": {"name": "eve"}}, {"edge": "Knows", "from": "eve", "to": "nobody"}]
    loser, follower = SENDER.load_request(source), load("eve", expected_versions={PERSON: 7, KNOWS: 7})
    round = judged(loser, follower)
    assert isinstance(refusal(round, loser), ConstraintViolation)
    assert landed(round) == ids_of(follower)
    assert list(round.writes) == [PERSON]


def test_records_that_an_earlier_write_makes_unfit_are_set_aside_if_their_load_says_so(tmp_path: Path) -> None:
    winner = load("eve")
    lenient = load("eve", "fay", on_error="reject", rejects=tmp_path / "rejects.jsonl")
    hopeless = load("ann", on_error="reject", rejects=tmp_path / "rejects.jsonl")
    round = judged(winner, lenient, hopeless)
    assert landed(round) == ids_of(winner, lenient)
    assert (round.accepted[1][1].rejected, rows(round)) == (1, {"eve": 0, "fay": 0})
    answer = round.answers[hopeless.header.commit_id]
    assert isinstance(answer, WriteAnswer)
    assert (answer.result.commit_id, answer.result.rejected, [v.key for v in answer.unfit]) == (None, 1, ["ann"])


# Loads that were judged elsewhere


def prepared(judged_on: Mapping[str, int]) -> PreparedRequest:
    write = TableWrite(Mode.APPEND, StagedRows((), 3), NOTHING_REPLACED)
    return PreparedRequest(load("x").header, Resolution({PERSON: write}, Affected(nodes=3)), judged_on)


def test_a_load_that_was_judged_elsewhere_holds_while_what_it_was_judged_on_stands_still() -> None:
    one = prepared({PERSON: 7, CITY: 7})
    round = judged(one)
    assert landed(round) == ids_of(one)
    assert round.writes[PERSON].rows is one.resolution.tables[PERSON].rows


@pytest.mark.parametrize("judged_on", [{PERSON: 6}, {PERSON: 7, CITY: 6}])
def test_a_load_that_was_judged_elsewhere_is_judged_again_when_a_table_has_moved(judged_on: dict[str, int]) -> None:
    late = prepared(judged_on)
    assert isinstance(refusal(judged(late), late), Moved)


# Nobody's fault


def test_a_store_that_fails_is_no_write_s_fault() -> None:
    class Failing(Held):
        def matching(self, *arguments: Any) -> pa.Table:
            raise StorageError("the disk is gone")

    with pytest.raises(StorageError, match="the disk is gone"):
        judged(load("eve"), state=Failing(_SCHEMA, {PERSON: people(ann=1, bob=2)}))


class Drifted(Held):
    """People that somebody else wrote to."""

    def matching(self, table_key: str, *arguments: Any) -> pa.Table:
        if table_key == PERSON:
            raise TableDrift("somebody was here", table_key=PERSON)
        return super().matching(table_key, *arguments)


def test_a_write_that_meets_a_table_that_drifted_is_told_so_and_the_others_go_on() -> None:
    met = [mutate(DELETE, name="ann"), load("cid"), load("dan")]
    city = SENDER.load_request([{"name": "rome"}], type="City")
    round = judged(met[0], city, *met[1:], state=Drifted(_SCHEMA, {PERSON: people(ann=1)}))
    assert landed(round) == ids_of(city)
    assert [type(refusal(round, one)) for one in met] == [TableDrift] * 3


class Buggy(Held):
    """A state that can't be asked for one id, for a reason that nobody foresaw."""

    def matching(self, table_key: str, column: str, values: pa.Array, columns: Sequence[str]) -> pa.Table:
        if "poison" in values.to_pylist():
            raise pa.ArrowInvalid("offset overflow")
        return super().matching(table_key, column, values, columns)


@pytest.mark.parametrize("type", ["City", "Person"])
def test_a_write_that_a_bug_keeps_from_being_judged_is_told_so_and_the_others_go_on(type: str) -> None:
    """Cities are judged together as long as that goes well, people one by one."""
    first, poison, last = (SENDER.load_request([{"name": name}], type=type) for name in ("eve", "poison", "fay"))
    cities = [{ID: name, "name": name} for name in ("a", "b", "c")]
    held = {PERSON: people(a=1, b=2, c=3), CITY: pa.Table.from_pylist(cities, _SCHEMA.by_table_key[CITY].arrow)}
    round = judged(first, poison, last, state=Buggy(_SCHEMA, held))
    assert landed(round) == ids_of(first, last)
    error = refusal(round, poison)
    assert (error.retry, error.facts) == ("never", {"txn_id": poison.header.commit_id})
    assert "offset overflow" in error.message
    assert "nothing of it was written" in error.message


def test_the_same_writes_on_the_same_state_are_judged_the_same_again() -> None:
    writes = [
        load("eve", "fay"),
        load("fay"),
        mutate(AGE, old=0, new=9),
        mutate(DELETE, name="ann"),
        knows("bob", "ann"),
    ]
    first, second = judged(*writes), judged(*writes)
    assert landed(first) == landed(second)
    assert first.answers.keys() == second.answers.keys()
    assert rows(first) == rows(second) == {"eve": 9, "fay": 9}


# What they cost


def test_it_is_told_how_many_rows_the_conditions_of_a_write_have_met_whatever_comes_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mutate_module, "MATCHED_ROWS_MAX", 1)
    two = mutate("query q() { update Person set { age: 3 } where age >= 1 }")
    one, none = mutate(AGE, old=1, new=-1), mutate(AGE, old=99, new=1)
    round = judged(load("eve"), two, one, none)
    assert isinstance(refusal(round, two), QueryError)
    assert round.matched == {two.header.commit_id: 1, one.header.commit_id: 1}


@pytest.mark.parametrize(
    "limits", [RoundLimits(rows=3), RoundLimits(size_bytes=40)], ids=["rows that it met", "bytes that it made"]
)
def test_what_comes_after_a_mutation_that_fills_the_round_is_left_unjudged(limits: RoundLimits) -> None:
    """Fault: many small mutations that meet many rows each. Oracle: what a round holds."""
    first = [load("eve"), mutate("query q() { update Person set { age: 3 } where age >= 0 }")]
    later = [load("fay"), mutate(AGE, old=3, new=4), load("gil")]
    round = judged_within(limits, *first, *later)
    assert landed(round) == ids_of(*first)
    assert round.unjudged == frozenset(ids_of(*later))
    assert rows(round) == {"eve": 3, "ann": 3, "bob": 3}
    assert not round.answers
    assert judged_within(limits, *first[1:]).unjudged == frozenset(), "the first one is always judged"
