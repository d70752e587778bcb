"""Several writers that share a graph for real, as both workloads are tried."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import omniray
from omniray.coordinator.stress.workloads import RunWriter

WRITERS = 4
SEED = 20


@contextmanager
def written_by_several(folder: Path, schema: str, run_writer: RunWriter, ops: int) -> Iterator[omniray.Graph]:
    """A graph on a disk on which writers have worked at once, two to a handle; their histories are in the folder."""
    with omniray.init(folder / "graph", schema=schema) as one, omniray.open(one.uri) as another:
        with ThreadPoolExecutor(WRITERS) as pool:
            runs = [
                pool.submit(run_writer, graph, seed=SEED, writer_no=number, history_path=path, ops=ops)
                for number, graph in enumerate([one, one, another, another])
                for path in [folder / f"writer-{number:04}.jsonl"]
            ]
            for run in runs:
                run.result()
        yield one
