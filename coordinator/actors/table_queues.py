"""The write queues of some tables on one branch: what their owner keeps warm, and the work it does for a round.

A queue is its table's side of the rounds. It answers what a judgement asks of the table and stages the table's part of
a round, one after the other in the order of the rounds, other tables beside it. It decides nothing and commits nothing,
and what it keeps (handle, tail, ids) is read from storage again when it is lost: so it may die at any time.
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
    """What a judgement wants to know of one table; the method is one of a state's."""

    method: Literal["existing", "matching", "scan", "select"]
    table_key: str
    arguments: tuple[Any, ...]


class TableQueues:
    """The queues that one process owns, made when their tables are first used."""

    def __init__(self, branch: OpenBranch) -> None:
        self._branch = branch
        self._stager = TableStager(branch)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="omniray-queue")

    def close(self) -> None:
        self._pool.shutdown()
        self._stager.close()
        self._branch.store.close()

    def read(self, base: Base, questions: Sequence[Question]) -> list[pa.Table | pa.Array]:
        """Answer questions about tables as they are in `base`, tables in parallel."""
        return list(self._pool.map(lambda question: self._answer(base, question), questions))

    def stage(self, base: Base, stages: Sequence[TableStage]) -> list[Staged]:
        """Phase B of some tables in parallel: for each what was staged, or why it was not."""
        return self._stager.stage(base, stages)

    def drop(self, table_keys: Sequence[str]) -> None:
        """Forget what a round staged that came to nothing."""
        self._stager.drop(table_keys)

    def _answer(self, base: Base, question: Question) -> pa.Table | pa.Array:
        with self._stager.turn(question.table_key):
            self._stager.open(base, question.table_key)
            state = PinnedState(self._branch.cache, base)
            answer = getattr(state, question.method)(question.table_key, *question.arguments)
            return answer.read_all() if question.method == "scan" else answer
