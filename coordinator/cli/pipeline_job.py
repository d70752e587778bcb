"""Run a pipeline where Spark has been told what to do: `spark-submit … cli/pipeline_job.py pipeline.yml`."""

from __future__ import annotations

import argparse
import json
import sys

from omniray.coordinator.client.client import connect
from omniray.engine.base.errors import OmnirayError
from omniray.engine.base.printable import printable
from omniray.workers.spark.pipeline.config import read_pipeline
from omniray.workers.spark.pipeline.run import run
from omniray.workers.spark.session import session


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m omniray.coordinator.cli.pipeline_job", description=__doc__)
    parser.add_argument("file", metavar="pipeline.yml")
    parser.add_argument("--branch", metavar="NAME", help="the branch to commit to, instead of the file's")
    parser.add_argument("--dry-run", action="store_true", help="do everything but the commit")
    parser.add_argument("--run-id", metavar="ULID", help="the run's id, under which it is committed once")
    given = parser.parse_args()
    try:
        spark = session("omniray pipeline", connect)
        pipeline = read_pipeline(given.file)
        report = run(
            pipeline, spark, connect, branch=given.branch, run_id=given.run_id, dry_run=given.dry_run, tell=_tell
        )
    except OmnirayError as error:
        print(printable(f"error: {error}"), file=sys.stderr)
        return error.exit_code
    print(json.dumps(report.as_json()))
    return 0


def _tell(sentence: str) -> None:
    print(printable(sentence), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
