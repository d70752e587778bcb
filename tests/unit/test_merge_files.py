"""The data files that a merge of many rows stages: they stay whenever its commit may have landed."""

from __future__ import annotations

from typing import cast

import pyarrow as pa
import pytest

import omniray
from omniray.engine.base.errors import OutcomeUnknown
from omniray.engine.base.failpoints import Action, Point, armed
from omniray.engine.branches.merge_rows import INLINE_ROWS_MAX
from omniray.engine.graph import Graph
from omniray.engine.history.open_branch import open_branch
from omniray.engine.line import line_end
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from tests.kit.faulty_store import CallFault, Effect, FaultyStore
from tests.stores import Root

SIDE = "side"
MANY = INLINE_ROWS_MAX + 1


@pytest.fixture
def root(disk: Root) -> Root:
    """A graph with a branch that has many new rows, and one new row beside them."""
    with omniray.init(disk.uri, schema="node Person {\n    name: String @key\n}\n") as graph:
        graph.create_branch(SIDE)
        graph.load(pa.table({"name": [f"p{n}" for n in range(MANY)]}), type="Person", branch=SIDE)
        graph.load([{"name": "ann"}], type="Person")
    return disk


def rows(root: Root) -> int:
    with omniray.open(root.uri) as graph:
        return graph.snapshot().table("Person").num_rows


def test_an_interrupt_after_the_commit_leaves_the_files(root: Root) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    at = {Point.C_AFTER_PUT: Action(interrupt, nth=1)}
    with omniray.open(root.uri) as graph, armed(at), pytest.raises(KeyboardInterrupt):
        graph.merge(SIDE)
    assert rows(root) == MANY + 1


def test_a_commit_that_got_no_clear_answer_leaves_the_files(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_end, "UNCLEAR_TIMEOUT_S", 0.0)
    faulty = FaultyStore(open_store(root.uri))

    def lose_the_answer() -> None:
        faulty.arm(CallFault(Effect.LOSE, frozenset({"put_if_absent"}), path_contains="__commits"))
        faulty.arm(CallFault(Effect.FAIL, frozenset({"get"}), path_contains="__commits"))

    with Graph(open_branch(cast(ObjectStore, faulty)), read_only=False) as graph:
        with armed({Point.C_BEFORE_PUT: Action(lose_the_answer)}), pytest.raises(OutcomeUnknown):
            graph.merge(SIDE)
        faulty.disarm()
    assert rows(root) == MANY + 1
