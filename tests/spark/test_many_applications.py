"""Spark applications and Python writers on one graph on S3 at once, judged by the checker of the stress test."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import omniray
from omniray.coordinator.stress.checker import check
from omniray.coordinator.stress.final_graph import FinalGraph
from omniray.coordinator.stress.history import Succeeded, merge_histories, read_history
from omniray.coordinator.stress.operation import SCHEMA
from tests.ray.world import Served
from tests.stores import Root

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800)]

APPLICATIONS, WRITERS, STEPS, WRITER_STEPS = 3, 8, 25, 60


@pytest.mark.skipif("OMNIRAY_TORTURE" not in os.environ, reason="starts three JVMs")
def test_spark_applications_and_python_writers_share_a_graph(s3: Root, ray_address: str, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    uri = f"{s3.uri}/graph"
    omniray.init(uri, schema=SCHEMA, storage_options=s3.storage_options).close()
    graph = Served(s3, uri, ray_address)
    kinds = [("spark", STEPS)] * APPLICATIONS + [("python", WRITER_STEPS)] * WRITERS
    with graph.connect() as client:
        everybody = [_writer(graph, kind, seed, n, steps, tmp_path) for n, (kind, steps) in enumerate(kinds)]
        assert [writer.wait() for writer in everybody] == [0] * len(kinds)
        client.flush()
    graph.down()
    events = merge_histories(map(read_history, sorted(tmp_path.glob("*.jsonl"))))
    with graph.open() as final:
        verdict = check(events, FinalGraph.of(final))
    assert verdict.violations == ()
    landed = Counter(event.writer for event in events if isinstance(event, Succeeded))
    assert landed.keys() == set(range(len(kinds)))
    print(f"{landed.total()} writes landed, {sum(landed[n] for n in range(APPLICATIONS))} of them through Spark")


def _writer(graph: Served, kind: str, seed: int, number: int, steps: int, folder: Path) -> subprocess.Popen[bytes]:
    options = json.dumps(graph.root.storage_options)
    arguments = [kind, graph.uri, options, graph.address, seed, number, folder / f"{number}.jsonl", steps]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-m", "tests.spark.application", *map(str, arguments)], env=environment)
