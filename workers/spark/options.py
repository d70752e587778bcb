"""The options of the data source, checked before use.

Spark passes them as text under names in lower case; names that begin with `storage.` are options of the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from omniray.engine.base.errors import InputError
from omniray.engine.base.principal import Author
from omniray.engine.base.suggestions import did_you_mean
from omniray.engine.rows.mode import Mode
from omniray.workers.graphs import Connect, WritableGraph

STORAGE = "storage."
LOAD_MODES = (Mode.APPEND, Mode.MERGE, Mode.OVERWRITE)
TIMEOUT_S = 600.0
_SPARK_OWN = ("path", "checkpointlocation")


@dataclass(frozen=True, slots=True)
class Target:
    """A graph, and the author of writes to it."""

    uri: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)  # may contain secrets
    actor: str = "spark"
    tenant: str = ""
    timeout_s: float = TIMEOUT_S
    connect: Connect | None = field(default=None, repr=False)  # connects to the coordinator that serves it

    def __post_init__(self) -> None:
        Author(self.actor, self.tenant)  # raises here if invalid, before anything is done

    @classmethod
    def of(cls, options: Mapping[str, str], connect: Connect | None = None) -> Target:
        return cls(
            needed(options, "uri", "s3://bucket/graph"),
            {name.removeprefix(STORAGE): value for name, value in options.items() if name.startswith(STORAGE)},
            options.get("actor", "spark"),
            options.get("tenant", ""),
            seconds(options, "timeout_s", TIMEOUT_S),
            connect,
        )

    @contextmanager
    def opened(self) -> Iterator[WritableGraph]:
        """The graph, to write to: through the coordinator that serves it, or in this process if there is none."""
        from omniray.engine.graph import open as open_graph  # imports Lance, which planning does not need

        with open_graph(self.uri, read_only=True, storage_options=self.storage_options or None) as graph:
            served = graph.served
        if not served or self.connect is None:
            with open_graph(self.uri, storage_options=self.storage_options or None) as graph:
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

    KNOWN = ("uri", "type", "load_mode", "actor", "tenant", "txn_id", "timeout_s")

    @classmethod
    def checked(cls, given: Mapping[str, str], *, overwrite: bool, connect: Connect | None = None) -> WriteOptions:
        """The options of a write; `overwrite` is Spark's own save mode."""
        options = known(given, cls.KNOWN)
        mode = options.get("load_mode", Mode.OVERWRITE if overwrite else Mode.APPEND)
        if mode not in LOAD_MODES:
            raise InputError(f"invalid load_mode {mode!r}: use append, merge or overwrite")
        if overwrite and mode != Mode.OVERWRITE:
            raise InputError(f"mode('overwrite') and load_mode {mode!r} contradict each other: use mode('append')")
        return cls(Target.of(options, connect), needed(options, "type", "Person"), Mode(mode), options.get("txn_id"))


def known(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The options by their names in lower case, without Spark's own; an unknown one is refused."""
    options = {name.lower(): value for name, value in given.items()}
    for name in options:
        if name not in names and not name.startswith(STORAGE) and name not in _SPARK_OWN:
            raise InputError(f"no option {name!r}; {did_you_mean(name, names)}")
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
