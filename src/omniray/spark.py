"""omniray on Spark: `session` or `register` for the data source, `transaction`, `to_ray`, `run_pipeline`.

Needs `omniray[spark]`. Passes the coordinator's `connect` to the Spark workers, which don't import the coordinator.
"""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from os import PathLike
from typing import TYPE_CHECKING, Any

if find_spec("pyspark") is None:
    raise ImportError("Spark is not installed: pip install 'omniray[spark]'")

from omniray.workers.spark import session as _session
from omniray.workers.spark import source as _source
from omniray.workers.spark.handoff import to_ray
from omniray.workers.spark.transaction import SparkTransaction, transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from omniray.coordinator.client.client import Client
    from omniray.workers.spark.pipeline.report import Report

__all__ = ["SparkTransaction", "register", "run_pipeline", "session", "to_ray", "transaction"]


def session(app_name: str, settings: Mapping[str, str] | None = None) -> "SparkSession":
    """The active session, or a new one, with the `omniray` data source; `spark-submit` says where it runs."""
    return _session.session(app_name, connect, settings)


def register(spark: "SparkSession") -> None:
    """Register the data source with a session of your own; a second call does nothing."""
    _source.register(spark, connect)


def run_pipeline(
    path: str | PathLike[str],
    spark: "SparkSession | None" = None,
    *,
    branch: str | None = None,
    run_id: str | None = None,
    dry_run: bool = False,
    tell: Callable[[str], None] = lambda sentence: None,
) -> "Report":
    """Run a pipeline file as one commit, in the given session, else in the active one, else in a new one.

    `branch` is where it is committed, instead of the branch that the file names.
    """
    from omniray.workers.spark.pipeline.config import read_pipeline
    from omniray.workers.spark.pipeline.run import run

    spark = spark or session("omniray pipeline")
    return run(read_pipeline(path), spark, connect, branch=branch, run_id=run_id, dry_run=dry_run, tell=tell)


def connect(uri: str, **options: Any) -> "Client":
    """`omniray.connect`, imported when a task first needs it: Spark's processes unpickle it by this name."""
    from omniray.coordinator.client.client import connect

    return connect(uri, **options)
