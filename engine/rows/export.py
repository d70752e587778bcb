"""Exports rows as JSON records, one per line, which a load reads back to the same rows."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from typing import Any

import msgspec
import pyarrow as pa

from omniray.engine.schema.types import DST, ID, SRC, EdgeType, ElementType


def export_records(type: ElementType, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Encode batches of a type's rows. Ids are included where they can't be derived: for edges and keyless nodes."""
    encoder = msgspec.json.Encoder(enc_hook=_plain)
    with_id = isinstance(type, EdgeType) or not type.key
    for batch in batches:
        for row in batch.to_pylist():
            yield encoder.encode(_record(type, row, with_id=with_id)) + b"\n"


def _record(type: ElementType, row: dict[str, Any], *, with_id: bool) -> dict[str, Any]:
    data = {p.name: plain_value(row[p.name]) for p in type.properties if row[p.name] is not None}
    if isinstance(type, EdgeType):
        return {"edge": type.name, "id": row[ID], "from": row[SRC], "to": row[DST], "data": data}
    return {"type": type.name, **({"id": row[ID]} if with_id else {}), "data": data}


def plain_value(value: Any) -> Any:
    """A property's value in its JSON form, which a load reads back."""
    match value:
        case bytes():
            return "base64:" + base64.b64encode(value).decode()
        case datetime():
            return value.isoformat()
        case date():
            return value.isoformat()
        case list():
            return [plain_value(item) for item in value]
        case _:
            return value


def _plain(value: Any) -> Any:
    raise TypeError(f"a {value.__class__.__name__} has no form in JSON")
