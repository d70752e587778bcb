"""Stages loads for a later commit, here or by another process: reads, checks, stages and judges them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.judge.keylog import ROOMY, KeyMemory
from omniray.engine.judge.pinned_state import PinnedState
from omniray.engine.judge.resolution import Resolution
from omniray.engine.line.graph_identity import refuse_gone
from omniray.engine.line.sidecar import SidecarIntent
from omniray.engine.rows.sources import open_source
from omniray.engine.writes.lease import Lease
from omniray.engine.writes.load import LoadIntent, Progress, prepare_load
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.part import Part, read_part, stage_part
from omniray.engine.writes.staging_tables import StagingTables
from omniray.engine.writes.terms import WriteTerms


class LoadStager:
    """Stages loads for one branch: it writes data files and leases, and commits nothing."""

    def __init__(self, branch: OpenBranch) -> None:
        self._branch = branch
        self._tables = StagingTables(
            branch.schema, branch.storage, branch.open_newest, self._new_lease, branch.branch.ulid
        )

    @property
    def graph_id(self) -> str:
        return self._branch.graph_id

    @property
    def uri(self) -> str:
        return self._branch.store.uri

    def prepare_load(
        self,
        source: Any,
        options: LoadOptions,
        terms: WriteTerms,
        *,
        type: str | None = None,
        format: str | None = None,
        progress: Progress | None = None,
    ) -> LoadIntent:
        """Read, check and stage a load: it remains to judge and commit it, here or by a coordinator."""
        return prepare_load(source, self._tables, options, terms, type_name=type, format=format, progress=progress)

    def begin_load(
        self, options: LoadOptions, terms: WriteTerms, *, announced: Iterable[str] = (), memory: KeyMemory = ROOMY
    ) -> LoadIntent:
        """Begin a load whose parts are made by workers, with `stage_part` or `read_part`, and added to it.

        `announced` are the operations that workers announced for it: it releases them in the end. `memory` limits the
        judgement of its keys.
        """
        return LoadIntent(self._tables, options, terms, announced=announced, in_parts=True, memory=memory)

    def read_part(self, batches: Iterable[pa.RecordBatch], type: str, source: str, announced: SidecarIntent) -> Part:
        """Check rows of a part of a load and stage them if they are many; `announced` is the write they belong to."""
        refuse_gone(self._branch.store, self.graph_id)
        return read_part(batches, self._branch.schema.type(type), source, self._tables, announced)

    def stage_part(
        self, source: Any, options: LoadOptions, since_us: int, *, type: str | None = None, format: str | None = None
    ) -> Part:
        """Read, check and stage one part of a load that another process began."""
        refuse_gone(self._branch.store, self.graph_id)
        opened = open_source(source, self._branch.schema, type_name=type, format=format)
        return stage_part(opened, self._tables, options, since_us)

    def judge(self, intent: LoadIntent) -> tuple[Resolution, dict[str, int]]:
        """Resolve a load on the newest state; returns the table versions that the resolution depends on, too."""
        newest = self._branch.newest()
        state = PinnedState(self._branch.cache, newest)
        resolution = intent.resolve(state)
        return resolution, {key: newest.pins[key].version for key in state.consulted | resolution.tables.keys()}

    def _new_lease(self) -> Lease:
        store, graph_id = self._branch.store, self._branch.graph_id
        return Lease(self._branch.sidecars, self._branch.tip.newest, lambda: refuse_gone(store, graph_id))
