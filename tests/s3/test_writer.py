"""The embedded writer on S3."""

from __future__ import annotations

from typing import Any

import pytest

from tests.graphs import create_store, parts_of
from tests.kit.s3server import Fault, S3Server
from tests.stores import Root
from tests.unit.test_writer import add


@pytest.mark.parametrize("kind", ["refused", "refused_after", "cut", "cut_after"])
def test_a_fault_in_the_commit_s_put_on_s3_makes_the_write_land_exactly_once(server: S3Server, kind: Any) -> None:
    """Fault: the put of the commit object fails, before or after it took effect. Oracle: the line and the table."""
    parts = parts_of(create_store(Root("s3://bucket", server.storage_options), kind))
    server.reset()
    server.add_fault(Fault("PUT", "__commits/", kind))
    intent = add(parts, "ann")
    assert any(r.method == "PUT" and "__commits/" in r.target and r.status in (0, 500) for r in server.requests())
    assert parts.commit_ids() == [intent.commit_id]
    parts.close()
    fresh = parts_of(parts.store)
    assert fresh.rows() == ["ann"]
    add(fresh, "bob")
    assert fresh.rows() == ["ann", "bob"]
    fresh.close()
