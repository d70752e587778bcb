"""The error tree and the public names: whole, picklable, documented."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import omniray
from omniray.engine.base import errors
from omniray.engine.base.errors import ExpectedVersionMismatch, KeyConflict, OmnirayError, ParseError, error_of_kind

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


# The table in the module's docstring

_ROW = re.compile(r"^ {4}(?P<branches>[│├└─ ]*)(?P<name>[A-Z]\w+) {2,}(?P<meaning>\S.*?)(?: {2,}(?P<figures>[\d ]+))?$")
_WIDTH = 4  # of a level


@dataclass(frozen=True, slots=True)
class Drawn:
    """A class of the tree as the docstring draws it; figures that are not there are its parent's."""

    name: str
    parent: str
    exit_code: int
    http_status: int


def drawn_tree(docstring: str) -> dict[str, Drawn]:
    found: dict[str, Drawn] = {}
    above: list[Drawn] = []
    for row in filter(None, map(_ROW.match, docstring.splitlines())):
        del above[len(row["branches"]) // _WIDTH :]
        figures = [int(figure) for figure in (row["figures"] or "").split()]
        parent = above[-1] if above else Drawn("Exception", "", 0, 0)
        inherited = [parent.exit_code, parent.http_status]
        exit_code, http_status = figures if len(figures) == 2 else [inherited[0], *(figures or inherited[1:])]
        above.append(Drawn(row["name"], parent.name, exit_code, http_status))
        found[row["name"]] = above[-1]
    return found


def as_it_is() -> dict[str, Drawn]:
    return {e.__name__: Drawn(e.__name__, e.__bases__[0].__name__, e.exit_code, e.http_status) for e in _tree()}


def test_the_tree_is_drawn_as_it_is_with_every_parent_exit_code_and_status() -> None:
    assert drawn_tree(errors.__doc__ or "") == as_it_is()


@pytest.mark.parametrize(
    ("drawn", "otherwise"),
    [
        pytest.param("GraphGone  ", "GraphAway  ", id="a name"),
        pytest.param("├── Conflict    ", "│   ├── Conflict", id="a place"),
        pytest.param(" 4   409", " 5   409", id="an exit code"),
        pytest.param("410", "404", id="a status"),
        pytest.param("    │   └── Moved  ", "    │   └── moved  ", id="a class that is not drawn"),
    ],
)
def test_the_drawing_is_compared_in_everything(drawn: str, otherwise: str) -> None:
    """The twin of the comparison: each of these would be noticed."""
    docstring = errors.__doc__ or ""
    assert docstring.count(drawn) == 1
    assert drawn_tree(docstring.replace(drawn, otherwise)) != as_it_is()


def test_every_error_has_a_kind_of_its_own() -> None:
    kinds = [e.kind for e in _tree()]
    assert len(set(kinds)) == len(kinds)
    assert all(re.fullmatch("[a-z_]+", kind) for kind in kinds)


def test_exit_codes_tell_the_branches_of_the_tree_apart_and_nothing_below_them() -> None:
    """A script decides by them, so a class takes the exit code of its branch."""
    branches = {e: e.exit_code for e in OmnirayError.__subclasses__() if e.__module__ == errors.__name__}
    assert sorted(branches.values()) == [3, 4, 5, 6]
    assert all(e.exit_code == code for branch, code in branches.items() for e in _tree(branch))


def test_what_may_be_tried_again_is_never_a_client_s_mistake_over_http() -> None:
    retries = {e.retry for e in _tree()}
    assert retries == {"safe", "after_refresh", "never", "unknown"}
    # 401: a client reads the record of the door again, and knows the secret then.
    later = (401, 409, 429, 503)
    wrong = [e.__name__ for e in _tree() if e.retry in ("safe", "unknown") and e.http_status not in later]
    assert wrong == []


@pytest.mark.parametrize("error_type", list(_tree()), ids=lambda e: e.__name__)
def test_an_error_that_was_sent_by_its_kind_is_the_same_error(error_type: type[OmnirayError]) -> None:
    error = MADE_BY_HAND.get(error_type, lambda: error_type("what happened; what to do", table_key="node:Person"))()
    copy = error_of_kind(error.kind, error.message, error.facts)
    assert (type(copy), str(copy), copy.facts) == (error_type, str(error), error.facts)
    assert (copy.retry, copy.exit_code, copy.http_status) == (error.retry, error.exit_code, error.http_status)


def test_an_error_of_a_kind_that_is_not_known_here_is_an_error_all_the_same() -> None:
    class OfATest(errors.StorageError):
        kind = "of_a_test"

    for kind in ("of_a_later_omniray", "", OfATest.kind):
        copy = error_of_kind(kind, "what happened", {"txn_id": "01"})
        assert (type(copy), str(copy), copy.facts) == (OmnirayError, "what happened", {"txn_id": "01"})


def test_each_kind_is_that_of_one_class_alone() -> None:
    kinds = [e.kind for e in _tree()]
    assert len(kinds) == len(set(kinds))


def test_the_public_names_are_few_sorted_and_documented() -> None:
    names = omniray.__all__
    assert names == sorted(names)
    errors = [n for n in names if isinstance(found := getattr(omniray, n), type) and issubclass(found, Exception)]
    assert len(names) - len(errors) <= 25
    assert [n for n in names if not hasattr(omniray, n)] == []
    documented = (ROOT / "docs" / "python.md").read_text()
    assert [n for n in names if n not in documented] == []


def test_a_name_that_is_not_public_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        omniray.nonsense  # noqa: B018
