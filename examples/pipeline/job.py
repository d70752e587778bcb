"""A pipeline as a Spark job: `spark-submit --master … job.py pipeline.yml`.

omniray must be installed where the driver and the executors run.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from omniray.workers.spark.pipeline.run import run_file

if __name__ == "__main__":
    spark = SparkSession.builder.appName("omniray pipeline").getOrCreate()
    print(run_file(sys.argv[1], spark, tell=print))
