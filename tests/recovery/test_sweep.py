"""The sweep after a real kill."""

from __future__ import annotations

import subprocess
import sys

import pytest

import omniray
from omniray.engine.base.failpoints import Point
from omniray.engine.store.object_store import ObjectStore
from tests.commands import environment
from tests.graphs import create_store, parts_of, people
from tests.stores import Root
from tests.unit.test_sweep import PEOPLE, Aged, Swept, verdict

_KILLED = """
import sys, omniray
with omniray.open(sys.argv[1], storage_options=eval(sys.argv[2])) as graph:
    graph.load([{"name": f"{number:05}"} for number in range(20_000)], type="Person")
"""


def files_of_people(store: ObjectStore) -> list[str]:
    """Without the hint that Lance leaves itself on a disk."""
    return [file.path for file in store.files(PEOPLE) if not file.path.endswith("hint.json")]


@pytest.mark.parametrize("point", [Point.STAGE_AFTER_ROWS, Point.C_BEFORE_PUT])
def test_what_a_killed_load_left_is_spared_until_it_is_recovered_and_deleted_then(any_root: Root, point: Point) -> None:
    store = create_store(any_root)
    before = files_of_people(store)
    command = [sys.executable, "-c", _KILLED, store.uri, repr(any_root.storage_options)]
    killed = subprocess.run(command, env=environment(OMNIRAY_FAILPOINTS=f"{point}=kill"), check=False)
    assert killed.returncode == -9
    parts, aged = parts_of(store), Aged(store)
    swept = Swept(aged, parts, [], None)  # type: ignore[arg-type]
    aged.age()
    assert verdict(swept.sweep(), PEOPLE).spared != ""
    with omniray.open(store.uri, storage_options=any_root.storage_options) as graph:
        assert people(graph) == []
    assert swept.sweep().deleted.files > 0
    assert files_of_people(store) == before
    parts.close()
