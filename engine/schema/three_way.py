"""Merges of values of which two sides made something else, from what both began with.

A side that left a value as it was has no say in it, and two that made the same of it agree.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


class Unmerged(Exception):
    """Both sides changed the value, each in its own way; never leaves the modules that merge schemas."""


def merged(base: T, ours: T, theirs: T) -> T:
    """The value that one side changed, or both alike; raises `Unmerged` else."""
    if ours in (theirs, base):
        return theirs
    if theirs == base:
        return ours
    raise Unmerged


def merged_or(base: T, ours: T, theirs: T, otherwise: Callable[[], T]) -> T:
    """As `merged`, with what to do if both sides changed it."""
    try:
        return merged(base, ours, theirs)
    except Unmerged:
        return otherwise()


def merged_members(base: Iterable[H], ours: Sequence[H], theirs: Sequence[H]) -> tuple[H, ...]:
    """The members that are left of both sides, and those that either added; a member can't be changed."""
    began = set(base)
    both = {one for one in ours if one in theirs} | (set(ours) ^ set(theirs)) - began
    return in_merged_order(tuple(base), ours, theirs, both)


def in_merged_order(base: Sequence[H], ours: Sequence[H], theirs: Sequence[H], members: set[H]) -> tuple[H, ...]:
    """Members in the order of the side that changed it, or of ours; what that side lacks comes last."""
    first, second = (theirs, ours) if tuple(ours) == tuple(base) else (ours, theirs)
    return tuple(one for one in dict.fromkeys((*first, *second)) if one in members)
