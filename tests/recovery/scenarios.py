"""What the kill matrix kills: every kind of writer, each run in a process of its own.

Nothing here lists the points at which a scenario can be killed: a run with all of them counted tells. So a new point is
in the matrix the moment that some scenario reaches it, and one that none reaches is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import omniray
from omniray.engine import finalise, heal, row_sink, sweep
from omniray.engine import prune as pruning
from omniray.engine.errors import NotFound
from omniray.engine.failpoints import Action, Point, armed, kill
from omniray.engine.graph import Graph
from omniray.engine.heal import Recoverer, RecoveryReport
from omniray.engine.identity import new_ulid
from omniray.engine.line import EMBEDDED, CommitObject, Fate
from omniray.engine.mutate import MutationIntent
from omniray.engine.owner import Incarnation, take_over
from omniray.engine.process import this_process
from omniray.engine.schema_parser import parse_schema
from omniray.engine.store import ObjectStore, open_store
from omniray.engine.write import Author
from tests.foreign import append
from tests.graphs import AGE, DELETE, INSERT, SCHEMA
from tests.recovery.rows import Deed, Rows, delete, insert, load, update
from tests.recovery.zygote import Report
from tests.stores import Root

NEVER_S = 3600.0

BASE = (
    load(
        "base-1",
        people={"ann": 30, "bob": 40, "cid": 50},
        cities=["rome", "oslo"],
        knows={"base-1@ab": ("ann", "bob"), "base-1@ca": ("cid", "ann"), "base-1@cb": ("cid", "bob")},
    ),
    update("base-2", "bob", 41),
)
"""The writes that every graph has before a scenario begins."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A process that runs a scenario and is killed the n-th time that it reaches a point."""

    scenario: str
    point: Point
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.scenario} killed at {self.point}@{self.nth}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A process to be killed: what it finds, what it does, and what is done after its death.

    `left` are kills whose remains it finds, `disturb` is what a foreign writer did after them. `run` reports the actor
    of each deed that is acknowledged. `deeds` are in the order in which they land. `redo` is what a person does again
    after the kill, where opening the graph is not meant to be enough.
    """

    name: str
    deeds: tuple[Deed, ...]
    run: Callable[[Root, Report], None]
    base: tuple[Deed, ...] = BASE
    left: tuple[Kill, ...] = ()
    disturb: Callable[[ObjectStore], None] | None = None
    redo: Callable[[ObjectStore], None] | None = None
    settings: tuple[tuple[Any, str, Any], ...] = ()


def uri_of(root: Root) -> str:
    return f"{root.uri}/graph"


def store_of(root: Root) -> ObjectStore:
    return open_store(uri_of(root), root.storage_options)


def _open(root: Root, owner: str = EMBEDDED) -> Graph:
    return Graph(store_of(root), read_only=False, owner=owner)


# In the process that is to be killed


def warm_up() -> None:
    """Do once what every child would do again, as far as it needs neither Lance nor a thread."""
    import omniray.engine.load
    import omniray.engine.store_s3  # noqa: F401

    this_process()
    schema = parse_schema(SCHEMA)
    for text, params in ((INSERT, {"name": ""}), (AGE, {"name": "", "age": 1}), (DELETE, {"name": ""})):
        now = datetime.now(UTC)
        MutationIntent.of(text, params, schema, Author(""), {}, name=None, now=now, txn_id=None)


def count(report: Report, name: str, root: Root) -> None:
    """Run a scenario to its end, and report how often it reached each point."""
    actions = {point: Action(lambda: None) for point in Point}
    with armed(actions):
        _run(SCENARIOS[name], root, lambda actor: None)
    report({point: action.reached for point, action in actions.items() if action.reached})


def die(report: Report, doom: Kill, root: Root) -> None:
    """Run a scenario that does not come to its end."""
    with armed({doom.point: Action(kill, doom.nth)}):
        _run(SCENARIOS[doom.scenario], root, report)


def _run(scenario: Scenario, root: Root, report: Report) -> None:
    # What happens when nothing happens for a while would make the counts depend on the clock.
    for owner, attribute, value in ((finalise, "IDLE_S", NEVER_S), *scenario.settings):
        setattr(owner, attribute, value)
    scenario.run(root, report)


# What is run


def _do(graph: Graph, deeds: Iterable[Deed], report: Report) -> None:
    for deed in deeds:
        deed.ask(graph)
        report(deed.actor)


def _writing(*deeds: Deed) -> Callable[[Root, Report], None]:
    def run(root: Root, report: Report) -> None:
        with _open(root) as graph:
            _do(graph, deeds, report)

    return run


def _owning(*deeds: Deed) -> Callable[[Root, Report], None]:
    """A coordinator: takes the line over, writes, hands it back."""

    def run(root: Root, report: Report) -> None:
        with _open(root, owner=str(Incarnation.new("tcp://coordinator:1"))) as graph:
            _do(graph, deeds, report)

    return run


def _overtaken(overtake: Callable[[Graph, Report], None], *deeds: Deed) -> Callable[[Root, Report], None]:
    """A write that another process overtakes when it is about to put its object."""

    def run(root: Root, report: Report) -> None:
        with _open(root) as graph, _open(root) as rival:
            tip = graph._writing
            put = tip.put

            def put_too_late(ours: CommitObject) -> Fate:
                tip.put = put  # type: ignore[method-assign]
                overtake(rival, report)
                return put(ours)

            tip.put = put_too_late  # type: ignore[method-assign]
            _do(graph, deeds, report)

    return run


def _being_born(root: Root, report: Report) -> None:
    omniray.init(uri_of(root), schema=SCHEMA, storage_options=root.storage_options).close()
    report("born")


def _born_again(store: ObjectStore) -> None:
    """Create the graph, unless it is there."""
    try:
        Graph(store, read_only=True).close()
    except NotFound:
        omniray.init(store.uri, schema=SCHEMA, storage_options=store.lance_options).close()


def _opening(root: Root, report: Report) -> None:
    _open(root).close()


def _handing_back(root: Root, report: Report) -> None:
    with _open(root) as graph:
        graph.recover(take_over=True)


def _writing_beside_remains(*deeds: Deed) -> Callable[[Root, Report], None]:
    """A writer that was there before somebody died: it finds what is left at the entry of a write."""

    def run(root: Root, report: Report) -> None:
        recover = Recoverer.recover
        Recoverer.recover = lambda self, tip, **_: RecoveryReport()  # type: ignore[method-assign, assignment]
        with _open(root) as graph:
            Recoverer.recover = recover  # type: ignore[method-assign]
            _do(graph, deeds, report)

    return run


def _repairing(actor: str, **how: bool) -> Callable[[Root, Report], None]:
    def run(root: Root, report: Report) -> None:
        with _open(root) as graph:
            graph.repair(actor=actor, **how)  # type: ignore[arg-type]
        report(actor)

    return run


def _repaired(actor: str, **how: bool) -> Callable[[ObjectStore], None]:
    def redo(store: ObjectStore) -> None:
        with Graph(store, read_only=False) as graph:
            graph.repair(actor=actor, **how)  # type: ignore[arg-type]

    return redo


def _sweeping(root: Root, report: Report) -> None:
    with _open(root) as graph:
        graph.sweep(older_than_s=0)


def _swept(store: ObjectStore) -> None:
    with Graph(store, read_only=False) as graph:
        graph.sweep(older_than_s=0)


# What there is


def _raise_epoch(rival: Graph, report: Report) -> None:
    """What a recovery in another process does that takes everybody for dead."""
    take_over(rival._writing, EMBEDDED)


def _unchanged(rows: Rows) -> None:
    pass


def _with_mallory(rows: Rows) -> None:
    rows["Person"]["mallory"] = 0


def _repair_deed(actor: str, effect: Callable[[Rows], None]) -> Deed:
    return Deed(actor, lambda graph: None, effect)


INSERTED = insert("w1", "w1@dan", 20)
LOADED = load(
    "w1",
    people={"w1@dan": 20, "w1@eve": 21},
    cities=["w1@bern"],
    knows={"w1@de": ("w1@dan", "w1@eve"), "w1@da": ("w1@dan", "ann")},
)
STAGED = load(
    "w1",
    people={f"w1@{n}": n for n in range(20)},
    cities=[f"w1@{n}" for n in range(20)],
    knows={f"w1@{n}": ("ann", f"w1@{n}") for n in range(20)},
)
RIVAL = insert("w0", "w0@rival", 19)
BURST = (INSERTED, update("w2", "ann", 32), delete("w3", "cid"), load("w4", cities=["w4@bonn"], people={"w4@fay": 4}))
LATER = load("w2", people={"w2@gil": 1}, cities=["w2@york"])

_INLINE_FEW = ((row_sink, "INLINE_ROWS_MAX", 4),)
_LOOK_AT_ONCE = ((heal, "LOOK_EVERY_S", 0.0), (heal, "SETTLED_S", -NEVER_S))
_PRUNE_SOON = (
    (finalise, "PRUNE_OBJECTS", 1),
    (finalise, "prune", partial(pruning.prune, retention_s=-NEVER_S, keep=2)),
)
# Files on S3 are dated by the second: those of the second in which the sweep began would not be old enough.
_DATED_LATER = (
    (sweep.Sweeper, "_dated_us", lambda self, obj: 2**62),
    (sweep, "DELETE_FILES", 2),
)


def _writer(name: str, *deeds: Deed, settings: tuple[tuple[Any, str, Any], ...] = ()) -> Scenario:
    return Scenario(name, deeds, _writing(*deeds), settings=settings)


def _recovery(name: str, *left: Kill, run: Callable[[Root, Report], None] = _opening, **more: Any) -> Scenario:
    return Scenario(name, tuple(deed for one in left for deed in _by_name[one.scenario].deeds), run, left=left, **more)


def _all() -> Sequence[Scenario]:
    return ()


_WRITERS = (
    _writer("insert", INSERTED),
    _writer("update", update("w1", "ann", 31)),
    _writer("delete", delete("w1", "ann")),
    _writer("append", LOADED),
    _writer("merge", load("w1", mode="merge", people={"bob": 99, "w1@dan": 20}, cities=["oslo", "w1@bern"])),
    _writer("overwrite", load("w1", mode="overwrite", cities=["w1@bern"], knows={"w1@bc": ("bob", "cid")})),
    _writer("staged", STAGED, settings=_INLINE_FEW),
    _writer("burst", *BURST),
    _writer("prune", INSERTED, settings=_PRUNE_SOON),
    Scenario("overtaken", (RIVAL, LOADED), _overtaken(lambda rival, report: _do(rival, (RIVAL,), report), LOADED)),
    Scenario("fenced", (LOADED,), _overtaken(_raise_epoch, LOADED)),
    Scenario("owner", BURST[:2], _owning(*BURST[:2])),
    Scenario("init", (), _being_born, base=(), redo=_born_again),
)
