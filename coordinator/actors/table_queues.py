"""The table queues of one branch: they cache their tables, answer look-ups and stage their part of a round.

A queue does one table's work for the rounds: it answers the look-ups of a judgement and stages the table's part of a
round, in the order of the rounds and in parallel with other tables. It decides nothing and commits nothing, and its
cache (handle, tail, ids) can be read from storage again: so it may die at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from omniray.engine.commit.staging import Base, Staged, TableStage, TableStager
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.judge.pinned_state import PinnedState

THREADS = 16


@dataclass(frozen=True, slots=True)
class Question:
    """One look-up of a judgement in one table; `method` is a method of `State`."""

    method: Literal["existing", "matching", "scan", "select"]
    table_key: str
    arguments: tuple[Any, ...]


class TableQueues:
    """The queues that one process owns, created when their tables are first used."""

    def __init__(self, branch: OpenBranch) -> None:
        self._branch = branch
        self._stager = TableStager(branch)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="omniray-queue")

    def close(self) -> None:
        self._pool.shutdown()
        self._stager.close()
        self._branch.store.close()

    def read(self, base: Base, questions: Sequence[Question]) -> list[pa.Table | pa.Array]:
        """Answer look-ups in the tables as pinned by `base`, in parallel."""
        return list(self._pool.map(lambda question: self._answer(base, question), questions))

    def stage(self, base: Base, stages: Sequence[TableStage]) -> list[Staged]:
        """Phase B of some tables in parallel: returns for each the staged version, or why it was not staged."""
        return self._stager.stage(base, stages)

    def drop(self, table_keys: Sequence[str]) -> None:
        """Forget what a void round staged."""
        self._stager.drop(table_keys)

    def _answer(self, base: Base, question: Question) -> pa.Table | pa.Array:
        with self._stager.turn(question.table_key):
            self._stager.open(base, question.table_key)
            state = PinnedState(self._branch.cache, base)
            answer = getattr(state, question.method)(question.table_key, *question.arguments)
            return answer.read_all() if question.method == "scan" else answer
