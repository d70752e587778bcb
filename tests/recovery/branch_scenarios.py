"""What is killed on a graph with branches: every verb of branches, and writes on one, each in a process of its own.

A verb is known by what it makes of the rows of all branches. It has an id, so that it may be asked for again after the
kill, as a caller does who got no answer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import omniray
from omniray.engine.base.failpoints import Action, Point, armed, kill
from omniray.engine.commit import phase_d
from omniray.engine.graph import Graph
from omniray.engine.history.open_branch import open_branch
from omniray.engine.line.branch_id import MAIN
from tests.graphs import AGE, DELETE, INSERT
from tests.recovery.rows import Rows
from tests.recovery.scenarios import NEVER_S, Kill, store_of
from tests.recovery.zygote import Report
from tests.stores import Root

World = dict[str, Rows]
"""The rows of each branch, by its name."""

OF_BRANCHES = {point for point in Point if point.startswith("branch.")}
TXN_ID = "01M70000000000000000000000"
SIDE, DEEP, GONE = "side", "side/deep", "gone"
PEOPLE = {"ann": 30, "bob": 40, "cid": 50}
EDGES = {"ab": ("ann", "bob"), "ca": ("cid", "ann")}


@dataclass(frozen=True, slots=True)
class Verb:
    """Something that is asked of a graph under an id, and what it makes of its branches."""

    name: str
    ask: Callable[[omniray.Graph], object]
    effect: Callable[[World], None]
    halfway: Callable[[World], None] | None = None  # of a verb that is two commits
    on_s3: bool = False  # whether the short form kills it there, too


def prepare(graph: omniray.Graph) -> World:
    """A graph with three branches, each of which has gone its own way, and one that was deleted."""
    people = [{"type": "Person", "data": {"name": name, "age": age}} for name, age in PEOPLE.items()]
    edges = [{"edge": "Knows", "id": id, "from": src, "to": dst} for id, (src, dst) in EDGES.items()]
    graph.load([*people, {"type": "City", "data": {"name": "rome"}}, *edges])
    graph.create_branch(GONE)
    _insert(graph, "gus", GONE)
    graph.delete_branch(GONE)
    graph.create_branch(SIDE)
    _insert(graph, "sid", SIDE)
    graph.mutate(AGE, {"name": "ann", "age": 31}, branch=SIDE, message="aged")
    graph.create_branch(DEEP, SIDE)
    _insert(graph, "dee", DEEP)
    _insert(graph, "max")
    began: Rows = {"Person": dict(PEOPLE), "City": {"rome": None}, "Knows": dict(EDGES)}
    world = {name: copy.deepcopy(began) for name in (MAIN, SIDE, DEEP)}
    world[MAIN]["Person"] |= {"max": 1}
    for name in (SIDE, DEEP):
        world[name]["Person"] |= {"sid": 1, "ann": 31}
    world[DEEP]["Person"] |= {"dee": 1}
    return world


def _insert(graph: omniray.Graph, name: str, branch: str = MAIN, **options: str) -> None:
    graph.mutate(INSERT, {"name": name, "age": 1}, branch=branch, **options)  # type: ignore[arg-type]


def _created(name: str, from_: str) -> Callable[[World], None]:
    return lambda world: world.update({name: copy.deepcopy(world[from_])})


def _deleted(*names: str) -> Callable[[World], None]:
    def effect(world: World) -> None:
        for name in names:
            del world[name]

    return effect


def _renamed(old: str, new: str) -> Callable[[World], None]:
    return lambda world: world.update({new: world.pop(old)})


def _written(branch: str, name: str) -> Callable[[World], None]:
    return lambda world: world[branch]["Person"].update({name: 1})


def _removed(branch: str, name: str) -> Callable[[World], None]:
    def effect(world: World) -> None:
        del world[branch]["Person"][name]
        edges = world[branch]["Knows"]
        world[branch]["Knows"] = {id: ends for id, ends in edges.items() if name not in ends}

    return effect


def _aged(branch: str, name: str, age: int) -> Callable[[World], None]:
    return lambda world: world[branch]["Person"].update({name: age})


def _merged(source: str) -> Callable[[World], None]:
    """Main has changed no row that the source changed."""
    return lambda world: world[MAIN]["Person"].update(world[source]["Person"])


def _merged_and_gone(world: World) -> None:
    _merged(DEEP)(world)
    del world[DEEP]


def _revert(graph: omniray.Graph) -> None:
    """Take back the change of an age on a branch."""
    aged = next(entry for entry in graph.history(branch=SIDE) if entry.message == "aged")
    graph.revert(aged.commit_id, branch=SIDE, txn_id=TXN_ID)


def _load_staged(graph: omniray.Graph) -> None:
    people = [{"type": "Person", "data": {"name": f"p{number}", "age": number}} for number in range(8)]
    graph.load([*people, {"type": "City", "data": {"name": "oslo"}}], branch=SIDE, txn_id=TXN_ID)


def _loaded(world: World) -> None:
    world[SIDE]["Person"] |= {f"p{number}": number for number in range(8)}
    world[SIDE]["City"] |= {"oslo": None}


VERBS: Mapping[str, Verb] = {
    verb.name: verb
    for verb in (
        Verb("create", lambda g: g.create_branch("new", txn_id=TXN_ID), _created("new", MAIN), on_s3=True),
        Verb("create of a branch", lambda g: g.create_branch("new", DEEP, txn_id=TXN_ID), _created("new", DEEP)),
        Verb("create of a name that was", lambda g: g.create_branch(GONE, txn_id=TXN_ID), _created(GONE, MAIN)),
        Verb("delete", lambda g: g.delete_branch(DEEP, txn_id=TXN_ID), _deleted(DEEP), on_s3=True),
        Verb("delete with children", lambda g: g.delete_branch(SIDE, force=True, txn_id=TXN_ID), _deleted(SIDE, DEEP)),
        Verb("rename", lambda g: g.rename_branch(SIDE, "other", txn_id=TXN_ID), _renamed(SIDE, "other")),
        Verb("write", lambda g: _insert(g, "new", SIDE, txn_id=TXN_ID), _written(SIDE, "new"), on_s3=True),
        Verb("load", _load_staged, _loaded),
        Verb("adopt", lambda g: g.merge(DEEP, SIDE, txn_id=TXN_ID), _written(SIDE, "dee"), on_s3=True),
        Verb("merge", lambda g: g.merge(DEEP, MAIN, txn_id=TXN_ID), _merged(DEEP), on_s3=True),
        Verb(
            "merge and delete",
            lambda g: g.merge(DEEP, MAIN, txn_id=TXN_ID, delete_source=True),
            _merged_and_gone,
            halfway=_merged(DEEP),
        ),
        Verb("revert", _revert, _aged(SIDE, "ann", 30)),
        Verb("remove", lambda g: g.mutate(DELETE, {"name": "ann"}, branch=DEEP, txn_id=TXN_ID), _removed(DEEP, "ann")),
    )
}


# In the process that is to be killed


def open_root(root: Root) -> Graph:
    return Graph(open_branch(store_of(root)), read_only=False)


def count_on_branches(report: Report, name: str, root: Root) -> None:
    """Carry out a verb, and report how often it reached each point."""
    actions = {point: Action(lambda: None) for point in Point}
    with armed(actions):
        _run(VERBS[name], root, lambda _: None)
    report({point: action.reached for point, action in actions.items() if action.reached})


def die_on_branches(report: Report, doom: Kill, root: Root) -> None:
    """Carry out a verb that does not come to its end."""
    with armed({doom.point: Action(kill, doom.nth)}):
        _run(VERBS[doom.scenario], root, report)


def _run(verb: Verb, root: Root, report: Report) -> None:
    phase_d.IDLE_S = NEVER_S
    with open_root(root) as graph:
        verb.ask(graph)
        report(verb.name)
