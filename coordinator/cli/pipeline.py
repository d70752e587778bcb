"""The verbs of pipelines: Spark reads sources, and the valid rows become one commit of a graph.

Spark and the reader of YAML are optional, so they are imported when a pipeline runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from omniray.coordinator.cli.arguments import AsJson, examples
from omniray.coordinator.cli.output import Output, counted, reporting
from omniray.engine.base.errors import InputError
from omniray.engine.base.printable import printable

if TYPE_CHECKING:
    from omniray.workers.spark.pipeline.report import Report

pipeline_app = typer.Typer(
    help="Run pipelines: from Parquet, CSV, JSON or a database into a graph, by Spark.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app = typer.Typer(rich_markup_mode=None)
app.add_typer(pipeline_app, name="pipeline")


@pipeline_app.callback()
def _pipeline() -> None:
    """Without this, typer would take the one verb for the whole command."""


@pipeline_app.command(
    epilog=examples(
        "omniray pipeline run pipeline.yml --dry-run",
        "omniray pipeline run pipeline.yml --branch trial",
        "omniray pipeline run pipeline.yml --run-id 01K9ZQ5T7Z0000000000000000 --json",
    )
)
def run(
    file: Annotated[str, typer.Argument(metavar="PIPELINE.yml", help="What to read, and what becomes of it.")],
    branch: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The branch to commit to.  [default: that of the file, else main]"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read, check and write the rejected rows, but commit nothing.")
    ] = False,
    run_id: Annotated[
        str | None,
        typer.Option(metavar="ULID", help="The id of the run, under which it is committed once.  [default: a new one]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline as one atomic commit; rows that break a rule go to its table of rejects.

    A pipeline file is code: it reads what you may read, and runs as you. Run none that you would not run as a program.
    """
    with reporting(as_json) as out:
        for package in ("yaml", "pyspark"):
            if find_spec(package) is None:
                raise InputError("pipelines need Spark, which is not installed: pip install 'omniray[spark]'")
        from omniray.coordinator.client.client import connect
        from omniray.workers.spark.pipeline.config import read_pipeline
        from omniray.workers.spark.pipeline.run import run as run_pipeline
        from omniray.workers.spark.session import session

        pipeline = read_pipeline(file)  # before Spark is started, which takes a while
        with _progress(out) as tell:
            tell("starting Spark")
            spark = session("omniray pipeline", connect)
            report = run_pipeline(pipeline, spark, connect, branch=branch, run_id=run_id, dry_run=dry_run, tell=tell)
        _show(report, out)


@contextmanager
def _progress(out: Output) -> Iterator[Callable[[str], None]]:
    """Shows each finished step on stderr; on a terminal, the step under way as well."""
    if out.as_json:
        yield lambda sentence: None
    elif not sys.stderr.isatty():
        yield lambda sentence: typer.echo(printable(sentence), err=True)
    else:
        from rich.console import Console

        console = Console(stderr=True, markup=False, highlight=False)
        with console.status("") as status:

            def tell(sentence: str) -> None:
                console.print(printable(sentence), style="dim")
                status.update(printable(sentence))

            yield tell


def _show(report: Report, out: Output) -> None:
    document = report.as_json()
    if out.as_json or not report.types:
        return out.line(str(report), document)
    rows = [(one.type, one.read, one.accepted, one.rejected_rows, one.committed) for one in report.types]
    out.table("", ["type", "read", "accepted", "rejected", "committed"], rows, None)
    if report.rejected:
        reasons = [(one.type, reason, count) for one in report.types for reason, count in one.rejected.items()]
        out.table("", ["type", "reason", "rows"], reasons, None)
    out.line("\n".join(_sentences(report)), None)
    return None


def _sentences(report: Report) -> Sequence[str]:
    told = [str(report)]
    if rejected := sum(report.rejected.values()):
        told.append(f"{counted(rejected, 'row')} rejected, with the reasons in {report.rejects}")
    return told
