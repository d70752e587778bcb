"""Requests at random through a door to a whole coordinator and a graph on a disk: whatever arrives is taken or refused.

Nothing ends the publisher's life, what is refused changes nothing, and honest writes land all the while.
`OMNIRAY_SEED=7` replays one try, `OMNIRAY_TRIES=100000` makes so many.
"""

from __future__ import annotations

import http.client
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import omniray
from omniray.coordinator.actors import house as house_module
from omniray.coordinator.actors import publisher as publisher_module
from omniray.coordinator.actors.reconciler import OwnersEnd
from omniray.coordinator.client.client import connect_to_serving
from omniray.coordinator.door import calls
from omniray.coordinator.door.answers import decode_reply
from omniray.coordinator.door.requests import encode_request
from omniray.engine.base.errors import OmnirayError
from omniray.engine.base.principal import Author
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.load_stager import LoadStager
from omniray.engine.maintenance.sweep import Sweeper, SweepReport
from omniray.engine.rows.source_files import find_file, proof_of
from omniray.engine.writes import row_sink
from omniray.engine.writes.load import LoadIntent
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.part_message import decode_part
from omniray.engine.writes.terms import WriteTerms
from omniray.engine.writes.write_requests import Header, PreparedRequest, Request
from omniray.workers import staging
from tests.coordination import TIMEOUT_S, Sender
from tests.graphs import PERSON
from tests.housing import Housed, housed
from tests.model.hostile_bytes import changed, seeds

SCHEMA = """
node Person { name: String @key   age: I32?   tags: [String]?   @range(age, 0..150) }
node Note { text: String }
edge Knows: Person -> Person
"""
TRIES, BATCH = 300, 50
FILE = '{"name": "staged", "age": 4}\n'


@dataclass
class Attack:
    """A graph with a branch, its coordinator, and what an honest client would send."""

    coordinator: Housed
    client: omniray.Client
    stager: LoadStager
    file: str
    begun: list[LoadIntent]

    def __post_init__(self) -> None:
        self.sender = Sender(self.client.schema, self.client._graph.schema_hash)
        host = self.coordinator.server.url.removeprefix("http://")
        self._connection = http.client.HTTPConnection(host, timeout=TIMEOUT_S)
        self.lives = self.coordinator.incarnations._lives

    # What is sent

    def message(self, kind: str, number: int) -> tuple[str, bytes]:
        """An honest request of a kind, with its path; what it names is new."""
        made = KINDS[kind](self, number)
        if isinstance(made, msgspec.Struct):
            return ("/v1/stage" if kind == calls.STAGE.name else f"/v1/call/{kind.partition(' ')[0]}"), calls.encode(
                made
            )
        return "/v1/write", encode_request(made)

    def load(self, number: int) -> Request:
        people = [{"type": "Person", "data": {"name": f"p{number}-{n}", "age": n, "tags": ["a"]}} for n in range(3)]
        knows = {"edge": "Knows", "from": f"p{number}-0", "to": f"p{number}-1"}
        return self.sender.load_request([*people, {"type": "Note", "data": {"text": "x"}}, knows], mode="merge")

    def mutation(self, number: int) -> Request:
        insert = "query q($n: String, $a: I32) { insert Person { name: $n, age: $a } }"
        return self.sender.mutation(insert, {"n": f"m{number}", "a": 3})

    def prepared(self, number: int) -> Request:
        """A load of few rows and some that it replaces, which it carries."""
        return self._judged_here([{"name": f"i{number}", "age": 3}, {"name": "ann", "age": number % 100}])

    def staged(self, number: int) -> Request:
        """A load of rows in files."""
        return self._judged_here([{"name": f"s{number}-{n}"} for n in range(20)] + [{"name": "ann", "age": 5}])

    def _judged_here(self, people: list[dict[str, Any]]) -> Request:
        options = LoadOptions.checked("merge", "fail", None)
        intent = self.stager.prepare_load(people, options, WriteTerms(Author("eve")), type="Person")
        self.begun.append(intent)
        resolution, judged_on = self.stager.judge(intent)
        header = Header(intent.commit_id, "Load", Author("eve"), {}, "", self.sender.schema_hash)
        return PreparedRequest(header, resolution, judged_on)

    # What comes of it

    @property
    def newest(self) -> CommitObject:
        return self.coordinator.incarnations.publisher.newest

    def send(self, path: str, body: bytes) -> OmnirayError | None:
        """Send a request; the refusal, if it is one."""
        headers = {
            "Authorization": f"Bearer {self.coordinator.record.secret}", "X-Omniray-Line": self.coordinator.line,
            "X-Omniray-Place": next(iter(self.coordinator.house.places)),
        }  # fmt: skip
        self._connection.request("POST", path, body, headers)
        answer = self._connection.getresponse()
        said = answer.read()
        if path == "/v1/stage" and answer.getheader("content-type") != "application/json":
            part = decode_part(said, self.client.schema)
            return part if isinstance(part, OmnirayError) else None
        if path == "/v1/write" and answer.getheader("content-type") != "application/json":
            reply = decode_reply(said)
            return reply if isinstance(reply, OmnirayError) else None
        return None if answer.status == 200 else calls.decode_error(said, path)

    def try_one(self, path: str, body: bytes) -> None:
        before = self.newest
        refusal = self.send(path, body)
        after = self.newest
        if refusal is not None:
            assert "a bug in omniray" not in str(refusal)
            assert (after.pins, after.bindings, after.head) == (before.pins, before.bindings, before.head)
        assert self.coordinator.incarnations._lives == self.lives, "the publisher has begun another life"

    def check(self, name: str) -> None:
        """An honest write lands, and all that is there keeps the rules of the graph."""
        self.client.load([{"name": name, "age": 7}], type="Person")
        people = self.client.snapshot().table("Person")
        names, ages = people["name"].to_pylist(), people["age"].to_pylist()
        assert people["id"].to_pylist() == names
        assert len(set(names)) == len(names)
        assert all(age is None or 0 <= age <= 150 for age in ages)
        assert name in names  # it may go later: a revert of it may be taken
        ends = self.client.snapshot().table("Knows", ["src", "dst"]).to_pydict()
        assert {*ends["src"], *ends["dst"]} <= set(names)

    def forget(self) -> None:
        """Release what was announced for the loads so far."""
        while self.begun:
            self.begun.pop().close(used=True)

    def close(self) -> None:
        self._connection.close()
        self.forget()


EVE = {"actor": "eve"}
KINDS: dict[str, Callable[[Attack, int], Request | msgspec.Struct]] = {
    "load": Attack.load,
    "mutation": Attack.mutation,
    "prepared": Attack.prepared,
    "staged": Attack.staged,
    "branch_create": lambda _, n: calls.CreateTerms(name=f"b{n}", start="main", txn_id=new_ulid(), **EVE),
    "branch_create trial": lambda _, n: calls.CreateTerms(name="trial", txn_id=new_ulid(), **EVE),
    "branch_delete": lambda _, n: calls.DeleteTerms(name=f"b{n}", force=True, txn_id=new_ulid(), **EVE),
    "branch_rename": lambda _, n: calls.RenameTerms(name="trial", new_name=f"b{n}", txn_id=new_ulid(), **EVE),
    "merge": lambda _, n: calls.MergeCall(source="trial", txn_id=new_ulid(), **EVE),
    "revert": lambda it, n: calls.RevertCall(commit_id=it.newest.head, txn_id=new_ulid(), **EVE),
    "sweep": lambda _, n: calls.SweepTerms(3600.0),
    "sweep dry": lambda _, n: calls.SweepTerms(3600.0, dry_run=True),
    "repair": lambda _, n: calls.RepairTerms(discard=True, tables=[PERSON], actor="eve"),
    "outcome": lambda _, n: calls.OfWrite(new_ulid()),
    "abandon": lambda _, n: calls.OfWrite(new_ulid()),
    "hold": lambda _, n: calls.OfWrite(new_ulid()),
    "recover": lambda _, n: calls.RecoverTerms(30.0),
    "stage": lambda it, n: calls.StageTerms(
        it.file, proof_of(find_file(it.file)), "append", "fail", time.time_ns() // 1000, "Person"
    ),
}
"""What may be asked: each a kind of honest request, of which there is a new one for a number."""


def _really_swept(coordinator: Housed) -> Callable[[float, bool], SweepReport]:
    """The sweep of the reconciler's actor, in this process."""
    main = coordinator.incarnations

    def sweep(older_than_s: float, dry_run: bool) -> SweepReport:
        end = OwnersEnd(lambda: main.publisher.newest, lambda remark: main.publisher.remark(remark).result(TIMEOUT_S))
        with closing(Finaliser(main.branch)) as finaliser:
            sweeper = Sweeper(main.branch, end, finaliser, main._owner)
            return sweeper.sweep(now_us=time.time_ns() // 1000, older_than_s=older_than_s, dry_run=dry_run)

    return sweep


@pytest.fixture
def attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attack]:
    monkeypatch.setattr(row_sink, "INLINE_ROWS_MAX", 5)
    monkeypatch.setattr(publisher_module, "STANDSTILL_LOOK_S", 0.01)  # of loads whose client does not come back
    monkeypatch.setattr(house_module, "stage_file", lambda uri, options, graph, line, terms: staging._stage(
        (uri, options, graph, line), terms
    ))  # fmt: skip
    file = tmp_path / "staged.jsonl"
    file.write_text(FILE)
    with omniray.init(str(tmp_path / "graph"), schema=SCHEMA) as graph:
        graph.create_branch("trial")
        graph.load([{"name": "ann", "age": 3}], type="Person")
        graph.load([{"name": "tim"}], type="Person", branch="trial")
        store = graph._branch.store
        with housed(store, monkeypatch) as coordinator, connect_to_serving(graph.uri, None) as client:
            monkeypatch.setattr(coordinator.reconciler, "sweep", _really_swept(coordinator))
            stager = LoadStager(coordinator.another_branch())
            with closing(Attack(coordinator, client, stager, str(file), [])) as attack:
                yield attack


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "branch_delete"])
def test_honest_requests_are_taken(attack: Attack, kind: str) -> None:
    """Else their changed forms would all be refused for one reason."""
    if kind == "branch_create trial":
        attack.client.delete_branch("trial")
    path, body = attack.message(kind, 7)
    assert attack.send(path, body) is None


@pytest.mark.timeout(36_000)  # its long form takes hours
def test_whatever_comes_through_the_door_changes_nothing_unless_it_is_taken(attack: Attack) -> None:
    for seed in seeds(TRIES):
        dice = random.Random(seed)
        try:
            path, body = attack.message(dice.choice(sorted(KINDS)), seed)
            attack.try_one(path, changed(body, dice, msgspec.msgpack if path == "/v1/write" else msgspec.json))
            if seed % BATCH == BATCH - 1:
                attack.forget()
                attack.check(f"honest-{seed}")
        except BaseException as error:
            error.add_note(f"OMNIRAY_SEED={seed}")
            raise
    attack.check("honest")
