"""What the kill matrix kills: every kind of writer, each run in a process of its own.

Nothing here lists the points at which a scenario can be killed: a run with all of them counted tells. So a new point is
in the matrix the moment that some scenario reaches it, and one that none reaches is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any
from unittest.mock import patch

import omniray
from omniray.engine.base.errors import NotFound
from omniray.engine.base.failpoints import Action, Point, armed, kill
from omniray.engine.base.principal import Author
from omniray.engine.base.process import this_process
from omniray.engine.commit import phase_d
from omniray.engine.graph import Graph
from omniray.engine.history import lineage_levels, manifest
from omniray.engine.history.open_branch import open_branch
from omniray.engine.line.commit_object import EMBEDDED, CommitObject, Fate
from omniray.engine.line.owner import Incarnation, take_over
from omniray.engine.line.prune import prune
from omniray.engine.maintenance import sweep
from omniray.engine.recovery import recoverer
from omniray.engine.recovery.recoverer import Recoverer, RecoveryReport
from omniray.engine.schema.parser import parse_schema
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from omniray.engine.writes import row_sink
from omniray.engine.writes.mutate import MutationIntent
from omniray.engine.writes.terms import WriteTerms
from tests.foreign import append
from tests.graphs import AGE, DELETE, INSERT, SCHEMA
from tests.recovery.rows import Deed, delete, insert, load, update
from tests.recovery.zygote import Report
from tests.stores import Root

NEVER_S = 3600.0
CREATED = "created"

Run = Callable[[Root, Report], None]
Setting = tuple[Any, str, Any]
"""An attribute of a module or class, and its value in the process that is killed."""

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

    It finds a graph with `BASE`, or none; what earlier kills `left`; and what was done to `disturb` it after them. The
    process reports the actor of each deed that is acknowledged; `deeds` are in the order in which they land. `redo` is
    what a person does again after the kill, where opening the graph is not meant to be enough. Where time is short it
    is killed only at points whose names begin as `on_disk` or `on_s3` say, and only the first time unless `thorough`.
    """

    name: str
    deeds: tuple[Deed, ...]
    run: Run
    uncreated: bool = False
    left: tuple[Kill, ...] = ()
    disturb: Callable[[ObjectStore], None] | None = None
    redo: Callable[[ObjectStore], None] | None = None
    settings: tuple[Setting, ...] = ()
    on_disk: tuple[str, ...] = ("",)
    on_s3: tuple[str, ...] = ()
    thorough: bool = False


def uri_of(root: Root) -> str:
    return f"{root.uri}/graph"


def store_of(root: Root) -> ObjectStore:
    return open_store(uri_of(root), root.storage_options)


def _open(root: Root, owner: str = EMBEDDED) -> Graph:
    return Graph(open_branch(store_of(root)), read_only=False, owner=owner)


# In the process that is to be killed


def warm_up() -> None:
    """Do once what every child would do again, as far as it needs neither Lance nor a thread."""
    import omniray.engine.store.s3  # noqa: F401 (the engine does so when it opens the first one)

    this_process()
    schema = parse_schema(SCHEMA)
    for text, params in ((INSERT, {"name": ""}), (AGE, {"name": "", "age": 1}), (DELETE, {"name": ""})):
        now = datetime.now(UTC)
        MutationIntent.of(text, params, schema, WriteTerms(Author("")), name=None, now=now)


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
    for owner, attribute, value in ((phase_d, "IDLE_S", NEVER_S), *scenario.settings):
        setattr(owner, attribute, value)
    scenario.run(root, report)


# What is run


def _do(graph: Graph, deeds: Iterable[Deed], report: Report) -> None:
    for deed in deeds:
        deed.ask(graph)
        report(deed.actor)


def _writing(*deeds: Deed) -> Run:
    def run(root: Root, report: Report) -> None:
        with _open(root) as graph:
            _do(graph, deeds, report)

    return run


def _writing_apart(*deeds: Deed) -> Run:
    """One writer after another, so that each of their writes is folded by itself."""

    def run(root: Root, report: Report) -> None:
        for deed in deeds:
            with _open(root) as graph:
                _do(graph, (deed,), report)

    return run


def _owning(*deeds: Deed) -> Run:
    """A coordinator: takes the line over, writes, hands it back."""

    def run(root: Root, report: Report) -> None:
        with _open(root, owner=str(Incarnation.new("tcp://coordinator:1"))) as graph:
            _do(graph, deeds, report)

    return run


def _overtaken(overtake: Callable[[Graph, Report], None], *deeds: Deed) -> Run:
    """A write that another process overtakes when it is about to put its object."""

    def run(root: Root, report: Report) -> None:
        with _open(root) as graph, _open(root) as rival:
            tip = graph._tip
            put = tip.put

            def put_too_late(ours: CommitObject) -> Fate:
                tip.put = put  # type: ignore[method-assign]
                overtake(rival, report)
                return put(ours)

            tip.put = put_too_late  # type: ignore[method-assign]
            _do(graph, deeds, report)

    return run


def _raise_epoch(rival: Graph, report: Report) -> None:
    """What a recovery in another process does that takes everybody for dead."""
    take_over(rival._tip, EMBEDDED)


def _creating(root: Root, report: Report) -> None:
    omniray.init(uri_of(root), schema=SCHEMA, storage_options=root.storage_options).close()
    report(CREATED)


def _opening(root: Root, report: Report) -> None:
    _open(root).close()


def _handing_back(root: Root, report: Report) -> None:
    with _open(root) as graph:
        graph.recover(take_over=True)


def _writing_beside_remains(*deeds: Deed) -> Run:
    """A writer that was there before somebody died: it finds what is left at the entry of its write."""

    def run(root: Root, report: Report) -> None:
        with patch.object(Recoverer, "recover", lambda self, tip: RecoveryReport()):
            graph = _open(root)
        with graph:
            _do(graph, deeds, report)

    return run


def _repairing(actor: str, verb: str) -> Run:
    def run(root: Root, report: Report) -> None:
        with _open(root) as graph:
            graph.repair(actor=actor, adopt=verb == "adopt", discard=verb == "discard")
            report(actor)

    return run


def _sweeping(root: Root, report: Report) -> None:
    with _open(root) as graph:
        graph.sweep(older_than_s=0)


# What is done before and after


def _healed(store: ObjectStore) -> None:
    Graph(open_branch(store), read_only=False).close()


def _with_foreign_row(store: ObjectStore) -> None:
    append(store, "mallory")


def _created_again(store: ObjectStore) -> None:
    """Create the graph, unless it is there."""
    try:
        Graph(open_branch(store), read_only=True).close()
    except NotFound:
        omniray.init(store.uri, schema=SCHEMA, storage_options=store.lance_options).close()


def _repaired(actor: str, verb: str) -> Callable[[ObjectStore], None]:
    def redo(store: ObjectStore) -> None:
        with Graph(open_branch(store), read_only=False) as graph:
            graph.repair(actor=actor, adopt=verb == "adopt", discard=verb == "discard")
            assert graph.repair().found == (), "a repair that was begun again leaves nothing to repair"

    return redo


def _swept(store: ObjectStore) -> None:
    with Graph(open_branch(store), read_only=False) as graph, patch.object(*_ALL_ARE_OLD):
        graph.sweep(older_than_s=0)
    with Graph(open_branch(store), read_only=False) as graph:
        left = [file.path for table in graph.sweep(older_than_s=0, dry_run=True).tables for file in table.orphans]
        assert left == [], "a sweep that was begun again leaves no orphan"


# What there is to be killed

# Files on S3 are dated by the second: those of the second in which the sweep began would not be old enough.
_ALL_ARE_OLD: Setting = (sweep, "store_now_us", lambda store: 2**62)
_FEW_INLINE: Setting = (row_sink, "INLINE_ROWS_MAX", 4)
_SMALL_BATCHES: Setting = (sweep, "DELETE_FILES", 2)
_LOOK_AT_ONCE: tuple[Setting, ...] = ((recoverer, "LOOK_EVERY_S", 0.0), (recoverer, "SETTLED_S", -NEVER_S))
_MERGE_SOON: tuple[Setting, ...] = (
    (lineage_levels, "SEALED_ROWS", 1),
    (lineage_levels, "FAN_IN", 2),
    (manifest, "TAIL_ROWS_MAX", 1),
)
_PRUNE_SOON: tuple[Setting, ...] = (
    (phase_d, "PRUNE_OBJECTS", 1),
    (phase_d, "prune", partial(prune, retention_s=-NEVER_S, keep=2)),
)

INSERTED = insert("w1", "w1@dan", 20)
LOADED = load(
    "w1",
    people={"w1@dan": 20, "w1@eve": 21},
    cities=["w1@bern"],
    knows={"w1@de": ("w1@dan", "w1@eve"), "w1@da": ("w1@dan", "ann")},
)
MERGED = load("w1", mode="merge", people={"bob": 99, "w1@dan": 20}, cities=["oslo", "w1@bern"])
OVERWRITTEN = load("w1", mode="overwrite", cities=["w1@bern"], knows={"w1@bc": ("bob", "cid")})
STAGED = load(
    "w1",
    people={f"w1@{n}": n for n in range(20)},
    cities=[f"w1@{n}" for n in range(20)],
    knows={f"w1@{n}": ("ann", f"w1@{n}") for n in range(20)},
)
RIVAL = insert("w0", "w0@rival", 19)
BURST = (INSERTED, update("w2", "ann", 32), delete("w3", "cid"), load("w4", cities=["w4@bonn"], people={"w4@fay": 4}))
LATER = load("later", people={"later@gil": 1}, cities=["later@york"])
ADOPTED = Deed("repair", lambda graph: None, lambda rows: rows["Person"].update(mallory=0))
DISCARDED = Deed("repair", lambda graph: None, lambda rows: None)

_BACK = Kill("append", Point.C_BEFORE_PUT)
_FORWARD = Kill("append", Point.C_AFTER_PUT)
_PRUNING = ("phase_d.before_prune", "phase_d.after_prune")
_AUDIT = ("phase_d.before_audit", "phase_d.audit_staged")
_UPKEEP = ("phase_d.upkeep_written", "phase_d.upkeep_staged", "phase_d.after_upkeep")


def _write(name: str, *deeds: Deed, **more: Any) -> Scenario:
    return Scenario(name, deeds, _writing(*deeds), **more)


def _recovery(name: str, *left: Kill, **more: Any) -> Scenario:
    return Scenario(name, (), _opening, left=left, **more)


def _repair(name: str, verb: str, *deeds: Deed, **more: Any) -> Scenario:
    run, redo = _repairing("repair", verb), _repaired("repair", verb)
    return Scenario(name, deeds, run, disturb=_with_foreign_row, redo=redo, **more)


_ALL = (
    _write("insert", INSERTED, on_s3=("phase",)),
    _write("update", update("w1", "ann", 31)),
    _write("delete", delete("w1", "ann")),
    _write("append", LOADED, thorough=True),
    _write("merge", MERGED),
    _write("overwrite", OVERWRITTEN),
    _write("staged", STAGED, settings=(_FEW_INLINE,), on_disk=("load", "phase_b", "phase_c"), on_s3=("load",)),
    _write("burst", *BURST),
    Scenario(
        "merge_lineage",
        BURST,
        _writing_apart(*BURST),
        settings=_MERGE_SOON,
        on_disk=_UPKEEP,
        on_s3=_UPKEEP,
        thorough=True,
    ),
    _write("prune", INSERTED, settings=_PRUNE_SOON, on_disk=_PRUNING, on_s3=_PRUNING),
    Scenario(
        "overtaken",
        (RIVAL, LOADED),
        _overtaken(lambda rival, report: _do(rival, (RIVAL,), report), LOADED),
        on_disk=("lost", "phase_c"),
        on_s3=("lost",),
        thorough=True,
    ),
    Scenario("fenced", (LOADED,), _overtaken(_raise_epoch, LOADED), on_disk=("lost", "owner", "phase_c")),
    Scenario("init", (), _creating, uncreated=True, redo=_created_again, on_s3=("init",)),
    Scenario("owner", BURST[:2], _owning(*BURST[:2]), on_s3=("owner",)),
    _write("owner_dead", LATER, left=(Kill("owner", Point.C_BEFORE_PUT, 2),), on_disk=("owner", "recovery")),
    Scenario(
        "owner_replaced",
        (),
        _handing_back,
        left=(Kill("owner", Point.C_AFTER_PUT),),
        on_disk=("owner", "recovery"),
    ),
    Scenario("owner_recovers", (LATER,), _owning(LATER), left=(_BACK,), on_disk=("owner", "recovery")),
    _recovery("recover_back", _BACK, on_s3=("recovery", *_AUDIT)),
    _recovery("recover_forward", _FORWARD),
    _recovery("recover_folded", Kill("append", Point.D_BEFORE_TIDY), on_disk=("recovery",)),
    _recovery("recover_both", Kill("overtaken", Point.C_AFTER_PUT)),
    _recovery("recover_lease", Kill("staged", Point.STAGE_AFTER_ROWS)),
    _recovery("recover_init", Kill("init", Point.INIT_AFTER_IDENTITY), uncreated=True, on_disk=("init", "recovery")),
    _recovery("recover_again", _BACK, Kill("recover_back", Point.RECOVERY_AFTER_RECORD), on_disk=("recovery", *_AUDIT)),
    Scenario(
        "recover_in_write",
        (LATER,),
        _writing_beside_remains(LATER),
        left=(_BACK,),
        settings=_LOOK_AT_ONCE,
        on_disk=("lost", "recovery", *_AUDIT),
    ),
    _repair("adopt", "adopt", ADOPTED),
    _repair("discard", "discard", DISCARDED),
    _repair(
        "discard_taken",
        "discard",
        left=(Kill("insert", Point.C_AFTER_PUT),),
        on_disk=("repair", "recovery", *_AUDIT),
        on_s3=("repair",),
    ),
    Scenario(
        "sweep",
        (),
        _sweeping,
        left=(Kill("staged", Point.STAGE_AFTER_ROWS), _BACK),
        disturb=_healed,
        redo=_swept,
        settings=(_ALL_ARE_OLD, _SMALL_BATCHES),
        on_s3=("sweep",),
    ),
)
SCENARIOS = {scenario.name: scenario for scenario in _ALL}
