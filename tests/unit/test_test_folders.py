"""Tests of tests/unit need neither servers nor processes, and those that hold on any root run on S3 too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.source import REPOSITORY, belongs_to, imported_modules, python_files, relative

ELSEWHERE = (
    "boto3",
    "moto",
    "multiprocessing",
    "subprocess",
    "pyspark.sql.SparkSession",
    "bench",
    "tests.processes",
    "tests.ray",
    "tests.spark",
)
SERVERS = ("s3", "s3_server", "s3_endpoint", "moto_endpoint", "moto_bucket", "ray_address", "spark")
UNIT = REPOSITORY / "tests" / "unit"


def needs(source: str) -> list[str]:
    """What a test must not need in tests/unit: modules, and fixtures that start a server."""
    modules = [name for _, name in imported_modules(source) if any(belongs_to(name, other) for other in ELSEWHERE)]
    return modules + re.findall(rf"\b(?:{'|'.join(SERVERS)})(?=: [A-Z\w]*[,)])", source)


def test_unit_tests_start_neither_servers_nor_processes() -> None:
    others = [path for path in python_files("tests/unit") if path.name != Path(__file__).name]
    found = {relative(path): needed for path in others if (needed := needs(path.read_text()))}
    assert found == {}


@pytest.mark.parametrize(
    "source", ["import subprocess", "from tests.ray.world import served", "def test_it(s3: Root) -> None: ..."]
)
def test_the_walker_finds_a_test_that_does(source: str) -> None:
    assert needs(source) != []


def test_what_holds_on_any_root_is_shown_on_s3_too() -> None:
    shown = {path.name for path in UNIT.glob("test_*.py") if re.search(r"\b(any|lasting)_root: Root", path.read_text())}
    there = {
        path.name
        for path in (UNIT.parent / "s3").glob("test_*.py")
        if f"from tests.unit.{path.stem} import *" in path.read_text()
    }
    assert there == shown != set()
