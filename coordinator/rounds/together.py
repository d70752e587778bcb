"""Loads that can't refuse each other are judged together: one judgement for all costs little more than for one.

Most loads of a round bring keys of their own, or merge: then the last one of a key wins, whoever brings it. Judged one
by one they would give what they give together, so they are laid into one key log and judged once. Where that is not
sure, or where anything is refused, each is judged by itself, in order: only then is it known whose fault it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import pyarrow as pa

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
    """The requests in their order, cut into runs: of loads that may be judged together, and of one each."""
    for mode, run in groupby(requests, lambda request: _mode(request, schema)):
        if mode is None:
            yield from ([request] for request in run)
        else:
            yield list(run)


def judge_together(run: Sequence[Request], state: State, schema: Schema) -> list[Resolution] | None:
    """What each load of a run comes to, in their order; None if they have to be judged one by one."""
    loads = [request for request in run if isinstance(request, LoadRequest)]
    if len(loads) < 2 or _may_meet(loads, schema):
        return None
    with KeyLog(schema) as log:
        log.extend(*(load.keys for load in loads))
        verdict = judge(log, schema, state, lookup_keys_max=LOOKUP_KEYS_MAX)
    return None if verdict.refusal is not None else _divided(loads, verdict)


def _mode(request: Request, schema: Schema) -> Mode | None:
    """How a load writes, if nothing but its own keys and the ends of its edges decide about it."""
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


def _may_meet(loads: Sequence[LoadRequest], schema: Schema) -> bool:
    """Whether what one of the loads brings may decide about another: an id of both, or a node at the other's edge."""
    nodes: dict[str, list[set[str]]] = {}  # by table: for each load that brings any, their ids
    for key in {key for load in loads for key in load.tables}:
        brought = [set(load.tables[key][ID].to_pylist()) for load in loads if key in load.tables]
        is_node = not isinstance(schema.by_table_key[key], EdgeType)
        if is_node:
            nodes[key] = brought
        merges = loads[0].options.mode is Mode.MERGE
        # A merged node takes the place of an earlier one without more ado. An edge's ends are judged even then.
        if not (is_node and merges) and len(set().union(*brought)) < sum(map(len, brought)):
            return True
    return any(_leads_elsewhere(load, nodes, schema) for load in loads)


def _leads_elsewhere(load: LoadRequest, nodes: Mapping[str, Sequence[set[str]]], schema: Schema) -> bool:
    """Whether an edge of the load needs a node that any load brings: whose comes first would matter."""
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


def _divided(loads: Sequence[LoadRequest], verdict: Verdict) -> list[Resolution]:
    """Each load's share of the verdict."""
    places = {
        key: dict(zip(table.replaced[ID].to_pylist(), table.replaced[ROWADDR].to_pylist(), strict=True))
        for key, table in verdict.tables.items()
    }
    first: Counter[str] = Counter()
    resolutions = []
    for load in loads:
        writes = {}
        for key, rows in load.tables.items():
            table = verdict.tables[key]
            kept = edited(rows, first[key], table.dropped.to_numpy(), table.adopted)
            first[key] += rows.num_rows
            if rows.num_rows:  # a load whose rows were all merged again later was there all the same
                writes[key] = TableWrite(load.options.mode, kept, _replaced(load, key, places[key]))
        resolutions.append(Resolution(writes, _affected(load), rejected=load.rejected))
    return resolutions


def _replaced(load: LoadRequest, table_key: str, places: dict[str, int]) -> pa.Table:
    """The rows that this load replaces and no earlier one of the run has; a row can be replaced only once."""
    if not places:
        return NOTHING_REPLACED
    found = {id: places.pop(id) for id in _texts(load.keys.tables[table_key][1][ID]) if id in places}
    return pa.table({ID: pa.array(found, pa.string()), ROWADDR: pa.array(found.values(), pa.uint64())})


def _affected(load: LoadRequest) -> Affected:
    """How many rows the load would have left by itself: the last one of each id, and all that got theirs here."""
    counts = {"node": 0, "edge": 0}
    for key, (_, keys) in load.keys.tables.items():
        given = _texts(keys[ID])
        counts[key.partition(":")[0]] += keys.num_rows - len(given) + len(set(given))
    return Affected(counts["node"], counts["edge"])
