"""The protocols of graphs that workers use, since workers import no coordinator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import date
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from omniray.engine.base.principal import Author
    from omniray.engine.judge.keylog import KeyMemory
    from omniray.engine.judge.resolution import Outcome, WriteResult
    from omniray.engine.reading.snapshot import Snapshot
    from omniray.engine.schema.types import Schema
    from omniray.engine.writes.load import LoadIntent
    from omniray.engine.writes.options import LoadOptions
    from omniray.engine.writes.terms import WriteTerms


class IdentifiedGraph(Protocol):
    """A graph with an id, which tells it from another graph at the same place."""

    @property
    def uri(self) -> str: ...

    @property
    def graph_id(self) -> str: ...


class WritableGraph(IdentifiedGraph, Protocol):
    """An embedded graph, or a client of the coordinator that serves one.

    It finds a branch by its name once, and keeps it while it lives: a later branch of the name is not taken for it.
    """

    @property
    def storage_options(self) -> Mapping[str, str]: ...

    @property
    def schema(self) -> Schema: ...

    def snapshot(self, *, branch: str | None = None, at: str | date | None = None) -> Snapshot: ...

    def outcome(self, txn_id: str, *, branch: str | None = None) -> Outcome: ...

    def begin_load(
        self,
        options: LoadOptions,
        terms: WriteTerms,
        *,
        announced: Iterable[str] = (),
        memory: KeyMemory = ...,
        branch: str | None = None,
    ) -> LoadIntent: ...

    def commit_load(self, intent: LoadIntent, *, branch: str | None = None) -> WriteResult: ...


@runtime_checkable
class ServedGraph(WritableGraph, Protocol):
    """A client of a coordinator: it knows the author of its writes."""

    def join_ray(self) -> None:
        """Have this process be part of a Ray cluster, by what its user said."""

    def written_by(self, actor: str | None, tenant: str | None) -> Author: ...


Connect = Callable[..., AbstractContextManager[WritableGraph]]
"""`omniray.connect`, passed in as an argument: connects to the coordinator that serves a graph."""
