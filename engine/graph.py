"""A graph: open it, write to it, read it as of any commit."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from omniray.engine.base.errors import BranchGone, InputError, OmnirayError
from omniray.engine.base.principal import Author
from omniray.engine.base.ulids import checked_txn_id
from omniray.engine.branch_verbs import BranchVerbs
from omniray.engine.branches.branches import Branches
from omniray.engine.commit.create_graph import create_graph
from omniray.engine.commit.phase_d import Finaliser
from omniray.engine.history.open_branch import OpenBranch, open_branch, open_line
from omniray.engine.judge.keylog import ROOMY, KeyMemory
from omniray.engine.judge.resolution import Outcome, WriteResult
from omniray.engine.line.branch_id import MAIN
from omniray.engine.line.commit_object import EMBEDDED, CommitObject
from omniray.engine.line.owner import release, take_over
from omniray.engine.load_stager import LoadStager
from omniray.engine.maintenance.sweep import OLDER_THAN_S, Sweeper, SweepReport
from omniray.engine.recovery.elsewhere import left_on_branches
from omniray.engine.recovery.recoverer import GRACE_S, Recoverer, RecoveryReport
from omniray.engine.recovery.repair import Repair, RepairReport
from omniray.engine.store.open_store import open_store
from omniray.engine.writer import Writer
from omniray.engine.writes.load import LoadIntent, Progress
from omniray.engine.writes.mutate import MutationIntent
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.terms import WriteTerms


def init(
    uri: str | PathLike[str],
    *,
    schema: str | Path,
    storage_options: Mapping[str, str] | None = None,
    actor: str = "",
    durability: str = "process",
) -> Graph:
    """Create a graph at an empty place and open it. `schema` is `.pg` text, or a `Path` to a file with it."""
    text = _read_schema_file(schema) if isinstance(schema, Path) else schema
    if text.rstrip().endswith(".pg") and len(text.splitlines()) == 1:
        raise InputError(f"the schema is the text {text!r}: to read it from a file, give schema=pathlib.Path({text!r})")
    store = open_store(uri, storage_options, durability)
    create_graph(store, text, actor=actor)
    return Graph(open_branch(store), read_only=False)


def open(
    uri: str | PathLike[str],
    *,
    branch: str = MAIN,
    read_only: bool = False,
    storage_options: Mapping[str, str] | None = None,
    durability: str = "process",
    grace_s: float = GRACE_S,
) -> Graph:
    """Open a graph, and recover the operations of dead writers; read-only, nothing is written and nothing recovered.

    `branch` is the branch that its verbs work on if they name no other one.
    On a disk, an acknowledged write survives the death of the process; with `durability="power"` a power cut too. A
    writer that died on this machine is recognised at once, one on another machine after `grace_s` seconds.
    """
    if not grace_s > 0:
        raise InputError(f"a grace period of {grace_s} s would take every writer for dead: give more than 0")
    store = open_store(uri, storage_options, durability)
    return Graph(open_branch(store, branch, read_only=read_only), read_only=read_only, grace_s=grace_s)


def _read_schema_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"can't read the schema {path}: {error.strerror}", path=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"can't read the schema {path}: it is not UTF-8 (byte {error.start}); save it as UTF-8"
        ) from error


class Graph(BranchVerbs):
    """An open graph; use it as a context manager, or `close()` it, so that Phase D of its writes is finished.

    Threads may share it; each process opens its own. A graph that was opened read-only can only be read.
    """

    def __init__(
        self,
        branch: OpenBranch,
        *,
        read_only: bool,
        grace_s: float = GRACE_S,
        owner: str = EMBEDDED,
        borrows_store: bool = False,
    ) -> None:
        super().__init__(branch)
        self._read_only, self._owner, self._grace_s, self._borrows_store = read_only, owner, grace_s, borrows_store
        self._closed = False
        self.recovered = RecoveryReport()  # the recovery on opening
        if read_only:
            return
        self._finaliser = Finaliser(branch)
        self._recoverer = Recoverer(branch, self._finaliser, owner=owner, grace_s=grace_s)
        self._tip = branch.tip.another()
        self._writer = Writer(branch, self._tip, self._finaliser, self._recoverer, owner=owner)
        self._stager = LoadStager(branch)
        self._branches_of_main = Branches(branch, self._tip, self._finaliser.notice, owner=owner)
        self._begin()

    def _begin(self) -> None:
        """Take over the line for its owner, release a dead coordinator's, and recover operations of dead writers."""
        try:
            if self._owner != EMBEDDED:
                take_over(self._tip, self._owner)
            self._writer.inherit()
            self.recovered = self._recoverer.recover(self._tip)
            if self._tip.newest.owner == self._owner and any(b.deleting for b in self._tip.newest.bindings.values()):
                self._branches_of_main.finish()
        except BaseException:
            with contextlib.suppress(OmnirayError):
                self._release()
            self._let_go()
            raise

    def __repr__(self) -> str:
        return f"Graph({self.uri!r}{', read_only=True' if self._read_only else ''})"

    def __enter__(self) -> Graph:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open graph can't be pickled: pass its URI, and open it there with omniray.open(uri)")

    # Writing

    def load(
        self,
        source: Any,
        *,
        mode: str = "append",
        type: str | None = None,
        format: str | None = None,
        branch: str | None = None,
        actor: str = "",
        tenant: str = "",
        message: str = "",
        expected_versions: Mapping[str, int] | None = None,
        txn_id: str | None = None,
        on_error: str = "fail",
        rejects: str | Path | None = None,
        progress: Progress | None = None,
    ) -> WriteResult:
        """Load any number of records in one atomic commit.

        `source`: a path (JSONL, CSV, Parquet), Arrow data, a DataFrame, dicts, or a list of those. `mode`: `append`
        (an existing key is a KeyConflict), `merge` (replace by key) or `overwrite` (the touched tables only).
        `on_error="reject"` writes refused records to `rejects` and loads the others. `txn_id`: a ULID that makes the
        write safe to repeat, from anywhere and at any time: the first outcome is returned and nothing applied twice.
        """
        self._refuse_unwritable()
        options = LoadOptions.checked(mode, on_error, rejects)
        terms = WriteTerms(Author(actor, tenant), expected_versions or {}, txn_id, message)
        with self._using(branch) as on:
            submitted_at = None if txn_id is None else on._branch.newest()
            intent = on._stager.prepare_load(source, options, terms, type=type, format=format, progress=progress)
            with intent:
                return intent.finished(on._writer.commit(intent, submitted_at))

    def begin_load(
        self,
        options: LoadOptions,
        terms: WriteTerms,
        *,
        announced: Iterable[str] = (),
        memory: KeyMemory = ROOMY,
        branch: str | None = None,
    ) -> LoadIntent:
        """Begin a load whose parts are staged by workers and added to it (`LoadStager.begin_load`)."""
        self._refuse_unwritable()
        return self._on(branch)._stager.begin_load(options, terms, announced=announced, memory=memory)

    def commit_load(self, intent: LoadIntent, *, branch: str | None = None) -> WriteResult:
        """Judge and commit a load that has all its parts, on the branch that it was begun for and no other."""
        self._refuse_unwritable()
        with intent, self._using(branch) as on:
            intent.refuse_other(on.line)
            submitted_at = on._branch.newest() if intent.resubmittable else None
            return intent.finished(on._writer.commit(intent, submitted_at))

    def mutate(
        self,
        text: str,
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str | None = None,
        actor: str = "",
        tenant: str = "",
        message: str = "",
        expected_versions: Mapping[str, int] | None = None,
        txn_id: str | None = None,
    ) -> WriteResult:
        """Run one query of a `.gq` text as one atomic commit; `name` chooses it where the text has several.

        `txn_id`: a ULID that makes the write safe to repeat, as in `load`.
        """
        self._refuse_unwritable()
        terms = WriteTerms(Author(actor, tenant), expected_versions or {}, txn_id, message)
        with self._using(branch) as on:
            submitted_at = None if txn_id is None else on._branch.newest()
            intent = MutationIntent.of(text, params or {}, on.schema, terms, name=name, now=datetime.now(UTC))
            return on._writer.commit(intent, submitted_at)

    def flush(self) -> None:
        """Wait until Phase D of this handle's writes is finished: then plain Lance readers see them too."""
        self._refuse_fork()
        handles: Iterator[Graph] = itertools.chain((self,), self._others.each())
        for one in handles:
            if not (one._read_only or one._is_branch_gone):
                one._finaliser.flush()

    def close(self) -> None:
        """Flush and release all resources; safe to call twice."""
        if self._closed or os.getpid() != self._pid:
            return
        self._others.close()
        self._release()  # if this fails, close() may be called again: a live owner excludes all other writers
        self._closed = True
        self._let_go()

    def _release(self) -> None:
        """Release the line, if this graph owns it."""
        if self._owner != EMBEDDED:
            release(self._tip, self._owner)
            self._finaliser.notice(self._tip.newest)

    def _let_go(self) -> None:
        try:
            if not self._read_only:
                self._finaliser.close()
        finally:
            if not self._read_only:
                self._writer.close()
            if not self._borrows_store:
                self._branch.store.close()

    def _opened(self, line: str, main: CommitObject) -> Graph:
        opened = open_line(self._branch.store, line, main=main, read_only=self._read_only)
        opened.cache.look_beside(lambda: (self._branch.cache, *(one._branch.cache for one in self._others.open)))
        return Graph(opened, read_only=self._read_only, grace_s=self._grace_s, borrows_store=True)

    def _end(self) -> None:
        """Close a handle of another branch; of one that was deleted nothing is to be finished."""
        try:
            self.close()
        except OmnirayError:
            if not self._is_branch_gone:
                raise

    @property
    def _is_branch_gone(self) -> bool:
        return super()._is_branch_gone or (not self._read_only and self._tip.newest.closed)

    # Recovery

    def recover(self, *, take_over: bool = False) -> RecoveryReport:
        """Recover the operations of dead writers; opening a branch and writing to it do so too.

        A handle of main recovers all branches, others their own. With `take_over`, the line of a coordinator that is
        gone for ever is first released to embedded writers.
        """
        self._refuse_unwritable()
        report = self._writer.recover(take_over=take_over)
        if self._branch.branch.is_main:
            for line in left_on_branches(self._branch, take_over=take_over):
                report += self._recovered_on(line, take_over=take_over)
        return report

    def _recovered_on(self, line: str, *, take_over: bool) -> RecoveryReport:
        """Recover another branch; one that was deleted meanwhile is recovered with main."""
        was_open = self._others.is_open(line)
        try:
            with self._others.used(line) as on:
                before = RecoveryReport() if was_open else on.recovered  # opening it has recovered some already
                return before + on._writer.recover(take_over=take_over)
        except BranchGone:
            return RecoveryReport()

    def repair(
        self, *, adopt: bool = False, discard: bool = False, tables: Sequence[str] | None = None, actor: str = ""
    ) -> RepairReport:
        """Show which tables a foreign writer changed; `adopt` or `discard` its changes.

        Adopted rows become a commit of their own, if they keep every rule of the graph; discarded ones are set aside.
        Meanwhile writes of other threads wait.
        """
        self._refuse_unwritable()
        if not self._branch.branch.is_main:  # versions of other branches have no final names that could be taken
            with self._using(MAIN) as main:
                return main.repair(adopt=adopt, discard=discard, tables=tables, actor=actor)
        tip = self._branch.tip.another()
        repair = Repair(self._branch, tip, self._finaliser, self._writer.attempts, owner=self._owner)
        carry_out = partial(repair.carried_out, tables, adopt=adopt, discard=discard, actor=actor)
        if not (adopt or discard):
            return carry_out()
        with self._writer.held():
            report = carry_out()
        self._finaliser.flush()
        self._writer.recover()  # operations may have waited for the repair
        return report

    def sweep(self, *, older_than_s: float = OLDER_THAN_S, dry_run: bool = False) -> SweepReport:
        """Delete files that nothing refers to and that are older than `older_than_s`; files of running loads stay."""
        self._refuse_unwritable()
        if not self._branch.branch.is_main:  # a sweep is one for all branches
            with self._using(MAIN) as main:
                return main.sweep(older_than_s=older_than_s, dry_run=dry_run)
        if older_than_s < 0:
            raise InputError(f"files older than {older_than_s} s: give 0 or more")
        if not dry_run:
            self._finaliser.flush()
            self._finaliser.tidy()  # else the sidecars of this handle's own writes would spare their tables
        sweeper = Sweeper(self._branch, self._branch.tip.another(), self._finaliser, self._owner)
        return sweeper.sweep(now_us=time.time_ns() // 1000, older_than_s=older_than_s, dry_run=dry_run)

    def outcome(self, txn_id: str, *, branch: str | None = None) -> Outcome:
        """Whether a write whose answer was lost was committed.

        "Not committed" stays true until the write is sent again: a try that is still under way, anywhere, ends with
        `Withdrawn`. Where that can't be ensured, in a graph that was opened read-only or whose line belongs to a
        coordinator, a write that is not found raises `OutcomeUnknown`.
        """
        if self._read_only:
            return super().outcome(txn_id, branch=branch)
        with self._using(branch) as on:
            return on._outcome(txn_id)

    def _outcome(self, txn_id: str) -> Outcome:
        txn_id = checked_txn_id(txn_id)
        found = self._branch.lineage.commit(txn_id)  # reads the newest object too, which names the line's owner
        if found is None:
            if self._branch.tip.newest.owner != self._owner:
                raise self._undecided(txn_id, "ask the coordinator of this branch")
            self._refuse_unwritable()
            found = self._writer.withdraw(txn_id)
        return Outcome(txn_id, committed=found is not None)

    def _refuse_unwritable(self) -> None:
        self._refuse_fork()
        if self._closed:
            raise InputError("the graph is closed; open it again")
        if self._read_only:
            raise InputError("the graph was opened read-only; open it without read_only to write")
