"""The verbs of recovery: `recover`, `recoveries`, `repair`, `cleanup` and `outcome`.

A verb that finds something has succeeded: it ends with 0, and its document lists the findings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

import omniray
from omniray.coordinator.cli.arguments import Actor, AsJson, Branch, StorageOptions, Uri, actor_or_user, examples, pairs
from omniray.coordinator.cli.output import coordinated, counted, reading, reporting, writing

if TYPE_CHECKING:
    from omniray import Recovery
    from omniray.engine.maintenance.orphans import TableSweep
    from omniray.engine.maintenance.sweep import SweepReport
    from omniray.engine.recovery.drift import Drift, ForeignVersion
    from omniray.engine.recovery.recoverer import RecoveryReport
    from omniray.engine.recovery.repair import RepairReport

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, None: 1}
_DURATION_MAX_S = 100 * 365 * 86400

app = typer.Typer(rich_markup_mode=None)


@app.command(
    epilog=examples(
        "omniray recover ./social",
        "omniray recover s3://bucket/social --grace 30s",
        "omniray recover ./social --take-over",
    )
)
def recover(
    uri: Uri,
    grace: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="How old an operation must be for its writer on another machine to be taken for dead, such as 30s or "
            "2h; of one on this machine it is known at once.",
        ),
    ] = "10m",
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Take the branch from its coordinator, which is fenced if it lives after all."
        ),
    ] = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Finish or clear away what writers that died have left; opening a graph does so too."""
    options, grace_s = pairs(storage_option, "--storage-option"), seconds(grace, "--grace")
    if grace_s == 0:
        raise typer.BadParameter("0 would take every writer for dead", param_hint="--grace")
    with reporting(as_json) as out, omniray.open(uri, storage_options=options, grace_s=grace_s) as graph:
        if graph.served and not take_over:
            with coordinated(uri, options) as client:
                report = client.recover(grace_s=grace_s)
        else:
            report = graph.recover(take_over=take_over)
        document = _recovered(graph.recovered, report)
        out.line(_recovered_text(document), document)


@app.command(epilog=examples("omniray recoveries ./social --limit 10", "omniray recoveries ./social --json"))
def recoveries(
    uri: Uri,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the newest N.")] = None,
    branch: Branch = "main",
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """List what recoveries did, newest first: one line for each operation that its writer left."""
    with reading(uri, storage_option, as_json) as (out, graph):
        found = graph.recoveries(limit, branch=branch)
        document = {"recoveries": [_recovery(one) for one in found]}
        if not found:
            out.line("nothing had to be recovered so far", document)
            return
        columns = ["time", "recovery", "operation", "kind", "actor", "tables"]
        out.table("", columns, [_recovery_row(one) for one in found], document)


@app.command(
    epilog=examples(
        "omniray repair ./social",
        "omniray repair ./social --discard",
        "omniray repair ./social --adopt --table node:Person",
    )
)
def repair(
    uri: Uri,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Make what was written a commit, if it keeps every rule of the graph.")
    ] = False,
    discard: Annotated[
        bool, typer.Option("--discard", help="Set it aside: the tables hold what the graph committed, and only that.")
    ] = False,
    table: Annotated[
        list[str] | None, typer.Option(metavar="TABLE_KEY", help="Only this table, such as node:Person; repeatable.")
    ] = None,
    actor: Actor = "",
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Show what something other than omniray wrote to the tables, and adopt or discard it if told so."""
    options = pairs(storage_option, "--storage-option")
    if adopt and discard:
        raise typer.BadParameter("give --adopt or --discard, not both", param_hint="--adopt")
    with reporting(as_json) as out, writing(out, uri, options, tells=False) as graph:
        report = graph.repair(adopt=adopt, discard=discard, tables=table, actor=actor_or_user(actor))
        if as_json or not report.found:
            out.line("nothing but omniray has written to the tables", _repaired(report))
            return
        columns = ["table", "committed", "foreign", "operation", "rows", "time"]
        out.table("", columns, [row for drift in report.found for row in _drift_rows(drift)], None)
        out.line(_adopted(report) if adopt else _discarded(report) if discard else _advice(report.found), None)


@app.command(
    epilog=examples(
        "omniray cleanup ./social --orphans --dry-run",
        "omniray cleanup ./social --orphans --older-than 2d",
    )
)
def cleanup(
    uri: Uri,
    orphans: Annotated[bool, typer.Option("--orphans", help="Files that nothing refers to; must be given.")] = False,
    older_than: Annotated[
        str, typer.Option(metavar="TIME", help="Only files older than this, such as 90s, 30m, 1h or 2d.")
    ] = "1h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")] = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Delete files that nothing refers to, such as writers that died leave; writers may go on meanwhile."""
    options, older_than_s = pairs(storage_option, "--storage-option"), seconds(older_than, "--older-than")
    if not orphans:
        raise typer.BadParameter("say what to clean up: --orphans", param_hint="--orphans")
    with reporting(as_json) as out, writing(out, uri, options) as graph:
        report = graph.sweep(older_than_s=older_than_s, dry_run=dry_run)
        out.line(_swept_text(report), _swept(report))


@app.command(epilog=examples("omniray outcome ./social 01K9ZQ5T7Z0000000000000000"))
def outcome(
    uri: Uri,
    txn_id: Annotated[
        str, typer.Argument(metavar="TXN_ID", help="The id of the write: its --txn-id, or the one that an error named.")
    ],
    branch: Branch = "main",
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Say what became of a write whose answer was lost: committed, or not."""
    options = pairs(storage_option, "--storage-option")
    with reporting(as_json) as out, writing(out, uri, options) as graph:
        found = graph.outcome(txn_id, branch=branch)
        fate = "was committed" if found.committed else "was not committed, and no try of it so far will be"
        document = {"txn_id": found.txn_id, "committed": found.committed, "commit_id": found.commit_id}
        out.line(f"{found.txn_id} {fate}", document)


def seconds(text: str, option: str) -> float:
    """`90s`, `30m`, `1h` or `2d` as seconds."""
    found = _DURATION.fullmatch(text.strip())
    length_s = float(found[1]) * _SECONDS[found[2]] if found else _DURATION_MAX_S + 1
    if length_s > _DURATION_MAX_S:
        raise typer.BadParameter(
            f"invalid time {text!r}: write 90s, 30m, 1h or 2d, at most 100 years", param_hint=option
        )
    return length_s


# What a recovery did


def _recovered(opened: RecoveryReport, report: RecoveryReport) -> dict[str, Sequence[str]]:
    """Both reports as one: recoveries when the graph was opened count too; the last report knows best what is left."""
    return {
        "rolled_forward": [*opened.rolled_forward, *report.rolled_forward],
        "rolled_back": [*opened.rolled_back, *report.rolled_back],
        "left": report.left,
        "awaiting_repair": report.awaiting_repair,
    }


def _recovered_text(document: Mapping[str, Sequence[str]]) -> str:
    told = {
        "rolled_forward": "rolled forward: {}, committed before and finished now",
        "rolled_back": "rolled back: {}, never committed and cleared away now",
        "left": "left alone: {} of writers that may live; --grace sets when one on another machine is taken for dead",
        "awaiting_repair": "waiting: {}, since something else wrote to a table; 'omniray repair' shows it",
    }
    lines = [text.format(counted(len(document[key]), "operation")) for key, text in told.items() if document[key]]
    return "\n".join(lines) or "nothing to recover"


def _recovery_row(recovery: Recovery) -> tuple[Any, ...]:
    tables = " ".join(f"{key}={found}" for key, found in recovery.outcomes.items())
    return (
        _time(recovery.created_at_us),
        recovery.recovery_kind,
        recovery.operation_id,
        recovery.sidecar_writer_kind,
        recovery.recovery_for_actor,
        tables,
    )


def _recovery(recovery: Recovery) -> dict[str, Any]:
    return {
        "operation_id": recovery.operation_id,
        "recovery_kind": recovery.recovery_kind,
        "recovery_for_actor": recovery.recovery_for_actor,
        "sidecar_writer_kind": recovery.sidecar_writer_kind,
        "outcomes": dict(recovery.outcomes),
        "actor": recovery.actor,
        "created_at": _time(recovery.created_at_us),
    }


def _time(time_us: int) -> datetime:
    return datetime.fromtimestamp(time_us / 1e6, UTC)


# What was repaired


def _drift_rows(drift: Drift) -> Iterator[tuple[Any, ...]]:
    """A row for each foreign version; one row if they are gone already."""
    if not drift.foreign:
        yield drift.table_key, drift.pinned, drift.head, "no longer there", "", None
    for foreign in drift.foreign:
        yield drift.table_key, drift.pinned, foreign.version, _operation(foreign), _rows(foreign), foreign.at


def _operation(foreign: ForeignVersion) -> str:
    return f"{foreign.operation}, with another schema" if foreign.schema_changed else foreign.operation


def _rows(foreign: ForeignVersion) -> str:
    before = "?" if foreign.rows_before is None else f"{foreign.rows_before:,}"
    return f"{before} -> {foreign.rows_after:,}"


def _advice(found: Sequence[Drift]) -> str:
    hidden = [commit for drift in found for commit in drift.commits_at_stake]
    if hidden:
        return (
            f"nothing was changed. It stands where committed writes belong, so that plain Lance can't see them: "
            f"{', '.join(hidden)}. Stop what wrote it, then set it aside with --discard, which brings them back"
        )
    return (
        "nothing was changed. Stop what wrote it, then make it a commit of the graph with --adopt, "
        "or set it aside with --discard"
    )


def _adopted(report: RepairReport) -> str:
    return f"adopted as commit {report.commit_id}" if report.commit_id else "it was repaired meanwhile by somebody else"


def _discarded(report: RepairReport) -> str:
    lines = ["discarded: the tables hold what the graph committed"]
    if report.commit_id is not None:
        lines[0] += f", by commit {report.commit_id}"
    return "\n".join(lines + [f"set aside as {path}" for path in report.aside])


def _repaired(report: RepairReport) -> dict[str, Any]:
    return {
        "found": report.found,
        "commit_id": report.commit_id,
        "versions": dict(report.versions),
        "aside": report.aside,
    }


# What was swept


def _swept_text(report: SweepReport) -> str:
    amount = report.deleted
    verb = "would be deleted" if report.dry_run else "deleted"
    lines = [f"{counted(amount.files, 'file')} ({counted(amount.bytes, 'byte')}) {verb}"]
    lines += [f"  {_of_table(table)}" for table in report.tables if table.spared or table.orphans]
    if report.unknown.files:
        lines.append(f"left alone: {counted(report.unknown.files, 'file')} of which omniray knows nothing")
    return "\n".join(lines)


def _of_table(table: TableSweep) -> str:
    where = table.table or "outside of the tables"
    if table.spared:
        return f"{where}: spared, {table.spared}"
    return f"{where}: {counted(table.deleted.files, 'file')} ({counted(table.deleted.bytes, 'byte')})"


def _swept(report: SweepReport) -> dict[str, Any]:
    return {
        "dry_run": report.dry_run,
        "swept_before": _time(report.swept_before_us),
        "files": report.deleted.files,
        "bytes": report.deleted.bytes,
        "unknown_files": report.unknown.files,
        "tables": [
            {
                "table": table.table or None,
                "found_files": table.found.files,
                "files": table.deleted.files,
                "bytes": table.deleted.bytes,
                "paths": [file.path for file in table.orphans],
                "spared": table.spared or None,
            }
            for table in report.tables
        ],
    }
