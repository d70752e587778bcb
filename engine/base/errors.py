"""Every error that omniray raises, in one tree.

                                                                                            exit  HTTP
    OmnirayError                      kind, retry, facts                                      1   500
    ├── InputError                    the caller's data, text or arguments are wrong          3   400
    │   ├── ParseError                a schema or query text: line, column, expected
    │   ├── SchemaError               a schema that parses but makes no sense                     422
    │   ├── QueryError                a query that parses but does not fit the schema             422
    │   ├── RecordError               a record that can't be read or does not fit its type        422
    │   ├── ConstraintViolation       a record that breaks @unique, @card, an endpoint …          422
    │   ├── GraphExists               the place of a new graph is not empty                       409
    │   └── NotFound                  no such graph, branch, commit, type                         404
    │       ├── GraphGone             the graph was deleted, or created anew at the same place
    │       ├── BranchGone            the branch was deleted, or created anew under its name
    │       └── Expired               what was asked for has been cleaned up                      410
    ├── Conflict                      the write conflicts with the state of the graph         4   409
    │   ├── KeyConflict               an appended key exists already
    │   ├── ExpectedVersionMismatch   a strict write's table has moved
    │   ├── PayloadMismatch           a transaction id that was committed with other data
    │   ├── SchemaChanged             the write was made for another schema than the graph has
    │   ├── BranchExists              there is a branch of that name
    │   ├── MergeConflicts            two branches changed the same things differently
    │   ├── Withdrawn                 outcome() reported the write as not committed
    │   ├── LineOwned                 a coordinator owns the branch: write through it
    │   └── Moved                     a prepared load must be judged again
    ├── StorageError                  the store failed or refused                             5   503
    │   ├── FormatMismatch            written by an older or newer omniray                        500
    │   ├── OutcomeUnknown            the write may or may not have landed: ask again
    │   ├── Fenced                    another owner has taken the line over                       421
    │   ├── Overloaded                too much at once: try again after a while                   429
    │   └── Unreachable               no coordinator answers
    │       └── Unauthenticated       the coordinator does not know the secret that it was given  401
    └── RecoveryRequired              a recovery or a repair is needed first                  6   503
        ├── TableDrift                a foreign writer wrote to a table's path
        └── InvariantViolation        a pinned version is nowhere to be found                     500

An error without figures has those of its parent. A handler decides by class, `kind` and `retry`, never by the text.
`retry` says what a second try may do: `safe` (just try again), `after_refresh` (read again, then decide), `never`, or
`unknown` (ask what became of the first).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

Retry = Literal["safe", "after_refresh", "never", "unknown"]


class OmnirayError(Exception):
    """The root: a message that says what happened and what to do, and the facts behind it."""

    kind: ClassVar[str] = "error"
    retry: ClassVar[Retry] = "never"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (rebuilt, (type(self), self.message, self.facts))

    def as_json(self) -> dict[str, Any]:
        """The error as it is sent to another process."""
        return {"kind": self.kind, "retry": self.retry, "message": self.message, **self.facts}


def rebuilt(cls: type[OmnirayError], message: str, facts: dict[str, Any]) -> OmnirayError:
    """Rebuild an error that another process sent, without the constructor of its class."""
    error = cls.__new__(cls, message)
    error.message, error.facts = message, facts  # not by the constructor: a fact may be called `message`
    return error


def error_of_kind(kind: str, message: str, facts: dict[str, Any]) -> OmnirayError:
    """Rebuild an error that was sent by its kind; one of a kind that is not known here is an `OmnirayError`."""
    return rebuilt(_by_kind().get(kind, OmnirayError), message, facts)


@functools.cache
def _by_kind() -> dict[str, type[OmnirayError]]:
    """The classes of this module by their kinds, each of which has one of its own."""
    return {one.kind: one for one in _all_classes(OmnirayError) if one.__module__ == __name__}


def _all_classes(base: type[OmnirayError]) -> Iterator[type[OmnirayError]]:
    for one in base.__subclasses__():
        yield from _all_classes(one)
        yield one


class InputError(OmnirayError):
    """The caller's data, text or arguments are wrong; nothing was written."""

    kind = "bad_input"
    exit_code = 3
    http_status = 400


class ParseError(InputError):
    """A schema or query text that can't be read, with the place and what was expected there."""

    kind = "parse"

    def __init__(
        self, message: str, *, line: int, column: int, source_line: str, expected: tuple[str, ...] = ()
    ) -> None:
        text = f"line {line}, column {column}: {message}"
        if source_line:
            text += f"\n    {source_line}\n    {' ' * (column - 1)}^"
        if expected:
            text += f"\n  expected {_one_of(expected)}"
        super().__init__(text, line=line, column=column, source_line=source_line, expected=list(expected))


def _one_of(options: tuple[str, ...]) -> str:
    return options[0] if len(options) == 1 else "one of " + ", ".join(options)


class SchemaError(InputError):
    """A schema that parses but makes no sense: an unknown type, a name used twice, a constraint on nothing."""

    kind = "schema"
    http_status = 422


class QueryError(InputError):
    """A query that parses but does not fit the schema or its parameters."""

    kind = "query"
    http_status = 422


class RecordError(InputError):
    """A record that can't be read, or whose values do not fit its type."""

    kind = "record"
    http_status = 422


class ConstraintViolation(InputError):
    """A record that fits its type but breaks a rule over several records."""

    kind = "constraint"
    http_status = 422


class GraphExists(InputError):
    """The place where a graph was to be created is not empty."""

    kind = "exists"
    http_status = 409


class NotFound(InputError):
    """No such graph, branch, commit or type."""

    kind = "not_found"
    http_status = 404


class GraphGone(NotFound):
    """The graph that this handle was opened for was deleted, or another one was created in its place."""

    kind = "graph_gone"


class BranchGone(NotFound):
    """The branch that this handle was opened for was deleted; a later one of the same name is another branch."""

    kind = "branch_gone"


class Expired(NotFound):
    """What was asked for was there once, and has been cleaned up."""

    kind = "expired"
    http_status = 410


class Conflict(OmnirayError):
    """The write conflicts with the state of the graph; nothing was written."""

    kind = "conflict"
    retry: ClassVar[Retry] = "after_refresh"
    exit_code = 4
    http_status = 409


class KeyConflict(Conflict):
    """An appended key exists already."""

    kind = "key_conflict"
    retry = "never"

    def __init__(self, table_key: str, key: str, *, record: str = "") -> None:
        where = f"{record}: " if record else ""
        super().__init__(
            f"{where}key conflict on {table_key}: {key!r} exists already; load with mode 'merge' to replace it",
            table_key=table_key, key=key,
        )  # fmt: skip


class ExpectedVersionMismatch(Conflict):
    """A strict write's table has moved: of two such writers exactly one wins."""

    kind = "expected_version_mismatch"

    def __init__(self, table_key: str, expected: int, actual: int) -> None:
        super().__init__(
            f"{table_key} has moved: expected version {expected}, it is at {actual}; read again and decide anew",
            table_key=table_key, expected=expected, actual=actual,
        )  # fmt: skip


class PayloadMismatch(Conflict):
    """A transaction id was committed before with other data; nothing was applied now."""

    kind = "payload_mismatch"
    retry = "never"


class SchemaChanged(Conflict):
    """A write was made for another schema than the graph has; nothing was written."""

    kind = "schema_changed"


class BranchExists(Conflict):
    """There is a branch of that name."""

    kind = "branch_exists"
    retry = "never"


class MergeConflicts(Conflict):
    """Two branches changed the same things differently; nothing was merged."""

    kind = "merge_conflicts"
    retry = "never"


class Withdrawn(Conflict):
    """`outcome()` reported the write as not committed while it was under way, so it can't land any more."""

    kind = "withdrawn"
    retry = "safe"


class LineOwned(Conflict):
    """A coordinator owns the branch: embedded writers must write through it."""

    kind = "line_owned"


class Moved(Conflict):
    """A prepared load must be judged again, since a table has moved; its client does so itself."""

    kind = "moved"
    retry = "safe"


class StorageError(OmnirayError):
    """The store failed or refused, and nothing was written."""

    kind = "storage"
    retry: ClassVar[Retry] = "safe"
    exit_code = 5
    http_status = 503


class FormatMismatch(StorageError):
    """The graph was written by an older or a newer omniray."""

    kind = "format"
    retry = "never"
    http_status = 500


class OutcomeUnknown(StorageError):
    """The store gave no clear answer in time: the write may have landed. Not a failure: ask again with the id."""

    kind = "outcome_unknown"
    retry = "unknown"


class Fenced(StorageError):
    """A successor has taken the line over; what this owner staged stays invisible."""

    kind = "fenced"
    retry = "never"
    http_status = 421


class Overloaded(StorageError):
    """The coordinator is overloaded and has not accepted the write: `retry_after_s` says when to try again."""

    kind = "overloaded"
    http_status = 429


class Unreachable(StorageError):
    """No coordinator serves the graph, or it does not answer."""

    kind = "unreachable"


class Unauthenticated(Unreachable):
    """The coordinator does not know the secret that came with a request: it has begun anew since that was read."""

    kind = "unauthenticated"
    http_status = 401


class RecoveryRequired(OmnirayError):
    """A recovery or a repair is needed before this can go on."""

    kind = "recovery_required"
    exit_code = 6
    http_status = 503


class TableDrift(RecoveryRequired):
    """A foreign writer, something other than omniray, wrote to a table's path."""

    kind = "drift"


class InvariantViolation(RecoveryRequired):
    """A version that the graph pins is nowhere to be found; everything is kept as it is."""

    kind = "invariant_violation"
    http_status = 500
