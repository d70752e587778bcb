"""Judges loads that can't refuse each other together: one judgement for all costs little more than for one.

Most loads of a round bring keys of their own, or merge: then the last row of a key wins, from any load. Judged one by
one they would have the same result as together, so they share one key log and are judged once. Where that is not sure,
or where anything is refused, each is judged by itself, in order: only that shows which load caused the refusal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.judge.constraints import judge
from omniray.engine.judge.keylog import KeyLog
from omniray.engine.judge.pinned import ROWADDR, State
from omniray.engine.judge.resolution import Affected, Resolution, TableWrite
from omniray.engine.judge.verdict import Verdict
from omniray.engine.rows.mode import Mode
from omniray.engine.schema.types import ANY_CARDINALITY, DST, ID, SRC, EdgeType, Schema, Unique
from omniray.engine.tables.storage import NOTHING_REPLACED
from omniray.engine.writes.options import OnError
from omniray.engine.writes.row_sink import edited
from omniray.engine.writes.write_requests import LoadRequest, Request

LOOKUP_KEYS_MAX = 1_000_000


def runs(requests: Sequence[Request], schema: Schema) -> Iterator[list[Request]]:
    """The requests in their order, cut into runs: loads that may be judged together, or a single request."""
    for mode, run in groupby(requests, lambda request: _mode(request, schema)):
        if mode is None:
            yield from ([request] for request in run)
        else:
            yield list(run)


def judge_together(run: Sequence[Request], state: State, schema: Schema) -> list[Resolution] | None:
    """The resolution of each load of a run, in their order; None if they have to be judged one by one."""
    loads = [request for request in run if isinstance(request, LoadRequest)]
    if len(loads) < 2:
        return None
    distinct = _tables_of_distinct_ids(loads)
    if _may_meet(loads, distinct, schema):
        return None
    with KeyLog(schema) as log:
        log.extend(*(load.keys for load in loads))
        verdict = judge(log, schema, state, lookup_keys_max=LOOKUP_KEYS_MAX)
    return None if verdict.refusal is not None else _divided(loads, verdict, distinct)


def _tables_of_distinct_ids(loads: Sequence[LoadRequest]) -> frozenset[str]:
    """The tables of which no two rows of the loads have one id."""
    found = set()
    for key in {key for load in loads for key in load.tables}:
        ids = pa.chunked_array([chunk for load in loads if key in load.tables for chunk in load.tables[key][ID].chunks])
        if len(ids) == 0 or pc.count_distinct(ids).as_py() == len(ids):
            found.add(key)
    return frozenset(found)


def _mode(request: Request, schema: Schema) -> Mode | None:
    """The mode of a load, if its judgement depends only on its keys and the ends of its edges; else None."""
    if not isinstance(request, LoadRequest) or request.header.expected_versions:
        return None
    options = request.options
    if options.on_error is not OnError.FAIL or options.mode not in (Mode.APPEND, Mode.MERGE):
        return None
    types = (schema.by_table_key[key] for key in request.tables)
    by_keys_alone = all(
        not any(isinstance(constraint, Unique) for constraint in type.constraints)
        and not (isinstance(type, EdgeType) and type.cardinality != ANY_CARDINALITY)
        for type in types
    )
    return options.mode if by_keys_alone else None


def _may_meet(loads: Sequence[LoadRequest], distinct: frozenset[str], schema: Schema) -> bool:
    """Whether one load may affect another's judgement: by a common id, or by a node at the other's edge."""
    keys = {key for load in loads for key in load.tables}
    merges = loads[0].options.mode is Mode.MERGE
    for key in keys - distinct:
        # A merged node replaces an earlier one without a check. The ends of a merged edge are judged.
        is_checked = isinstance(schema.by_table_key[key], EdgeType) or not merges
        if is_checked and _overlap(_ids_brought(loads, key)):
            return True
    if not any(isinstance(schema.by_table_key[key], EdgeType) for key in keys):
        return False
    nodes = {key: _ids_brought(loads, key) for key in keys if not isinstance(schema.by_table_key[key], EdgeType)}
    return any(_leads_elsewhere(load, nodes, schema) for load in loads)


def _ids_brought(loads: Sequence[LoadRequest], table_key: str) -> list[set[str]]:
    """The ids of each load that brings any."""
    return [set(load.tables[table_key][ID].to_pylist()) for load in loads if table_key in load.tables]


def _overlap(brought: Sequence[set[str]]) -> bool:
    return len(set().union(*brought)) < sum(map(len, brought))


def _leads_elsewhere(load: LoadRequest, nodes: Mapping[str, Sequence[set[str]]], schema: Schema) -> bool:
    """Whether an edge of the load needs a node that another load may bring: then their order matters."""
    for key, (_, keys) in load.keys.tables.items():
        type = schema.by_table_key[key]
        if isinstance(type, EdgeType):
            for node, end in ((type.source, SRC), (type.target, DST)):
                brought = nodes.get(schema.type(node).table_key, ())
                own = load.tables.keys() & {schema.type(node).table_key}
                if len(brought) > len(own) and any(not ids.isdisjoint(_texts(keys[end])) for ids in brought):
                    return True
    return False


def _texts(column: pa.ChunkedArray) -> list[str]:
    return [value for value in column.to_pylist() if value is not None]


def _divided(loads: Sequence[LoadRequest], verdict: Verdict, distinct: frozenset[str]) -> list[Resolution]:
    """Each load's share of the verdict."""
    places = {
        key: dict(zip(table.replaced[ID].to_pylist(), table.replaced[ROWADDR].to_pylist(), strict=True))
        for key, table in verdict.tables.items()
    }
    edits = {key: bool(len(table.dropped) or table.adopted.num_rows) for key, table in verdict.tables.items()}
    first: Counter[str] = Counter()
    resolutions = []
    for load in loads:
        writes = {}
        for key, rows in load.tables.items():
            table = verdict.tables[key]
            kept = edited(rows, first[key], table.dropped.to_numpy(), table.adopted) if edits[key] else rows
            first[key] += rows.num_rows
            if rows.num_rows:  # also if later loads replaced all of its rows: it is a commit of its own
                writes[key] = TableWrite(load.options.mode, kept, _replaced(load, key, places[key]))
        resolutions.append(Resolution(writes, _affected(load, distinct), rejected=load.rejected))
    return resolutions


def _replaced(load: LoadRequest, table_key: str, places: dict[str, int]) -> pa.Table:
    """The rows that this load replaces and no earlier load of the run does; a row is replaced only once."""
    if not places:
        return NOTHING_REPLACED
    found = {id: places.pop(id) for id in _texts(load.keys.tables[table_key][1][ID]) if id in places}
    return pa.table({ID: pa.array(found, pa.string()), ROWADDR: pa.array(found.values(), pa.uint64())})


def _affected(load: LoadRequest, distinct: frozenset[str]) -> Affected:
    """How many rows the load alone would write: one for each given id, and each row without one."""
    counts = {"node": 0, "edge": 0}
    for key, (_, keys) in load.keys.tables.items():
        given = [] if key in distinct else _texts(keys[ID])
        counts[key.partition(":")[0]] += keys.num_rows - len(given) + len(set(given))
    return Affected(counts["node"], counts["edge"])
