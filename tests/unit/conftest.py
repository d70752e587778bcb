"""Tests without servers: what holds on any root is shown on a disk here, and in tests/s3 on an S3 server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from omniray.engine.base.errors import OmnirayError
from omniray.engine.store.object_store import ObjectStore
from tests.foreign import with_people
from tests.graphs import Parts, create_store, parts_of
from tests.healing import processes_on
from tests.stores import Root


@pytest.fixture
def any_root(disk: Root) -> Root:
    """A folder."""
    return disk


@pytest.fixture(scope="module")
def lasting_root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A folder that the tests of a module share."""
    return Root(str(tmp_path_factory.mktemp("root")), {})


@pytest.fixture
def store(disk: Root) -> ObjectStore:
    """The store of a new graph."""
    return create_store(disk)


@pytest.fixture
def opened(store: ObjectStore) -> Iterator[Callable[..., Parts]]:
    """Opens the graph as one more process, which takes every operation's owner for dead."""
    with processes_on(store) as open_one:
        yield open_one


@pytest.fixture
def parts(store: ObjectStore) -> Iterator[Parts]:
    """One process on the graph."""
    parts = parts_of(store)
    yield parts
    with contextlib.suppress(OmnirayError):  # the test may have left something that can't be finished
        parts.close()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A graph with people, made once and copied for each test."""
    return with_people(Root(str(tmp_path_factory.mktemp("template")), {})).uri
