"""The options of the data source, checked before use.

Spark passes them as text under names in lower case; names that begin with `storage.` are options of the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from omniray.engine.base.errors import InputError
from omniray.engine.base.principal import Author
from omniray.engine.base.suggestions import did_you_mean
from omniray.engine.history.branch_head import BranchHead, find_branch, find_line
from omniray.engine.line.branch_id import MAIN
from omniray.engine.rows.mode import Mode
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.store.open_store import open_store
from omniray.workers.graphs import Connect, WritableGraph

if TYPE_CHECKING:
    from omniray.engine.history.open_branch import OpenBranch

STORAGE = "storage."
LOAD_MODES = (Mode.APPEND, Mode.MERGE, Mode.OVERWRITE)
TIMEOUT_S = 600.0
_SPARK_OWN = ("path", "checkpointlocation")


@dataclass(frozen=True, slots=True)
class Target:
    """A branch of a graph, and the author of writes to it.

    `line` is the branch's ULID once its name was resolved: from then on it decides, and not the name. Main needs none.
    """

    uri: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)  # may contain secrets
    actor: str = "spark"
    tenant: str = ""
    timeout_s: float = TIMEOUT_S
    connect: Connect | None = field(default=None, repr=False)  # connects to the coordinator that serves it
    branch: str = MAIN
    line: str = ""

    def __post_init__(self) -> None:
        Author(self.actor, self.tenant)  # raises here if invalid, before anything is done

    @classmethod
    def of(cls, options: Mapping[str, str], connect: Connect | None = None, line: str = "") -> Target:
        return cls(
            needed(options, "uri", "s3://bucket/graph"),
            {name.removeprefix(STORAGE): value for name, value in options.items() if name.startswith(STORAGE)},
            options.get("actor", "spark"),
            options.get("tenant", ""),
            seconds(options, "timeout_s", TIMEOUT_S),
            connect,
            options.get("branch", MAIN),
            line,
        )

    def store(self) -> ObjectStore:
        return open_store(self.uri, self.storage_options or None)

    def found(self, store: ObjectStore) -> BranchHead:
        """The branch and its newest object; nothing is written. Raises `BranchGone` if it was deleted."""
        if self.line:
            return find_line(store, self.line, read_only=True)
        return find_branch(store, self.branch, read_only=True)

    def opened_to_read(self, store: ObjectStore) -> OpenBranch:
        """The branch with all that reads it; nothing is written."""
        from omniray.engine.history.open_branch import open_branch, open_line  # imports Lance, as below

        if self.line:
            return open_line(store, self.line, read_only=True)
        return open_branch(store, self.branch, read_only=True)

    @contextmanager
    def opened(self) -> Iterator[WritableGraph]:
        """The graph, to write to: through the coordinator that serves it, or in this process if there is none.

        A coordinator serves all branches of a graph, and owns the line of main.
        """
        from omniray.engine.graph import open as open_graph  # imports Lance, which planning does not need

        with open_graph(self.uri, read_only=True, storage_options=self.storage_options or None) as graph:
            served = graph.served
        if not served or self.connect is None:
            with open_graph(self.uri, branch=self.branch, storage_options=self.storage_options or None) as graph:
                yield graph
            return
        with self.connect(
            self.uri, actor=self.actor, tenant=self.tenant, storage_options=self.storage_options or None,
            timeout_s=self.timeout_s,
        ) as client:  # fmt: skip
            yield client


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of `df.write.format("omniray")` and of a stream into it."""

    target: Target
    type: str
    mode: Mode
    txn_id: str | None

    KNOWN = ("uri", "type", "branch", "load_mode", "actor", "tenant", "txn_id", "timeout_s")

    @classmethod
    def checked(
        cls, given: Mapping[str, str], *, overwrite: bool, connect: Connect | None = None, line: str = ""
    ) -> WriteOptions:
        """The options of a write; `overwrite` is Spark's own save mode, `line` the branch if it was resolved before."""
        options = known(given, cls.KNOWN)
        mode = options.get("load_mode", Mode.OVERWRITE if overwrite else Mode.APPEND)
        if mode not in LOAD_MODES:
            raise InputError(f"invalid load_mode {mode!r}: use append, merge or overwrite")
        if overwrite and mode != Mode.OVERWRITE:
            raise InputError(f"mode('overwrite') and load_mode {mode!r} contradict each other: use mode('append')")
        target = Target.of(options, connect, line)
        return cls(target, needed(options, "type", "Person"), Mode(mode), options.get("txn_id"))


def line_of(given: Mapping[str, str]) -> str:
    """The ULID of the branch that options name; empty for main, which has that of its graph."""
    options = _own(given)
    if options.get("branch", MAIN) == MAIN:
        return ""
    target = Target.of(options)
    with closing(target.store()) as store:
        return target.found(store).branch.ulid


def known(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The options by their names in lower case, without Spark's own; an unknown one is refused."""
    options = _own(given)
    for name in options:
        if name not in names and not name.startswith(STORAGE):
            raise InputError(f"no option {name!r}; {did_you_mean(name, names)}")
    return options


def _own(given: Mapping[str, str]) -> dict[str, str]:
    options = {name.lower(): value for name, value in given.items()}
    if "path" in options:
        options.setdefault("uri", options["path"])
    return {name: value for name, value in options.items() if name not in _SPARK_OWN}


def needed(options: Mapping[str, str], name: str, example: str) -> str:
    if not options.get(name):
        raise InputError(f"option {name!r} is missing: .option({name!r}, {example!r})")
    return options[name]


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(options.get(name, default))
    except ValueError:
        value = 0.0
    if not value > 0:
        raise InputError(f"option {name!r} is {options[name]!r}: give seconds, more than 0")
    return value
