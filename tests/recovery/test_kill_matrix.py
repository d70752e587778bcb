"""The kill matrix: every kind of writer, killed with SIGKILL at every point that it reaches, heals by itself.

A state is a scenario, a store, a point and how often it was reached. `make torture` runs all of them, `make test` those
for which there is always time. To replay one that a failure names:

    OMNIRAY_KILL=phase_c.after_put@1 pytest tests/recovery -k 'test_whatever and append and disk'
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from omniray.engine.base.failpoints import Point
from tests.kit.s3server import running_server
from tests.recovery.branch_scenarios import OF_BRANCHES
from tests.recovery.matrix import S3, Disk, Matrix, Template, all_kills, some_kills
from tests.recovery.scenarios import SCENARIOS, Kill
from tests.recovery.zygote import Zygote, zygote

TORTURE = "OMNIRAY_TORTURE" in os.environ
REPLAYED = os.environ.get("OMNIRAY_KILL", "")
STATES_MIN = 300
STORES = ("disk", "s3")

pytestmark = pytest.mark.timeout(3600 if TORTURE else 180)


@pytest.fixture(scope="module")
def parent() -> Iterator[Zygote]:
    with zygote() as found:
        yield found


@pytest.fixture(scope="module")
def on_disk(parent: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    return Matrix(Disk(str(tmp_path_factory.mktemp("matrix"))), parent)


@pytest.fixture(scope="module")
def on_s3(parent: Zygote) -> Iterator[Matrix]:
    with running_server() as server:
        server.create_bucket("matrix")
        yield Matrix(S3(server, "matrix"), parent)


def judge_all(matrix: Matrix, template: Template, dooms: Iterable[Kill], where: str) -> int:
    """Judge states one after the other, and tell of all that failed; says how many there were."""
    dooms = [doom for doom in dooms if REPLAYED in ("", f"{doom.point}@{doom.nth}")]
    failures, killed = [], 0
    for doom in dooms:
        try:
            killed += matrix.judge(doom, template)
        except Exception as error:
            failures.append(f"{doom} on {where}: {type(error).__name__}: {error}")
    assert not failures, f"{len(failures)} of {len(dooms)} states are not whole:\n" + "\n".join(failures)
    return killed


@pytest.mark.parametrize(
    ("name", "store"),
    [(s.name, store) for store in STORES for s in SCENARIOS.values() if TORTURE or store == "disk" or s.on_s3],
)
def test_whatever_is_killed_the_graph_is_whole(
    name: str,
    store: str,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    """Fault: SIGKILL. Expectation: opening the graph afresh heals it, and what was acknowledged is there once."""
    matrix: Matrix = request.getfixturevalue(f"on_{store}")
    scenario = SCENARIOS[name]
    template = matrix.template(scenario)
    reached = matrix.reached(scenario, template)
    dooms = all_kills(scenario, reached) if TORTURE else some_kills(scenario, reached, store)
    record_property("states", judge_all(matrix, template, dooms, store))


@pytest.mark.skipif(not TORTURE, reason="the square of the matrix is for make torture")
@pytest.mark.parametrize("first", ["append", "staged", "overtaken"])
def test_whatever_was_killed_a_recovery_of_it_can_be_killed_too(
    first: str, on_disk: Matrix, record_property: Callable[[str, object], None]
) -> None:
    """Every state that the first kill leaves, then a recovery killed at every point that it reaches there."""
    killed = SCENARIOS[first]
    template = on_disk.template(killed)
    states = 0
    for doom in all_kills(killed, on_disk.reached(killed, template)):
        recovery = replace(SCENARIOS["recover_back"], left=(doom,))
        remains = on_disk.template(recovery)
        dooms = all_kills(recovery, on_disk.reached(recovery, remains))
        states += judge_all(on_disk, remains, dooms, f"disk after {doom}")
    record_property("states", states)


def test_the_matrix_leaves_no_point_out_and_has_states_enough(
    on_disk: Matrix, record_property: Callable[[str, object], None]
) -> None:
    reached = {name: on_disk.reached(s, on_disk.template(s)) for name, s in SCENARIOS.items()}
    chosen = {store: [k for n, s in SCENARIOS.items() for k in some_kills(s, reached[n], store)] for store in STORES}
    everything = len(STORES) * sum(sum(points.values()) for points in reached.values())
    for store, dooms in chosen.items():
        left_out = set(Point) - OF_BRANCHES - {doom.point for doom in dooms}
        assert left_out == set(), f"points at which nobody is killed on {store}"
    count = sum(map(len, chosen.values()))
    record_property("matrix", f"{count} states in make test, {everything} in make torture")
    assert STATES_MIN <= count <= everything
