"""The creation of a graph: an operation in four phases like any other, whose object is the first of main's line.

All its files have unique names: the graph's id is in those of its line. So any number of creators may try at once, and
the one whose `__graph.json` is there has created the graph; the others delete their files. A creator that died before
that put leaves nothing that blocks the next one; one that died after it has created the graph.
"""

from __future__ import annotations

import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor

from omniray.engine.base.errors import GraphExists, OmnirayError, OutcomeUnknown, StorageError
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.base.principal import Author
from omniray.engine.base.ulids import new_ulid
from omniray.engine.commit.attempt import Attempt, Attempts, SystemWrite, commit_of, commit_time_us
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.commit.staging import Base, TableStager
from omniray.engine.commit.table_change import Create
from omniray.engine.history.accepted_schema import FOLDER as SCHEMAS
from omniray.engine.history.accepted_schema import accept, put_schema
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.branch_id import MAIN, BranchId
from omniray.engine.line.commit_log import FOLDER as COMMITS
from omniray.engine.line.commit_object import Fate, before_first
from omniray.engine.line.graph_identity import PATH, GraphIdentity, encode, look_up_identity
from omniray.engine.line.sidecar import FOLDER as SIDECARS
from omniray.engine.line.sidecar import SidecarIntent
from omniray.engine.store.object_store import PROBE, TEMPORARY, Answer, ObjectStore
from omniray.engine.tables.version_names import STAGED

log = logging.getLogger("omniray")

KIND = "Init"
THREADS = 2
UNCLEAR_TRIES_MAX = 8


def create_graph(store: ObjectStore, schema_text: str, *, actor: str = "") -> None:
    """Create a graph in an empty place. A failed creation leaves nothing, or files that do not block another."""
    accepted = accept(schema_text, version=1)
    _refuse_occupied(store)
    _prove(store)
    graph_id = new_ulid()
    nothing_yet = before_first(graph_id, accepted.ref)
    branch = OpenBranch.at(store, graph_id, BranchId(MAIN, graph_id), accepted, nothing_yet)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="omniray-create") as pool:
        stager = TableStager(branch)
        try:
            _create(branch, Attempts(branch, stager, pool, is_new=True), Author(actor))
        finally:
            stager.close()


def _create(branch: OpenBranch, attempts: Attempts, author: Author) -> None:
    write = SystemWrite(new_ulid(), KIND, author)
    changes = {
        type.table_key: Create(f"{write.commit_id}-{n}", type.first_path, branch.storage.empty(type, type.first_path))
        for n, type in enumerate(branch.schema)
    }
    base = branch.tip.newest
    attempt = attempts.announce(base, KIND, [SidecarIntent(write.commit_id, author.actor)], changes)
    try:
        failures = attempts.stage(attempt, Base.on(base, base))
        if failures:
            raise failures[0] if isinstance(failures[0], OmnirayError) else StorageError(f"{failures[0]} is taken")
        put_schema(branch.store, branch.accepted)
        first = attempts.follow(attempt, (commit_of(write, commit_time_us(base), changes),), finalised_through=0)
        if attempts.put(attempt, branch.tip) is not Fate.LANDED:
            raise StorageError(f"the line of a new graph at {branch.store.uri} is taken; try again")
        reach(Point.INIT_BEFORE_IDENTITY)
    except BaseException:
        _take_back(branch, attempts, attempt)
        raise
    if not _is_first(branch):
        _take_back(branch, attempts, attempt)
        uri = branch.store.uri
        raise GraphExists(f"{uri} was created by another process meanwhile; open it instead", uri=uri)
    reach(Point.INIT_AFTER_IDENTITY)
    _finish(branch, first.op_id)


def _is_first(branch: OpenBranch) -> bool:
    """Put `__graph.json`; returns whether this creator created the graph. Raises only while that is unclear."""
    identity = encode(GraphIdentity(branch.graph_id))
    for _ in range(UNCLEAR_TRIES_MAX):
        if branch.store.put_if_absent(PATH, identity) is Answer.CREATED:
            return True
        with contextlib.suppress(StorageError):
            if (found := look_up_identity(branch.store)) is not None:  # a refusal may follow our own success
                return found.graph_id == branch.graph_id
    raise OutcomeUnknown(
        f"no clear answer to putting {branch.store.uri}/{PATH}: the graph may have been created; open it, or create it "
        "again",
        txn_id=branch.graph_id,
    )


def _refuse_occupied(store: ObjectStore) -> None:
    """Refuse a place that is not empty, except for files of a creator that died before its put."""
    if store.get(PATH) is not None:
        raise GraphExists(f"there is a graph at {store.uri} already; open it, or choose another place", uri=store.uri)
    if any(not _is_remains(file.path) for file in store.files("")):
        raise GraphExists(f"{store.uri} is not empty: a graph needs a place of its own; choose another", uri=store.uri)


def _is_remains(path: str) -> bool:
    """Whether a file is of an unfinished creation: a sidecar, a line, a schema, a staged version 1."""
    folder, _, name = path.rpartition("/")
    top, *below = folder.split("/")
    if top in (SIDECARS, COMMITS, SCHEMAS, PROBE) or name.startswith(TEMPORARY):
        return True
    return top in ("nodes", "edges") and len(below) > 1 and below[1] in ("_transactions", STAGED)


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
    if second is not Answer.REFUSED or kept != b"1":  # a first refusal may follow our own put, whose answer got lost
        raise StorageError(f"{store.uri} does not honour put-if-absent (If-None-Match: *); a graph can't live on it")
    if first is None or not low.endswith(first):
        raise StorageError(f"{store.uri} does not list names in order; a graph can't live on it")


def _take_back(branch: OpenBranch, attempts: Attempts, attempt: Attempt) -> None:
    """Delete the files of a creation that is known to have failed; their names are unique.

    The schema's file stays: it is named by its content, so another creator may have put it, too.
    """
    with contextlib.suppress(OmnirayError):
        branch.store.delete(branch.log.path(1))
        attempts.give_up(attempt).result()
        if branch.store.get(PATH) is None:  # else the folders are those of another creator's graph
            branch.store.delete_empty_folders()


def _finish(branch: OpenBranch, operation_id: str) -> None:
    """Phase D. The graph is there whether it succeeds or not, so a failure is left to the next opening."""
    finaliser = Finaliser(branch)
    try:
        finaliser.notice(branch.tip.newest, operation_id)
        finaliser.close()
    except OmnirayError as error:
        log.warning("event=creation_unfinished uri=%s error=%s", branch.store.uri, error)
