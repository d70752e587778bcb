"""A pipeline as a Spark job: `spark-submit --master … job.py pipeline.yml`.

omniray must be installed where the driver and the executors run.
"""

from __future__ import annotations

import sys

from omniray.spark import run_pipeline

if __name__ == "__main__":
    print(run_pipeline(sys.argv[1], tell=print))
