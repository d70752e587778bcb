"""The line as it really is, which no publisher can see: what takes effect and every answer are held against it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec

from omniray.engine.line import graph_identity
from omniray.engine.line.commit_json import decode, encode
from omniray.engine.line.commit_log import CommitLog
from omniray.engine.line.commit_object import CommitObject, unlawful
from omniray.engine.line.sidecar import Sidecars
from tests.model.round_queues import final_path, read_version, staging_path
from tests.model.round_storage import FoldedLine, Storage
from tests.model.round_terms import BRANCH, EMPTY, FIRST, Content, Told, Violation, Weather, Write

MEDDLER = "meddler"  # puts in the name of the line's owner, and unannounced


class Truth:
    """The store, and what its objects mean."""

    weather: Weather

    def __init__(self, *, lists_newest_first: bool) -> None:
        self.tally: Counter[str] = Counter()
        self.line: list[CommitObject] = []
        self.in_line: set[str] = set()
        self.pinned: set[str] = set()  # transactions that some object of the line brought in
        self.contents: dict[str, Content] = {}  # by operation: the graph after it
        self.moments: list[Content] = []  # the graph after each commit
        self.writes: dict[str, Write] = {}
        self.committed: set[str] = set()
        self.made: dict[str, str] = {}  # by whom an object of the store was put
        self.storage = Storage(self, lists_newest_first=lists_newest_first)
        self.folded = FoldedLine()
        self._log = CommitLog(self.storage, BRANCH)  # type: ignore[arg-type]  # for the names of its objects
        self._sidecars = Sidecars(self.storage)  # type: ignore[arg-type]  # likewise
        for table_key, pin in FIRST.pins.items():
            self.storage.objects[final_path(table_key, pin.version)] = msgspec.json.encode([])
        self.storage.objects[self._log.path(FIRST.seq)] = encode(FIRST)
        self.storage.objects[graph_identity.PATH] = graph_identity.encode(graph_identity.GraphIdentity(BRANCH.ulid))
        self._extend(FIRST, EMPTY)

    @property
    def newest(self) -> CommitObject:
        return self.line[-1]

    @property
    def content(self) -> Content:
        return self.contents[self.newest.op_id]

    # What takes effect

    def created(self, path: str, data: bytes, by: str) -> None:
        self.made[path] = by
        if path.startswith("__commits/"):
            self._landed(decode(data, where=path), by)

    def refused(self, path: str, data: bytes) -> None:
        if path.startswith("__commits/"):
            self.tally["puts of zombies"] += decode(data, where=path).epoch < self.newest.epoch

    def deleted(self, path: str) -> None:
        unfolded = self.line[self.folded.folded_through() :]
        for obj in unfolded:
            needed = {staging_path(key, pin.transaction) for key, pin in obj.introduced().items()}
            if path in needed | {self._sidecars.path(obj.op_id)}:
                raise Violation(f"{path} is deleted, and {obj.op_id} is in the line and not finalised")

    def _landed(self, obj: CommitObject, by: str) -> None:
        """Hold an object that takes effect against the truth."""
        newest, base = self.newest, self.content
        if (reason := unlawful(newest, obj)) is not None:
            raise Violation(f"unlawful object in the line: {reason}")
        if by not in (obj.owner, MEDDLER):
            raise Violation(f"{by} was fenced and puts as {obj.owner}")
        if again := self.committed & {commit.commit_id for commit in obj.commits}:
            raise Violation(f"a write is committed twice: {sorted(again)}")
        content = base
        for write in [self.writes[commit.commit_id] for commit in obj.commits]:
            if content.verdict(write) is not Told.COMMITTED:
                raise Violation(f"{write.write_id} is committed on a graph where it can't be")
            content = content.after(write, base)
        self._check_pins(obj, newest, replace(content, versions={k: pin.version for k, pin in obj.pins.items()}))
        if obj.introduced() and by != MEDDLER and self._sidecars.path(obj.op_id) not in self.storage.objects:
            raise Violation(f"{obj.op_id} is put, and was not announced")
        self._extend(obj, content)

    def _check_pins(self, obj: CommitObject, newest: CommitObject, content: Content) -> None:
        """Every table has the rows that the commits say: none lost, none doubled, the last merge of a key on top."""
        for table_key, pin in obj.pins.items():
            before = newest.pins[table_key]
            if (pin.version, pin.transaction) == (before.version, before.transaction):
                if content.rows[table_key] != self.content.rows[table_key]:
                    raise Violation(f"{obj.op_id} commits writes to {table_key}, whose version stays")
                continue
            found = read_version(self.storage, table_key, pin)
            if found is None:
                raise Violation(f"{obj.op_id} is in the line, and what it staged of {table_key} was dropped")
            if pin.version != before.version + 1 or pin.rows != len(found):
                raise Violation(f"{obj.op_id} pins {pin}, after {before}")
            if sorted((key, by) for key, by, _ in found) != sorted(content.rows[table_key].items()):
                raise Violation(f"{obj.op_id}: {table_key} has {found}, and its commits say {content.rows[table_key]}")

    def _extend(self, obj: CommitObject, content: Content) -> None:
        base = self.contents.get(obj.prev_op_id, content)
        moment = base
        for commit in obj.commits:
            moment = moment.after(self.writes[commit.commit_id], base)
            self.moments.append(moment)
            self.committed.add(commit.commit_id)
        self.moments.append(Content(content.rows, {key: pin.version for key, pin in obj.pins.items()}))
        self.contents[obj.op_id] = self.moments[-1]
        self.in_line.add(obj.op_id)
        self.pinned |= {pin.transaction for pin in obj.pins.values()}
        self.line.append(obj)

    # Answers, and what is left

    def check_answer(self, write: Write, asked_at: int, told: Told) -> None:
        """An answer has to be true of the line, at some moment since the write was sent."""
        if told is Told.COMMITTED and write.write_id not in self.committed:
            raise Violation(f"{write.write_id} was answered 'committed' and is not in the line")
        if told in (Told.REFUSED, Told.NOTHING, Told.MOVED):
            since = self.moments[asked_at:]
            if not any(moment.verdict(write) is told for moment in since):
                raise Violation(f"{write.write_id} was answered '{told}', without a reason since it was sent")

    def check_tidiness(self, name: str) -> None:
        """Of rounds that came to nothing nothing is left, if every delete was heard."""
        landed = {self._sidecars.path(op_id) for op_id in self.in_line}
        landed |= {staging_path(key, pin.transaction) for obj in self.line for key, pin in obj.pins.items()}
        left = {path for path, by in self.made.items() if by == name and path in self.storage.objects} - landed
        if left := {path for path in left if not path.startswith("__commits/")}:
            raise Violation(f"{name} has left behind {sorted(left)}")
