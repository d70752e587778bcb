"""A real Spark on this machine, one for all tests of a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from omniray.coordinator.actors import cluster
from tests.ray.world import local_ray

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parents[2]
SETTINGS = {
    "spark.master": "local[2,3]",  # a task that dies is tried again, as on a cluster
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    # Plans of a few rows are run faster than they are compiled.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Java lives for a few minutes here, which is too short for its second compiler and parallel collectors to pay.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with the data source; Spark never forgets that it had one, so there is one for all tests."""
    from omniray.spark import session

    paths = [str(HERE / "src"), str(HERE), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)  # Spark's workers import the tests too
    found = session("omniray-tests", SETTINGS)
    found.sparkContext.setLogLevel("ERROR")
    yield found
    found.stop()


@pytest.fixture(scope="module")
def ray_address(spark: SparkSession) -> Iterator[str]:
    """The Ray of other tests, if it runs; else one that finds the tests as Spark's workers do."""
    if cluster.ray().is_initialized():
        yield cluster.address()
        return
    with local_ray() as address:
        yield address
