"""Messages at random: whatever arrives is a write or is refused, and none ends the process or harms the others.

`OMNIRAY_SEED=7` replays one try, `OMNIRAY_TRIES=100000` makes so many.
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from omniray.coordinator.door.requests import decode_request, encode_request
from omniray.coordinator.rounds.conflicts import judge_round
from omniray.engine.base.errors import OmnirayError
from omniray.engine.judge.resolution import Affected, Resolution, TableWrite
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.parser import parse_schema
from omniray.engine.tables.fragment_text import read_fragment
from omniray.engine.tables.storage import NOTHING_REPLACED, StagedRows
from omniray.engine.writes.write_requests import Header, LoadRequest, MutationRequest, PreparedRequest, Request
from tests.coordination import Held, Sender
from tests.graphs import PERSON
from tests.model.hostile_bytes import changed, seeds
from tests.staged_fragments import FRAGMENT, fragment_json

SCHEMA = parse_schema(
    """
node Person {
    name: String @key   age: I32?   tags: [String]?   born: Date?   mood: enum(good, bad)?
    @range(age, 0..150)
}
node Note { text: String   at: DateTime?   place: Vector(2)? }
edge Knows: Person -> Person { since: Date? }
"""
)
SENDER = Sender(SCHEMA)
HONEST = [{"type": "Person", "data": {"name": "honest", "age": 1}}]


def _messages() -> list[bytes]:
    people = [{"type": "Person", "data": {"name": f"p{n}", "age": n, "tags": ["a"], "mood": "good"}} for n in range(5)]
    notes = [{"type": "Note", "data": {"text": "x", "place": [1.0, 2.0]}} for _ in range(3)]
    edges = [{"edge": "Knows", "from": "p0", "to": "p1", "data": {"since": "2020-01-01"}}]
    load = SENDER.load_request(people)
    insert = "query q($n: String, $a: I32) { insert Person { name: $n, age: $a } }"
    return [
        encode_request(SENDER.load_request([*people, *notes, *edges], mode="merge")),
        encode_request(load),
        encode_request(SENDER.mutation(insert, {"n": "x", "a": 3})),
        encode_request(_prepared(load.tables[PERSON], load.header)),
        encode_request(_prepared(StagedRows((read_fragment(fragment_json(FRAGMENT)),), 2, 7), load.header)),
    ]


def _prepared(rows: pa.Table | StagedRows, header: Header) -> PreparedRequest:
    """A load that its client has judged, on the version that `Held` has."""
    write = TableWrite(Mode.APPEND, rows, NOTHING_REPLACED)
    return PreparedRequest(header, Resolution({PERSON: write}, Affected(5)), {PERSON: 7})


def _taken(data: bytes) -> Request | None:
    try:
        return decode_request(data, SCHEMA, SENDER.schema_hash)
    except OmnirayError:
        return None


def test_whatever_arrives_is_a_write_or_is_refused_and_the_others_go_on() -> None:
    messages, taken = _messages(), 0
    for seed in seeds():
        dice = random.Random(seed)
        try:
            request = _taken(changed(dice.choice(messages), dice))
            if request is not None and request.header.schema_hash == SENDER.schema_hash:
                taken += 1
                assert isinstance(request, LoadRequest | MutationRequest | PreparedRequest)
                honest = SENDER.load_request(HONEST, mode="merge")
                judged = judge_round([request, honest], Held(SCHEMA), SCHEMA)
                assert honest.header.commit_id in {one.header.commit_id for one, _ in judged.accepted}
        except BaseException as error:
            error.add_note(f"OMNIRAY_SEED={seed}")
            raise
    assert taken or len(seeds()) < 1_000, "some changes leave a message that can be judged"


@pytest.mark.parametrize("row", [{"name": "p", "age": 151}, {"name": "p", "age": -1}])
def test_a_value_beyond_its_range_can_not_land_whatever_the_client_claims(row: dict[str, Any]) -> None:
    fits = SENDER.load_request([{"name": "p", "age": 5}], type="Person")
    rows = fits.tables["node:Person"]
    place = rows.schema.get_field_index("age")
    lying = rows.set_column(place, rows.schema.field("age"), pa.array([row["age"]], pa.int32()))
    request = LoadRequest(fits.header, fits.options, 0, fits.keys, {"node:Person": lying})
    arrived = _taken(encode_request(request))
    assert arrived is not None
    honest = SENDER.load_request(HONEST)
    judged = judge_round([arrived, honest], Held(SCHEMA), SCHEMA)
    assert [one.header.commit_id for one, _ in judged.accepted] == [honest.header.commit_id]
    assert "@range violation" in str(judged.answers[arrived.header.commit_id])
