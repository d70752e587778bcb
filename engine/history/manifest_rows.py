"""The rows of `__manifest`: how an object's facts are written as rows, read back, and searched for."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from omniray.engine.history.lineage_entry import LineageEntry, time_of
from omniray.engine.line import commit_json
from omniray.engine.line.commit_object import CommitObject, MergedParent, Pin, Recovery

SCHEMA = pa.schema(
    [
        pa.field("object_id", pa.string(), nullable=False),
        pa.field("object_type", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("table_key", pa.string()),
        pa.field("table_version", pa.int64()),
        pa.field("row_count", pa.int64()),
        pa.field("metadata", pa.string(), nullable=False),
    ]
)

VECTOR = "graph_vector"

# The fields of a commit that have no column of their own.
_COMMIT_FACTS = tuple(f.name for f in fields(LineageEntry) if f.name not in ("commit_id", "seq", "at"))


def registration_row(table_key: str, pin: Pin, seq: int) -> dict[str, Any]:
    facts = {"location": pin.path, "table_id": pin.table_id}
    return new_row(f"table:{table_key}", "table", seq, table_key=table_key, metadata=facts)


def commit_row(entry: LineageEntry) -> dict[str, Any]:
    facts = {name: msgspec.to_builtins(getattr(entry, name)) for name in _COMMIT_FACTS}
    return new_row(entry.commit_id, "graph_commit", entry.seq, at=entry.at, metadata=facts)


def version_row(table_key: str, pin: Pin, obj: CommitObject) -> dict[str, Any]:
    return new_row(
        version_id(table_key, pin.version),
        "table_version",
        obj.seq,
        table_key=table_key,
        table_version=pin.version,
        row_count=pin.rows,
        metadata={"pin": commit_json.pin_facts(pin), "op_id": obj.op_id},
    )


def vector_row(obj: CommitObject) -> dict[str, Any]:
    """What an object includes of other lines, written where that changes: at its line's begin, and by a merge."""
    facts = {"contains": dict(obj.contains)}
    return new_row(vector_id(obj.seq), VECTOR, obj.seq, at=time_of(obj.head_at_us), metadata=facts)


def recovery_row(recovery: Recovery, seq: int) -> dict[str, Any]:
    facts = msgspec.to_builtins(recovery)
    at = time_of(recovery.created_at_us)
    return new_row(recovery_id(recovery.operation_id), "graph_recovery", seq, at=at, metadata=facts)


def head_row(obj: CommitObject, named_through: int) -> dict[str, Any]:
    pins = {key: pin.version for key, pin in obj.pins.items()}
    facts = {"commit_id": obj.head, "pins": pins, "named_through": named_through}
    return new_row(f"graph_head:{obj.line}", "graph_head", obj.seq, metadata=facts)


def new_row(object_id: str, object_type: str, seq: int, *, metadata: dict[str, Any], **columns: Any) -> dict[str, Any]:
    return {"object_id": object_id, "object_type": object_type, "seq": seq, "metadata": json.dumps(metadata), **columns}


def vector_id(seq: int) -> str:
    return f"{VECTOR}:{seq:020}"


def version_id(table_key: str, version: int) -> str:
    return f"table_version:{table_key}:{version:020}"


def recovery_id(operation_id: str) -> str:
    return f"recovery:{operation_id}"


def vector_of(row: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = json.loads(row["metadata"])["contains"]
    return found


def entry_of(row: dict[str, Any]) -> LineageEntry:
    facts = {name: fact for name, fact in json.loads(row["metadata"]).items() if name in _COMMIT_FACTS}
    facts["tables"] = tuple(facts["tables"])
    facts["merged"] = tuple(MergedParent(**parent) for parent in facts["merged"])
    return LineageEntry(commit_id=row["object_id"], seq=row["seq"], at=row["at"], **facts)


def pin_of(row: dict[str, Any]) -> Pin:
    return commit_json.pin_of(json.loads(row["metadata"])["pin"])


def recovery_of(row: dict[str, Any]) -> Recovery:
    return msgspec.json.decode(row["metadata"], type=Recovery)


def within(after: int, through: int) -> pc.Expression:
    """Above one number and at or below another."""
    return (pc.field("seq") > pa.scalar(after, pa.int64())) & (pc.field("seq") <= pa.scalar(through, pa.int64()))


def is_a(object_type: str) -> pc.Expression:
    return pc.field("object_type") == pa.scalar(object_type)


def has_id(object_id: str) -> pc.Expression:
    return pc.field("object_id") == pa.scalar(object_id)


def has_any_id(object_ids: list[str]) -> pc.Expression:
    return pc.field("object_id").isin(pa.array(object_ids, pa.string()))  # typed, since the list may be empty
