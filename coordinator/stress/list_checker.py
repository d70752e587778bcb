"""The checker of transactions over lists: from what all writers sent and were told it finds every broken rule.

Pure, and independent of what stored the lists. Each read shows a whole list in its order, so the longest one that was
read gives the order of all appends that it holds; every other read must be a prefix of it. What was known, by its
answer or by a read, before a moment must be in every list that is read after it. Whether transactions over several
lists have one order in which all of them make sense is not decided here: Elle finds cycles between them (`edn.py`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from omniray.coordinator.stress.history import UNTYPED, line_of
from omniray.coordinator.stress.transactions import Event, Key, Transaction, Value, transactions_of
from omniray.coordinator.stress.violation import ListRule, Rule, Verdict, Violation
from omniray.engine.base.errors import Fenced, KeyConflict


def check_lists(events: Iterable[Event]) -> Verdict:
    """Check what all writers recorded; raises `InputError` if it can't be the record of a run.

    An append that was acknowledged and not read afterwards is not judged: end a run with a read of all lists.
    """
    transactions = transactions_of(events)
    lists = _lists_of(transactions)
    return Verdict(
        (
            *(violation for one in lists.values() for violation in one.violations()),
            *_torn_transactions(transactions),
        )
    )


def unexpected_errors(events: Iterable[Event]) -> Iterator[Violation]:
    """The errors of our own workload that neither it nor a disturbance can cause."""
    for event in events:
        excused = event.retry == "safe" or event.kind == Fenced.kind
        expected = excused or (event.kind == KeyConflict.kind and event.appends != ())
        if (event.event == "fail" and not expected) or (event.event == "info" and event.kind == UNTYPED):
            message = f"writer {event.writer} got {event.kind}: {event.message}"
            yield Violation(Rule.UNEXPECTED_ERROR, message, (line_of(event),))


def _lists_of(transactions: Sequence[Transaction]) -> Mapping[Key, _List]:
    lists: dict[Key, _List] = {}
    for one in transactions:
        for append in one.appends:
            lists.setdefault(append.key, _List(append.key)).appended[append.value] = one
        for read in one.reads:
            lists.setdefault(read.key, _List(read.key)).reads.append(_Seen(one, read.values or ()))
    return lists


@dataclass(frozen=True, slots=True)
class _Seen:
    """A list as a transaction read it."""

    by: Transaction
    values: tuple[Value, ...]


@dataclass(slots=True)
class _List:
    """All that is known about one list."""

    key: Key
    appended: dict[Value, Transaction] = field(default_factory=dict)
    reads: list[_Seen] = field(default_factory=list)

    def violations(self) -> Iterator[Violation]:
        longest = max((seen.values for seen in self.reads), key=len, default=())
        known_ns = self._known_ns()
        yield from self._wrong_values()
        yield from self._forks(longest)
        yield from self._lost_appends()
        yield from self._stale_reads(longest, known_ns)
        yield from self._misordered(longest, known_ns)

    def _known_ns(self) -> Mapping[Value, float]:
        """For each value the moment at which somebody was told that it is in the list."""
        known_ns: defaultdict[Value, float] = defaultdict(lambda: math.inf)
        for value, one in self.appended.items():
            if one.outcome == "ok":
                known_ns[value] = one.ended_ns
        for seen in self.reads:
            for value in seen.values:
                known_ns[value] = min(known_ns[value], seen.by.ended_ns)
        return known_ns

    def _wrong_values(self) -> Iterator[Violation]:
        """Every value in a list was appended once, by a transaction that was not refused and had begun."""
        told: set[tuple[ListRule, Value]] = set()
        for seen in self.reads:
            for value, count in Counter(seen.values).items():
                for rule, what in self._faults(value, count, seen):
                    if (rule, value) not in told:
                        told.add((rule, value))
                        yield self._violation(rule, f"value {value!r} {what}", seen.by, self.appended.get(value))

    def _faults(self, value: Value, count: int, seen: _Seen) -> Iterator[tuple[ListRule, str]]:
        appender = self.appended.get(value)
        if count > 1:
            yield ListRule.DOUBLED_APPEND, f"was appended once and is there {count} times"
        if appender is None:
            yield ListRule.PHANTOM_APPEND, "is there and nobody appended it"
        elif appender.outcome == "fail":
            yield ListRule.REFUSED_YET_APPENDED, "is there although its append was refused"
        elif appender.began_ns > seen.by.ended_ns:
            yield ListRule.EARLY_READ, "was read before its append began"

    def _forks(self, longest: tuple[Value, ...]) -> Iterator[Violation]:
        for seen in self.reads:
            if seen.values != longest[: len(seen.values)]:
                yield self._violation(ListRule.FORKED_LIST, "was read as no prefix of the longest list", seen.by)

    def _lost_appends(self) -> Iterator[Violation]:
        """An acknowledged append is in some list, once one was read after it."""
        anywhere = {value for seen in self.reads for value in seen.values}
        last_ns = max((seen.by.began_ns for seen in self.reads), default=-math.inf)
        for value, one in self.appended.items():
            if one.outcome == "ok" and value not in anywhere and one.ended_ns < last_ns:
                reader = next(seen.by for seen in self.reads if one.ended_ns < seen.by.began_ns)
                yield self._violation(
                    ListRule.LOST_APPEND, f"value {value!r} was acknowledged and is gone", one, reader
                )

    def _stale_reads(self, longest: tuple[Value, ...], known_ns: Mapping[Value, float]) -> Iterator[Violation]:
        """A read shows what was known before it began; a forked list is told as such, and not here."""
        first_known: list[tuple[float, Value | None]] = [(math.inf, None)]  # among the values from each place on
        for value in reversed(longest):
            known = (known_ns[value], value)
            first_known.append(min(first_known[-1], known, key=lambda known: known[0]))
        first_known.reverse()
        for seen in self.reads:
            if seen.values != longest[: len(seen.values)]:
                continue
            at_ns, missing = first_known[len(seen.values)]
            if missing is not None and at_ns < seen.by.began_ns:
                what = f"was read without value {missing!r}, which was known before"
                yield self._violation(ListRule.STALE_READ, what, seen.by, self.appended.get(missing))

    def _misordered(self, longest: tuple[Value, ...], known_ns: Mapping[Value, float]) -> Iterator[Violation]:
        """An append that was known before another began comes first; those of one transaction keep their order."""
        places = {value: place for place, value in enumerate(self.appended)}  # as they were sent
        newest: tuple[Value, Transaction] | None = None  # of the values so far, the one that was sent last
        for value in dict.fromkeys(longest):
            one = self.appended.get(value)
            if one is None:
                continue
            if newest is not None:
                other, before = newest
                belongs_before = before is one and places[value] < places[other]
                if known_ns[value] < before.began_ns or belongs_before:
                    what = f"value {value!r} comes after {other!r}, which was appended later"
                    yield self._violation(ListRule.MISORDERED_APPENDS, what, one, before)
            if newest is None or one.began_ns >= newest[1].began_ns:
                newest = value, one

    def _violation(self, rule: ListRule, what: str, *told_by: Transaction | None) -> Violation:
        return Violation(rule, f"list {self.key!r}: {what}", tuple(str(one) for one in told_by if one is not None))


def _torn_transactions(transactions: Sequence[Transaction]) -> Iterator[Violation]:
    """What one transaction appended is seen by another as a whole, or not at all."""
    appenders: defaultdict[Key, dict[int, Transaction]] = defaultdict(dict)
    for number, one in enumerate(transactions):
        if len(one.appends) > 1:
            for append in one.appends:
                appenders[append.key][number] = one
    for reader in transactions:
        shown = {read.key: frozenset(read.values or ()) for read in reader.reads}
        near = {number: one for key in shown for number, one in appenders.get(key, {}).items()}
        for one in near.values():
            seen = {append.value in shown[append.key] for append in one.appends if append.key in shown}
            if len(seen) > 1 and one is not reader:
                yield Violation(
                    ListRule.TORN_TRANSACTION, "a transaction was seen in part by a read", (str(one), str(reader))
                )
