"""The branches that the coordinator's process hosts beside main: opened when somebody asks for one, let go when idle.

A branch that nobody uses costs nothing: its line is handed back to every writer, and everything is closed. One that is
slow to open or to leave holds up those who ask for it, and no other. No more are open than may be: where all places are
taken, the branch that nobody has used for longest leaves first, and if all are in use, nobody gets one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

from omniray.coordinator.actors.bound_lines import BoundLines
from omniray.coordinator.actors.hosted_branch import HostedBranch
from omniray.engine.base.errors import OmnirayError, Overloaded, StorageError

log = logging.getLogger("omniray")

IDLE_S = 60.0
OPEN_MAX = 256  # each has threads of its own
LOOKS_WHILE_IDLE = 4
OPENED_AT_ONCE = 32
LET_GO_AT_ONCE = 16
OPEN_TIMEOUT_S = 60.0
DRAIN_WAIT_S = 10.0  # for branches that are on their way in or out when all are to leave
RETRY_AFTER_S = 0.5


@dataclass(slots=True)
class _Entry:
    """A branch on its way in, here, or on its way out.

    `wanted` is done when it can be used, or can't be opened; `leaving` when it has left, or could not. It has a place
    from before it is opened until it has left; then that is `successor`'s.
    """

    line: str
    branch: HostedBranch | None = None
    wanted: Future[None] | None = None
    leaving: Future[None] | None = None
    is_leaving: bool = False
    has_place: bool = False
    successor: _Entry | None = None
    users: int = 0
    used_at: float = 0.0

    @property
    def is_open(self) -> bool:
        return self.branch is not None and not self.is_leaving

    @property
    def is_unused(self) -> bool:
        return self.branch is not None and self.is_open and not self.users and self.branch.publisher.is_idle

    def take_wanted(self) -> Future[None] | None:
        """The future that is to be ended now, by nobody else."""
        wanted, self.wanted = self.wanted, None
        return wanted


class HostedBranches:
    """Keeps the branches by their lines. Threads may share it; only `opened`, `found` and `drain` wait for a store."""

    def __init__(
        self,
        host: Callable[[str], HostedBranch],
        lines: BoundLines,
        *,
        idle_s: float = IDLE_S,
        open_max: int = OPEN_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._lines = host, lines
        self._idle_s, self._open_max, self._clock = idle_s, open_max, clock
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
            entry = self._entries.setdefault(line, _Entry(line))
            if entry.is_open:
                return _done()
            if entry.wanted is not None:
                return entry.wanted
            wanted = entry.wanted = Future()
            if entry.is_leaving:  # whoever lets it go opens it again
                return wanted
        try:
            self._lines.look_up(line, partial(self._admit, entry, wanted))
        except RuntimeError as error:  # no thread can be started
            self._fail(entry, wanted, _not_opened(error))
        return wanted

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

    def _admit(self, entry: _Entry, wanted: Future[None], refusal: BaseException | None = None) -> None:
        """Open a branch whose line is known to be one, as soon as there is a place for it."""
        if refusal is not None:
            self._fail(entry, wanted, refusal)
            return
        with self._lock:
            if entry.wanted is not wanted:  # it was refused meanwhile
                return
            entry.has_place = sum(one.has_place for one in self._entries.values()) < self._open_max
            waits = not entry.has_place and self._make_room_for(entry)
        if entry.has_place:
            self._begin(entry, wanted)
        elif not waits:
            self._fail(entry, wanted, _overloaded(self._open_max))

    def _make_room_for(self, entry: _Entry) -> bool:
        """Have the branch leave that nobody has used for longest; False if all are in use."""
        unused = [one for one in self._entries.values() if one.is_unused]
        last = min(unused, key=lambda one: one.used_at, default=None)
        if last is None or not self._send_out(last, self._let_go):
            return False
        last.successor = entry
        return True

    def _begin(self, entry: _Entry, wanted: Future[None]) -> None:
        try:
            self._opening.submit(self._open, entry, wanted)
        except RuntimeError as error:  # no thread can be started
            self._fail(entry, wanted, _not_opened(error))

    def _open(self, entry: _Entry, wanted: Future[None]) -> None:
        if entry.wanted is not wanted:  # it was refused before this began
            return
        try:
            branch = self._host(entry.line)
        except BaseException as error:
            if not isinstance(error, OmnirayError):
                log.exception("event=host_failed line=%s", entry.line)
                error = OmnirayError(f"a bug in omniray kept a branch from being opened: {error!r}")
            self._fail(entry, wanted, error)
            return
        with self._lock:
            is_wanted = entry.wanted is wanted
            if is_wanted:
                entry.wanted, entry.branch, entry.used_at = None, branch, self._clock()
        if not is_wanted:  # nobody waits for it any more: all branches have left
            _hand_back(branch)
            return
        log.info("event=hosted line=%s", entry.line)
        wanted.set_result(None)
        if branch.is_over:  # by now, and perhaps it could not say so
            self.forget(branch)
        self._begin_to_look()

    def _fail(self, entry: _Entry, wanted: Future[None], error: BaseException) -> None:
        """Tell who waits for a branch why it can't be opened."""
        with self._lock:
            if entry.wanted is not wanted:
                return
            entry.wanted = None
            self._entries.pop(entry.line, None)
        wanted.set_exception(error)

    # Going

    def _begin_to_look(self) -> None:
        with self._lock, contextlib.suppress(RuntimeError):  # no thread can be started: the next opening tries again
            if self._watch is None and not self._ending.is_set():
                watch = threading.Thread(target=self._look, name="omniray-idle-branches", daemon=True)
                watch.start()
                self._watch = watch

    def _look(self) -> None:
        """Let branches go that were idle for a while."""
        while not self._ending.wait(self._idle_s / LOOKS_WHILE_IDLE):
            self.let_idle_go()

    def let_idle_go(self) -> None:
        """Let those branches go that nobody has used for a while, and that have nothing under way."""
        since = self._clock() - self._idle_s
        with self._lock:
            for entry in self._entries.values():
                if entry.is_unused and entry.used_at <= since:
                    self._send_out(entry, self._let_go)

    def let_all_go(self) -> None:
        """Let every branch go that nobody calls, as soon as what is under way is finished."""
        with self._lock:
            for entry in self._entries.values():
                if entry.is_open and not entry.users:
                    self._send_out(entry, self._let_go)

    def forget(self, branch: HostedBranch) -> None:
        """A branch is over: it was deleted, or another owner has taken its line over."""
        with self._lock:
            entry = self._entries.get(branch.line)
            if entry is not None and entry.branch is branch and not entry.is_leaving:
                self._send_out(entry, self._close)

    def _send_out(self, entry: _Entry, leave: Callable[[_Entry, HostedBranch], None]) -> bool:
        """Have a branch leave, on a thread of its own; False if none can be started: then it stays."""
        assert entry.branch is not None, "it is open"
        entry.is_leaving, entry.leaving = True, Future()
        try:
            self._leaving.submit(self._left, entry, entry.branch, entry.leaving, leave)
        except RuntimeError as error:
            log.warning("event=not_let_go line=%s error=%s", entry.line, error)
            entry.is_leaving, entry.leaving = False, None
        return entry.is_leaving

    def _left(
        self,
        entry: _Entry,
        branch: HostedBranch,
        leaving: Future[None],
        leave: Callable[[_Entry, HostedBranch], None],
    ) -> None:
        if entry.leaving is leaving:  # else it was to stay, since no thread could be started then
            leave(entry, branch)
            leaving.set_result(None)

    def _let_go(self, entry: _Entry, branch: HostedBranch) -> None:
        """Hand a line back; who has asked for it meanwhile gets it again."""
        try:
            branch.leave()
        except Exception as error:  # it has begun anew, and may be let go later
            log.warning("event=not_let_go line=%s error=%s", entry.line, error)
            with self._lock:
                entry.is_leaving, entry.used_at = False, self._clock()
                wanted = entry.take_wanted()
                successor, entry.successor = entry.successor, None
                in_vain = None if successor is None else successor.wanted
            if wanted is not None:
                wanted.set_result(None)
            if successor is not None and in_vain is not None:
                self._fail(successor, in_vain, _overloaded(self._open_max))
            return
        log.info("event=let_go line=%s", entry.line)
        self._gone(entry)

    def _close(self, entry: _Entry, branch: HostedBranch) -> None:
        try:
            branch.close()
        except Exception:
            log.exception("event=not_closed line=%s", entry.line)
        self._gone(entry)

    def _gone(self, entry: _Entry) -> None:
        """A branch has left: its place is the next one's, and who has asked for it meanwhile waits for another."""
        with self._lock:
            entry.branch, entry.is_leaving, entry.has_place = None, False, False
            successor, entry.successor = entry.successor, None
            if entry.wanted is None:
                self._entries.pop(entry.line, None)
            next_ones = [(one, one.wanted) for one in (successor, entry) if one is not None and one.wanted is not None]
            refusal = self._refusal
        for one, wanted in next_ones:
            self._admit(one, wanted, refusal)

    def drain(self, refusal: OmnirayError) -> None:
        """Take no more writes on any branch, and hand all lines back; `refusal` is what writers are told from now on.

        Every line is tried; raises if one could not be handed back, and may be asked again then. One that hangs while
        it is opened keeps nobody waiting: it is handed back when it comes.
        """
        with self._lock:
            self._refusal = refusal
            under_way = [one for entry in self._entries.values() for one in (entry.wanted, entry.leaving) if one]
        self._ending.set()
        wait(under_way, DRAIN_WAIT_S)
        with self._lock:
            refused = [wanted for entry in self._entries.values() if (wanted := entry.take_wanted()) is not None]
            self._entries = {line: entry for line, entry in self._entries.items() if entry.branch is not None}
            left = list(self._entries.values())
            for entry in left:
                entry.is_leaving = True
        for wanted in refused:
            wanted.set_exception(refusal)
        with ThreadPoolExecutor(LET_GO_AT_ONCE, thread_name_prefix="omniray-drain") as pool:
            failed = [error for error in pool.map(self._drained, left) if error is not None]
        if failed:
            raise failed[0]

    def _drained(self, entry: _Entry) -> Exception | None:
        if entry.leaving is not None and not entry.leaving.done():
            return StorageError(f"the branch with the id {entry.line} is still being handed back: ask again")
        try:
            if (branch := entry.branch) is not None:
                branch.drain()
                branch.close()
        except Exception as error:
            log.warning("event=not_drained line=%s error=%s", entry.line, error)
            return error
        with self._lock:
            self._entries.pop(entry.line, None)
        return None


def _done() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done


def _hand_back(branch: HostedBranch) -> None:
    try:
        branch.leave()
    except Exception as error:
        log.warning("event=not_let_go line=%s error=%s", branch.line, error)


def _not_opened(error: RuntimeError) -> StorageError:
    return StorageError(f"the coordinator's process can't open a branch now: {error}; try again")


def _overloaded(open_max: int) -> Overloaded:
    return Overloaded(
        f"too much at once: {open_max} branches are open and all of them in use; try again in {RETRY_AFTER_S:g} s",
        retry_after_s=RETRY_AFTER_S,
    )
