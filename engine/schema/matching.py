"""Which name of a new schema continues which name of the old one, by equality and by `@rename_from`.

A text keeps its `@rename_from` after the rename was applied, and may be applied again. So it counts only where the new
name is free: nothing has it, or what has it is renamed itself. Elsewhere it is satisfied, and equal names match.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from omniray.engine.schema.refusals import RENAME_TAKEN, RENAMED_TWICE, Refusal
from omniray.engine.schema.types import Annotation, ElementType

RENAME_FROM = "rename_from"


@dataclass(frozen=True, slots=True)
class Matched:
    """The old name of every new one that has one, and the renames that can't be told apart."""

    old: Mapping[str, str]
    refused: Mapping[str, Refusal]

    @property
    def new(self) -> dict[str, str]:
        """The new name of every old one that has one."""
        return {old: new for new, old in self.old.items()}


class Named(Protocol):
    """A type or a property, with its name and annotations."""

    @property
    def name(self) -> str: ...
    @property
    def annotations(self) -> tuple[Annotation, ...]: ...


class Matching(Protocol):
    """How the types of two schemas, and the properties of two types, are matched."""

    def types(self, before: Sequence[ElementType], after: Sequence[ElementType]) -> Matched: ...
    def properties(self, before: ElementType, after: ElementType) -> Matched: ...


class ByName:
    """The matching of a text that an author wrote."""

    def types(self, before: Sequence[ElementType], after: Sequence[ElementType]) -> Matched:
        return self._match(before, after)

    def properties(self, before: ElementType, after: ElementType) -> Matched:
        return self._match(before.properties, after.properties)

    def _match(self, before: Iterable[Named], after: Iterable[Named]) -> Matched:
        return match_names((one.name for one in before), {one.name: former_name(one.annotations) for one in after})


def former_name(annotations: Iterable[Annotation]) -> str | None:
    """The name that `@rename_from` gives."""
    return next((str(a.args[0]) for a in annotations if a.name == RENAME_FROM), None)


def match_names(before: Iterable[str], after: Mapping[str, str | None]) -> Matched:
    """Match the names of before with those of after, each of which is given with its former name."""
    there = set(before)
    wanted = {new: former for new, former in after.items() if former is not None and former in there - {new}}
    old: dict[str, str] = {}
    claimed: set[str] = set()
    # A rename frees its old name for another one: a -> b and b -> c in one schema.
    while (new := next((n for n in wanted if _is_free(n, there, claimed, old, wanted[n])), None)) is not None:
        old[new] = wanted[new]
        claimed.add(wanted[new])
    refused: dict[str, Refusal] = {}
    for new in after:
        if new in old:
            continue
        is_there = new in there and new not in claimed
        former = wanted.get(new)
        if former in claimed and not is_there:
            refused[new] = RENAMED_TWICE
        elif former is not None and former not in claimed and former not in after:
            refused[new] = RENAME_TAKEN
        if is_there:
            old[new] = new
    return Matched({new: old[new] for new in after if new in old}, refused)


def is_reordered(before: Iterable[str], after: Iterable[str], new: Mapping[str, str]) -> bool:
    """Whether what stays has another order; `new` gives its new names."""
    names = list(after)
    kept = [new[name] for name in before if new.get(name) in names]
    return kept != [name for name in names if name in kept]


def _is_free(new: str, there: set[str], claimed: set[str], old: Mapping[str, str], former: str) -> bool:
    """Whether a rename can be carried out now: nothing has the new name any more, and nobody took the old one."""
    return new not in old and (new not in there or new in claimed) and former not in claimed
