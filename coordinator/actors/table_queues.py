"""The table queues of one branch: they cache their tables, answer look-ups and stage their part of a round.

A queue does one table's work for the rounds: it answers the look-ups of a judgement and stages the table's part of a
round, in the order of the rounds and in parallel with other tables. It decides nothing and commits nothing, and its
cache (handle, tail, ids) can be read from storage again: so it may die at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from omniray.coordinator.door.questions import Question
from omniray.engine.commit.staging import Base, Staged, TableStage, TableStager
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.judge.pinned_state import PinnedState
from omniray.engine.schema.types import Schema
from omniray.engine.tables.cache import TableCache

THREADS = 16


class TableQueues:
    """The queues that one process owns, created when their tables are first used."""

    def __init__(self, branch: OpenBranch) -> None:
        self._branch = branch
        self._stager = TableStager(branch)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="omniray-queue")

    def close(self) -> None:
        self._pool.shutdown()
        self._stager.close()
        self._branch.storage.close()

    @property
    def cache(self) -> TableCache:
        return self._branch.cache

    @property
    def schema(self) -> Schema:
        return self._branch.schema

    def read(self, base: Base, questions: Sequence[Question]) -> list[pa.Table]:
        """Answer look-ups in the tables as pinned by `base`, in parallel."""
        return list(self._pool.map(lambda question: self._answer(base, question), questions))

    def stage(self, base: Base, stages: Sequence[TableStage]) -> list[Staged]:
        """Phase B of some tables in parallel: returns for each the staged version, or why it was not staged."""
        return self._stager.stage(base, stages)

    def drop(self, table_keys: Sequence[str]) -> None:
        """Forget what a void round staged."""
        self._stager.drop(table_keys)

    def _answer(self, base: Base, question: Question) -> pa.Table:
        table_key = question.type.table_key
        with self._stager.turn(table_key):
            self._stager.open(base, table_key)
            return question.answered_by(PinnedState(self._branch.cache, base))
