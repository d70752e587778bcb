"""The report of a run: counts for each type, and the commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from omniray.engine.line.branch_id import MAIN


@dataclass(frozen=True, slots=True)
class TypeCounts:
    """The row counts of a type: every read row is accepted or rejected; `committed` counts those in the commit."""

    type: str
    read: int
    accepted: int
    rejected: Mapping[str, int]
    committed: int = 0

    @property
    def rejected_rows(self) -> int:
        return sum(self.rejected.values())

    def __str__(self) -> str:
        by_reason = ", ".join(f"{reason} {count:,}" for reason, count in self.rejected.items())
        return f"{self.accepted:,} of {self.read:,} rows accepted" + (f", rejected: {by_reason}" if by_reason else "")


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run. `repeated` says that its id had been committed before: nothing was done now."""

    run_id: str
    dry_run: bool
    rejects: str
    commit_id: str | None = None
    repeated: bool = False
    types: Sequence[TypeCounts] = field(default_factory=tuple)
    branch: str = MAIN

    @property
    def rejected(self) -> Mapping[str, int]:
        """Over all types, by reason."""
        counts: Counter[str] = Counter()
        for one in self.types:
            counts.update(one.rejected)
        return dict(counts)

    def as_json(self) -> dict[str, Any]:
        """The report as one document."""
        return {**asdict(self), "rejected": self.rejected, "types": {t.type: _counts(t) for t in self.types}}

    def __str__(self) -> str:
        if self.repeated:
            return f"run {self.run_id} was committed before; nothing was read or written now"
        if self.dry_run:
            return f"run {self.run_id}: a dry run, nothing was committed"
        if self.commit_id is None:
            return f"run {self.run_id}: nothing to commit"
        where = "" if self.branch == MAIN else f" on {self.branch}"
        return f"run {self.run_id}: committed as {self.commit_id}{where}"


def _counts(counts: TypeCounts) -> dict[str, Any]:
    return {name: value for name, value in asdict(counts).items() if name != "type"}
