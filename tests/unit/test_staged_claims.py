"""Data files that a client names: each is its load's own, announced by a lease, and in no version yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import omniray
from omniray.coordinator.door.requests import decode_request, encode_request
from omniray.coordinator.rounds.conflicts import WriteAnswer
from omniray.engine.base.errors import InputError, OmnirayError, StorageError
from omniray.engine.base.principal import Author
from omniray.engine.base.ulids import new_ulid
from omniray.engine.judge.resolution import Resolution, TableWrite
from omniray.engine.line.commit_object import Remark
from omniray.engine.line.sidecar import Sidecars
from omniray.engine.load_stager import LoadStager
from omniray.engine.rows.mode import Mode
from omniray.engine.tables.storage import StagedRows
from omniray.engine.writes import row_sink
from omniray.engine.writes.load import LoadIntent
from omniray.engine.writes.options import LoadOptions
from omniray.engine.writes.terms import WriteTerms
from omniray.engine.writes.write_requests import Header, PreparedRequest
from tests.coordination import Service, Told, serving, told
from tests.graphs import CITY, PERSON, create_store, opened, parts_of
from tests.stores import Root

ROWS = 20


@dataclass
class Staging:
    """A client that stages its loads, and a coordinator that takes them."""

    service: Service
    stager: LoadStager
    begun: list[LoadIntent] = field(default_factory=list)

    def intent(self, first: int = 0) -> LoadIntent:
        """A load of some people, staged and announced."""
        rows = pa.table({"name": [f"p{number}" for number in range(first, first + ROWS)]})
        options = LoadOptions.checked("append", "fail", None)
        self.begun.append(self.stager.prepare_load(rows, options, WriteTerms(Author("ann")), type="Person"))
        return self.begun[-1]

    def request(self, intent: LoadIntent, commit_id: str = "") -> PreparedRequest:
        """The load as its client judges it and sends it."""
        resolution, judged_on = self.stager.judge(intent)
        header = Header(commit_id or intent.commit_id, "Load", Author("ann"), {}, "", self.service.schema_hash)
        return PreparedRequest(header, resolution, judged_on)

    def send(self, request: PreparedRequest) -> Told:
        return self.send_bytes(encode_request(request))

    def send_bytes(self, message: bytes) -> Told:
        try:
            arrived = decode_request(message, self.service.schema, self.service.schema_hash)
        except OmnirayError as error:
            return error
        (answer,) = told([self.service.publisher.submit(arrived)])
        return answer

    def sweeps(self, after_us: int) -> None:
        """Put the barrier of a sweep, at so many microseconds after the newest lease was put."""
        newest_us = self.service.sidecars.dated_us(self.service.sidecars.listed()[-1])
        told([self.service.publisher.remark(Remark(new_ulid(), swept_before_us=newest_us + after_us))])

    def people(self) -> int:
        return len(parts_of(self.service.store).rows(PERSON))


@pytest.fixture
def staging(any_root: Root, monkeypatch: pytest.MonkeyPatch) -> Iterator[Staging]:
    monkeypatch.setattr(row_sink, "INLINE_ROWS_MAX", 5)
    store = create_store(any_root)
    with serving(store) as service:
        staging = Staging(service, LoadStager(opened(store)))
        try:
            yield staging
        finally:
            for intent in staging.begun:
                intent.close(used=True)


def changed(request: PreparedRequest, **of_rows: Any) -> PreparedRequest:
    """The request with other claims about its staged rows."""
    write = request.resolution.tables[PERSON]
    assert isinstance(write.rows, StagedRows)
    tables = {PERSON: replace(write, rows=replace(write.rows, **of_rows))}
    return replace(request, resolution=replace(request.resolution, tables=tables))


def test_a_load_whose_files_are_announced_lands_once(staging: Staging) -> None:
    intent = staging.intent()
    request = staging.request(intent)
    first, again = staging.send(request), staging.send(request)
    assert isinstance(first, WriteAnswer)
    assert isinstance(again, WriteAnswer)
    assert (first.result.affected_nodes, again.result.repeated, staging.people()) == (ROWS, True, ROWS)


def test_files_with_columns_of_every_type_land(disk: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists have no columns of their own."""
    monkeypatch.setattr(row_sink, "INLINE_ROWS_MAX", 5)
    scalars = ["String", "Bool", "I32", "I64", "U32", "U64", "F32", "F64", "Date", "DateTime", "Blob"]
    lists = [f"l{name}: [{name}]?" for name in scalars if name != "Blob"]
    properties = [*(f"s{name}: {name}?" for name in scalars), *lists, "v: Vector(2)?", "e: enum(a, b)?"]
    schema = f"node Note {{ text: String   {'   '.join(properties)} }}\nedge Next: Note -> Note {{ tags: [String]? }}"
    notes = [{"type": "Note", "id": f"n{number}", "data": {"text": "x", "v": [1, 2]}} for number in range(ROWS)]
    edges = [{"edge": "Next", "from": f"n{n}", "to": "n0", "data": {"tags": ["a", "b"]}} for n in range(ROWS)]
    with omniray.init(f"{disk.uri}/g", schema=schema) as graph:
        for _ in range(2):
            result = graph.load([*notes, *edges], mode="merge")
            assert (result.affected_nodes, result.affected_edges) == (ROWS, ROWS)
        assert graph.snapshot().count("Note") == ROWS


# The version that there is


@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.OVERWRITE])
def test_a_file_of_the_table_is_not_staged_again(staging: Staging, mode: Mode) -> None:
    """Its rows would be there twice, and go twice."""
    intent = staging.intent()
    first = staging.request(intent)
    assert isinstance(staging.send(first), WriteAnswer)
    other = staging.intent(first=100)
    sent = staging.request(other)
    stolen = first.resolution.tables[PERSON].rows
    assert isinstance(stolen, StagedRows)
    write = TableWrite(mode, stolen, sent.resolution.tables[PERSON].replaced)
    sent = replace(sent, resolution=replace(sent.resolution, tables={PERSON: write}))
    error = staging.send(sent)
    assert isinstance(error, InputError)
    assert "is part of the table already" in str(error)
    assert staging.people() == ROWS
    assert isinstance(staging.send(staging.request(other)), WriteAnswer)
    assert staging.people() == 2 * ROWS


def test_a_file_is_named_once(staging: Staging) -> None:
    intent = staging.intent()
    request = staging.request(intent)
    rows = request.resolution.tables[PERSON].rows
    assert isinstance(rows, StagedRows)
    error = staging.send(changed(request, fragments=rows.fragments * 2, rows=rows.rows * 2))
    assert isinstance(error, InputError)
    assert "named twice" in str(error)
    assert staging.people() == 0


def claimed(staging: Staging, change: Callable[[dict[str, Any]], object], rows: int = ROWS) -> Told:
    """What is told of a load whose fragment is described otherwise."""
    message = msgspec.msgpack.decode(encode_request(staging.request(staging.intent())))
    table = message["tables"][PERSON]
    fragment = msgspec.json.decode(table["fragments"][0])
    change(fragment)
    table |= {"fragments": [msgspec.json.encode(fragment).decode()], "staged_rows": rows}
    return staging.send_bytes(msgspec.msgpack.encode(message))


@pytest.mark.parametrize("size", [None, 0, -1, "7", 7])
def test_a_file_has_the_size_that_it_had(staging: Staging, size: Any) -> None:
    """Without it a file that was cut short would pass."""
    assert isinstance(claimed(staging, lambda it: it["files"][0].update(file_size_bytes=size)), InputError)
    assert staging.people() == 0


@pytest.mark.parametrize("rows", [ROWS - 1, ROWS + 1])
def test_a_file_has_as_many_rows_as_its_client_says(staging: Staging, rows: int) -> None:
    """With more of them the table could not be read any more, with fewer some were lost."""
    error = claimed(staging, lambda it: it.update(physical_rows=rows), rows)
    assert isinstance(error, InputError)
    assert f"has {ROWS} rows instead of {rows}" in str(error)
    assert staging.people() == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fields": [0], "column_indices": [0]}, "other columns"),
        ({"fields": [1, 0, 2]}, "other columns"),
        ({"column_indices": [0, 2, 1]}, "other columns"),
        ({"file_minor_version": 0}, "another format"),
        ({"path": "0.lance"}, "is not there"),
    ],
)
def test_a_file_has_the_columns_of_its_table(staging: Staging, change: dict[str, Any], reason: str) -> None:
    """A required value would be missing, or the table could not be read any more."""
    error = claimed(staging, lambda it: it["files"][0].update(change))
    assert isinstance(error, InputError)
    assert reason in str(error)
    assert staging.people() == 0


def test_a_file_that_is_none_of_lance_s_ends_nothing(staging: Staging) -> None:
    store = staging.service.store
    for name, data in {"a": b"x", "b": b"0" * 500}.items():
        store.put(f"nodes/Person.lance/data/{name}.lance", data)
        change = {"path": f"{name}.lance", "file_size_bytes": len(data)}
        error = claimed(staging, lambda it, c=change: it["files"][0].update(c))
        assert isinstance(error, InputError)
        assert "can't be read" in str(error)
    assert isinstance(staging.send(staging.request(staging.intent(first=100))), WriteAnswer)


# The lease


def refused_as_swept(answer: Told) -> bool:
    return isinstance(answer, StorageError) and "may have been swept" in str(answer)


def test_the_word_of_a_client_takes_no_file_past_a_sweep(staging: Staging) -> None:
    intent = staging.intent()
    request = staging.request(intent)
    staging.sweeps(after_us=1)
    assert refused_as_swept(staging.send(changed(request, staged_since_us=2**62)))
    assert staging.people() == 0


def test_files_that_were_staged_since_a_sweep_land(staging: Staging) -> None:
    staging.intent()
    staging.sweeps(after_us=0)
    assert isinstance(staging.send(staging.request(staging.intent(first=100))), WriteAnswer)


def test_a_time_that_is_earlier_than_the_lease_counts(staging: Staging) -> None:
    """A load may have several leases, the newest of which says least of its oldest file."""
    intent = staging.intent()
    told([staging.service.publisher.remark(Remark(new_ulid(), swept_before_us=50))])
    assert refused_as_swept(staging.send(changed(staging.request(intent), staged_since_us=49)))


def _released(staging: Staging, intent: LoadIntent) -> str:
    staging.service.sidecars.delete(intent._lease.taken)
    return intent.commit_id


def _of_another_load(staging: Staging, intent: LoadIntent) -> str:
    return new_ulid()


@pytest.mark.parametrize("spoil", [_released, _of_another_load])
def test_files_without_a_lease_of_their_own_load_do_not_land(
    staging: Staging, spoil: Callable[[Staging, LoadIntent], str]
) -> None:
    intent = staging.intent()
    request = staging.request(intent, spoil(staging, intent))
    assert refused_as_swept(staging.send(request))
    assert staging.people() == 0


def test_a_lease_speaks_for_its_table_alone(staging: Staging) -> None:
    intent = staging.intent()
    request = staging.request(intent)
    tables = {CITY: request.resolution.tables[PERSON]}
    other = replace(request.resolution, tables=tables)
    judged_on = {CITY: staging.service.newest.pins[CITY].version}
    assert refused_as_swept(staging.send(replace(request, resolution=other, judged_on=judged_on)))


def test_a_lease_is_found_among_many_without_reading_all(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    intents = [staging.intent(first=number * ROWS) for number in range(40)]
    read: list[str] = []
    real = Sidecars.read

    def watched(sidecars: Sidecars, operation_id: str) -> Any:
        read.append(operation_id)
        return real(sidecars, operation_id)

    monkeypatch.setattr(Sidecars, "read", watched)
    assert isinstance(staging.send(staging.request(intents[-1])), WriteAnswer)
    assert len(set(read)) < len(intents)
    assert isinstance(staging.send(staging.request(intents[0])), WriteAnswer)


def test_a_load_of_no_files_needs_no_lease(staging: Staging) -> None:
    """All of its rows were taken out by its judgement."""
    intent = staging.intent()
    request = changed(staging.request(intent, _released(staging, intent)), fragments=(), rows=0)
    empty = Resolution(request.resolution.tables, request.resolution.affected)
    assert not refused_as_swept(staging.send(replace(request, resolution=empty)))
