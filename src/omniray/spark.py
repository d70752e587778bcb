"""omniray on Spark: `register` the data source, begin a `transaction`, hand frames `to_ray`; needs `omniray[spark]`."""

from importlib.util import find_spec

if find_spec("pyspark") is None:
    raise ImportError("Spark is not installed: pip install 'omniray[spark]'")

from omniray.workers.spark.handoff import to_ray
from omniray.workers.spark.session import session
from omniray.workers.spark.source import register
from omniray.workers.spark.transaction import SparkTransaction, transaction

__all__ = ["SparkTransaction", "register", "session", "to_ray", "transaction"]
