"""Merging and indexing of the sealed lineage in `__manifest`, so that its cost does not grow with the history.

Each step is one compare-and-swap on the version that it read, as a fold is, and leaves a valid table: after a kill
between two steps any process does the next one, and the sweep deletes files that nothing refers to. A step that
another process overtakes is void, never rebased on a later version: so a file older than a sweep can't become part of
a version that the sweep has not seen.

    merge   neighbours become one fragment. Lance keeps fragments in the order of their ids, and a new id is the
            highest: later fragments get new ids too, with the same files, so the order of the line stays
    index   one segment for one merged fragment, by object id and by number of the line; segments whose fragment was
            merged away are dropped with it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lance
from lance.commit import CommitConflictError
from lance.dataset import Index
from lance.fragment import FragmentMetadata, write_fragments

from omniray.engine.base.failpoints import Point, reach
from omniray.engine.history.cas_table import SwapTable
from omniray.engine.history.lineage_levels import Fragment, IndexWork, to_index, to_merge

INDEXES = {"object_id": "by_object_id", "seq": "by_seq"}
STEPS_MAX = 8


def is_merge_due(dataset: lance.LanceDataset) -> bool:
    """Whether sealed fragments should be merged, by what a handle holds in memory."""
    return to_merge(_fragments(dataset)) is not None


def keep_up(table: SwapTable) -> None:
    """Merge and index what is due, a few steps at most; the next call does the rest."""
    for _ in range(STEPS_MAX):
        dataset = table.open()
        operation = None if dataset is None else _next_step(dataset)
        if dataset is None or operation is None:
            return
        try:
            staged = table.stage(dataset, operation)
            reach(Point.D_UPKEEP_STAGED)
            table.publish(staged)
        except CommitConflictError:
            return  # another process was first: it may have done the same
        reach(Point.D_AFTER_UPKEEP)


def _next_step(dataset: lance.LanceDataset) -> lance.LanceOperation.BaseOperation | None:
    fragments = _fragments(dataset)
    if (places := to_merge(fragments)) is not None:
        return _merge(dataset, places)
    described = [index for index in dataset.describe_indices() if index.name in INDEXES.values()]
    segments: dict[str, dict[str, Any]] = {name: {} for name in INDEXES.values()}
    for index in described:
        segments[index.name] = {segment.uuid: segment.fragment_ids for segment in index.segments}
    work = to_index(fragments, segments)
    return None if work is None else _index(dataset, work, described)


def _merge(dataset: lance.LanceDataset, places: range) -> lance.LanceOperation.BaseOperation:
    fragments = dataset.get_fragments()
    sources, after = fragments[places.start : places.stop], fragments[places.stop :]
    rows = dataset.scanner(fragments=sources, scan_in_order=True).to_reader()
    merged = write_fragments(rows, dataset, max_rows_per_file=sum(f.physical_rows for f in sources))
    reach(Point.D_UPKEEP_WRITTEN)
    return lance.LanceOperation.Update(
        removed_fragment_ids=[f.fragment_id for f in (*sources, *after)],
        updated_fragments=[],
        new_fragments=[*merged, *(_with_new_id(f.metadata) for f in after)],
        fields_modified=[],
    )


def _with_new_id(fragment: FragmentMetadata) -> FragmentMetadata:
    """The same rows in the same files; Lance replaces the id 0 with a new one."""
    return FragmentMetadata(id=0, files=fragment.files, physical_rows=fragment.physical_rows)


def _index(
    dataset: lance.LanceDataset, work: IndexWork, described: Sequence[Any]
) -> lance.LanceOperation.BaseOperation:
    new = []
    if work.fragment_id is not None:
        new = [
            dataset.create_index_uncommitted(column, "BTREE", name=name, replace=True, fragment_ids=[work.fragment_id])
            for column, name in INDEXES.items()
        ]
    reach(Point.D_UPKEEP_WRITTEN)
    dropped = [
        _dropped(index, segment)
        for index in described
        for segment in index.segments
        if segment.uuid in work.dead_segments
    ]
    return lance.LanceOperation.CreateIndex(new, dropped)


def _dropped(index: Any, segment: Any) -> Index:
    """A segment in the form in which Lance drops it; only the uuid counts."""
    return Index(
        uuid=segment.uuid,
        name=index.name,
        fields=index.fields,
        dataset_version=segment.dataset_version_at_last_update,
        fragment_ids=set(segment.fragment_ids),
        index_version=segment.index_version,
    )


def _fragments(dataset: lance.LanceDataset) -> list[Fragment]:
    return [Fragment(f.fragment_id, f.physical_rows) for f in dataset.get_fragments()]
