"""The stream of changes, on S3."""

from __future__ import annotations

import random

import omniray
from omniray.engine.reading.change_feed import Changes
from omniray.engine.store.open_store import open_store
from tests.graphs import opened
from tests.kit.s3server import running_server
from tests.stores import Root
from tests.unit.test_changes import *  # noqa: F403


def test_only_files_and_rows_that_changed_are_read() -> None:
    """Two sealed fragments, and an update of a row in one: nothing is read of the other, and little of that one."""
    with running_server() as server:
        root = Root(server.create_bucket("bucket"), server.storage_options)
        schema = "node Doc { name: String @key  data: Blob }"
        with omniray.init(f"{root.uri}/docs", schema=schema, storage_options=root.storage_options) as graph:
            for start in (0, 2000):
                docs = [{"name": f"d{n}", "data": random.randbytes(1000)} for n in range(start, start + 2000)]
                graph.load(docs, type="Doc")
            before = graph.snapshot()
            graph.load([{"name": "d7", "data": b"new"}], type="Doc", mode="merge")
            graph.flush()
            changed, untouched = (f.files[0] for f in before._open(graph.schema.type("Doc")).fragments())
        changes = Changes(opened(open_store(f"{root.uri}/docs", root.storage_options)))
        (step,) = changes.steps(changes.seq_of(before.commit_id), changes.newest_seq())
        server.reset()
        ((kind, rows),) = changes.read(step)
        assert (kind, rows.to_pylist()) == ("update", [{"id": "d7", "name": "d7", "data": b"new"}])
        read = {name: [r.sent_bytes for r in server.requests() if name in r.target] for name in (changed, untouched)}
        assert 0 < sum(read[changed]) < 500_000
        assert read[untouched] == []
