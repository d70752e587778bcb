"""The birth of a graph: an operation in four phases like any other, whose object is the first of main's line.

Everything it makes before its put has names that nobody else uses, so any number of creators may try at once: the one
whose object 1 is there has created the graph, and the others clear away what they made. A creator that died before the
put leaves nothing that stands in the way of the next one; one that died after it has created the graph.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from omniray.engine.base.errors import GraphExists, OmnirayError, StorageError
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.base.process import this_process
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.history.accepted_schema import BIRTH_SEQ
from omniray.engine.history.manifest import Manifest
from omniray.engine.line.commit_log import MAIN, MAIN_BRANCH, CommitLog
from omniray.engine.line.commit_object import EMBEDDED, AcceptedSchema, Commit, CommitObject, Fate, Pin
from omniray.engine.line.line_end import Tip
from omniray.engine.line.sidecar import FOLDER, Sidecar, SidecarIntent, Sidecars, SidecarTable
from omniray.engine.schema.parser import parse_schema
from omniray.engine.schema.printer import schema_hash
from omniray.engine.schema.types import ElementType, Schema
from omniray.engine.store.object_store import PROBE, TEMPORARY, Answer, ObjectStore
from omniray.engine.tables.storage import TableBirth, TableStorage

log = logging.getLogger("omniray")

KIND = "Init"
STAGING_THREADS = 8


def give_birth(store: ObjectStore, schema_text: str, *, actor: str = "") -> None:
    """Create a graph where nothing is. One that failed leaves nothing, or what does not stand in the way of another."""
    schema = parse_schema(schema_text)
    _refuse_occupied(store)
    _prove(store)
    storage = TableStorage(store)
    line, sidecars = CommitLog(store, MAIN_BRANCH), Sidecars(store)
    births = {type: storage.birth_of(type) for type in schema}
    first = _first_object(births, schema_text, schema_hash(schema), actor)
    try:
        reach(Point.INIT_BEFORE_SIDECAR)
        sidecars.put(_sidecar(first, schema))
        reach(Point.INIT_AFTER_SIDECAR)
        _stage(store, births.values())
        reach(Point.INIT_BEFORE_PUT)
    except BaseException:
        _take_back(store, line, sidecars, first, births.values())
        raise
    try:
        _put(store, line, first)
    except GraphExists:  # and nothing else: whatever else goes wrong here, the put may land yet
        _take_back(store, line, sidecars, first, births.values())
        raise
    _finish(store, line, sidecars, first)


def _first_object(
    births: Mapping[ElementType, TableBirth], schema_text: str, accepted_hash: str, actor: str
) -> CommitObject:
    pins = {t.table_key: Pin(1, b.transaction, BIRTH_SEQ, rows=0, staging=b.staging) for t, b in births.items()}
    commit = Commit(new_ulid(), KIND, actor, time.time_ns() // 1000, tuple(pins))
    accepted = AcceptedSchema(new_ulid(), accepted_hash, 1, schema_text)
    return CommitObject(
        seq=BIRTH_SEQ,
        prev_op_id="",
        op_id=new_ulid(),
        epoch=1,
        owner=EMBEDDED,
        pins=pins,
        commits=(commit,),
        head=commit.commit_id,
        head_at_us=commit.at_us,
        schema=accepted,
    )


def _refuse_occupied(store: ObjectStore) -> None:
    """Refuse a place where something is, except for what a creator left that died before its put."""
    if CommitLog(store, MAIN_BRANCH).newest() is not None:
        raise GraphExists(f"there is a graph at {store.uri} already; open it, or choose another place", uri=store.uri)
    if any(not _is_remains(file.path) for file in store.files("")):
        raise GraphExists(f"{store.uri} is not empty: a graph needs a place of its own; choose another", uri=store.uri)


def _is_remains(path: str) -> bool:
    """Whether a file is of a birth that never came to its put: a sidecar, a probe, or a staged version 1."""
    folder, _, name = path.rpartition("/")
    top, *below = folder.split("/")
    if top in (FOLDER, PROBE) or name.startswith(TEMPORARY):
        return True
    if top not in ("nodes", "edges") or len(below) != 2:
        return False
    return below[1] == "_transactions" or (below[1] == "_versions" and ".manifest-" in name)


def _prove(store: ObjectStore) -> None:
    """Prove that the store honours put-if-absent and lists in order: every commit rests on both."""
    folder = f"{PROBE}/{new_ulid()}"
    low, high = f"{folder}/0", f"{folder}/1"
    answers = [store.put_if_absent(path, b"1") for path in (high, low)]
    second = store.put_if_absent(low, b"2")
    kept, first = store.get(low), store.first_name(folder)
    store.delete_all([low, high])
    store.delete_empty_folders(PROBE)
    if Answer.UNCLEAR in (*answers, second):
        raise StorageError(f"{store.uri} gives no clear answers to conditional puts; try again")
    if second is not Answer.REFUSED or kept != b"1":  # a first refusal would be our own put's, whose answer got lost
        raise StorageError(f"{store.uri} does not honour put-if-absent (If-None-Match: *); a graph can't live on it")
    if first is None or not low.endswith(first):
        raise StorageError(f"{store.uri} does not list names in order; a graph can't live on it")


def _sidecar(first: CommitObject, schema: Schema) -> Sidecar:
    (commit,) = first.commits
    intents = (SidecarIntent(commit.commit_id, commit.actor),)
    tables = (SidecarTable(t.table_key, t.path, 0, first.pins[t.table_key].transaction) for t in schema)
    return Sidecar.on(first, first.op_id, KIND, str(MAIN_BRANCH), this_process(), intents, tables)


def _stage(store: ObjectStore, births: Iterable[TableBirth]) -> None:
    """Put the files of every table's version 1, tables in parallel."""

    def put(birth: TableBirth) -> None:
        for path, data in birth.files.items():
            store.put(path, data)
        reach(Point.INIT_AFTER_TABLE)

    with ThreadPoolExecutor(STAGING_THREADS, thread_name_prefix="omniray-birth") as pool:
        for done in [pool.submit(put, birth) for birth in births]:
            done.result()


def _put(store: ObjectStore, line: CommitLog, first: CommitObject) -> None:
    fate = Tip(line, first, is_folded=Manifest(store, MAIN).is_folded).put(first)
    reach(Point.INIT_AFTER_PUT)
    if fate is not Fate.LANDED:
        raise GraphExists(f"{store.uri} was created by somebody else meanwhile; open it instead", uri=store.uri)


def _take_back(
    store: ObjectStore, line: CommitLog, sidecars: Sidecars, first: CommitObject, births: Iterable[TableBirth]
) -> None:
    """Delete what a birth that is known to have failed has made: names that nobody else uses."""
    files = [path for birth in births for path in birth.files]
    with contextlib.suppress(OmnirayError):
        store.delete_all([*files, sidecars.path(first.op_id)])
        if line.newest() is None:  # else the folders are those of the graph that somebody has created, and writes to
            store.delete_empty_folders()


def _finish(store: ObjectStore, line: CommitLog, sidecars: Sidecars, first: CommitObject) -> None:
    """Phase D of the birth. The graph is there whether it succeeds or not, so a failure is left to the next opening."""
    finaliser = Finaliser(store, line, Manifest(store, MAIN), sidecars)
    try:
        finaliser.notice(first, first.op_id)
        finaliser.close()
    except OmnirayError as error:
        log.warning("event=birth_unfinished uri=%s error=%s", store.uri, error)
