"""The rules of a run, and the report of a broken one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Rule(StrEnum):
    """A rule, named by its violation."""

    # The lineage and the writers' answers
    LOST_COMMIT = "lost_commit"  # acknowledged, and not in the lineage
    DOUBLED_COMMIT = "doubled_commit"  # one id twice in the lineage
    PHANTOM_COMMIT = "phantom_commit"  # in the lineage, and no writer sent it
    REFUSED_YET_COMMITTED = "refused_yet_committed"
    BROKEN_LINEAGE = "broken_lineage"  # parents, numbers or operations don't form one line
    NOT_REPEATED = "not_repeated"  # sent again after it was acknowledged, and not answered as a repetition
    WRONG_ANSWER = "wrong_answer"  # the commit or its counts differ from the writer's answer
    UNEXPECTED_ERROR = "unexpected_error"  # of a kind that the workload can't cause
    # Order
    OUT_OF_ORDER = "out_of_order"  # a commit that was known before another was sent comes after it
    TWO_WINNERS = "two_winners"  # two strict writes expected the same version of a table, and both changed it
    STALE_WINNER = "stale_winner"  # a strict write landed although its table had moved
    # The replay
    UNLAWFUL_COMMIT = "unlawful_commit"  # committed, and should have been refused
    GROUNDLESS_REFUSAL = "groundless_refusal"  # refused, without a reason at any moment while it ran
    WRONGLY_EMPTY = "wrongly_empty"  # answered as without effect, although it had one in every state
    LOST_ROW = "lost_row"
    PHANTOM_ROW = "phantom_row"
    WRONG_ROW = "wrong_row"
    DOUBLED_ROW = "doubled_row"
    DANGLING_EDGE = "dangling_edge"
    # Snapshots
    PHANTOM_SNAPSHOT = "phantom_snapshot"  # of a commit that is not in the lineage
    UNTIMELY_SNAPSHOT = "untimely_snapshot"  # lacks a commit that was known, or has one that was not sent yet
    INCONSISTENT_SNAPSHOT = "inconsistent_snapshot"  # differs from the graph at its commit
    # Recoveries
    RECOVERED_TWICE = "recovered_twice"
    FALSE_RECOVERY = "false_recovery"  # rolled back, and in the lineage; or rolled forward, and not in it


class ListRule(StrEnum):
    """A rule of transactions over lists, named by its violation."""

    FORKED_LIST = "forked_list"  # a list that was read is no prefix of the longest one
    LOST_APPEND = "lost_append"  # acknowledged before a read began, and in no list that was read
    DOUBLED_APPEND = "doubled_append"  # one value twice in a list
    PHANTOM_APPEND = "phantom_append"  # in a list, and nobody appended it
    REFUSED_YET_APPENDED = "refused_yet_appended"
    STALE_READ = "stale_read"  # lacks a value that was known before the read began
    EARLY_READ = "early_read"  # shows a value whose append began after the read had ended
    MISORDERED_APPENDS = "misordered_appends"  # an append that was known before another began comes after it
    TORN_TRANSACTION = "torn_transaction"  # a read shows a part of what a transaction appended


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken, and the lines of the history that show it."""

    rule: Rule | ListRule
    message: str
    excerpt: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings of a checker; a run without violations broke no rule."""

    violations: tuple[Violation, ...]

    @property
    def ok(self) -> bool:
        return not self.violations
