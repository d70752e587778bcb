"""The workload over lists: an endless sequence of transactions that follows from a writer's seed.

Writers append to the same few lists, several at once, and read several from one snapshot. After a while they turn to
new lists, all of them at about the same time: a read shows a whole list, and so a run of hours stays linear.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from omniray.coordinator.stress.transactions import Append, Read

LISTS = 8
STEPS_EACH = 200  # on the same lists
APPENDS_MAX = 3
READS_MAX = 4
APPENDING_SHARE = 0.65
LOOKING_BACK_SHARE = 0.1
VALUES_EACH = 1_000_000_000  # per writer; together they stay below the 63 bits of a column


@dataclass(frozen=True, slots=True)
class AppendAll:
    """Append to lists in one commit, in this order."""

    ops: tuple[Append, ...]


@dataclass(frozen=True, slots=True)
class ReadAll:
    """Read lists from one snapshot."""

    ops: tuple[Read, ...]


ListStep = AppendAll | ReadAll


def list_steps(seed: int, writer_no: int) -> Iterator[ListStep]:
    """The steps of one writer, the same for the same seed; no two writers append the same value."""
    rng = random.Random(f"{seed}/{writer_no}/lists")
    step_no = value = 0
    while True:
        era = step_no // STEPS_EACH
        if rng.random() < APPENDING_SHARE:
            keys = rng.choices(range(LISTS), k=rng.randint(1, APPENDS_MAX))
            values = range(value, value + len(keys))
            value += len(keys)
            yield AppendAll(
                tuple(
                    Append(era * LISTS + key, writer_no * VALUES_EACH + number)
                    for key, number in zip(keys, values, strict=True)
                )
            )
        else:
            if rng.random() < LOOKING_BACK_SHARE:
                era = rng.randint(0, era)
            keys = rng.sample(range(LISTS), k=rng.randint(1, READS_MAX))
            yield ReadAll(tuple(Read(era * LISTS + key) for key in keys))
        step_no += 1
