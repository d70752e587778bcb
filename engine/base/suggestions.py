"""Suggestions for names that were misspelt."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

OPTIONS_MAX = 12


def nearest(name: str, options: Iterable[str]) -> str | None:
    """The option most similar to the name, if one is similar enough."""
    folded = {option.lower(): option for option in options}
    near = difflib.get_close_matches(name.lower(), folded, n=1)
    return folded[near[0]] if near else None


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest known one, or the first known ones."""
    known = list(options)
    if near := nearest(name, known):
        return f"did you mean {near!r}?"
    more = ", …" if len(known) > OPTIONS_MAX else ""
    return f"there {'is' if len(known) == 1 else 'are'} {', '.join(known[:OPTIONS_MAX]) or 'none'}{more}"
