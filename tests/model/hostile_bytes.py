"""Messages changed at random: their bytes, or a value somewhere inside."""

from __future__ import annotations

import os
import random
from typing import Any

import msgspec

TRIES = 1_500


def seeds(tries: int = TRIES) -> range:
    """One seed for each try; `OMNIRAY_SEED` replays one of them, `OMNIRAY_TRIES` makes so many."""
    if seed := os.environ.get("OMNIRAY_SEED"):
        return range(int(seed), int(seed) + 1)
    return range(int(os.environ.get("OMNIRAY_TRIES", tries)))


def changed(data: bytes, dice: random.Random, form: Any = msgspec.msgpack) -> bytes:
    """The message changed somewhere; `form` is the module that reads and writes its encoding."""
    return _changed_bytes(data, dice) if dice.random() < 0.5 else _changed_inside(data, dice, form)


def _some_value(dice: random.Random) -> Any:
    texts = ["", "../../x", "\x00", "x" * 5000, "node:Person", "edge:Knows", "load", "mutation"]
    return dice.choice([None, True, -1, 2**63 - 1, -(2**63), 1.5, b"", b"\xff" * 9, [], {}, [[[[]]]], *texts])


def _changed_inside(data: bytes, dice: random.Random, form: Any) -> bytes:
    """A message of the right encoding, with another value somewhere."""
    message = form.decode(data)
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
    encoded: bytes = form.encode(message)
    return encoded


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
