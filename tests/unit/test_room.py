"""The room that a door has for bodies, and who gets how much of it."""

from __future__ import annotations

import contextlib

import pytest

from omniray.coordinator.door.messages import BYTES_MAX
from omniray.coordinator.door.room import BODIES_BYTES_MAX, SMALL_BYTES, Room
from omniray.engine.base.errors import Overloaded

MIB = 1 << 20


def fill(room: Room, line: str, stack: contextlib.ExitStack) -> int:
    """Have requests of one megabyte each hold all that a line gets; returns how many there are."""
    count = 0
    with contextlib.suppress(Overloaded):
        while True:
            share = stack.enter_context(room.share(line, MIB + SMALL_BYTES))
            share.arrived(MIB + SMALL_BYTES)
            count += 1
    return count


def test_what_a_head_announces_takes_no_room_before_it_has_arrived() -> None:
    room = Room(10 * MIB)
    with room.share("a", 6 * MIB), room.share("b", 6 * MIB) as share:
        assert room.left == 10 * MIB
        share.arrived(3 * MIB)
        share.arrived(3 * MIB)
        assert room.left == 4 * MIB + SMALL_BYTES
    assert room.left == 10 * MIB, "what was taken is given back"


def test_what_can_not_be_held_is_refused_before_it_is_read_and_what_fills_up_meanwhile_while_it_is() -> None:
    room = Room(3 * MIB)
    with pytest.raises(Overloaded), room.share("a", 3 * MIB):
        pass
    with room.share("a", 2 * MIB) as first, room.share("a", 2 * MIB) as second:
        first.arrived(MIB)
        second.arrived(MIB)
        with pytest.raises(Overloaded) as full:
            second.arrived(MIB)
        first.arrived(SMALL_BYTES)
    assert full.value.facts["retry_after_s"] > 0
    assert room.left == 3 * MIB


def test_small_requests_get_through_however_full_it_is() -> None:
    room = Room(3 * MIB)
    with contextlib.ExitStack() as stack:
        fill(room, "a", stack)
        for _ in range(100):
            stack.enter_context(room.share("a", SMALL_BYTES)).arrived(SMALL_BYTES)


def test_lines_that_hold_all_that_they_get_leave_room_for_another_one() -> None:
    room = Room(60 * MIB)
    with contextlib.ExitStack() as stack:
        assert fill(room, "a", stack) == 40
        assert fill(room, "b", stack) == 13
        assert fill(room, "c", stack) == 4
        assert room.left == 3 * MIB
    assert fill(room, "b", contextlib.ExitStack()) == 40


def test_a_line_alone_has_room_for_the_largest_write() -> None:
    with Room().share("a", BYTES_MAX) as share:
        share.arrived(BYTES_MAX)
    assert BODIES_BYTES_MAX > BYTES_MAX
