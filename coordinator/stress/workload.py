"""The workload of one writer: an endless sequence of steps that follows from its seed.

Writers conflict on purpose. All of them merge into the same few hot accounts, append the same few contested keys, take
the same few slots, and delete nodes that others link to; each also appends keys of its own. A step never depends on the
outcome of earlier steps, so the seed determines the whole workload.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from omniray.coordinator.stress.operation import (
    Account,
    Delete,
    Device,
    Follows,
    Load,
    Owns,
    Register,
    Row,
    TypeName,
    Update,
    Write,
)
from omniray.engine.rows.row_ids import mint_ulids

HOT = tuple(f"hot-{n}" for n in range(6))
CONTESTED = tuple(f"contested-{n}" for n in range(12))
MUTATED: tuple[TypeName, ...] = ("Account", "Account", "Device", "Follows")
SLOTS = 24
OWN_REMEMBERED = 24
EARLIER_REMEMBERED = 32
NAMES_READ = 8


@dataclass(frozen=True, slots=True)
class Submit:
    """Send a write; with `strictly`, it expects the versions of a snapshot that is read first."""

    write: Write
    strictly: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """Read, from one snapshot, all rows found by the names."""

    names: tuple[str, ...]


Step = Submit | Look


def steps(seed: int, writer_no: int, now_ms: Callable[[], int]) -> Iterator[Step]:
    """The steps of one writer: the same for the same seed, except for the time in their ids."""
    return _Steps(random.Random(f"{seed}/{writer_no}"), f"w{writer_no}", now_ms)


class _Steps:
    def __init__(self, rng: random.Random, owner: str, now_ms: Callable[[], int]) -> None:
        self._rng, self._owner, self._now_ms = rng, owner, now_ms
        self._counter = 0
        self._own: deque[str] = deque(maxlen=OWN_REMEMBERED)
        self._earlier: deque[Write] = deque(maxlen=EARLIER_REMEMBERED)
        self._chances: dict[Callable[[], Step], int] = {
            self._append_own: 16,
            self._append_contested: 10,
            self._merge_hot: 16,
            self._set_up: 12,
            self._register: 8,
            self._link: 6,
            self._update: 9,
            self._delete: 7,
            self._write_strictly: 8,
            self._submit_again: 4,
            self._look: 4,
        }

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        self._counter += 1
        choose = self._rng.choices(list(self._chances), list(self._chances.values()))[0]
        step = choose()
        if isinstance(step, Submit) and not step.strictly:
            self._earlier.append(step.write)
        return step

    # Steps

    def _append_own(self) -> Step:
        txn_id = self._txn_id()
        rows = tuple(self._account(self._new_name(part), txn_id) for part in range(self._rng.randint(1, 4)))
        return Submit(Load(txn_id=txn_id, mode="append", rows=rows))

    def _append_contested(self) -> Step:
        txn_id = self._txn_id()
        name = self._rng.choice(CONTESTED)
        rows: tuple[Row, ...] = (self._account(name, txn_id),)
        if self._rng.random() < 0.5:
            rows = (self._device(name, txn_id),)
        return Submit(Load(txn_id=txn_id, mode="append", rows=rows))

    def _merge_hot(self) -> Step:
        txn_id = self._txn_id()
        names = self._rng.sample(HOT, self._rng.randint(1, 2))
        return Submit(Load(txn_id=txn_id, mode="merge", rows=tuple(self._account(name, txn_id) for name in names)))

    def _set_up(self) -> Step:
        """An account, a device and the edges of both, in four tables at once."""
        txn_id = self._txn_id()
        name, device = self._new_name(0), self._new_name(1)
        rows = (
            self._account(name, txn_id),
            self._device(device, txn_id),
            self._owns(name, device, txn_id, 0),
            self._owns(self._rng.choice(HOT), device, txn_id, 1),
            self._follows(name, self._rng.choice(HOT), txn_id),
        )
        return Submit(Load(txn_id=txn_id, mode="append", rows=rows if self._rng.random() < 0.3 else rows[:3]))

    def _register(self) -> Step:
        txn_id = self._txn_id()
        name = self._rng.choice((*CONTESTED, self._new_name(0)))
        follows = self._follows(name, self._rng.choice(HOT), txn_id)
        return Submit(
            Register(
                txn_id=txn_id,
                account=self._account(name, txn_id),
                device=self._device(f"{name}'s", txn_id),
                follows=follows,
            )
        )

    def _link(self) -> Step:
        txn_id = self._txn_id()
        follows = self._follows(self._rng.choice((*HOT, *self._own)), self._rng.choice(HOT), txn_id)
        return Submit(Load(txn_id=txn_id, mode="merge", rows=(follows,)))

    def _update(self) -> Step:
        return Submit(self._touch(self._rng.choice(MUTATED), self._any_name()))

    def _delete(self) -> Step:
        return Submit(Delete(txn_id=self._txn_id(), type=self._rng.choice(MUTATED), name=self._any_name()))

    def _write_strictly(self) -> Step:
        txn_id = self._txn_id()
        name = self._rng.choice(HOT)
        merge = Load(txn_id=txn_id, mode="merge", rows=(self._account(name, txn_id),))
        return Submit(self._rng.choice((merge, self._touch("Account", name))), strictly=True)

    def _submit_again(self) -> Step:
        return Submit(self._rng.choice(self._earlier)) if self._earlier else self._merge_hot()

    def _look(self) -> Step:
        return Look(tuple(sorted({*self._rng.sample(HOT, 3), *(self._any_name() for _ in range(NAMES_READ - 3))})))

    # Their parts

    def _txn_id(self) -> str:
        return str(mint_ulids(1, timestamp_ms=self._now_ms(), randomness=self._rng.randbytes)[0].as_py())

    def _new_name(self, part: int) -> str:
        name = f"{self._owner}-{self._counter}-{part}"
        self._own.append(name)
        return name

    def _any_name(self) -> str:
        return self._rng.choice((*HOT, *CONTESTED, *self._own))

    def _touch(self, type: TypeName, name: str) -> Update:
        return Update(txn_id=self._txn_id(), type=type, name=name, counter=self._counter)

    def _account(self, name: str, txn_id: str) -> Account:
        return Account(name=name, owner=self._owner, counter=self._counter, stamp=txn_id)

    def _device(self, name: str, txn_id: str) -> Device:
        slot = self._rng.randrange(SLOTS) if self._rng.random() < 0.2 else None
        return Device(name=name, owner=self._owner, slot=slot, counter=self._counter, stamp=txn_id)

    def _owns(self, account: str, device: str, txn_id: str, part: int) -> Owns:
        return Owns(id=f"{txn_id}-{part}", src=account, dst=device, counter=self._counter, stamp=txn_id)

    def _follows(self, source: str, target: str, txn_id: str) -> Follows:
        return Follows(src=source, dst=target, counter=self._counter, stamp=txn_id)
