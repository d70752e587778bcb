"""Every error that omniray raises, in one tree.

    OmnirayError                      kind, retry, facts
    ├── InputError                    the caller's data, text or arguments are wrong     exit 3
    │   ├── ParseError                a schema or query text: line, column, expected
    │   ├── SchemaError               a schema that parses but makes no sense
    │   ├── QueryError                a query that parses but does not fit the schema
    │   ├── RecordError               a record that can't be read or does not fit its type
    │   ├── ConstraintViolation       a record that breaks @unique, @card, an endpoint …
    │   ├── GraphExists               init where something is already
    │   ├── NotFound                  no such graph, branch, commit, type
    │   └── SchemaMismatch            a client that knows another schema than the graph has
    ├── Conflict                      the state of the graph stands against the write    exit 4
    │   ├── KeyConflict               an appended key exists already
    │   ├── ExpectedVersionMismatch   a strict write's table has moved
    │   ├── PayloadMismatch           a transaction id that was committed with other data
    │   ├── Withdrawn                 it was told as not committed while it was under way
    │   ├── LineOwned                 a coordinator owns the branch: write through it
    │   └── Moved                     a prepared load must be judged again
    ├── StorageError                  the store failed or refused                        exit 5
    │   ├── FormatMismatch            written by an older or newer omniray
    │   ├── OutcomeUnknown            the write may or may not have landed: ask again
    │   ├── Fenced                    a successor owns the line: this owner's life ends
    │   ├── Overloaded                too much at once: try again after a while
    │   └── Unreachable               no coordinator answers
    └── RecoveryRequired              needs a heal or a repair first                     exit 6
        ├── NotFinalised              a pinned version has no final name yet
        ├── TableDrift                somebody else wrote to a table's path
        └── InvariantViolation        a pinned version is nowhere to be found

A handler decides by class, `kind` and `retry`, never by the text. `retry` says what a second try may do: `safe`
(just try again), `after_refresh` (read again, then decide), `never`, or `unknown` (ask what became of the first).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

Retry = Literal["safe", "after_refresh", "never", "unknown"]


class OmnirayError(Exception):
    """The root: a message that says what happened and what to do, and the facts behind it."""

    kind: ClassVar[str] = "error"
    retry: ClassVar[Retry] = "never"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (rebuilt, (type(self), self.message, self.facts))

    def as_json(self) -> dict[str, Any]:
        """The error as a caller of another process gets it."""
        return {"kind": self.kind, "retry": self.retry, "message": self.message, **self.facts}


def rebuilt(cls: type[OmnirayError], message: str, facts: dict[str, Any]) -> OmnirayError:
    """An error as another process told of it, whatever its class takes to make a new one."""
    error = cls.__new__(cls)
    OmnirayError.__init__(error, message, **facts)
    return error


class InputError(OmnirayError):
    """The caller's data, text or arguments are wrong; nothing was written."""

    kind = "bad_input"
    exit_code = 3


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


class QueryError(InputError):
    """A query that parses but does not fit the schema or its parameters."""

    kind = "query"


class RecordError(InputError):
    """A record that can't be read, or whose values do not fit its type."""

    kind = "record"


class ConstraintViolation(InputError):
    """A record that fits its type but breaks a rule over several records."""

    kind = "constraint"


class GraphExists(InputError):
    """There is a graph, or something else, where a graph was to be created."""

    kind = "exists"


class NotFound(InputError):
    """No such graph, branch, commit or type."""

    kind = "not_found"


class SchemaMismatch(InputError):
    """A client made its write for another schema than the graph has; nothing was written."""

    kind = "schema_mismatch"


class Conflict(OmnirayError):
    """The state of the graph stands against the write; nothing was written."""

    kind = "conflict"
    retry: ClassVar[Retry] = "after_refresh"
    exit_code = 4


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


class Withdrawn(Conflict):
    """Somebody asked for the outcome of a write while it was under way, and was told that it is not committed."""

    kind = "withdrawn"
    retry = "safe"


class LineOwned(Conflict):
    """A coordinator owns the branch: embedded writers must write through it."""

    kind = "line_owned"


class Moved(Conflict):
    """A load that was judged elsewhere has to be judged again, since a table has moved; its client does so itself."""

    kind = "moved"
    retry = "safe"


class StorageError(OmnirayError):
    """The store failed or refused, and nothing was written."""

    kind = "storage"
    retry: ClassVar[Retry] = "safe"
    exit_code = 5


class FormatMismatch(StorageError):
    """The graph was written by an older or a newer omniray."""

    kind = "format"
    retry = "never"


class OutcomeUnknown(StorageError):
    """The store gave no clear answer in time: the write may have landed. Not a failure: ask again with the id."""

    kind = "outcome_unknown"
    retry = "unknown"


class Fenced(StorageError):
    """A successor has taken the line over; what this owner staged stays invisible."""

    kind = "fenced"
    retry = "never"


class Overloaded(StorageError):
    """A coordinator has more under way than it takes, and has not taken this write: `retry_after_s` says when to."""

    kind = "overloaded"


class Unreachable(StorageError):
    """No coordinator serves the graph, or it does not answer."""

    kind = "unreachable"


class RecoveryRequired(OmnirayError):
    """Something must be healed or repaired before this can go on."""

    kind = "recovery_required"
    exit_code = 6


class NotFinalised(RecoveryRequired):
    """A pinned version has no final name yet, and this process may not give it one."""

    kind = "not_finalised"
    retry = "safe"


class TableDrift(RecoveryRequired):
    """Somebody wrote to a table's path with something other than omniray."""

    kind = "drift"


class InvariantViolation(RecoveryRequired):
    """A version that the graph pins is nowhere to be found; everything is kept as it is."""

    kind = "invariant_violation"
