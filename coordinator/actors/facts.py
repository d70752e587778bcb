"""The state that a round is judged on when its tables are in other processes: ids are looked up first, in one batch.

Most of the look-ups are known before the judgement: the ids that the writes bring and the nodes at their edges. They
are done at once, in one call for each owner of queues. Other look-ups (a predicate, a unique value) are done when the
judgement needs them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from omniray.coordinator.door.questions import Existing, Matching, Question, Scan, Select
from omniray.engine.commit.staging import Base
from omniray.engine.judge.condition import Condition
from omniray.engine.judge.pinned import ROWADDR
from omniray.engine.judge.room import Room
from omniray.engine.schema.types import ID, ElementType, Schema
from omniray.engine.writes.write_requests import Request


class Reader(Protocol):
    """Reads tables through the owners of their queues."""

    def read(self, base: Base, questions: Sequence[Question]) -> list[pa.Table]: ...


class RoundState:
    """The tables at a round's base; an id is looked up only once."""

    def __init__(self, base: Base, reader: Reader, schema: Schema) -> None:
        self._base, self._reader, self._schema = base, reader, schema
        self._asked: dict[str, pa.Array] = {}  # the ids that were looked up, by table
        self._found: dict[str, dict[str, int]] = {}

    def look_up(self, requests: Iterable[Request]) -> None:
        """Look up, in one batch, every id that judging the requests needs."""
        wanted: defaultdict[str, list[pa.Array]] = defaultdict(list)
        for request in requests:
            for table_key, ids in request.ids_asked(self._schema):
                wanted[table_key].append(ids)
        asked = {key: pa.concat_arrays([*ids, *self._known(key)]) for key, ids in wanted.items() if self.count(key)}
        asked = {key: ids for key, ids in asked.items() if len(ids)}
        questions = [Matching(self._type(key), ID, ids, (ID,)) for key, ids in asked.items()]
        for key, found in zip(asked, self._reader.read(self._base, questions) if questions else (), strict=True):
            self._asked[key] = asked[key]
            located = zip(found[ID].to_pylist(), found[ROWADDR].to_pylist(), strict=True)
            self._found.setdefault(key, {}).update(located)

    # As a state

    def count(self, table_key: str) -> int:
        return self._base.pins[table_key].rows

    def version(self, table_key: str) -> int:
        return self._base.pins[table_key].version

    def existing(self, table_key: str, ids: pa.Array) -> pa.Array:
        if self._is_known(table_key, ids):
            found = self._found[table_key]
            return pa.array([id for id in ids.to_pylist() if id in found] if found else [], pa.string())
        return self._ask(Existing(self._type(table_key), ids))[ID].combine_chunks()

    def matching(self, table_key: str, column: str, values: pa.Array, columns: Sequence[str]) -> pa.Table:
        if column == ID and set(columns) <= {ID} and self._is_known(table_key, values):
            known = self._found[table_key]
            wanted = values.to_pylist() if known else []
            found = {id: address for id in wanted if (address := known.get(id)) is not None}
            return pa.table({ID: pa.array(found, pa.string()), ROWADDR: pa.array(found.values(), pa.uint64())})
        return self._ask(Matching(self._type(table_key), column, values, tuple(columns)))

    def scan(self, table_key: str, columns: Sequence[str]) -> pa.RecordBatchReader:
        return self._ask(Scan(self._type(table_key), tuple(columns))).to_reader()

    def select(self, table_key: str, columns: Sequence[str], where: Condition, room: Room) -> pa.Table:
        return self._ask(Select(self._type(table_key), tuple(columns), where, room))

    def _known(self, table_key: str) -> list[pa.Array]:
        return [self._asked[table_key]] if table_key in self._asked else []

    def _is_known(self, table_key: str, ids: pa.Array) -> bool:
        """Whether all of these ids were looked up."""
        if table_key not in self._asked:
            return False
        return bool(pc.all(pc.is_in(ids, value_set=self._asked[table_key]), min_count=0).as_py())

    def _type(self, table_key: str) -> ElementType:
        return self._schema.by_table_key[table_key]

    def _ask(self, question: Question) -> pa.Table:
        return self._reader.read(self._base, [question])[0]
