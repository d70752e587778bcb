"""How the two languages refuse a text: at its place, in plain words, with what was expected there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from omniray.engine.base.errors import ParseError


def assert_refused_at(
    parse: Callable[[str], object], text: str, line: int, column: int, message: str, expected: Sequence[str]
) -> None:
    """Parsing a text is refused at a place; each of the expected begins something that the error says to be so."""
    with pytest.raises(ParseError) as refused:
        parse(text)
    error = refused.value
    assert (error.facts["line"], error.facts["column"]) == (line, column)
    assert message in error.message
    for one in expected:
        assert any(said.startswith(one) for said in error.facts["expected"])
    if not expected:
        assert error.facts["expected"] == []
