"""Names in storage that become parts of paths: none leads out of the graph, whoever wrote it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import omniray
from omniray.engine.base.errors import InvariantViolation
from omniray.engine.base.process import Process
from omniray.engine.history import manifest_rows
from omniray.engine.line import commit_json, sidecar
from omniray.engine.line.commit_log import HINT, CommitLog
from omniray.engine.line.commit_object import Binding, MergedParent
from omniray.engine.line.sidecar import FOLDER, UNREADABLE, Sidecar, Sidecars, SidecarTable
from omniray.engine.line.stored_names import is_stored_name
from omniray.engine.store.object_store import ObjectStore
from tests.graphs import new_graph, people
from tests.lines import BRANCH, birth
from tests.lines import line as line_of
from tests.stores import Root

LEADS_OUT = (
    "../../outside",
    "nodes/../../outside",
    "/etc/passwd",
    "nodes//Person.lance",
    "nodes/./Person.lance",
    "nodes/Person.lance/",
    "nodes\\..\\outside",
    "nodes/%2e%2e/outside",
    "nodes/Person.lance\0",
    "nodes/Person.lance\n",
    "nodes/\x1b[2J",
    "s3://bucket/key",
    "C:/outside",
    "nodes/Pers\u202eon.lance",
    "n" * 513,
)
NO_PATHS = (*LEADS_OUT, "")
FIRST = birth()
BOUND = Binding("line-n", BRANCH.ulid, 6, FIRST.pins, FIRST.schema, {BRANCH.ulid: 6}, "c-6", 1)
FULL = replace(
    line_of(3)[-1],
    bindings={"trial": BOUND},
    going=("line-g",),
    commits=(replace(FIRST.commits[0], merged=(MergedParent("line-m", 3, "c-3"),)),),
)
PIN = ("pins", "node:Person")
PATHS: tuple[tuple[str | int, ...], ...] = ((*PIN, "path"), ("bindings", "trial", "pins", "node:City", "path"))
NAMES: tuple[tuple[str | int, ...], ...] = (
    ("line",),
    ("op_id",),
    ("prev_op_id",),
    (*PIN, "transaction"),
    (*PIN, "line"),
    ("schema", "file"),
    ("bindings", "trial", "ulid"),
    ("bindings", "trial", "parent"),
    ("bindings", "trial", "schema", "file"),
    ("going", 0),
    ("commits", 0, "merged", 0, "line"),
)
ANNOUNCED = Sidecar(
    "01J00000000000000000000001", "Load", BRANCH.ulid, 1, "embedded", Process("host", 1, "1"), 1, (),
    (SidecarTable("node:Person", "nodes/Person.lance", 3, "transaction", files=("a.lance",)),),
)  # fmt: skip


def with_value(document: dict[str, Any], place: tuple[str | int, ...], value: Any) -> bytes:
    """The document with another value at one place."""
    part: Any = document
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value
    return json.dumps(document).encode()


def test_what_is_written_is_read() -> None:
    assert commit_json.decode(commit_json.encode(FULL), where="x") == FULL
    assert sidecar.decode(sidecar.encode(ANNOUNCED), where="x") == ANNOUNCED


@pytest.mark.parametrize("place", PATHS, ids=str)
@pytest.mark.parametrize("path", NO_PATHS)
def test_a_pin_whose_path_leads_out_of_the_graph_is_refused(place: tuple[str | int, ...], path: str) -> None:
    refused(json.loads(commit_json.encode(FULL)), place, path)


@pytest.mark.parametrize("place", NAMES, ids=str)
@pytest.mark.parametrize("name", [*LEADS_OUT, "..", "a/b"])
def test_an_object_with_a_name_that_leads_out_of_its_folder_is_refused(place: tuple[str | int, ...], name: str) -> None:
    refused(json.loads(commit_json.encode(FULL)), place, name)


@pytest.mark.parametrize("unknown", [{}, {"quota": 5}], ids=["known", "of a later omniray"])
@pytest.mark.parametrize("version", [-1, -(2**63)])
def test_a_version_that_has_no_file_name_is_refused(version: int, unknown: dict[str, int]) -> None:
    refused({**json.loads(commit_json.encode(FULL)), **unknown}, (*PIN, "version"), version)


def refused(document: dict[str, Any], place: tuple[str | int, ...], value: Any) -> None:
    with pytest.raises(InvariantViolation, match="not a commit object"):
        commit_json.decode(with_value(document, place, value), where="x")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((("tables", 0, "table_path"), path) for path in NO_PATHS),
        *((("tables", 0, "files", 0), path) for path in NO_PATHS),
        *((("tables", 0, "transaction_uuid"), name) for name in LEADS_OUT),
        *((("line",), name) for name in LEADS_OUT),
        *((("operation_id",), name) for name in LEADS_OUT),
        (("tables", 0, "expected_version"), -2),
    ],
)
def test_a_sidecar_that_leads_out_of_the_graph_is_refused(place: tuple[str | int, ...], value: Any) -> None:
    with pytest.raises(InvariantViolation, match="not a sidecar"):
        sidecar.decode(with_value(json.loads(sidecar.encode(ANNOUNCED)), place, value), where="x")


@pytest.mark.parametrize("path", NO_PATHS)
def test_a_folded_pin_that_leads_out_of_the_graph_is_refused(path: str) -> None:
    row = manifest_rows.version_row("node:Person", FIRST.pins["node:Person"], FIRST)
    assert manifest_rows.pin_of(row) == FIRST.pins["node:Person"]
    metadata = with_value(json.loads(row["metadata"]), ("pin", "path"), path).decode()
    with pytest.raises(InvariantViolation, match="__manifest holds a pin that can't be read"):
        manifest_rows.pin_of({**row, "metadata": metadata})


def test_json_nested_without_end_is_no_object_and_no_crash() -> None:
    deep = b'{"format":2,"x":' + b"[" * 1_000_000
    with pytest.raises(InvariantViolation):
        commit_json.decode(deep, where="x")
    with pytest.raises(InvariantViolation):
        sidecar.decode(deep, where="x")


def test_a_sidecar_under_the_name_of_another_operation_is_set_aside(store: ObjectStore) -> None:
    name = "01J00000000000000000000009"
    store.put(f"{FOLDER}/{name}.json", sidecar.encode(ANNOUNCED))
    assert Sidecars(store).read(name) is None
    assert store.get(f"{UNREADABLE}/{name}.json") is not None


def test_a_hint_of_any_length_is_only_a_hint(store: ObjectStore) -> None:
    log = CommitLog(store, BRANCH)
    log.put(FIRST)
    for hint in (b"9" * 5000, b"9" * 20, b"-1", b"../1"):
        store.put(f"__commits/{BRANCH.ulid}/{HINT}", hint)
        assert CommitLog(store, BRANCH).newest() == FIRST


def test_a_graph_whose_identity_leads_out_of_it_is_not_opened(disk: Root) -> None:
    uri = new_graph(disk).uri
    Path(uri, "__graph.json").write_text('{"graph_id":"../../x","format":2}')
    with pytest.raises(InvariantViolation, match=r"__graph\.json can't be read"):
        omniray.open(uri)


def test_recovery_deletes_nothing_outside_of_the_graph(disk: Root) -> None:
    """A sidecar that names a table outside is moved aside, and what lies there stays."""
    graph = new_graph(disk)
    outside = Path(graph.uri).parent / "outside" / "_staged" / "tx" / f"{2**64 - 1 - 4:020}.manifest"
    outside.parent.mkdir(parents=True)
    outside.write_text("precious")
    evil = replace(ANNOUNCED, tables=(SidecarTable("node:Person", "../outside", 3, "tx"),), line=graph_id_of(graph.uri))
    evil = replace(evil, process=Process("nowhere", 1, "1"))
    Path(graph.uri, FOLDER).mkdir(exist_ok=True)
    Path(graph.uri, FOLDER, f"{evil.operation_id}.json").write_bytes(sidecar.encode(evil))
    assert people(omniray.open(graph.uri)) == []
    assert outside.read_text() == "precious"
    assert Path(graph.uri, UNREADABLE, f"{evil.operation_id}.json").exists()


def graph_id_of(uri: str) -> str:
    found: str = json.loads(Path(uri, "__graph.json").read_text())["graph_id"]
    return found


@pytest.mark.parametrize("uuid", ["", "5f0c2a34-9b1e-4f57-8a43-0b1f3c1f9f7e"])
def test_a_foreign_transaction_is_pinned_by_its_uuid(uuid: str) -> None:
    assert is_stored_name(uuid)


@pytest.mark.parametrize("uuid", ["../x", "a/b", "a\n", "n" * 129])
def test_a_foreign_transaction_that_no_pin_can_name_counts_as_none(uuid: str) -> None:
    assert not is_stored_name(uuid)
