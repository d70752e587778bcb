"""The verb `stress`: runs writers in processes, with chaos if wanted, and shows the checker's verdict."""

from __future__ import annotations

import contextlib
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from omniray.coordinator.cli.arguments import AsJson, StorageOptions, examples, pairs
from omniray.coordinator.cli.output import Output, counted, reporting
from omniray.engine.base.printable import printable

if TYPE_CHECKING:
    from omniray.coordinator.stress.report import Report
    from omniray.coordinator.stress.run import Plan

VIOLATED = 1
SEED_MAX = 1 << 32

app = typer.Typer(rich_markup_mode=None)


@app.command(
    epilog=examples(
        "omniray stress",
        "omniray stress --writers 16 --seconds 120 --chaos",
        "omniray stress --uri s3://bucket/trial --storage-option aws_endpoint=http://localhost:9000 --chaos",
        "omniray stress --chaos --seed 4711 --keep ./histories --json",
        "omniray stress --workload list-append --export-edn history.edn",
    )
)
def stress(
    uri: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Where a graph is created.  [default: on moto, an S3 server of its own]"),
    ] = None,
    workload: Annotated[
        Literal["graph", "list-append"],
        typer.Option(help="What is written: rows and edges of several types, or values at the ends of lists."),
    ] = "graph",
    writers: Annotated[int, typer.Option(min=1, metavar="N", help="How many processes write at once.")] = 4,
    seconds: Annotated[float, typer.Option(min=1, metavar="S", help="How long they write.")] = 30.0,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="K", help="Decides what is written and broken.  [default: random]")
    ] = None,
    chaos: Annotated[
        bool,
        typer.Option("--chaos", help="Kill and freeze writers, actors and a node, and let requests to S3 fail."),
    ] = False,
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep the histories here, also after a clean run.")
    ] = None,
    export_edn: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the history for Elle, as EDN; needs --workload list-append."),
    ] = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Let many processes write to a new graph through a coordinator of its own, and check what became of it."""
    options = pairs(storage_option, "--storage-option")
    if export_edn is not None and workload != "list-append":
        raise typer.BadParameter("only --workload list-append has such a history", param_hint="--export-edn")
    if uri is None and options:
        raise typer.BadParameter("give the --uri that they are for", param_hint="--storage-option")
    with reporting(as_json) as out, _scratch() as scratch, _place(uri, options) as (place, reached_by):
        from omniray.coordinator.stress.run import Plan
        from omniray.coordinator.stress.workloads import Workload

        plan = Plan(
            uri=place, storage_options=reached_by, folder=keep or scratch / "histories",
            writers=writers, seconds=seconds, seed=random.randrange(SEED_MAX) if seed is None else seed, chaos=chaos,
            workload=Workload(workload), edn=export_edn,
        )  # fmt: skip
        report = _run(plan, out)
        if report.ok:
            shutil.rmtree(scratch)
        _show(report, plan, out)
    if not report.ok:
        raise typer.Exit(VIOLATED)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary folder that is removed at the end if it is empty; its user clears it after a clean run."""
    folder = Path(tempfile.mkdtemp(prefix="omniray-stress-"))
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # it is not empty, or gone
            folder.rmdir()


@contextlib.contextmanager
def _place(uri: str | None, options: dict[str, str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Where the graph is created: at a given URI, else in a bucket of an S3 server that ends with the run."""
    from omniray.coordinator.stress.moto_server import s3_bucket

    if uri is not None:
        yield uri, options
        return
    with s3_bucket() as bucket:
        yield f"{bucket.uri}/graph", bucket.storage_options


def _run(plan: Plan, out: Output) -> Report:
    from omniray.coordinator.stress.run import run_stress

    out.note(f"{counted(plan.writers, 'writer')} for {plan.seconds:g} s on {plan.uri}, a new graph; seed {plan.seed}")
    if plan.chaos and plan.uri.startswith("s3://") and plan.breakable_endpoint is None:
        out.note("requests to S3 are not broken: that takes an aws_endpoint that begins with http://")
    try:
        with _progress(out) as tell:
            return run_stress(plan, tell)
    except BaseException:
        if plan.folder.exists():
            out.note(f"what the writers did is in {plan.folder}")
        raise


@contextlib.contextmanager
def _progress(out: Output) -> Iterator[Callable[[object], None]]:
    """A line on the terminal with the progress of the run; none without a terminal."""
    if out.as_json or not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("starting Ray and the writers") as status:
        yield lambda progress: status.update(escape(printable(str(progress))))


def _show(report: Report, plan: Plan, out: Output) -> None:
    from omniray.coordinator.stress.report import show

    kept = plan.folder if plan.folder.exists() else None
    if out.as_json:
        out.line("", {**report.as_json(), "uri": plan.uri, "histories": kept})
        return
    from rich.console import Console

    show(report, Console())
    if kept is not None:
        out.line(f"the histories are in {kept}", None)
