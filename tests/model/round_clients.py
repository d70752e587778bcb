"""The clients of the random world: what they want, and how each asks until it knows."""

from __future__ import annotations

import random
from dataclasses import dataclass

from omniray.coordinator.rounds.admission import Limits
from omniray.coordinator.rounds.fairness import RoundLimits
from tests.model.round_life import Life
from tests.model.round_terms import FINAL, KEYS, ROWS_MAX, TABLES, Told, Write


@dataclass(slots=True)
class Errand:
    """A write as its client sees it: it listens to its last try only, and asks until it knows."""

    write: Write
    at: Life | None = None  # where its last try waits
    in_doubt: bool = False  # an earlier try may have landed
    not_before: int = 0  # when it is sent again
    told: Told | None = None

    def hear(self, told: Told, now: int, rng: random.Random) -> None:
        self.at, self.not_before = None, now + (80 if told is Told.OVERLOADED else 10)
        self.in_doubt = self.in_doubt or told is Told.ENDED
        gives_up = told is Told.FAILED and not self.in_doubt and rng.random() < 0.5
        if gives_up or told in FINAL:
            self.told = told


def any_limits(rng: random.Random, is_saturated: bool) -> Limits:
    if is_saturated:
        return Limits(RoundLimits(intents=rng.choice((4, 16)), rows=rng.choice((1_500, 4_000))))
    intents = rng.choice((3, 8, 1_000))
    return Limits(
        RoundLimits(intents=rng.choice((1, 3, 1_000)), rows=rng.choice((600, 65_000))),
        waiting_intents=intents,
        waiting_bytes=rng.choice((20_000, 1 << 30)),
        tenant_intents=max(2, intents // 2),
        tenant_bytes=rng.choice((12_000, 1 << 30)),
    )


def any_writes(rng: random.Random, is_saturated: bool) -> list[Write]:
    if is_saturated:
        rows = {"ann": 500, "bob": 240, "cat": 90}
        return [Write(f"{t}{n}", t, "merge", rng.choice(KEYS), rows=rows[t]) for n in range(36) for t in rows]
    return [_any_write(rng, number) for number in range(rng.randint(8, 22))]


def _any_write(rng: random.Random, number: int) -> Write:
    kind = rng.random()
    return Write(
        f"w{number}",
        rng.choice(("ann", "ann", "bob")),
        "merge" if kind < 0.08 else rng.choice(("append", "append", "merge", "delete")),
        rng.choice(KEYS),
        rng.choice((TABLES[:1], TABLES[1:], TABLES)),
        rng.choice((1, 1, 500, ROWS_MAX)),
        strict=0.08 <= kind < 0.23,
        prepared=kind < 0.08,
        alone=kind < 0.08 or rng.random() < 0.05,
    )
