"""The branches that the coordinator's process hosts beside main: opened when somebody asks for one, let go when idle.

A branch that nobody uses costs nothing: its line is handed back to every writer, and everything is closed. One that is
slow to open or to leave holds up those who ask for it, and no other.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from omniray.coordinator.actors.hosted_branch import HostedBranch
from omniray.engine.base.errors import OmnirayError

log = logging.getLogger("omniray")

IDLE_S = 60.0
LOOKS_WHILE_IDLE = 4
OPENED_AT_ONCE = 32
LET_GO_AT_ONCE = 16
OPEN_TIMEOUT_S = 60.0


@dataclass(slots=True)
class _Entry:
    """A branch on its way in, here, or on its way out.

    `wanted` is done when it can be used, or can't be opened; `leaving` when it has left, or could not.
    """

    branch: HostedBranch | None = None
    wanted: Future[None] | None = None
    leaving: Future[None] | None = None
    is_leaving: bool = False
    users: int = 0
    used_at: float = 0.0

    @property
    def is_open(self) -> bool:
        return self.branch is not None and not self.is_leaving


class HostedBranches:
    """Keeps the branches by their lines. Threads may share it; only `opened`, `found` and `drain` wait for a store."""

    def __init__(
        self,
        host: Callable[[str], HostedBranch],
        *,
        idle_s: float = IDLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._idle_s, self._clock = host, idle_s, clock
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        self._refusal: OmnirayError | None = None
        self._opening = ThreadPoolExecutor(OPENED_AT_ONCE, thread_name_prefix="omniray-host")
        self._leaving = ThreadPoolExecutor(LET_GO_AT_ONCE, thread_name_prefix="omniray-let-go")
        self._ending = threading.Event()
        self._watch: threading.Thread | None = None

    # Using

    def opening(self, line: str) -> Future[None]:
        """Have a branch opened, if it is not; the future is done when it can be used, and has the error otherwise."""
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            entry = self._entries.setdefault(line, _Entry())
            if entry.is_open:
                return _done()
            if entry.wanted is None:
                entry.wanted = Future()
                if not entry.is_leaving:  # else whoever lets it go opens it again
                    self._opening.submit(self._open, line, entry)
            return entry.wanted

    @contextlib.contextmanager
    def used(self, line: str) -> Iterator[HostedBranch | None]:
        """The branch if it is open; it is not let go within this block."""
        with self._lock:
            entry = self._entries.get(line)
            if entry is None or not entry.is_open:
                entry = None
            else:
                entry.users += 1
                entry.used_at = self._clock()
        try:
            yield None if entry is None else entry.branch
        finally:
            if entry is not None:
                with self._lock:
                    entry.users -= 1
                    entry.used_at = self._clock()

    @contextlib.contextmanager
    def opened(self, line: str) -> Iterator[HostedBranch]:
        """The branch, opened if it is not; for a thread that may wait."""
        while True:
            self.opening(line).result()
            with self.used(line) as branch:
                if branch is not None:
                    yield branch
                    return

    def found(self, line: str) -> HostedBranch | None:
        """The branch if it is here, on its way in or out; for the coordinator's own actors."""
        with self._lock:
            entry = self._entries.get(line)
            wanted = None if entry is None or entry.branch is not None else entry.wanted
        if wanted is not None:
            wait([wanted], OPEN_TIMEOUT_S)
        with self._lock:
            entry = self._entries.get(line)
            return None if entry is None else entry.branch

    @property
    def open(self) -> list[HostedBranch]:
        """The branches that are open, by their lines."""
        with self._lock:
            return [entry.branch for _, entry in sorted(self._entries.items()) if entry.branch and entry.is_open]

    # Coming

    def _open(self, line: str, entry: _Entry) -> None:
        try:
            branch = self._host(line)
        except BaseException as error:
            with self._lock:
                wanted, entry.wanted = entry.wanted, None
                self._entries.pop(line, None)
            if not isinstance(error, OmnirayError):
                log.exception("event=host_failed line=%s", line)
                error = OmnirayError(f"a bug in omniray kept a branch from being opened: {error!r}")
            _settled(wanted, error)
            return
        log.info("event=hosted line=%s", line)
        with self._lock:
            wanted, entry.wanted = entry.wanted, None
            entry.branch, entry.used_at = branch, self._clock()
            if self._watch is None and not self._ending.is_set():
                self._watch = threading.Thread(target=self._look, name="omniray-idle-branches", daemon=True)
                self._watch.start()
        _settled(wanted)
        if branch.is_over:  # by now, and perhaps it could not say so
            self.forget(branch)

    # Going

    def _look(self) -> None:
        """Let branches go that were idle for a while."""
        while not self._ending.wait(self._idle_s / LOOKS_WHILE_IDLE):
            self.let_idle_go()

    def let_idle_go(self) -> None:
        """Let those branches go that nobody has used for a while, and that have nothing under way."""
        since = self._clock() - self._idle_s
        self._send_out(lambda entry, branch: entry.used_at <= since and branch.publisher.is_idle)

    def let_all_go(self) -> None:
        """Let every branch go, as soon as what is under way is finished."""
        self._send_out(lambda entry, branch: True)

    def _send_out(self, may_go: Callable[[_Entry, HostedBranch], bool]) -> None:
        with self._lock:
            for line, entry in self._entries.items():
                if entry.branch is None or entry.is_leaving or entry.users or not may_go(entry, entry.branch):
                    continue
                entry.is_leaving = True
                entry.leaving = self._leaving.submit(self._let_go, line, entry)

    def _let_go(self, line: str, entry: _Entry) -> None:
        """Hand a line back; who has asked for it meanwhile gets it again."""
        assert entry.branch is not None, "it was open"
        try:
            entry.branch.leave()
        except Exception as error:  # it has begun anew, and may be let go later
            log.warning("event=not_let_go line=%s error=%s", line, error)
            with self._lock:
                entry.is_leaving, entry.used_at = False, self._clock()
                wanted, entry.wanted = entry.wanted, None
            _settled(wanted)
            return
        log.info("event=let_go line=%s", line)
        self._gone(line, entry)

    def forget(self, branch: HostedBranch) -> None:
        """A branch is over: it was deleted, or another owner has taken its line over."""
        with self._lock:
            entry = self._entries.get(branch.line)
            if entry is None or entry.branch is not branch or entry.is_leaving:
                return
            entry.is_leaving = True
            entry.leaving = self._leaving.submit(self._close, branch, entry)

    def _close(self, branch: HostedBranch, entry: _Entry) -> None:
        try:
            branch.close()
        except Exception:
            log.exception("event=not_closed line=%s", branch.line)
        self._gone(branch.line, entry)

    def _gone(self, line: str, entry: _Entry) -> None:
        with self._lock:
            entry.branch, entry.is_leaving = None, False
            wanted, refusal = entry.wanted, self._refusal
            if wanted is not None and refusal is None:
                self._opening.submit(self._open, line, entry)
                return
            del self._entries[line]
        _settled(wanted, refusal)

    def drain(self, refusal: OmnirayError) -> None:
        """Take no more writes on any branch, and hand all lines back; `refusal` is what writers are told from now on.

        Every line is tried; raises if one could not be handed back, and may be asked again then.
        """
        with self._lock:
            self._refusal = refusal
            under_way = [one for entry in self._entries.values() for one in (entry.wanted, entry.leaving) if one]
        self._ending.set()
        wait(under_way)
        with self._lock:
            left = [(line, entry.branch) for line, entry in self._entries.items() if entry.branch is not None]
            for line, _ in left:
                self._entries[line].is_leaving = True
        with ThreadPoolExecutor(LET_GO_AT_ONCE, thread_name_prefix="omniray-drain") as pool:
            failed = [error for error in pool.map(self._drained, left) if error is not None]
        if failed:
            raise failed[0]

    def _drained(self, left: tuple[str, HostedBranch]) -> OmnirayError | None:
        line, branch = left
        try:
            branch.drain()
            branch.close()
        except OmnirayError as error:
            log.warning("event=not_drained line=%s error=%s", line, error)
            return error
        with self._lock:
            self._entries.pop(line, None)
        return None


def _done() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done


def _settled(wanted: Future[None] | None, error: BaseException | None = None) -> None:
    if wanted is None:
        return
    if error is None:
        wanted.set_result(None)
    else:
        wanted.set_exception(error)
