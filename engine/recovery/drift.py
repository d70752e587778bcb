"""Drift: finds tables that a foreign writer wrote to, by the names and contents of their versions.

Two things can have happened. The foreign writer is *ahead*: it made versions beyond the one that the graph pins. Or it
has *taken* a name: it committed while a pinned version had only its own name, and now that version's final name holds
the foreign manifest. HEAD is read before the line, else a version committed in between would look foreign; manifests
are told apart by the transaction that they name. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from omniray.engine.base.errors import InvariantViolation, NotFound, StorageError
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.commit_object import CommitObject, Pin
from omniray.engine.recovery.rules import TableClass, TableFacts, classify
from omniray.engine.schema.types import ElementType
from omniray.engine.store.object_store import ObjectStore
from omniray.engine.tables import old_versions
from omniray.engine.tables.final_names import FinalName, observe_final_name
from omniray.engine.tables.version_names import own_path
from omniray.engine.tables.versions import VersionFacts, VersionReader

LOOKS_MAX = 20


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A pinned version of one table whose Phase D is not known to be finished, and the state of its final name."""

    pin: Pin
    commits: tuple[str, ...]
    final_name: FinalName


@dataclass(frozen=True, slots=True)
class DriftedTable:
    """A drifted table, seen from the newest object of the line. `unfinished` are in the line's order."""

    type: ElementType
    kind: TableClass
    pin: Pin
    head: int
    unfinished: tuple[Unfinished, ...]

    @property
    def table_key(self) -> str:
        return self.type.table_key

    @property
    def is_taken(self) -> bool:
        return self.kind is TableClass.FINAL_NAME_TAKEN

    @property
    def taken(self) -> tuple[Unfinished, ...]:
        """The pinned versions whose final names hold foreign manifests."""
        return tuple(one for one in self.unfinished if one.final_name is FinalName.FOREIGN)

    @property
    def commits_at_stake(self) -> tuple[str, ...]:
        """The acknowledged commits that plain Lance can't see because of it: from the first taken name on."""
        first = next((n for n, one in enumerate(self.unfinished) if one.final_name is FinalName.FOREIGN), None)
        return () if first is None else tuple(commit for one in self.unfinished[first:] for commit in one.commits)

    @property
    def foreign_versions(self) -> tuple[int, ...]:
        """The versions that the foreign writer wrote, as far as known."""
        return (*(one.pin.version for one in self.taken), *range(self.pin.version + 1, self.head + 1))


@dataclass(frozen=True, slots=True)
class Sighting:
    """The drifted tables among the examined ones, and the line at the time of the look."""

    newest: CommitObject
    unfinished: tuple[CommitObject, ...]  # the objects whose Phase D is not known to be finished, oldest first
    drifted: tuple[DriftedTable, ...]


@dataclass(frozen=True, slots=True)
class ForeignVersion:
    """One version that a foreign writer made. `rows_before` is None if the version before it is gone."""

    version: int
    operation: str
    transaction: str
    at: datetime
    rows_before: int | None
    rows_after: int
    schema_changed: bool


@dataclass(frozen=True, slots=True)
class Drift:
    """The changes of a foreign writer to one table, as `omniray repair` shows them."""

    table_key: str
    kind: TableClass
    pinned: int
    head: int
    commits_at_stake: tuple[str, ...]  # acknowledged, and invisible to plain Lance because of it
    foreign: tuple[ForeignVersion, ...]

    def __str__(self) -> str:
        what = ", ".join(f"{one.operation} as version {one.version}" for one in self.foreign)
        return f"{self.table_key}: {self.kind}, pinned {self.pinned}, HEAD {self.head}: {what or 'already gone'}"


def sight(branch: OpenBranch, newest: Callable[[], CommitObject], table_keys: Iterable[str]) -> Sighting:
    """Find out which of the tables have drifted; `newest` reads the line's newest object.

    Seen from an older object, a version whose Phase D ran meanwhile may seem lost. So a loss is reported only if the
    object is still the newest.
    """
    wanted = [_known(branch, table_key) for table_key in table_keys]
    if not branch.branch.is_main:  # versions of other branches have no final names to take
        return Sighting(newest(), (), ())
    for _ in range(LOOKS_MAX):
        named_through = branch.manifest.folded().named_through  # before HEAD: these names are final by then
        line = newest()
        heads = {key: old_versions.newest_version(branch.store, line.pins[key].path) for key in wanted}
        line = newest()
        done = max(line.finalised_through, named_through)
        unfinished = tuple(obj for obj in reversed(branch.log.down_to(line, done + 1)) if obj.seq > done)
        try:
            found = [_look(branch, key, line, heads[key], done, unfinished) for key in wanted]
        except InvariantViolation:
            if newest().op_id == line.op_id:
                raise
        else:
            return Sighting(line, unfinished, tuple(table for table in found if table is not None))
    raise StorageError(f"the line moved during {LOOKS_MAX} looks at the tables; try again")


def _known(branch: OpenBranch, table_key: str) -> str:
    if table_key not in branch.schema.by_table_key:
        known = ", ".join(branch.schema.by_table_key)
        raise NotFound(f"no table {table_key!r}; the graph has {known}", table_key=table_key)
    return table_key


def _look(
    branch: OpenBranch,
    table_key: str,
    line: CommitObject,
    head: int,
    done: int,
    unfinished: Sequence[CommitObject],
) -> DriftedTable | None:
    pin, type = line.pins[table_key], branch.schema.by_table_key[table_key]
    own = tuple(_unfinished(branch.store, table_key, unfinished))
    match classify(False, _facts(branch, pin, head, pin.since <= done, own)):
        case TableClass.NO_MOVEMENT:
            return None
        case TableClass.INVARIANT_VIOLATION:
            raise InvariantViolation(
                f"{table_key}: version {pin.version} is pinned and nowhere to be found, HEAD is {head}; "
                f"restore {pin.path}/_versions from a backup",
                table_key=table_key, version=pin.version, head=head,
            )  # fmt: skip
        case kind:
            return DriftedTable(type, kind, pin, head, own)


def _unfinished(store: ObjectStore, table_key: str, objects: Iterable[CommitObject]) -> Iterator[Unfinished]:
    for obj in objects:
        if (pin := obj.introduced().get(table_key)) is not None:
            commits = tuple(commit.commit_id for commit in obj.commits)
            yield Unfinished(pin, commits, observe_final_name(store, pin))


def _facts(branch: OpenBranch, pin: Pin, head: int, is_final: bool, unfinished: Sequence[Unfinished]) -> TableFacts:
    """The facts of the newest pin; a taken name of an older pin counts as its own."""
    names = [one.final_name for one in unfinished]
    if FinalName.FOREIGN in names:
        name = FinalName.FOREIGN
    elif names:
        name = names[-1]
    else:  # HEAD was read before the line: a version committed in between is beyond HEAD
        name = FinalName.OURS if head >= pin.version else observe_final_name(branch.store, pin)
    if name is not FinalName.ABSENT or is_final:
        return TableFacts(pin.version, head, name, has_own_name=False)
    has_own_name = branch.store.get(own_path(pin, branch.graph_id)) is not None
    if not has_own_name:
        name = observe_final_name(branch.store, pin)  # another process may have finished Phase D meanwhile
    return TableFacts(pin.version, head, name, has_own_name)


def describe(versions: VersionReader, table: DriftedTable) -> Drift:
    """Read the changes that the foreign versions of a table made."""
    newest = versions.open_foreign(table.type, table.pin.path, table.head or table.foreign_versions[0])
    numbers = sorted({number for version in table.foreign_versions for number in (version - 1, version)})
    facts = {one.version: one for one in versions.describe(newest, numbers)}
    foreign = (_foreign(table.type, facts, version) for version in table.foreign_versions if version in facts)
    return Drift(table.table_key, table.kind, table.pin.version, table.head, table.commits_at_stake, tuple(foreign))


def _foreign(type: ElementType, facts: Mapping[int, VersionFacts], version: int) -> ForeignVersion:
    own, before = facts[version], facts.get(version - 1)
    return ForeignVersion(
        version=version,
        operation=own.operation,
        transaction=own.transaction,
        at=own.at,
        rows_before=None if before is None else before.rows,
        rows_after=own.rows,
        schema_changed=not own.schema.equals(type.arrow),
    )
