"""Which files of a graph nothing refers to: decided by names, ages and the references of all versions, without I/O."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from omniray.engine.store.object_store import PROBE, StoredFile
from omniray.engine.tables.version_names import BRANCHES, VERSIONS

ELSEWHERE = ""


class Kind(StrEnum):
    """The kind of a file, by its name within its table."""

    TEMPORARY = "temporary"
    REFERABLE = "referable"  # manifests say whether it is needed
    STAGING = "staging"
    ON_BRANCH = "on_branch"  # a version's manifest, if its line has ever pinned it; else staging
    MANIFEST = "manifest"
    KEPT = "kept"
    UNKNOWN = "unknown"


# Lance's temporary files are named `.tmp` and six characters, or the final file name followed by `#1`.
_TEMPORARY = re.compile(rf"(.*/)?(\.tmp-[^/]+|\.tmp\w{{6}}|[^/]+#\d+)|{PROBE}/.+")
_IN_TABLE = {
    Kind.REFERABLE: re.compile(
        r"data/[^/]+\.lance|_deletions/[^/]+\.(arrow|bin)|_transactions/[^/]+\.txn|_indices/[0-9a-f-]{36}/[^/]+"
    ),
    Kind.STAGING: re.compile(r"_staged/[^/]+/\d{20}\.manifest|_versions/\d{20}\.manifest-[^/]+"),
    Kind.ON_BRANCH: re.compile(rf"{BRANCHES}/[^/]+/[^/]+/\d{{20}}\.manifest"),
    Kind.MANIFEST: re.compile(r"(.*/)?\d{20}\.manifest"),  # in any folder: a repair may have set it aside
    Kind.KEPT: re.compile(r"_versions/latest_version_hint\.json"),
}
_MANIFESTS = (Kind.MANIFEST, Kind.ON_BRANCH)
_DELETABLE = (Kind.TEMPORARY, Kind.REFERABLE, Kind.STAGING, Kind.ON_BRANCH)
_EXAMINED_ONCE = (Kind.REFERABLE, Kind.ON_BRANCH)
_MANIFEST_LIKE = ".manifest"
NEVER: Mapping[str, int] = {}
_ELSEWHERE = {
    Kind.KEPT: re.compile(r"__commits/.+|__recovery/.+|__schema/.+\.pg|__door/\d{20}\.json|__graph\.json|__swept\.json")
}


@dataclass(frozen=True, slots=True)
class Amount:
    files: int
    bytes: int

    @classmethod
    def of(cls, files: Collection[StoredFile]) -> Amount:
        return cls(len(files), sum(file.size for file in files))

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.files + other.files, self.bytes + other.bytes)


NOTHING = Amount(0, 0)


@dataclass(frozen=True, slots=True)
class TableSweep:
    """The sweep of one table, or of the files outside of all tables; `spared` says why nothing may be deleted."""

    table: str
    found: Amount  # files old enough to be deleted if nothing refers to them
    orphans: tuple[StoredFile, ...] = ()
    spared: str = ""

    @property
    def deleted(self) -> Amount:
        return Amount.of(self.orphans)


@dataclass(slots=True)
class Listing:
    """The files of a graph, by table: candidates for deletion, and the manifests that may refer to them."""

    candidates: dict[str, list[StoredFile]] = field(default_factory=lambda: defaultdict(list))
    manifests: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    older_manifests: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # than every candidate
    newest: dict[str, StoredFile] = field(default_factory=dict)  # by table: the manifest of its newest version
    unknown: list[StoredFile] = field(default_factory=list)
    strange: dict[str, str] = field(default_factory=dict)  # by table: why its references are unknown

    def to_be_read(self, spared: Collection[str]) -> list[str]:
        """The tables whose versions must be read to decide about their files."""
        return [
            table
            for table, files in self.candidates.items()
            if table not in spared and any(kind_of(table, file.path) is Kind.REFERABLE for file in files)
        ]

    def on_branches(self, spared: Collection[str]) -> set[str]:
        """The candidates that are versions of branches, or were staged there."""
        return {
            file.path
            for table, files in self.candidates.items()
            if table not in spared
            for file in files
            if kind_of(table, file.path) is Kind.ON_BRANCH
        }

    def leave_out(self, staged: Collection[str]) -> None:
        """Leave manifests out that are no versions: what they refer to need not stay."""
        for manifests in (*self.manifests.values(), *self.older_manifests.values()):
            manifests.difference_update(staged)

    def is_any_unreferenced(self, table: str, references: Collection[str]) -> bool:
        """Whether younger manifests alone would make a file an orphan.

        Then the older ones are read, too: a file that was restored or copied is younger than the versions it is in.
        """
        names = (file.path for file in self.candidates[table] if kind_of(table, file.path) is Kind.REFERABLE)
        return any(_referred_as(name[len(table) + 1 :]) not in references for name in names)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The reasons to keep files: spared tables and why, references of the others' versions, pinned staged manifests.

    In the tables `swapped` any process may still publish a version that follows the newest one, however long ago it
    staged it: all of its files are younger than the newest version.
    """

    spared: Mapping[str, str]
    references: Mapping[str, Collection[str]]
    pinned_staging: Collection[str]
    swapped: Collection[str] = ()


def kind_of(table: str, path: str) -> Kind:
    """The kind of a file of a table, or of one outside of all tables."""
    if _TEMPORARY.fullmatch(path):
        return Kind.TEMPORARY
    layout, name = (_IN_TABLE, path[len(table) + 1 :]) if table else (_ELSEWHERE, path)
    return next((kind for kind, pattern in layout.items() if pattern.fullmatch(name)), Kind.UNKNOWN)


def sort_out(
    files: Iterable[StoredFile], tables: Collection[str], before_us: int, since_us: Mapping[str, int] = NEVER
) -> Listing:
    """Sort files by table and kind; files modified at `before_us` or later are no candidates.

    Nor are files that an earlier sweep examined and that stay once they have been committed: those modified before the
    table's `since_us`.
    """
    listing = Listing()
    for file in files:
        table = _table_of(file.path, tables)
        kind = kind_of(table, file.path)
        is_new = file.modified_us >= since_us.get(table, 0)
        if kind in _MANIFESTS:
            (listing.manifests if is_new else listing.older_manifests)[table].add(file.path)
            if file.path.startswith(f"{table}/{VERSIONS}/"):
                listing.newest[table] = min(listing.newest.get(table, file), file, key=lambda one: one.path)
        elif kind is Kind.UNKNOWN:
            listing.unknown.append(file)
            if table and _MANIFEST_LIKE in file.path:
                listing.strange[table] = f"{file.path} may refer to its files, and is none of omniray's manifests"
        if kind in _DELETABLE and file.modified_us < before_us and (is_new or kind not in _EXAMINED_ONCE):
            listing.candidates[table].append(file)
    return listing


def _table_of(path: str, tables: Collection[str]) -> str:
    """The table of a file: tables are one or two folders deep."""
    first, _, rest = path.partition("/")
    for table in (first, f"{first}/{rest.partition('/')[0]}"):
        if table in tables:
            return table
    return ELSEWHERE


def judge(listing: Listing, evidence: Evidence) -> tuple[TableSweep, ...]:
    """Decide for each table which of its candidates to delete: those without a reason to keep them."""
    return tuple(_judge(table, listing, evidence) for table in listing.candidates)


def _judge(table: str, listing: Listing, evidence: Evidence) -> TableSweep:
    candidates = listing.candidates[table]
    found = Amount.of(candidates)
    if table in evidence.spared:
        return TableSweep(table, found, spared=evidence.spared[table])
    if table in evidence.swapped and table in listing.newest:
        candidates = [file for file in candidates if file.modified_us < listing.newest[table].modified_us]
    return TableSweep(table, found, tuple(file for file in candidates if _is_orphan(table, file.path, evidence)))


def _is_orphan(table: str, path: str, evidence: Evidence) -> bool:
    match kind_of(table, path):
        case Kind.TEMPORARY:
            return True
        case Kind.STAGING | Kind.ON_BRANCH:
            return path not in evidence.pinned_staging
        case Kind.REFERABLE:  # the versions of a table that is not spared were read
            return _referred_as(path[len(table) + 1 :]) not in evidence.references[table]
        case _:
            return False


def _referred_as(name: str) -> str:
    """The form in which a manifest refers to a file of its table: its name, or the folder of its index."""
    folder, _, rest = name.partition("/")
    return f"{folder}/{rest.partition('/')[0]}" if folder == "_indices" else name
