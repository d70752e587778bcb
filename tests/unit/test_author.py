"""Names of actors and tenants: one printable line each, refused before anything is done with them."""

from __future__ import annotations

from typing import Any

import pytest

from omniray.engine.base.errors import InputError
from omniray.engine.base.principal import NAME_CHARS_MAX, Author
from omniray.workers.spark.options import Target
from tests.graphs import new_graph
from tests.stores import Root


@pytest.mark.parametrize("name", ["", "ann", "Zoë at work", "a" * NAME_CHARS_MAX, "omniray:recovery"])
def test_a_name_is_what_it_is(name: str) -> None:
    assert Author(name, name) == Author(actor=name, tenant=name)


@pytest.mark.parametrize("name", ["a\nb", "\ud800", "\x1b[31m", "a" * (NAME_CHARS_MAX + 1), 7, None])
def test_what_no_terminal_can_show_is_refused(name: Any) -> None:
    with pytest.raises(InputError, match=r"invalid actor .*: must be one line of at most 256 printable characters"):
        Author(actor=name)
    with pytest.raises(InputError, match="invalid tenant"):
        Target("graph", tenant=name)


def test_nothing_is_written_for_nobody(disk: Root) -> None:
    with new_graph(disk) as graph:
        with pytest.raises(InputError, match="invalid actor"):
            graph.load([{"name": "ann"}], type="Person", actor="a\nb")
        assert len(graph.history()) == 1
