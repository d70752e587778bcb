"""A load: any number of records in one atomic commit, read, checked and staged in a stream with bounded memory.

Rows are read once. Few rows stay in memory and become one fragment in the commit attempt; many are written to data
files that no table refers to yet, which any later attempt can use. Their keys go to the key log, by which the whole
load is judged against the pinned state, again whenever the line has moved.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from omniray.engine.base.errors import BranchGone, Conflict, InputError, OmnirayError
from omniray.engine.base.ulids import checked_txn_id, new_ulid
from omniray.engine.judge.keylog import ROOMY, KeyLog, KeyMemory
from omniray.engine.judge.pinned import State
from omniray.engine.judge.resolution import Resolution, WriteResult, as_rejection
from omniray.engine.judge.verdict import TableVerdict, Violation
from omniray.engine.line.sidecar import SidecarIntent
from omniray.engine.rows.mode import Mode
from omniray.engine.rows.payload import LoadPayload
from omniray.engine.rows.records import ConformedBatch, Rejection, as_error
from omniray.engine.rows.rejects import RejectFile
from omniray.engine.rows.row_ids import fill_ids
from omniray.engine.rows.row_validation import conform_block
from omniray.engine.rows.sources import Source, open_source
from omniray.engine.schema.types import ElementType
from omniray.engine.tables.storage import StagedRows
from omniray.engine.tables.table import Table
from omniray.engine.writes.options import LoadOptions, OnError
from omniray.engine.writes.part import Part
from omniray.engine.writes.row_sink import RowSink
from omniray.engine.writes.staging_tables import StagingTables
from omniray.engine.writes.terms import WriteTerms
from omniray.engine.writes.write_requests import Header, LoadRequest, resolve_load

Progress = Callable[[Source, int], None]
"""Called after each block with the source and the number of records read so far."""


class LoadIntent:
    """A load whose rows are read and staged: it remains to judge it on a state, and to commit.

    `announced` are the operations that workers announced for it: it releases them in the end.
    """

    kind = "Load"

    def __init__(
        self,
        tables: StagingTables,
        options: LoadOptions,
        terms: WriteTerms,
        *,
        announced: Iterable[str] = (),
        in_parts: bool = False,
        memory: KeyMemory = ROOMY,
    ) -> None:
        self.commit_id = new_ulid() if terms.txn_id is None else checked_txn_id(terms.txn_id)
        self.resubmittable = terms.txn_id is not None
        # The rows of parts come in any order, which may differ in a second try: they can't be hashed.
        self._payload = None if terms.txn_id is None or in_parts else LoadPayload(options.mode)
        self.author, self.message = terms.author, terms.message
        self.expected_versions = terms.expected_versions
        self._tables, self._schema, self._options = tables, tables.schema, options
        self._lease = tables.new_lease()
        self._lease.adopt(announced)
        self._log = KeyLog(tables.schema, memory=memory)
        self._sinks: dict[str, RowSink] = {}
        self._rejects = RejectFile(options.rejects) if options.rejects is not None else None
        self._unfit: tuple[Violation, ...] = ()  # refused by the last judgement
        self._landed = False

    @property
    def strict(self) -> bool:
        return self._options.mode is Mode.OVERWRITE

    def refuse_other(self, line: str) -> None:
        """Refuse to be committed to another branch than the one that it was begun for."""
        if line != self._tables.line:
            raise BranchGone(
                f"the load was begun for the branch with the id {self._tables.line}, and would land on the one with "
                f"the id {line}; nothing was written: name its branch, or begin again if that was deleted",
                line=self._tables.line, found=line,
            )  # fmt: skip

    @property
    def payload_hash(self) -> str:
        """The hash of the read rows, if a second try is to be compared with the first."""
        return "" if self._payload is None else self._payload.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Unless it was refused, the load may have landed or may still land: then its files belong to the graph or are
        # left to the sweep.
        clear = error is None or isinstance(error, InputError | Conflict)
        self.close(used=self._landed or not clear)

    def close(self, *, used: bool) -> None:
        """Release all resources; staged files that the graph can't refer to (`used` is false) are deleted."""
        with contextlib.ExitStack() as everything:  # if one of them fails to close, the others are closed
            everything.callback(self._lease.release)  # runs last, after the files that it protects are deleted
            for sink in self._sinks.values():
                everything.callback(sink.close, used=used)
            if self._rejects is not None:
                everything.callback(self._rejects.close)
            everything.callback(self._log.close)

    # Reading

    def read(self, source: Source, progress: Progress | None) -> None:
        """Read a source to its end: check values, assign ids, stage rows, log keys."""
        records = 0
        for block in source:
            batches, rejections = conform_block(block)
            self._refuse(rejections)
            for batch in batches:
                records += batch.rows.num_rows
                self._take(batch)
            if progress is not None:
                progress(source, records)
        for sink in self._sinks.values():
            sink.finish()

    def announce(self, table_keys: Iterable[str]) -> int:
        """Announce that workers will stage files of these tables; returns the time, by the store's clock."""
        return min(self._announce(self._tables.open(key)) for key in table_keys)

    def take_part(self, part: Part) -> None:
        """Add a part; its staged rows come after all that were added before, and before all rows in memory."""
        self._refuse(list(part.rejections))
        for key, rows in part.tables.items():
            sink = self._begin(self._schema.by_table_key[key])
            if isinstance(rows, StagedRows):
                sink.take(rows)
            else:
                for batch in rows.to_batches():
                    sink.write(batch)
        part.add_keys(self._log, self._tables)

    def take_parts(self, types: Iterable[str], parts: Iterable[Part]) -> None:
        """Add all parts with rows of these types; the load is then complete."""
        for name in types:
            self._begin(self._schema.type(name))
        for part in sorted(parts, key=lambda part: not part.is_staged):
            self.take_part(part)
        for sink in self._sinks.values():
            sink.finish()

    def _refuse(self, rejections: list[Rejection]) -> None:
        if rejections and self._options.on_error is OnError.FAIL:
            raise as_error(min(rejections, key=lambda r: r.record))
        if self._rejects is not None:
            self._rejects.write(rejections)

    def _take(self, batch: ConformedBatch) -> None:
        type = batch.type
        sink = self._begin(type)
        if self._payload is not None:
            self._payload.add(type, batch.rows)
        # Logged without the ids that are minted here: they are unique, so there is nothing to judge; and an edge
        # identified by its ends may exist already, and then takes over the existing id.
        self._log.add(type, batch.rows, batch.records, batch.source)
        sink.write(fill_ids(batch).rows)

    def _begin(self, type: ElementType) -> RowSink:
        """The sink for rows of the type; from now on the load touches its table, if only to empty it."""
        if type.table_key not in self._sinks:
            self._log.begin(type, self._options.mode)
            self._sinks[type.table_key] = RowSink(type, self._tables, self._announce)
        return self._sinks[type.table_key]

    def _announce(self, table: Table) -> int:
        return self._lease.take(SidecarIntent(self.commit_id, self.author.actor), table)

    # Resolving

    def resolve(self, state: State) -> Resolution:
        rejected = self._rejects.count if self._rejects is not None else 0
        resolution = resolve_load(self._log, self._schema, state, self._options, rejected, self._rows)
        self._unfit = resolution.unfit
        return resolution

    def _rows(self, table_key: str, verdict: TableVerdict) -> pa.Table | StagedRows:
        return self._sinks[table_key].rows(dropped=verdict.dropped, adopted=verdict.adopted)

    def request(self, schema_hash: str) -> LoadRequest | None:
        """The load as a request to the process that commits it; None if its rows are too many to send."""
        rows = {key: sink.inline for key, sink in self._sinks.items() if sink.inline is not None}
        if len(rows) < len(self._sinks):
            return None
        header = Header(
            self.commit_id, self.kind, self.author, self.expected_versions, self.payload_hash, schema_hash,
            fresh=not self.resubmittable, message=self.message,
        )  # fmt: skip
        rejected = self._rejects.count if self._rejects is not None else 0
        return LoadRequest(header, self._options, rejected, self._log.packed(), rows)

    def judged(self, unfit: tuple[Violation, ...]) -> None:
        """Take over the violations that the coordinator's judgement found."""
        self._unfit = unfit

    def finished(self, result: WriteResult, *, sent_again: bool = False) -> WriteResult:
        """End the load: its staged files belong to the graph now, and refused records go to their file.

        Nothing of a repeated load was used: its staged files are deleted, and the result is the first one. But if this
        very load was sent again, the first commit may be its own: then its files are left to the sweep.
        """
        self._landed = result.commit_id is not None and (sent_again or not result.repeated)
        if self._rejects is None:
            return result
        try:
            self._finish_rejects(self._rejects, repeated=result.repeated)
        except OSError as error:
            raise OmnirayError(
                f"the load landed as commit {result.commit_id}, but its rejected records could not be written to "
                f"{self._rejects.path}: {error.strerror}",
                commit_id=result.commit_id,
            ) from error
        return result if result.repeated else replace(result, rejected=self._rejects.count)

    def _finish_rejects(self, rejects: RejectFile, *, repeated: bool) -> None:
        """Move the file to its path. A repeated load was not judged, so it has the rejections of reading only.

        So an existing file stays: it is that of the first load, and more complete.
        """
        if repeated and rejects.path.exists():
            return
        if not repeated:
            for table_key, violations in itertools.groupby(self._unfit, key=lambda v: v.table_key):
                rejects.write(self._with_values(table_key, list(violations)))
        rejects.finish()

    def _with_values(self, table_key: str, violations: list[Violation]) -> Iterator[Rejection]:
        """The rejections of one table with their rows, read back from memory or from the staged files."""
        positions = sorted(v.row for v in violations if v.row is not None)
        rows = dict(zip(positions, self._sinks[table_key].rows_at(positions), strict=True))
        for violation in violations:
            values = rows[violation.row] if violation.row is not None else {}
            yield replace(as_rejection(violation), values=values)


def prepare_load(
    source: Any,
    tables: StagingTables,
    options: LoadOptions,
    terms: WriteTerms,
    *,
    type_name: str | None,
    format: str | None,
    progress: Progress | None,
) -> LoadIntent:
    """Read and stage a source; on any failure the staged files are deleted."""
    opened = open_source(source, tables.schema, type_name=type_name, format=format)
    intent = LoadIntent(tables, options, terms)
    try:
        intent.read(opened, progress)
    except BaseException:
        intent.close(used=False)
        raise
    return intent
