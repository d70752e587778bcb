"""The branches of a graph: create, delete and rename them.

A branch is bound to its name by an object of main's line, and that object is what creates it; the first object of the
branch's own line follows from the binding. No table is touched, however many there are. To delete it takes four steps:

    1. an object of main's line marks the binding as `deleting`: the name is still taken, and it gets no new children
    2. the branch's own line is begun, if nobody has done so
    3. an object closes that line: nothing can follow it. This is the deletion, and it is acknowledged now
    4. an object of main's line frees the name

Whoever finds a deletion that is not finished finishes it. A branch that is deleted after a merge of it is closed only
if nobody has written to it since; else the last object takes the mark back instead. Each verb is applied once for its
`txn_id`, which is the id of its commit in main's line; that of a creation is the branch's own id, too.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from omniray.engine.base.errors import (
    BranchExists,
    BranchGone,
    Conflict,
    InputError,
    LineOwned,
    PayloadMismatch,
    StorageError,
)
from omniray.engine.base.failpoints import Point, reach
from omniray.engine.base.principal import Author, checked_message
from omniray.engine.base.ulids import checked_txn_id, new_ulid
from omniray.engine.branches.names import checked_name
from omniray.engine.branches.starts import Start, StartOf, start_of_branch
from omniray.engine.commit.attempt import SystemWrite, commit_of, commit_time_us
from omniray.engine.history.branch_head import bound, find_binding, newest_of, unknown_branch
from omniray.engine.history.closing import close_line
from omniray.engine.history.lineage_entry import LineageEntry
from omniray.engine.history.open_branch import OpenBranch
from omniray.engine.history.withdrawals import refuse_withdrawn
from omniray.engine.line.branch_id import MAIN, BranchId
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import (
    EMBEDDED,
    Binding,
    CommitObject,
    Remark,
    first_of,
    follow_with,
    rebind,
    without_first,
)
from omniray.engine.line.graph_identity import refuse_gone
from omniray.engine.line.line_end import Tip
from omniray.engine.line.owner import refuse_stranger

log = logging.getLogger("omniray")

CREATE, DELETE, RENAME = "BranchCreate", "BranchDelete", "BranchRename"
_NAME_TRIES_MAX = 8
_LOOKED_AT_MAX = 8  # bindings in one verb: usually the branch that was created last is the only one


@dataclass(frozen=True, slots=True)
class BranchChange:
    """The result of a verb: the branch, and the commit that records it.

    `start` is the commit that a new branch begins with, and `start_group` all commits that landed with that one: the
    branch has the rows of all of them.
    """

    name: str
    branch_id: str
    commit_id: str
    start: str = ""
    start_group: tuple[str, ...] = ()
    repeated: bool = False  # it had been done before, under the same id


class Branches:
    """Changes which branches a graph has, on behalf of an owner of main's line; `noticed` is told what has landed."""

    def __init__(
        self, main: OpenBranch, tip: Tip, noticed: Callable[[CommitObject], None], *, owner: str = EMBEDDED
    ) -> None:
        self._main, self._tip, self._noticed, self._owner = main, tip, noticed, owner
        self._store = main.store
        self._begun: set[str] = set()  # lines whose first objects are known to be there

    def create(
        self,
        name: str,
        from_: str | None = None,
        *,
        author: Author,
        message: str = "",
        txn_id: str | None = None,
        start_of: StartOf | None = None,
    ) -> BranchChange:
        """Create a branch of another one's head (main's if `from_` is None), or of a commit or time of the history.

        `start_of` is what `from_` has led to, for a caller that keeps others waiting now; a branch that was deleted
        since is refused.
        """
        checked_name(name)
        write = _write(CREATE, author, message, txn_id, name, from_ or MAIN)
        start_of = start_of or start_of_branch(self._main, self._tip, from_)
        started: list[Start] = []

        def bind(newest: CommitObject) -> Mapping[str, Binding]:
            if write.payload_hash:
                self._refuse_line(write.commit_id)
            start = start_of(newest)
            started[:] = [start]
            if start.line != newest.line:
                _refuse_orphan(newest, start.line)
            binding = Binding(
                write.commit_id, start.line, start.seq, start.pins, start.schema, start.contains, start.head,
                start.head_at_us, newest.swept_before_us, actor=author.actor, at_us=commit_time_us(newest),
            )  # fmt: skip
            return {**newest.bindings, name: binding}

        done = self._rebound(name, write, bind, wants=name)
        landed = done.bindings.get(name) if isinstance(done, CommitObject) else None
        if landed is None or landed.ulid != write.commit_id:  # it was created before, and may have been deleted since
            return BranchChange(name, write.commit_id, write.commit_id, repeated=True)
        reach(Point.BRANCH_AFTER_BIND)
        try:
            CommitLog(self._store, BranchId(name, landed.ulid)).begin(first_of(landed))
            self._begun.add(landed.ulid)
        except StorageError as error:  # the branch is there, and whoever opens it begins its line
            log.warning("event=not_begun branch=%s error=%s", name, error)
        group = started[0].group if started and landed.parent_seq == started[0].seq else ()
        return BranchChange(name, landed.ulid, write.commit_id, landed.head, group if len(group) > 1 else ())

    def delete(
        self, name: str, *, force: bool = False, author: Author, message: str = "", txn_id: str | None = None
    ) -> BranchChange:
        """Delete a branch; one with branches of its own only with `force`, which deletes those, too."""
        write = _write(DELETE, author, message, txn_id, name, "force" if force else "")

        def named(newest: CommitObject) -> str:
            if name not in newest.bindings:  # one that is being deleted is found: its deletion is finished
                raise unknown_branch(newest, name)
            return name

        return self._deleted(name, write, named, force=force)

    def delete_merged(
        self, line: str, head: str, *, author: Author, message: str = "", txn_id: str | None = None
    ) -> BranchChange:
        """Delete a branch that was merged when `head` was its head, whatever its name is by now.

        Raises `Conflict`, and keeps the branch, if it was written to since, or if branches began on it.
        """
        write = _write(DELETE, author, message, txn_id, line, head)

        def named(newest: CommitObject) -> str:
            return find_binding(newest, line)[0]

        main = self._tip.refresh()
        if self._first(write, main) is None:
            name, binding = find_binding(main, line)
            _refuse_moved(newest_of(CommitLog(self._store, BranchId(name, line)), binding, read_only=True), name, head)
        done = self._deleted(line, write, named, only_at=head)
        left = CommitLog(self._store, BranchId(done.name, line)).newest()
        if left is not None and not left.closed:
            _refuse_moved(left, done.name, head)
        return done

    def _deleted(
        self,
        what: str,
        write: SystemWrite,
        named: Callable[[CommitObject], str],
        *,
        force: bool = False,
        only_at: str = "",
    ) -> BranchChange:
        """Mark the branch that is `named` by main's newest object, and finish its deletion."""
        marked: list[tuple[str, str]] = []

        def mark(newest: CommitObject) -> Mapping[str, Binding]:
            name = named(newest)
            below = _below(newest, name)
            if below and not force:
                raise Conflict(
                    f"branch {name!r} has branches of its own: {', '.join(below)}; delete those first, or give force "
                    "(--force) to delete them with it",
                    branch=name, children=below,
                )  # fmt: skip
            doomed = {name, *below}
            marked[:] = [(name, newest.bindings[name].ulid)]
            return {
                key: replace(one, deleting=True, only_at=only_at) if key in doomed else one
                for key, one in newest.bindings.items()
            }

        done = self._rebound(what, write, mark)
        reach(Point.BRANCH_AFTER_MARK)
        self.finish()
        if not isinstance(done, CommitObject):
            return BranchChange(what, "", write.commit_id, repeated=True)
        name, ulid = marked[0]
        return BranchChange(name, ulid, write.commit_id)

    def rename(
        self, name: str, new_name: str, *, author: Author, message: str = "", txn_id: str | None = None
    ) -> BranchChange:
        """Give a branch another name; open handles of it keep working."""
        checked_name(new_name)
        write = _write(RENAME, author, message, txn_id, name, new_name)
        renamed: list[str] = []

        def move(newest: CommitObject) -> Mapping[str, Binding]:
            renamed[:] = [bound(newest, name).ulid]
            return {new_name if key == name else key: binding for key, binding in newest.bindings.items()}

        done = self._rebound(name, write, move, wants=new_name)
        is_new = isinstance(done, CommitObject)
        return BranchChange(new_name, renamed[0] if is_new else "", write.commit_id, repeated=not is_new)

    def finish(self) -> None:
        """Finish every deletion that was begun: close the lines, then free the names.

        A line that is closed is deleted; that its name could not be freed is made good by whoever needs it next. A line
        that may not be closed, since it has moved on, is unmarked.
        """
        marked = {name: one for name, one in self._tip.refresh().bindings.items() if one.deleting}
        closed = {one.ulid for name, one in marked.items() if close_line(self._store, self._main.graph_id, name, one)}
        kept = {(one.ulid, one.only_at) for one in marked.values() if one.ulid not in closed}
        if not marked:
            return

        def free(newest: CommitObject) -> CommitObject | None:
            refuse_stranger(self._owner, newest)
            left = {
                name: replace(one, deleting=False, only_at="") if (one.ulid, one.only_at) in kept else one
                for name, one in newest.bindings.items()
                if one.ulid not in closed
            }
            if left == newest.bindings:
                return None
            return replace(follow_with(newest, Remark(new_ulid())), bindings=self._without_first(left))

        reach(Point.BRANCH_AFTER_CLOSE)
        try:
            freed = self._tip.extend(free)
        except (StorageError, LineOwned) as error:
            log.warning("event=name_not_freed error=%s", error)
        else:
            if freed is not None:
                self._noticed(freed)

    def _rebound(
        self,
        name: str,
        write: SystemWrite,
        build: Callable[[CommitObject], Mapping[str, Binding]],
        *,
        wants: str | None = None,
    ) -> CommitObject | LineageEntry:
        """Put the object of main's line that has the bindings that `build` makes; the entry of the first, if repeated.

        `wants` is a name that no other branch may have.
        """
        repeats: list[LineageEntry] = []
        began = self._tip.refresh() if write.payload_hash else self._tip.newest

        def extended(newest: CommitObject) -> CommitObject | None:
            refuse_stranger(self._owner, newest)
            if (first := self._first(write, newest)) is not None:
                repeats.append(first)
                return None
            if write.payload_hash:
                refuse_withdrawn(write.commit_id, self._main.lineage, began, newest)
            if wants is not None:
                self._refuse_taken(wants, newest)
            bindings = self._without_first(build(newest))
            commit = commit_of(write, commit_time_us(newest), ())
            reach(Point.BRANCH_BEFORE_PUT)
            return rebind(newest, op_id=new_ulid(), bindings=bindings, commit=commit)

        for _ in range(_NAME_TRIES_MAX):
            try:
                landed = self._extend(extended)
            except _Deleting:
                self.finish()
                continue
            if landed is None:
                return repeats[-1]
            self._noticed(landed)
            log.info("event=branches kind=%s name=%s seq=%d", write.kind, name, landed.seq)
            return landed
        raise StorageError(f"the branch {wants!r} is being deleted; try again", branch=wants)

    def _without_first(self, bindings: Mapping[str, Binding]) -> Mapping[str, Binding]:
        """The bindings, without the first objects of those lines that have them.

        The step that begins a line does not write to main's again: the next verb of branches leaves them out.
        """
        whole = [one for one in bindings.values() if not one.is_begun]
        for one in [one for one in whole if one.ulid not in self._begun][:_LOOKED_AT_MAX]:
            if self._is_begun(one):
                self._begun.add(one.ulid)
        return {name: without_first(one) if one.ulid in self._begun else one for name, one in bindings.items()}

    def _is_begun(self, binding: Binding) -> bool:
        try:
            first = CommitLog(self._store, BranchId(binding.ulid, binding.ulid)).read(1)
        except StorageError:  # then it is left to a later verb
            return False
        return first is not None and first.op_id == binding.ulid

    def _extend(self, build: Callable[[CommitObject], CommitObject | None]) -> CommitObject | None:
        """Extend main's line, in one step where nobody else has: the graph's identity is looked at beside the put.

        If the graph is gone the object lies in the folder of its line, which no other graph reads.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="omniray-identity") as pool:
            looking = pool.submit(refuse_gone, self._store, self._main.graph_id)
            try:
                landed = self._tip.extend(build, eager=True)
            except (InputError, Conflict, _Deleting):  # maybe on an object that is not the newest
                looking.result()
                return self._tip.extend(build)
            try:
                looking.result()
            except StorageError as error:
                if landed is None:
                    raise
                log.warning("event=identity_not_seen seq=%d error=%s", landed.seq, error)
            return landed

    def _refuse_taken(self, name: str, newest: CommitObject) -> None:
        if (taken := newest.bindings.get(name)) is not None:
            if taken.deleting:
                raise _Deleting
            raise BranchExists(
                f"there is a branch {name!r} already; nothing was written: choose another name", branch=name
            )

    def _refuse_line(self, txn_id: str) -> None:
        """Refuse an id as that of a new line if there is a line of this id: the branch would be bound to that one."""
        if CommitLog(self._store, BranchId(txn_id, txn_id)).read(1) is not None:  # it is never pruned
            raise InputError(
                f"{txn_id} is the id of this graph or of one of its branches: give a txn_id of your own, made with "
                "str(ulid.ULID())",
                txn_id=txn_id,
            )  # fmt: skip

    def _first(self, write: SystemWrite, newest: CommitObject) -> LineageEntry | None:
        """The first time that a verb was carried out under the id of this one.

        One without a hash was carried out under an id that its caller did not choose, but was told when no clear answer
        came: then its kind alone is compared, as with other writes.
        """
        if not write.payload_hash:
            return None
        found = self._main.lineage.find(write.commit_id, newest)
        if found is None:
            return None
        first = found.entry
        if first.payload_hash not in ("", write.payload_hash) or first.kind != write.kind:
            raise PayloadMismatch(
                f"transaction {write.commit_id} was committed with other arguments; use a new id for another write",
                txn_id=write.commit_id,
            )
        return found.entry


class _Deleting(Exception):
    """The name that is wanted is that of a branch whose deletion is not finished."""


def _write(kind: str, author: Author, message: str, txn_id: str | None, *arguments: str) -> SystemWrite:
    """A verb as a write; its hash, by which a repetition is known, is empty for a new id."""
    if txn_id is None:
        return SystemWrite(new_ulid(), kind, author, message=checked_message(message))
    digest = hashlib.sha256("\0".join((kind, *arguments)).encode()).hexdigest()
    return SystemWrite(checked_txn_id(txn_id), kind, author, digest, checked_message(message))


def _below(newest: CommitObject, name: str) -> list[str]:
    """The branches that began on a branch, and those that began on them."""
    lines, found = {newest.bindings[name].ulid}, [name]
    for above in found:  # which grows
        parent = newest.bindings[above].ulid
        for other, binding in newest.bindings.items():
            if binding.parent == parent and binding.ulid not in lines and not binding.deleting:
                lines.add(binding.ulid)
                found.append(other)
    return found[1:]


def _refuse_moved(newest: CommitObject, name: str, head: str) -> None:
    """Refuse to delete a branch that has commits beyond the one that was merged."""
    if newest.head != head:
        raise Conflict(
            f"branch {name!r} was written to since {head}, which was merged, and is kept: merge it again, or delete it",
            branch=name, merged=head, head=newest.head,
        )  # fmt: skip


def _refuse_orphan(newest: CommitObject, parent: str) -> None:
    """Refuse a branch of a branch that is deleted, or being deleted."""
    if not any(binding.ulid == parent and not binding.deleting for binding in newest.bindings.values()):
        raise BranchGone(f"the branch with the id {parent} was deleted meanwhile; nothing was written", line=parent)
