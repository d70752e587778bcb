"""A graph: open it, write to it, read it as of any commit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from omniray.engine.birth import SchemaState, give_birth, read_schema
from omniray.engine.commit_log import MAIN, MAIN_BRANCH, CommitLog
from omniray.engine.errors import InputError, InvariantViolation, NotFound
from omniray.engine.finalise import Finaliser
from omniray.engine.identity import is_ulid
from omniray.engine.line import CommitObject, Pin, reaches
from omniray.engine.load import LoadIntent, LoadOptions, prepare_load
from omniray.engine.manifest import LineageEntry, Manifest, entries_of
from omniray.engine.mutate import MutationIntent
from omniray.engine.schema import Schema
from omniray.engine.snapshot import Snapshot
from omniray.engine.state import TableCache
from omniray.engine.store import ObjectStore, open_store
from omniray.engine.tables import TableStorage
from omniray.engine.write import Author, WriteResult
from omniray.engine.writer import EmbeddedWriter

LINEAGE_READS_MAX = 8


def init(uri: str, *, schema: str | Path, storage_options: Mapping[str, str] | None = None, actor: str = "") -> Graph:
    """Create a graph where nothing is yet and open it. `schema` is `.pg` text, or the path of a file with it."""
    text = schema.read_text() if isinstance(schema, Path) else schema
    store = open_store(uri, storage_options)
    give_birth(store, text, actor=actor)
    return Graph(store, read_only=False)


def open(uri: str, *, read_only: bool = False, storage_options: Mapping[str, str] | None = None) -> Graph:
    """Open a graph. Read-only, nothing is ever written, not even to heal what a writer left unfinished."""
    return Graph(open_store(uri, storage_options), read_only=read_only)


class Graph:
    """An open graph; use it as a context manager, or `close()` it, so that Phase D of its writes is through.

    Threads may share it; processes open their own.
    """

    def __init__(self, store: ObjectStore, *, read_only: bool) -> None:
        self._store = store
        self._read_only = read_only
        self._schema, self._schema_text, self._state = read_schema(store)
        self._log = CommitLog(store, MAIN_BRANCH)
        self._newest = self._require_newest()
        self._manifest = Manifest(store, MAIN)
        self._storage = TableStorage(store)
        self._cache = TableCache(store, self._storage, self._schema, read_only=read_only)
        self._finaliser = Finaliser(store, self._log, self._manifest)
        self._writer = EmbeddedWriter(
            self._log, self._manifest, self._storage, self._cache, self._finaliser, self._newest
        )
        self._closed = False

    def __repr__(self) -> str:
        return f"Graph({self._store.uri!r}{', read_only=True' if self._read_only else ''})"

    def __enter__(self) -> Graph:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open graph can't be pickled: pass its URI, and open it there with omniray.open(uri)")

    @property
    def uri(self) -> str:
        return self._store.uri

    @property
    def schema(self) -> Schema:
        return self._schema

    @property
    def schema_text(self) -> str:
        """The schema as its author wrote it."""
        return self._schema_text

    @property
    def schema_state(self) -> SchemaState:
        return self._state

    # Writing

    def load(
        self,
        source: Any,
        *,
        mode: str = "append",
        type: str | None = None,
        format: str | None = None,
        branch: str = MAIN,
        actor: str = "",
        tenant: str = "",
        expected_versions: Mapping[str, int] | None = None,
        on_error: str = "fail",
        rejects: str | Path | None = None,
        progress: Any = None,
    ) -> WriteResult:
        """Load records of any number in one atomic commit.

        `source`: a path (JSONL, CSV, Parquet), Arrow data, a DataFrame, dicts, or a list of those. `mode`: `append`
        (an existing key is a KeyConflict), `merge` (replace by key) or `overwrite` (the touched tables only).
        `on_error="reject"` writes refused records to `rejects` and loads the others.
        """
        self._writable(branch)
        options = LoadOptions.checked(mode, on_error, rejects)
        author = Author(actor, tenant)
        intent: LoadIntent = prepare_load(
            source, self._schema, options, author, expected_versions or {},
            storage=self._storage, open_table=self._open_newest, type_name=type, format=format, progress=progress,
        )  # fmt: skip
        with intent:
            return intent.finished(self._writer.commit(intent))

    def mutate(
        self,
        text: str,
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str = MAIN,
        actor: str = "",
        tenant: str = "",
        expected_versions: Mapping[str, int] | None = None,
    ) -> WriteResult:
        """Run one query of a `.gq` text as one atomic commit; `name` chooses it where the text has several."""
        self._writable(branch)
        intent = MutationIntent.of(
            text,
            params or {},
            self._schema,
            Author(actor, tenant),
            expected_versions or {},
            name=name,
            now=datetime.now(UTC),
        )
        return self._writer.commit(intent)

    def flush(self) -> None:
        """Wait until Phase D of this handle's writes is through: then plain Lance readers see them too."""
        self._finaliser.flush()

    def close(self) -> None:
        """Flush and let go; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        try:
            self._finaliser.close()
        finally:
            self._writer.close()
            self._store.close()

    # Reading

    def snapshot(self, branch: str = MAIN, at: str | datetime | None = None) -> Snapshot:
        """One consistent cut over all tables: at the head, at a commit id, or as of a time."""
        self._on_branch(branch)
        if at is None:
            newest = self._refresh()
            return self._snapshot(newest.head, newest.pins)
        entry, obj = self._find(at)
        pins = obj.pins if obj is not None else self._manifest.pins_at(entry.seq)
        return self._snapshot(entry.commit_id, pins)

    def history(self, limit: int | None = None, branch: str = MAIN) -> list[LineageEntry]:
        """The commits of a branch, newest first."""
        self._on_branch(branch)
        if limit is not None and limit < 1:
            raise InputError(f"a limit of {limit} shows nothing: give 1 or more")
        recent, folded = self._lineage()
        newest_first = itertools.chain(reversed([entry for entry, _ in recent]), folded)
        return list(itertools.islice(newest_first, limit))

    def _snapshot(self, commit_id: str, pins: Mapping[str, Pin]) -> Snapshot:
        return Snapshot(MAIN, commit_id, self._schema, pins, self._cache)

    def _find(self, at: str | datetime) -> tuple[LineageEntry, CommitObject | None]:
        """The commit with an id, or the newest one at or before a time; its object too if it is not folded yet."""
        wanted = at if isinstance(at, str) and is_ulid(at) else _as_time(at)
        recent, _ = self._lineage()
        for entry, obj in reversed(recent):
            if entry.commit_id == wanted if isinstance(wanted, str) else entry.at <= wanted:
                return entry, obj
        if isinstance(wanted, str):
            found = self._manifest.commit(wanted)
        else:
            found = self._manifest.newest_commit_until(wanted)
        if found is None:
            what = f"commit {wanted}" if isinstance(wanted, str) else f"commit at or before {wanted.isoformat()}"
            raise NotFound(f"no {what} in the history of {MAIN}; see 'omniray history'", at=str(at))
        return found, None

    def _lineage(self) -> tuple[list[tuple[LineageEntry, CommitObject]], Iterator[LineageEntry]]:
        """Commits not folded yet (oldest first, with their objects), and the folded ones (newest first).

        The two must meet: objects may be folded, and later pruned, between the two reads.
        """
        for _ in range(LINEAGE_READS_MAX):
            folded_through = self._manifest.folded_through()
            newest = self._refresh()
            chain = self._log.down_to(newest, folded_through)
            if reaches(chain, folded_through):
                break
        else:
            raise InvariantViolation(f"the line of {MAIN} does not reach down to what __manifest has folded")
        heads = {obj.seq: obj.head for obj in chain}
        recent = [
            (entry, obj)
            for obj in reversed(chain)
            if obj.seq > folded_through
            for entry in entries_of(obj, parent=heads.get(obj.seq - 1, ""))
        ]
        return recent, (e for e in self._manifest.commits() if e.seq <= folded_through)

    # The line

    def _require_newest(self) -> CommitObject:
        newest = self._log.newest()
        if newest is None:
            raise NotFound(
                f"{self._store.uri} has a schema but no line: its init was not finished; delete it and init again",
                uri=self._store.uri,
            )
        return newest

    def _refresh(self) -> CommitObject:
        self._newest = self._log.newest_from(self._newest)
        return self._newest

    def _open_newest(self, table_key: str) -> Any:
        return self._cache.open(table_key, self._refresh().pins[table_key])

    def _writable(self, branch: str) -> None:
        self._on_branch(branch)
        if self._closed:
            raise InputError("the graph is closed; open it again")
        if self._read_only:
            raise InputError("the graph was opened read-only; open it without read_only to write")

    def _on_branch(self, branch: str) -> None:
        if branch != MAIN:
            raise NotFound(f"no branch {branch!r}; this graph has {MAIN}", branch=branch)


def _as_time(at: str | datetime) -> datetime:
    """A time given as text or datetime; without a zone it is UTC."""
    try:
        time = datetime.fromisoformat(at) if isinstance(at, str) else at
    except ValueError as error:
        raise InputError(f"{at!r} is neither a commit id nor a time; write a time as 2026-01-31T12:00:00Z") from error
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
