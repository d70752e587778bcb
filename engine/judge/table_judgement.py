"""One table of a write under judgement: its written, rejected and landing rows, and the rows they displace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.base.errors import ConstraintViolation
from omniray.engine.judge.keylog import TableLog, key_columns
from omniray.engine.judge.pinned import ROWADDR, Pinned
from omniray.engine.judge.relations import Relation, Sets, repeating
from omniray.engine.judge.verdict import Counts, TableVerdict
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import ANY_CARDINALITY, DST, ID, SRC, EdgeType, ElementType

NO_ROWS = pa.array([], pa.int64())
NO_IDS = Relation.of(pa.table({ID: pa.array([], pa.string())}))
NO_VIOLATIONS = pa.schema(
    {
        "row": pa.int64(),
        "record": pa.int64(),
        "source": pa.int32(),
        "kind": pa.string(),
        "reason": pa.string(),
        "key": pa.string(),
    }
).empty_table()
_COLUMNS = ", ".join(NO_VIOLATIONS.column_names)
NOBODY_ADOPTED = pa.table({"row": NO_ROWS, ID: pa.array([], pa.string())})


@dataclass(frozen=True, slots=True)
class Bench:
    """The context of every rule. `places` gives for each source the words before a record's number."""

    sets: Sets
    pinned: Pinned
    places: Callable[[], pa.Table]
    only_first: bool

    def violations(self, sql: str, **relations: Relation) -> pa.Table:
        """The violations that a statement selects, by row; only the first if `only_first`."""
        limit = " limit 1" if self.only_first else ""
        return self.sets.query(f"select {_COLUMNS} from ({sql}) order by row{limit}", **relations)

    def blameless(self, sql: str, **relations: Relation) -> pa.Table:
        """The first by `key` of the violations (reason, key) that a statement selects, without a row to blame."""
        nobody = "null::bigint as row, null::bigint as record, null::integer as source"
        found = f"select {nobody}, '{ConstraintViolation.kind}' as kind, reason, key from ({sql}) order by key limit 1"
        return self.sets.query(f"select {_COLUMNS} from ({found})", **relations)


def one_per_row(*found: pa.Table) -> pa.Table:
    """The violations in row order; a row that breaks several rules gets the first violation only."""
    blamed = NO_VIOLATIONS
    for table in (table for table in found if table.num_rows):
        new = table.filter(pc.invert(pc.is_in(table["row"], value_set=blamed["row"])))
        blamed = pa.concat_tables([blamed, new])
    return blamed.sort_by("row") if blamed.num_rows else blamed


class Case:
    """One table of a write. `settle` decides which rows land, given the rejections so far.

    Its look-ups in the pinned state depend on all written rows, not on later rejections, so that judging again costs no
    further look-up.
    """

    def __init__(self, bench: Bench, type: ElementType, log: TableLog | None, written: Relation) -> None:
        self.type = type
        self.mode = log.mode if log is not None else None
        self.written = written
        self.deleted = Relation.of(log.deleted) if log is not None and log.mode is Mode.DELETE else NO_IDS
        self.live = written
        self.superseded = self.rejected = NO_ROWS
        self.adopted = NOBODY_ADOPTED
        self._bench = bench
        self._meeting: dict[tuple[str, ...], Relation] = {}
        self._displaced_columns = (ID, SRC) if self.is_counted else (ID,)
        self._nothing = bench.pinned.nothing(type, self._displaced_columns)
        self.displaced = self._nothing

    @property
    def is_counted(self) -> bool:
        """Whether `@card` bounds the number of edges per source."""
        return isinstance(self.type, EdgeType) and self.type.cardinality != ANY_CARDINALITY

    @property
    def by_ends(self) -> bool:
        """Whether an edge without an id is identified by its two ends."""
        return self.mode is Mode.MERGE and isinstance(self.type, EdgeType) and self.type.unique_by_endpoints

    @property
    def removes(self) -> bool:
        """Whether the write may remove pinned rows without writing a row of the same id."""
        return self.mode is Mode.OVERWRITE or self.deleted.rows > 0

    def reject(self, rows: pa.ChunkedArray) -> None:
        self.rejected = pa.concat_arrays([self.rejected, *rows.chunks])

    def settle(self) -> None:
        """Decide anew which rows land and which pinned rows they displace, without all rejected rows."""
        kept = self._without(self.written, self.rejected)
        if self.mode is Mode.MERGE:
            kept, adopted = self._adopt(kept)
            self.superseded = self._find_superseded(kept)
            lands = pc.invert(pc.is_in(adopted["row"], value_set=self.superseded))
            self.adopted = adopted.filter(lands) if adopted.num_rows else adopted
        self.live = self._without(kept, self.superseded)
        self.displaced = self._find_displaced()

    def same_id(self) -> Relation:
        """The pinned rows that have an id of the write."""
        keys = self.deleted if self.mode is Mode.DELETE else self.written
        return self._meet(keys, (ID,), self._displaced_columns)

    def same_values(self, properties: Sequence[str]) -> Relation:
        """The pinned rows that may have the values of a written row in all of the properties."""
        columns = tuple(dict.fromkeys((ID, *properties)))
        if self.mode is Mode.OVERWRITE:
            return self._bench.pinned.nothing(self.type, columns)
        return self._meet(self.written, tuple(sorted(properties)), columns)

    def verdict(self, pinned_rows: int) -> TableVerdict:
        fallen = pa.concat_arrays([self.superseded, self.rejected])
        dropped = fallen.sort() if len(fallen) else fallen
        replaced = self._arrow(self.displaced).select([ID, ROWADDR])
        match self.mode:
            case Mode.OVERWRITE:
                counts = Counts(inserted=self.live.rows, deleted=pinned_rows)
            case Mode.DELETE:
                counts = Counts(deleted=replaced.num_rows)
            case _:
                counts = Counts(inserted=self.live.rows - replaced.num_rows, replaced=replaced.num_rows)
        return TableVerdict(dropped, replaced, self.adopted, counts)

    def _meet(self, keys: Relation, on: tuple[str, ...], columns: tuple[str, ...]) -> Relation:
        if on not in self._meeting:
            names = key_columns(self.type)
            self._meeting[on] = self._bench.pinned.meeting(self.type, keys, {name: names[name] for name in on}, columns)
        return self._meeting[on]

    def _adopt(self, kept: Relation) -> tuple[Relation, pa.Table]:
        """Give edges without an id the id of the pinned edge between the same nodes."""
        nameless = kept.arrow is None or kept.arrow[ID].null_count > 0
        if not (self.by_ends and nameless) or self.same_values((SRC, DST)).rows == 0:
            return kept, NOBODY_ADOPTED
        adopted = self._bench.sets.query(
            "select k.row, min(p.id) as id from {kept} k join {pinned} p on p.src = k.src and p.dst = k.dst"
            " where k.id is null group by k.row order by k.row",
            kept=kept, pinned=self.same_values((SRC, DST)),
        )  # fmt: skip
        named = self._bench.sets.derive(
            "select k.* replace (coalesce(k.id, a.id) as id) from {kept} k left join {adopted} a on a.row = k.row",
            small=kept.arrow is not None, kept=kept, adopted=Relation.of(adopted),
        )  # fmt: skip
        return named, adopted

    def _find_superseded(self, kept: Relation) -> pa.Int64Array:
        """The superseded rows: a later row has the same id or, if both have none, the same ends."""
        found = [NO_ROWS]
        if self._bench.sets.may_repeat(kept, ID):
            found += self._all_but_last(kept, "id", "id is not null")
        if self.by_ends and self._bench.sets.may_repeat(kept, SRC, DST):
            found += self._all_but_last(kept, "src, dst", "id is null")
        return pa.concat_arrays(found)

    def _all_but_last(self, kept: Relation, columns: str, where: str) -> list[pa.Array]:
        successor = f"lead(row) over (partition by {columns} order by row)"
        rows = f"select row, {successor} as later from ({repeating(columns, where)})"
        found = self._bench.sets.query(f"select row from ({rows}) where later is not null", r=kept)
        return list(found["row"].chunks)

    def _find_displaced(self) -> Relation:
        if self.mode is Mode.DELETE:
            return self.same_id()
        if self.mode is not Mode.MERGE:
            return self._nothing
        if len(self.rejected) == 0 and self.adopted.num_rows == 0:
            return self.same_id()
        columns = ", ".join((*self._displaced_columns, ROWADDR))
        relations = {"same_id": self.same_id(), "live": self.live}
        pinned = f"select {columns} from {{same_id}}"
        if self.by_ends:
            pinned += f" union select {columns} from {{same_ends}}"
            relations["same_ends"] = self.same_values((SRC, DST))
        sql = f"select {columns} from ({pinned}) semi join {{live}} l using (id)"
        return self._bench.sets.derive(sql, small=self.written.arrow is not None, **relations)

    def _without(self, relation: Relation, rows: pa.Int64Array) -> Relation:
        if len(rows) == 0:
            return relation
        sql = "select * from {relation} anti join {fallen} using (row)"
        fallen = Relation.of(pa.table({"row": rows}))
        return self._bench.sets.derive(sql, small=relation.arrow is not None, relation=relation, fallen=fallen)

    def _arrow(self, relation: Relation) -> pa.Table:
        return relation.arrow if relation.arrow is not None else self._bench.sets.query("from {r}", r=relation)
