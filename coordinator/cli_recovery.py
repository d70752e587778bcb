"""The verbs that heal: what writers left, what others wrote, what nothing refers to, what became of a write."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

import omniray
from omniray.coordinator.cli_arguments import Actor, AsJson, StorageOptions, Uri, actor_or_user, examples, pairs
from omniray.coordinator.cli_output import counted, reporting

if TYPE_CHECKING:
    from omniray import Drift, Recovery, RepairReport, SweepReport

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, None: 1}

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
        str, typer.Option(metavar="TIME", help="When a writer on another machine is taken for dead, such as 30s or 2h.")
    ] = "10m",
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Hand the branch of a coordinator that is gone for good back.")
    ] = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Finish or clear away what writers that died have left; opening a graph does so too."""
    options, grace_s = pairs(storage_option, "--storage-option"), seconds(grace, "--grace")
    with reporting(as_json) as out, omniray.open(uri, storage_options=options, grace_s=grace_s) as graph:
        opened, report = graph.recovered, graph.recover(take_over=take_over)
        document = {
            "rolled_forward": [*opened.rolled_forward, *report.rolled_forward],
            "rolled_back": [*opened.rolled_back, *report.rolled_back],
            "left": report.left,
            "awaiting_repair": report.awaiting_repair,
        }
        out.line(_recovered(document), document)


@app.command(epilog=examples("omniray recoveries ./social --limit 10", "omniray recoveries ./social --json"))
def recoveries(
    uri: Uri,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the newest N.")] = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """List what recoveries did, newest first: one line for each operation that its writer left."""
    options = pairs(storage_option, "--storage-option")
    with reporting(as_json) as out, omniray.open(uri, storage_options=options) as graph:
        found = graph.recoveries(limit)
        columns = ["time", "operation", "did", "to a", "of actor", "tables"]
        rows = [
            (_time(r), r.operation_id, r.recovery_kind, r.sidecar_writer_kind, r.recovery_for_actor, _outcomes(r))
            for r in found
        ]
        out.table("", columns, rows, {"recoveries": [_recovery(r) for r in found]})


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
        bool, typer.Option("--adopt", help="Make the foreign rows a commit, if they keep the rules.")
    ] = False,
    discard: Annotated[
        bool, typer.Option("--discard", help="Set aside what was written behind the graph's back.")
    ] = False,
    table: Annotated[
        list[str] | None, typer.Option(metavar="TABLE_KEY", help="Only this table, such as node:Person; repeatable.")
    ] = None,
    actor: Actor = "",
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Show which tables something other than omniray wrote to, and adopt or discard that."""
    options = pairs(storage_option, "--storage-option")
    if adopt and discard:
        raise typer.BadParameter("give --adopt or --discard, not both", param_hint="--adopt")
    with reporting(as_json) as out, omniray.open(uri, storage_options=options) as graph:
        report = graph.repair(adopt=adopt, discard=discard, tables=table, actor=actor_or_user(actor))
        if as_json or not report.found:
            out.line("no table was written to by anything but omniray", _repaired(report))
            return
        columns = ["table", "what", "pinned", "HEAD", "versions of others"]
        out.table("", columns, [_drift_row(drift) for drift in report.found], None)
        out.line(_repair_sentence(report, acted=adopt or discard), None)


@app.command(
    epilog=examples(
        "omniray cleanup ./social --orphans --dry-run",
        "omniray cleanup ./social --orphans --older-than 2d",
    )
)
def cleanup(
    uri: Uri,
    orphans: Annotated[bool, typer.Option("--orphans", help="Delete files that nothing refers to.")] = False,
    older_than: Annotated[
        str, typer.Option(metavar="TIME", help="Only files older than this, such as 90s, 30m, 1h, 2d.")
    ] = "1h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")] = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Delete what writers that died left behind and nothing refers to."""
    options, older_than_s = pairs(storage_option, "--storage-option"), seconds(older_than, "--older-than")
    if not orphans:
        raise typer.BadParameter("say what to clean up: --orphans", param_hint="--orphans")
    with reporting(as_json) as out, omniray.open(uri, storage_options=options) as graph:
        report = graph.sweep(older_than_s=older_than_s, dry_run=dry_run)
        out.line(_swept_sentence(report), _swept(report))


@app.command(epilog=examples("omniray outcome ./social 01K9ZQ5T7Z0000000000000000"))
def outcome(
    uri: Uri,
    txn_id: Annotated[str, typer.Argument(metavar="TXN_ID", help="The id of the write, as its error named it.")],
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Say what became of a write whose answer was lost: committed, or not and never to be."""
    options = pairs(storage_option, "--storage-option")
    with reporting(as_json) as out, omniray.open(uri, storage_options=options) as graph:
        found = graph.outcome(txn_id)
        text = f"{found.txn_id} was committed" if found.committed else f"{found.txn_id} was not committed"
        out.line(text, {"txn_id": found.txn_id, "committed": found.committed, "commit_id": found.commit_id})


def seconds(text: str, option: str) -> float:
    """`90s`, `30m`, `1h` or `2d` as seconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no time: write 90s, 30m, 1h or 2d", param_hint=option)
    return float(found[1]) * _SECONDS[found[2]]


# What is shown


def _recovered(document: dict[str, Any]) -> str:
    forward, back = len(document["rolled_forward"]), len(document["rolled_back"])
    lines = [f"{counted(forward, 'operation')} rolled forward, {counted(back, 'operation')} rolled back"]
    if document["left"]:
        lines.append(f"{counted(len(document['left']), 'operation')} left to writers that live, or may")
    if document["awaiting_repair"]:
        waiting = counted(len(document["awaiting_repair"]), "operation")
        lines.append(f"{waiting} can't be finished before 'omniray repair': something else wrote to a table")
    return "\n".join(lines)


def _time(recovery: Recovery) -> datetime:
    return datetime.fromtimestamp(recovery.created_at_us / 1e6, UTC)


def _outcomes(recovery: Recovery) -> str:
    return " ".join(f"{key}={outcome}" for key, outcome in recovery.outcomes.items())


def _recovery(recovery: Recovery) -> dict[str, Any]:
    return {
        "operation_id": recovery.operation_id,
        "recovery_kind": recovery.recovery_kind,
        "recovery_for_actor": recovery.recovery_for_actor,
        "sidecar_writer_kind": recovery.sidecar_writer_kind,
        "outcomes": dict(recovery.outcomes),
        "actor": recovery.actor,
        "created_at": _time(recovery),
    }


def _drift_row(drift: Drift) -> tuple[Any, ...]:
    others = ", ".join(f"{f.version}: {f.operation} ({f.rows_after:,} rows)" for f in drift.foreign)
    return drift.table_key, str(drift.kind), drift.pinned, drift.head, others


def _repair_sentence(report: RepairReport, *, acted: bool) -> str:
    if not acted:
        return "nothing was changed; --adopt makes it a commit of the graph, --discard sets it aside"
    if report.commit_id is not None:
        return f"repaired as commit {report.commit_id}"
    aside = f"; set aside: {', '.join(report.aside)}" if report.aside else ""
    return f"repaired{aside}"


def _repaired(report: RepairReport) -> dict[str, Any]:
    return {
        "found": report.found,
        "commit_id": report.commit_id,
        "versions": dict(report.versions),
        "aside": report.aside,
    }


def _swept_sentence(report: SweepReport) -> str:
    amount = report.deleted
    verb = "would be deleted" if report.dry_run else "deleted"
    lines = [f"{counted(amount.files, 'file')} ({amount.bytes:,} bytes) {verb}"]
    lines += [f"{table.table} was spared: {table.spared}" for table in report.tables if table.spared]
    if report.unknown.files:
        lines.append(f"{counted(report.unknown.files, 'file')} that omniray does not know left alone")
    return "\n".join(lines)


def _swept(report: SweepReport) -> dict[str, Any]:
    return {
        "dry_run": report.dry_run,
        "swept_before": datetime.fromtimestamp(report.swept_before_us / 1e6, UTC),
        "files": report.deleted.files,
        "bytes": report.deleted.bytes,
        "unknown_files": report.unknown.files,
        "tables": [
            {
                "table": table.table,
                "found_files": table.found.files,
                "deleted_files": table.deleted.files,
                "deleted_bytes": table.deleted.bytes,
                "spared": table.spared or None,
            }
            for table in report.tables
        ],
    }
