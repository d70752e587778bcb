"""The names of `omniray.testing` are those that docs/testing.md explains."""

from __future__ import annotations

import re

import omniray.testing
from omniray.coordinator.stress.request_faults import StoreFault
from omniray.coordinator.stress.violation import ListRule
from tests.source import REPOSITORY

DOCUMENT = (REPOSITORY / "docs" / "testing.md").read_text()


def test_every_public_name_is_there_and_documented() -> None:
    names = omniray.testing.__all__
    assert names == sorted(names)
    assert [name for name in names if not hasattr(omniray.testing, name)] == []
    assert [name for name in names if not re.search(rf"\b{name}\b", DOCUMENT)] == []


def test_every_rule_and_fault_is_documented() -> None:
    assert set(re.findall(r"^\| `([a-z_]+)` \| ", DOCUMENT, flags=re.MULTILINE)) >= set(ListRule)
    assert [fault.name for fault in StoreFault if f"`{fault.name}`" not in DOCUMENT] == []
