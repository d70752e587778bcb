"""Lines of commit objects whose tables nobody made: all that the manifest, the audit and the history look at."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from omniray.engine.base.errors import StorageError
from omniray.engine.line.branch_id import MAIN, BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import (
    Commit,
    CommitObject,
    Pin,
    Recovery,
    Remark,
    SchemaRef,
    before_first,
    follow,
    follow_with,
)
from omniray.engine.store.object_store import Answer

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PERSON, CITY, KNOWS = "node:Person", "node:City", "edge:Knows"
BRANCH = BranchId(MAIN, "01M0000000000000000000GRAPH"[:26])
SCHEMA = SchemaRef("file", "hash", 1)


def commit(number: int, *tables: str) -> Commit:
    return Commit(
        f"commit-{number:06}",
        "Load",
        "ann",
        _us(BEGIN + timedelta(seconds=number)),
        tables,
        payload_hash=f"hash-{number}",
        tenant="acme",
        nodes=number,
        edges=number + 1,
        rejected=number + 2,
    )


def birth() -> CommitObject:
    pins = {key: pin(key, 1, f"tx-{key}-1", 0) for key in (PERSON, CITY, KNOWS)}
    nothing_yet = before_first(BRANCH.ulid, SCHEMA)
    return follow(nothing_yet, op_id="op-1", changed=pins, commits=(commit(1, *pins),), finalised_through=1)


def pin(table_key: str, version: int, transaction: str, rows: int) -> Pin:
    """A version of a table, by a transaction."""
    kind, _, name = table_key.partition(":")
    transaction = transaction.replace(":", "-")
    return Pin(f"id-{name}", f"{kind}s/{name}.lance", version, transaction, rows, content=transaction)


def line(count: int, *, commits_each: int = 1) -> list[CommitObject]:
    """Objects 1 to `count`: the even ones move Person, every fifth moves City."""
    objects = [birth()]
    for seq in range(2, count + 1):
        before = objects[-1]
        moves = [key for key, by in ((PERSON, 2), (CITY, 5)) if seq % by == 0]
        changed = {k: pin(k, before.pins[k].version + 1, f"tx-{k}-{seq}", rows=seq) for k in moves}
        commits = tuple(commit(seq * commits_each + n, *moves) for n in range(commits_each))
        objects.append(follow(before, op_id=f"op-{seq}", changed=changed, commits=commits, finalised_through=0))
    return objects


def recovery(operation_id: str, *, second: int = 0) -> Recovery:
    return Recovery(
        operation_id,
        "RolledBack",
        "ann",
        "Load",
        {PERSON: "NoMovement", CITY: "Staged"},
        _us(BEGIN + timedelta(seconds=second)) + 7,
    )


def recovered(objects: Sequence[CommitObject], *operation_ids: str) -> list[CommitObject]:
    """The line with one more object, in which a recovery says what it did."""
    newest = objects[-1]
    seq = newest.seq + 1
    recoveries = tuple(recovery(operation_id, second=seq) for operation_id in operation_ids)
    return [*objects, follow_with(newest, Remark(f"op-{seq}", recoveries=recoveries))]


def answering(log: CommitLog, *answers: Answer | Exception, apply: bool) -> None:
    """Puts of a line give these answers, then true ones; with `apply` the first of them takes effect all the same."""
    put, script = log.put, list(answers)

    def scripted(obj: CommitObject) -> Answer:
        if not script:
            return put(obj)
        if apply and len(script) == len(answers):
            CommitLog(log._store, log.branch).put(obj)  # as if by another: this one must not know
        answer = script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    log.put = scripted  # type: ignore[method-assign]


def unreadable(seq: int) -> NoReturn:
    """Stands in for the line's `read` while the store is down."""
    raise StorageError("the store is down")


def _us(at: datetime) -> int:
    return int(at.timestamp()) * 1_000_000
