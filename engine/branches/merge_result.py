"""What a merge is asked for, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from omniray.engine.base.errors import InputError, MergeConflicts
from omniray.engine.base.principal import Author, checked_message
from omniray.engine.base.ulids import is_ulid
from omniray.engine.branches.conflicts import Conflicts, MergeConflict, OnConflict
from omniray.engine.branches.merge_plan import TableSummary
from omniray.engine.line.branch_id import MAIN


class MergeOutcome(StrEnum):
    """What a merge came to."""

    ALREADY_UP_TO_DATE = "already_up_to_date"  # nothing to take in: there is no commit
    FAST_FORWARD = "fast_forward"  # the target had changed nothing since the base, and is as the source now
    MERGED = "merged"
    REVERTED = "reverted"  # of a revert
    CONFLICTS = "conflicts"  # nothing was written


@dataclass(frozen=True, slots=True)
class MergeTerms:
    """What a caller says about a merge. A `txn_id` makes it safe to repeat; without one it gets a new id."""

    author: Author = Author()  # noqa: RUF009
    message: str = ""
    txn_id: str | None = None
    on_conflict: OnConflict = OnConflict.FAIL

    def __post_init__(self) -> None:
        checked_message(self.message)

    @classmethod
    def checked(
        cls, author: Author, message: str = "", txn_id: str | None = None, on_conflict: str = "fail"
    ) -> MergeTerms:
        """The terms, `on_conflict` given by its name."""
        if on_conflict not in tuple(OnConflict):
            raise InputError(
                f"unknown on_conflict {on_conflict!r}: give one of {', '.join(OnConflict)}", on_conflict=on_conflict
            )
        return cls(author, message, txn_id, OnConflict(on_conflict))


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What came of a merge, a preview of one, or a revert.

    `source_commit` is the commit that was merged, or the one that was reverted, and `source_group` all commits that
    landed with it: they are merged or reverted together. `repeated` says that the id had been committed before: nothing
    was applied now. `source_kept` says why a source that was to be deleted is still there.
    """

    outcome: MergeOutcome
    commit_id: str | None
    source_commit: str
    source_group: tuple[str, ...] = ()
    conflicts: tuple[MergeConflict, ...] = ()
    conflict_count: int = 0
    affected_nodes: int = 0
    affected_edges: int = 0
    versions: Mapping[str, int] = field(default_factory=dict)
    tables: tuple[TableSummary, ...] = ()
    repeated: bool = False
    source_line: str = ""  # the id of the branch that the commit is of
    source_kept: str = ""

    def with_conflicts(self, found: Conflicts) -> MergeResult:
        """The result of a merge that wrote nothing because of these."""
        return replace(
            self,
            outcome=MergeOutcome.CONFLICTS,
            commit_id=None,
            conflicts=tuple(found.listed),
            conflict_count=found.count,
        )

    def as_json(self) -> dict[str, Any]:
        """The result as plain data."""
        tables = [
            {
                "table_key": one.table_key,
                "how": one.how.value,
                "written": one.written,
                "removed": one.removed,
                "settled": one.settled,
            }
            for one in self.tables
        ]
        return {
            "outcome": self.outcome.value,
            "commit_id": self.commit_id,
            "source_commit": self.source_commit,
            "source_group": list(self.source_group),
            "conflicts": [one.as_json() for one in self.conflicts],
            "conflict_count": self.conflict_count,
            "affected_nodes": self.affected_nodes,
            "affected_edges": self.affected_edges,
            "versions": dict(self.versions),
            "tables": tables,
            "repeated": self.repeated,
            "source_kept": self.source_kept,
        }


def refuse_undeletable(source: str) -> None:
    """Refuse to merge a source that could not be deleted afterwards, as its caller wants it to be."""
    if source == MAIN or is_ulid(source.upper()):
        what = "is every graph's main branch" if source == MAIN else "is a commit"
        raise InputError(f"delete_source deletes a branch, and {source} {what}: name another branch")


def conflicts_error(result: MergeResult, what: str) -> MergeConflicts:
    """The error for a merge or revert that conflicts, with all that is known of it."""
    first = "; ".join(str(one) for one in result.conflicts[:3])
    more = f" and {result.conflict_count - 3} more" if result.conflict_count > 3 else ""
    count = f"{result.conflict_count} conflict" + ("s" if result.conflict_count != 1 else "")
    unsaid = ("repeated", "versions", "source_kept")
    return MergeConflicts(
        f"{what}: {count}, and nothing was written: {first}{more}. Change one of the branches, or give on_conflict "
        "'ours' or 'theirs' for values that differ",
        **{name: value for name, value in result.as_json().items() if name not in unsaid},
    )  # fmt: skip
