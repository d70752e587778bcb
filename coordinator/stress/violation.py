"""The rules that a run is judged by, and what is said when one is broken."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Rule(StrEnum):
    """What must never happen; the names say what has."""

    # The lineage beside the writers' answers
    LOST_COMMIT = "lost_commit"  # acknowledged, and not in the lineage
    DOUBLED_COMMIT = "doubled_commit"  # one id twice in the lineage
    PHANTOM_COMMIT = "phantom_commit"  # in the lineage, and nobody sent it
    REFUSED_YET_COMMITTED = "refused_yet_committed"
    BROKEN_LINEAGE = "broken_lineage"  # parents, numbers or operations do not make one line
    NOT_REPEATED = "not_repeated"  # sent again after it was acknowledged, and not told so
    WRONG_ANSWER = "wrong_answer"  # the commit or its counts are not what the writer was told
    UNEXPECTED_ERROR = "unexpected_error"  # of a kind that no write of the workload can deserve
    # Order
    OUT_OF_ORDER = "out_of_order"  # one commit was known before the other was sent, and comes after it
    TWO_WINNERS = "two_winners"  # strict writes that named the same version of a table, and both changed it
    STALE_WINNER = "stale_winner"  # a strict write landed although its table had moved
    # The replay
    UNLAWFUL_COMMIT = "unlawful_commit"  # committed, and must have been refused there
    GROUNDLESS_REFUSAL = "groundless_refusal"  # refused, and at no moment while it ran was there a reason
    WRONGLY_EMPTY = "wrongly_empty"  # told as without effect, and it had something to change all the while
    LOST_ROW = "lost_row"
    PHANTOM_ROW = "phantom_row"
    WRONG_ROW = "wrong_row"
    DOUBLED_ROW = "doubled_row"
    DANGLING_EDGE = "dangling_edge"
    # Snapshots
    PHANTOM_SNAPSHOT = "phantom_snapshot"  # of a commit that is not in the lineage
    UNTIMELY_SNAPSHOT = "untimely_snapshot"  # without a commit that was known, or with one that was not yet sent
    INCONSISTENT_SNAPSHOT = "inconsistent_snapshot"  # not what the graph held at its commit
    # Recoveries
    RECOVERED_TWICE = "recovered_twice"
    FALSE_RECOVERY = "false_recovery"  # rolled back, and in the lineage; or rolled forward, and not in it


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken, and the lines of the history that show it."""

    rule: Rule
    message: str
    excerpt: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"
