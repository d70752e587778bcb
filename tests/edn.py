"""A reader of EDN, as much of it as a history needs: maps, vectors, keywords, numbers, texts and nil."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

TOKEN = re.compile(r'[\[\]{}]|"(?:\\.|[^"\\])*"|:[a-z-]+|-?\d+|nil|[\s,]+|(?P<other>.)', flags=re.DOTALL)


class Keyword(str):
    """`:name`, which is no text."""

    __slots__ = ()


def read_edn(text: str) -> Any:
    """The one value in a text."""
    tokens = _tokens(text)
    value = _value(next(tokens), tokens)
    assert next(tokens, None) is None, f"more than one value: {text}"
    return value


def _tokens(text: str) -> Iterator[str]:
    for found in TOKEN.finditer(text):
        assert found["other"] is None, f"{found['other']!r} in {text}"
        if found[0].strip(" ,\n\t\r"):
            yield found[0]


def _value(token: str, tokens: Iterator[str]) -> Any:
    if token == "[":
        return list(_until("]", tokens))
    if token == "{":
        entries = list(_until("}", tokens))
        assert len(entries) % 2 == 0, "a key without a value"
        return dict(zip(entries[::2], entries[1::2], strict=True))
    if token.startswith(":"):
        return Keyword(token[1:])
    if token.startswith('"'):
        return json.loads(token)
    return None if token == "nil" else int(token)


def _until(end: str, tokens: Iterator[str]) -> Iterator[Any]:
    for token in tokens:
        if token == end:
            return
        yield _value(token, tokens)
    raise AssertionError(f"no {end}")
