"""Text for a terminal: what comes from data must not control it, nor show a text in another order than it has."""

from __future__ import annotations

import json


def printable(text: str) -> str:
    """The text with its control characters escaped, except for line breaks.

    Besides those of C0 and C1, ESC among them, these are marks of direction, other invisible ones, and half characters.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def printable_json(text: str) -> str:
    """The same for JSON, which stays valid: it can have such characters in its strings alone, besides white space."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else json.dumps(c)[1:-1] for c in text)
