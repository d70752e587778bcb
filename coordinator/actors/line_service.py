"""The publisher of one line, as long as this process is to serve it: a new incarnation begins when the last has ended.

Each incarnation begins from storage alone: it takes the line over with the next epoch. Every line has threads, locks
and errors of its own, so that one that is slow or broken holds no other up.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

from omniray.coordinator.actors.call_threads import CallThreads
from omniray.coordinator.actors.gauges import Gauges
from omniray.coordinator.actors.publisher import Publisher
from omniray.coordinator.actors.reconciler import Finalised
from omniray.coordinator.actors.reconciler_actor import RemoteReconciler
from omniray.coordinator.actors.steps import Queues
from omniray.coordinator.door.calls import RepairTerms
from omniray.coordinator.door.requests import RequestDecoder
from omniray.engine.base.errors import (
    BranchGone,
    Fenced,
    GraphGone,
    LineOwned,
    NotFound,
    OmnirayError,
    StorageError,
    Unreachable,
)
from omniray.engine.base.ulids import checked_commit_id, checked_txn_id
from omniray.engine.branches.merge import Merger
from omniray.engine.branches.merge_result import MergeResult, MergeTerms
from omniray.engine.branches.revert import revert_of
from omniray.engine.branches.states import States
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.line.line_end import Tip
from omniray.engine.line.owner import release, take_over
from omniray.engine.recovery.repair import Repair, RepairReport
from omniray.engine.store.object_store import Durability

log = logging.getLogger("omniray")

BEGIN_PAUSE_S_MAX = 5.0
RELEASE_PAUSES_S = (0.1, 0.5, 2.0, 5.0)
IDLE_LOOK_S = 0.01


class LineService(ABC):
    """Serves one line from this process. Threads may share it."""

    def __init__(
        self,
        line: str,
        address: str,
        queues: Queues,
        reconciler: Callable[[Callable[[Finalised], None]], RemoteReconciler],
        gauges: Gauges,
    ) -> None:
        self.line, self.address, self.gauges = line, address, gauges
        self.finalised = Finalised(0, {})
        self.reconciler = reconciler(self._noticed)
        self.threads = CallThreads()
        self._queues = queues
        self._life = threading.Lock()
        self._lives = 0
        self._has_ended = self._is_leaving = self._has_left = False
        self._gone: OmnirayError | None = None

    @property
    def is_serving(self) -> bool:
        return not (self._has_ended or self._is_leaving or self._gone)

    def admit(self, commit_id: str = "") -> Publisher:
        """The publisher that takes a write, or raises why none does; one under way is not turned away any more."""
        if self._is_leaving and self.publisher.under_way(commit_id) is None:
            raise leaving(self.address)
        if self._gone is not None:
            raise self._gone
        if self._has_ended:
            raise Fenced("this life of the publisher has ended; send the write again with the same id")
        return self.publisher

    # Beginning

    @abstractmethod
    def _open(self) -> None:
        """Begin a new incarnation: open the line from storage alone, and `_begin_on` it."""

    def _begin_on(self, branch: OpenBranch, owner: str, durability: str, *, door: str = "") -> CommitObject:
        """Take the line of a branch over, and publish on it."""
        self._lives += 1
        self.branch, self.decoder, self._owner = branch, RequestDecoder(branch.schema, branch.schema_hash), owner
        self._tip = branch.tip.another()
        taken = take_over(self._tip, owner, Durability(durability), door=door)
        self._taken_over(taken)
        self.publisher = Publisher(
            branch, self._tip, self._queues, self._landed,
            owner=owner, on_ended=partial(self._ended, self._lives), gauges=self.gauges,
        )  # fmt: skip
        self._has_ended, self._gone = False, None
        self.reconciler.notice(taken, taken.op_id)  # and so Phase D of what the last incarnation left
        return taken

    @abstractmethod
    def _taken_over(self, taken: CommitObject) -> None:
        """The line is ours, and nobody can write to it yet."""

    def _open_if_ended(self) -> None:
        with self._life:
            if self._has_ended and not self._is_leaving:
                self._open()

    # Ending

    def _ended(self, life: int, error: OmnirayError) -> None:
        """Begin a new incarnation, unless another owner has taken over or the line is gone.

        A late step of an earlier incarnation may end that one once more, which says nothing of this one.
        """
        if life != self._lives:
            return
        self._has_ended = True
        if isinstance(error, GraphGone | BranchGone):
            self._stay_behind(error)
        elif isinstance(error, Fenced):
            self._lost(error)
        elif not self._is_leaving:
            self._begin_anew_soon()

    def _begin_anew_soon(self) -> None:
        threading.Thread(target=self._begin_anew, name="omniray-begin-anew", daemon=True).start()

    def _begin_anew(self) -> None:
        pause_s = 0.1
        while True:
            try:
                return self._open_if_ended()
            except (LineOwned, Fenced) as error:
                self._lost(error)
                return log.warning("event=begin_refused line=%s error=%s", self.line, error)
            except NotFound as error:  # the graph or the branch is gone, or another one is in its place
                self._stay_behind(error)
                return log.warning("event=begin_refused line=%s error=%s", self.line, error)
            except OmnirayError as error:
                log.warning("event=begin_failed line=%s error=%s", self.line, error)
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, BEGIN_PAUSE_S_MAX)

    @abstractmethod
    def _stay_behind(self, gone: OmnirayError) -> None:
        """The graph or the branch is gone: nothing begins here any more."""

    @abstractmethod
    def _lost(self, error: OmnirayError) -> None:
        """Another owner has taken the line over: nothing begins here by itself."""

    def drain(self) -> None:
        """Take no more writes, finish those under way, and hand the line back (`embedded`).

        Raises if the line could not be handed back: this process still owns it then, and may be asked again.
        """
        with self._life:  # else an incarnation that begins at this moment would be left out
            self._is_leaving = True
        while not self.publisher.is_idle:
            time.sleep(IDLE_LOOK_S)
        self.publisher.end(leaving(self.address))
        if self._gone is None:  # else it was ended already
            self.reconciler.close()
        with contextlib.suppress(GraphGone, BranchGone):  # then there is no line to hand back
            self._release()
            self._released()
        self._has_left = True

    @abstractmethod
    def _released(self) -> None:
        """The line was handed back."""

    def _release(self) -> None:
        """Hand the line back, in several tries: all writes are answered, and only this keeps embedded writers out."""
        for pause_s in RELEASE_PAUSES_S:
            try:
                release(self._tip, self._owner)
            except StorageError as error:
                log.warning("event=release_failed line=%s error=%s", self.line, error)
                time.sleep(pause_s)
            else:
                return
        release(self._tip, self._owner)

    def close(self) -> None:
        """End the threads, once nobody uses it any more."""
        self.publisher.close()
        self.threads.close()

    # Repairing

    def repair(self, terms: RepairTerms) -> RepairReport:
        """Show or repair what a foreign writer did to tables; no round is under way while one is repaired."""
        publisher = self.admit()
        if not (terms.adopt or terms.discard):
            return self._repair(publisher, self.branch.tip.another(), terms)
        with self._held(publisher):
            report = self._repair(publisher, self._tip, terms)
        self.reconciler.flush()
        self.reconciler.recover()  # operations may have waited for the repair
        return report

    def _repair(self, publisher: Publisher, tip: Tip, terms: RepairTerms) -> RepairReport:
        return Repair(self.branch, tip, publisher.steps, publisher.steps.attempts, owner=self._owner).carried_out(
            terms.tables, adopt=terms.adopt, discard=terms.discard, actor=terms.actor
        )

    # Merging

    def merge(self, source: str, terms: MergeTerms, began: int) -> MergeResult:
        """Merge a branch, or a commit of one, into this one; its writers wait for the last judgement and the commit."""
        merger = self._merger(terms.txn_id, began)
        with closing(States(self.branch)) as states:
            try:
                named = states.named(source)
            except NotFound:  # it may have been deleted after the first try
                if terms.txn_id is None or (first := merger.first_outcome(terms.txn_id)) is None:
                    raise
                return first
            return merger.merge(named, terms)

    def revert(self, commit_id: str, terms: MergeTerms, began: int) -> MergeResult:
        """Take back what a commit changed on this branch."""
        merger = self._merger(terms.txn_id, began)
        with closing(States(self.branch)) as states:
            head = self.branch.tip.another().refresh()
            operation = revert_of(states, head, checked_commit_id(commit_id), self.branch.branch.name)
            return merger.carry_out(operation, terms)

    def _merger(self, txn_id: str | None, began: int) -> Merger:
        publisher, tip = self.admit(), self.branch.tip.another()
        steps, held = publisher.steps, partial(self._held_for_merge, publisher, txn_id, began)
        return Merger(self.branch, tip, steps, steps.attempts, owner=self._owner, held=held)

    @contextlib.contextmanager
    def _held_for_merge(self, publisher: Publisher, txn_id: str | None, began: int) -> Iterator[None]:
        """No round is under way within this block, whose object the next round then follows."""
        with self._held(publisher, txn_id, began):
            yield
            with contextlib.suppress(StorageError):  # then the next round is overtaken, and judged again
                self._tip.refresh()

    @contextlib.contextmanager
    def _held(self, publisher: Publisher, txn_id: str | None = None, began: int = 0) -> Iterator[None]:
        """No round is under way within this block, and what it does has not been reported as not committed."""
        with publisher.held():
            if self.admit() is not publisher:
                raise Fenced("this life of the publisher has ended; send it again with the same id")
            if txn_id is not None:
                publisher.refuse_withdrawn(checked_txn_id(txn_id), began)
            yield

    # Phase D

    def _landed(self, landed: CommitObject, operation_id: str) -> None:
        self.reconciler.notice(landed, operation_id)

    def _noticed(self, finalised: Finalised) -> None:
        self.finalised = finalised
        self.publisher.finalised(finalised.through, finalised.drifted)


def leaving(address: str) -> Unreachable:
    return Unreachable(
        f"the coordinator at {address} was taken down and takes no more writes; nothing was written: connect again, "
        "which starts one, or write with 'omniray.open'",
        address=address,
    )
