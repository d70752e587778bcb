"""The error tree and the public names: whole, picklable, documented."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

import omniray
from omniray.engine.base import errors
from omniray.engine.base.errors import ExpectedVersionMismatch, KeyConflict, OmnirayError, ParseError

ROOT = Path(__file__).parents[2]
MADE_BY_HAND = {
    KeyConflict: lambda: KeyConflict("node:Person", "Ann", record="people.jsonl line 3"),
    ExpectedVersionMismatch: lambda: ExpectedVersionMismatch("node:Person", 3, 4),
    ParseError: lambda: ParseError("odd", line=1, column=2, source_line="node", expected=("'{'",)),
}


def _tree(error: type[OmnirayError] = OmnirayError) -> Iterator[type[OmnirayError]]:
    yield error
    for child in error.__subclasses__():
        if child.__module__ == errors.__name__:  # tests have some of their own
            yield from _tree(child)


@pytest.mark.parametrize("error_type", list(_tree()), ids=lambda e: e.__name__)
def test_an_error_survives_pickling_with_its_facts(error_type: type[OmnirayError]) -> None:
    error = MADE_BY_HAND.get(error_type, lambda: error_type("what happened; what to do", table_key="node:Person"))()
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.facts) == (error_type, str(error), error.facts)
    assert copy.as_json() == {"kind": error.kind, "retry": error.retry, "message": str(error), **error.facts}


def test_every_error_has_a_kind_of_its_own_and_a_documented_exit_code() -> None:
    kinds = [e.kind for e in _tree()]
    assert len(set(kinds)) == len(kinds)
    assert {e.exit_code for e in _tree()} == {1, 3, 4, 5, 6}


def test_the_tree_is_drawn_as_it_is() -> None:
    drawn = errors.__doc__ or ""
    assert [e.__name__ for e in _tree() if e.__name__ not in drawn] == []


def test_the_public_names_are_few_sorted_and_documented() -> None:
    names = omniray.__all__
    assert names == sorted(names)
    assert len(names) <= 25
    assert [n for n in names if not hasattr(omniray, n)] == []
    documented = (ROOT / "docs" / "python.md").read_text()
    assert [n for n in names if n not in documented] == []


def test_a_name_that_is_not_public_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        omniray.nonsense  # noqa: B018
