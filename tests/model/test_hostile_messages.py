"""Messages at random: whatever arrives is a write or is refused, and none ends the process or harms the others.

`OMNIRAY_SEED=7` replays one try, `OMNIRAY_TRIES=100000` makes so many.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from omniray.coordinator.door.requests import decode_request, encode_request
from omniray.coordinator.rounds.conflicts import judge_round
from omniray.engine.base.errors import OmnirayError
from omniray.engine.schema.parser import parse_schema
from omniray.engine.writes.write_requests import LoadRequest, MutationRequest, Request
from tests.coordination import Held, Sender

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
TRIES = int(os.environ.get("OMNIRAY_TRIES", 1_500))
EDGES = [0, 1, 2**31 - 1, 2**31, 2**63 - 1, 2**64 - 1]
HONEST = [{"type": "Person", "data": {"name": "honest", "age": 1}}]


def _messages() -> list[bytes]:
    people = [{"type": "Person", "data": {"name": f"p{n}", "age": n, "tags": ["a"], "mood": "good"}} for n in range(5)]
    notes = [{"type": "Note", "data": {"text": "x", "place": [1.0, 2.0]}} for _ in range(3)]
    edges = [{"edge": "Knows", "from": "p0", "to": "p1", "data": {"since": "2020-01-01"}}]
    insert = "query q($n: String, $a: I32) { insert Person { name: $n, age: $a } }"
    return [
        encode_request(SENDER.load_request([*people, *notes, *edges], mode="merge")),
        encode_request(SENDER.load_request(people)),
        encode_request(SENDER.mutation(insert, {"n": "x", "a": 3})),
    ]


def _some_value(dice: random.Random) -> Any:
    texts = ["", "../../x", "\x00", "x" * 5000, "node:Person", "edge:Knows", "load", "mutation"]
    return dice.choice([None, True, -1, 2**63 - 1, -(2**63), 1.5, b"", b"\xff" * 9, [], {}, [[[[]]]], *texts])


def _changed_inside(data: bytes, dice: random.Random) -> bytes:
    """A message of the right encoding, with another value somewhere."""
    message = msgspec.msgpack.decode(data)
    at: Any = message
    while True:
        places = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not places:
            break
        place = dice.choice(places)
        if isinstance(at[place], dict | list) and dice.random() < 0.8:
            at = at[place]
            continue
        at[place] = _changed_bytes(at[place], dice) if isinstance(at[place], bytes) else _some_value(dice)
        break
    return msgspec.msgpack.encode(message)


def _changed_bytes(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice([1, 1, 1, 4, 32])):
        match dice.randrange(4):
            case 0 if changed:
                changed[dice.randrange(len(changed))] = dice.randrange(256)
            case 1 if changed:
                del changed[dice.randrange(len(changed)) :]
            case 2:
                place = dice.randrange(len(changed) + 1)
                changed[place:place] = dice.randbytes(dice.randrange(1, 9))
            case _ if len(changed) >= 8:
                place = dice.randrange(0, len(changed) - 7) // 8 * 8
                changed[place : place + 8] = dice.choice([0, 1, 2**31 - 1, 2**31, 2**63 - 1, 2**64 - 1]).to_bytes(
                    8, "little"
                )
    return bytes(changed)


CHANGES: list[Callable[[bytes, random.Random], bytes]] = [_changed_inside, _changed_bytes]


def _taken(data: bytes) -> Request | None:
    try:
        return decode_request(data, SCHEMA, SENDER.schema_hash)
    except OmnirayError:
        return None


def _seeds() -> range:
    if seed := os.environ.get("OMNIRAY_SEED"):
        return range(int(seed), int(seed) + 1)
    return range(TRIES)


def test_whatever_arrives_is_a_write_or_is_refused_and_the_others_go_on() -> None:
    messages, taken = _messages(), 0
    for seed in _seeds():
        dice = random.Random(seed)
        try:
            request = _taken(dice.choice(CHANGES)(dice.choice(messages), dice))
            if request is not None and request.header.schema_hash == SENDER.schema_hash:
                taken += 1
                assert isinstance(request, LoadRequest | MutationRequest)
                honest = SENDER.load_request(HONEST, mode="merge")
                judged = judge_round([request, honest], Held(SCHEMA), SCHEMA)
                assert honest.header.commit_id in {one.header.commit_id for one, _ in judged.accepted}
        except BaseException as error:
            error.add_note(f"OMNIRAY_SEED={seed}")
            raise
    assert taken or len(_seeds()) < 1_000, "some changes leave a message that can be judged"


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
