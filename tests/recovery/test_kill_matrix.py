"""The kill matrix: every kind of writer, killed with SIGKILL at every point that it reaches, heals by itself.

A state is a scenario, a store, a point and how often it was reached. `OMNIRAY_TORTURE=1` runs all of them, without it
the first, second and last time for a disk and the first time for S3. To replay one that a failure names:

    OMNIRAY_KILL=phase_c.after_put@1 pytest tests/recovery -k 'test_whatever and append and disk'
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from bench.s3server import running_server
from tests.recovery.matrix import S3, Disk, Matrix, kills
from tests.recovery.scenarios import SCENARIOS
from tests.recovery.zygote import Zygote, zygote

TORTURE = "OMNIRAY_TORTURE" in os.environ
REPLAYED = os.environ.get("OMNIRAY_KILL", "")
STATES_MIN = 300

pytestmark = pytest.mark.timeout(3600 if TORTURE else 180)


@pytest.fixture(scope="session")
def parent() -> Iterator[Zygote]:
    with zygote() as found:
        yield found


@pytest.fixture(scope="session")
def on_disk(parent: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    return Matrix(Disk(str(tmp_path_factory.mktemp("matrix"))), parent)


@pytest.fixture(scope="session")
def on_s3(parent: Zygote) -> Iterator[Matrix]:
    with running_server() as server:
        server.create_bucket("matrix")
        yield Matrix(S3(server, "matrix"), parent)


@pytest.mark.parametrize("store", ["disk", "s3"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_is_killed_the_graph_is_whole(name: str, store: str, request: pytest.FixtureRequest) -> None:
    matrix: Matrix = request.getfixturevalue(f"on_{store}")
    scenario = SCENARIOS[name]
    template = matrix.template(scenario)
    reached = matrix.reached(scenario, template)
    failures = []
    for doom in kills(scenario, reached, every_time=TORTURE, first_only=store == "s3"):
        if REPLAYED and f"{doom.point}@{doom.nth}" != REPLAYED:
            continue
        try:
            matrix.judge(doom, template)
        except Exception as error:
            failures.append(f"{doom} on {store}: {type(error).__name__}: {error}")
    assert not failures, f"{len(failures)} states:\n" + "\n".join(failures)
