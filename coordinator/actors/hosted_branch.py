"""A branch other than main that the coordinator's process hosts: opened when somebody writes to it, let go when idle.

It has no actors and no door of its own, and begins no life after its branch was deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from omniray.coordinator.actors.gauges import Gauges
from omniray.coordinator.actors.line_service import LineService
from omniray.coordinator.actors.queue_actor import LineQueues
from omniray.coordinator.actors.reconciler import Finalised
from omniray.coordinator.actors.reconciler_actor import RemoteReconciler
from omniray.engine.base.errors import BranchGone, GraphGone, OmnirayError
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.line.commit_object import CommitObject
from omniray.engine.line.line_end import refuse_closed

log = logging.getLogger("omniray")

Opens: TypeAlias = Callable[[str], tuple[OpenBranch, str, str]]
"""Opens a line: the branch, who is to own it, and its durability."""


class HostedBranch(LineService):
    """The publisher of one branch beside main's."""

    def __init__(
        self,
        line: str,
        address: str,
        opens: Opens,
        queues: LineQueues,
        reconciler: Callable[[Callable[[Finalised], None]], RemoteReconciler],
        gauges: Gauges,
        *,
        on_over: Callable[[HostedBranch], None],
        on_graph_gone: Callable[[OmnirayError], None],
    ) -> None:
        super().__init__(line, address, queues, reconciler, gauges)
        self._opens, self._line_queues = opens, queues
        self._on_over, self._on_graph_gone = on_over, on_graph_gone
        self.is_over = False  # the branch is gone, or another owner has taken its line over
        self._open()

    @property
    def name(self) -> str:
        return self.branch.branch.name

    def look_again(self) -> None:
        """End if the branch was deleted: its writers are told now, not when they write again."""
        try:
            newest = self.branch.tip.another().refresh()
        except OmnirayError as error:  # the next round will see
            log.warning("event=not_looked_at line=%s error=%s", self.line, error)
            return
        try:
            refuse_closed(newest)
        except BranchGone as gone:
            self.publisher.end_closed(newest, gone)

    def leave(self) -> None:
        """Finish what is under way, hand the line back and close everything.

        If the line could not be handed back, a new incarnation begins, which may be let go later.
        """
        try:
            self.drain()
        except Exception:  # whatever it was, nobody else may write to the line
            with self._life:
                self._is_leaving, self._has_ended = False, True
            self._begin_anew_soon()
            raise
        self.close()

    def close(self) -> None:
        """End the threads here, and what the other actors keep of the branch, once nobody uses it any more."""
        super().close()
        self._line_queues.let_go()
        self.reconciler.let_go()

    def _open(self) -> None:
        self._begin_on(*self._opens(self.line))

    def _taken_over(self, taken: CommitObject) -> None:
        """Nothing has to be put: clients find the coordinator by main's line."""

    def _released(self) -> None:
        """Nothing has to be deleted."""

    def _stay_behind(self, gone: OmnirayError) -> None:
        self._gone = gone
        if isinstance(gone, GraphGone):
            self._on_graph_gone(gone)
        self._end()

    def _lost(self, error: OmnirayError) -> None:
        self._end()

    def _end(self) -> None:
        self.is_over = True
        self._on_over(self)
