"""One Ray for all of these tests, and a graph on it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.processes.crew import Member
from tests.ray.drivers import crew
from tests.ray.world import Served, local_ray, served
from tests.stores import Root

_REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """A Ray with two processors; each xdist worker that needs one has its own."""
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(_REPOSITORY / "src"), str(_REPOSITORY), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))  # actors import the tests' faults
        with local_ray() as address:
            yield address


@pytest.fixture(scope="session")
def members(ray_address: str) -> Iterator[Sequence[Member]]:
    """Client processes."""
    with crew() as members:
        yield members


@pytest.fixture(scope="module")
def graph(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A graph on disk, served once for a module: its tests write under names of their own."""
    with served(Root(str(tmp_path_factory.mktemp("root")), {}), ray_address) as one:
        yield one
