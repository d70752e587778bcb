"""The verbs of branches: `branch create`, `delete`, `rename`, `list` and `merge`, and `diff` and `revert`.

They say the same of a graph that a coordinator serves: it carries out what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from omniray.coordinator.cli.arguments import (
    Actor,
    AsJson,
    Branch,
    Message,
    StorageOptions,
    TxnId,
    Uri,
    actor_or_user,
    examples,
    pairs,
)
from omniray.coordinator.cli.output import Output, Writable, counted, reading, reporting, writing

if TYPE_CHECKING:
    from omniray.engine.branches.branches import BranchChange
    from omniray.engine.branches.diff import GraphDiff
    from omniray.engine.branches.listing import BranchInfo
    from omniray.engine.branches.merge_result import MergeResult

CONFLICTS = "conflicts"

app = typer.Typer(rich_markup_mode=None)
branch_app = typer.Typer(
    help="Branches: many lines of one graph, which cost nothing until they are written.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(branch_app, name="branch")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A branch.")]
NewName = Annotated[
    str, typer.Argument(metavar="NAME", help="Letters, digits and . - _, in parts that are joined by /; not 'main'.")
]
OnConflict = Annotated[
    Literal["fail", "ours", "theirs"],
    typer.Option(
        help="fail: write nothing if both sides changed the same value; ours: keep the value of the branch that is "
        "written; theirs: take the other one."
    ),
]
Preview = Annotated[bool, typer.Option("--preview", help="Say what would come of it, and write nothing.")]


@branch_app.command(
    epilog=examples(
        "omniray branch create ./social trial",
        "omniray branch create ./social team/ann --from trial",
        "omniray branch create s3://bucket/social before-the-move --from 2026-01-31T12:00:00Z",
    )
)
def create(
    uri: Uri,
    name: NewName,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="BRANCH|COMMIT|TIME", help="What it begins with.  [default: the head of main]"),
    ] = None,
    actor: Actor = "",
    message: Message = "",
    txn_id: TxnId = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Create a branch of another one's head, or of any commit or time. No table is touched, however many there are."""
    options = pairs(storage_option, "--storage-option")
    with reporting(as_json) as out, writing(out, uri, options) as graph:
        made = graph.create_branch(name, from_, actor=actor_or_user(actor), message=message, txn_id=txn_id)
        if made.repeated:
            text = f"branch {name} was created before, nothing was done now"
        else:
            text = f"created branch {name}, which begins with commit {made.start}{_with_group(made.start_group)}"
        out.line(text, {**_changed(made), "start": made.start or None, "start_group": made.start_group})


@branch_app.command(
    epilog=examples("omniray branch delete ./social trial", "omniray branch delete ./social team/ann --force")
)
def delete(
    uri: Uri,
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Delete the branches that began on it, too.")] = False,
    actor: Actor = "",
    message: Message = "",
    txn_id: TxnId = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Delete a branch: whoever works on it is told, and a later branch of its name is another one."""
    options = pairs(storage_option, "--storage-option")
    with reporting(as_json) as out, writing(out, uri, options) as graph:
        gone = graph.delete_branch(name, force=force, actor=actor_or_user(actor), message=message, txn_id=txn_id)
        again = f"branch {name} was deleted before, nothing was done now"
        out.line(again if gone.repeated else f"deleted branch {name}", _changed(gone))


@branch_app.command(epilog=examples("omniray branch rename ./social trial kept"))
def rename(
    uri: Uri,
    old: Annotated[str, typer.Argument(metavar="OLD", help="The branch.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")],
    actor: Actor = "",
    message: Message = "",
    txn_id: TxnId = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Give a branch another name; whoever works on it goes on."""
    options = pairs(storage_option, "--storage-option")
    with reporting(as_json) as out, writing(out, uri, options) as graph:
        renamed = graph.rename_branch(old, new, actor=actor_or_user(actor), message=message, txn_id=txn_id)
        again = f"branch {old} was renamed before, nothing was done now"
        out.line(again if renamed.repeated else f"branch {old} is {new} now", _changed(renamed))


@branch_app.command("list", epilog=examples("omniray branch list ./social", "omniray branch list ./social --json"))
def list_(uri: Uri, storage_option: StorageOptions = None, as_json: AsJson = False) -> None:
    """List the branches, with the commits that each is ahead of its parent and behind it."""
    with reading(uri, storage_option, as_json) as (out, graph):
        found = graph.branches()
        rows = [(b.name, b.parent, b.ahead, b.behind, b.head, b.actor, " ".join(b.tables)) for b in found]
        columns = ["branch", "parent", "ahead", "behind", "head", "actor", "tables"]
        out.table("", columns, rows, {"branches": [_info(one) for one in found]})


@branch_app.command(
    epilog=examples(
        "omniray branch merge ./social trial --preview",
        "omniray branch merge ./social trial --message 'what was tried'",
        "omniray branch merge ./social main --into team/ann --on-conflict ours",
        "omniray branch merge ./social 01K9ZQ5T7Z0000000000000000",
    )
)
def merge(
    uri: Uri,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A branch, or a commit of one.")],
    into: Annotated[str, typer.Option("--into", metavar="B", help="The branch that is written.")] = "main",
    preview: Preview = False,
    on_conflict: OnConflict = "fail",
    delete_source: Annotated[bool, typer.Option("--delete-source", help="Delete the branch afterwards.")] = False,
    actor: Actor = "",
    message: Message = "",
    txn_id: TxnId = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Merge a branch into another one, row by row and property by property, as one commit; ends with 4 on conflicts."""
    options = pairs(storage_option, "--storage-option")

    def carry_out(graph: Writable) -> MergeResult:
        return graph.merge(
            source, into, preview=preview, on_conflict=on_conflict, delete_source=delete_source,
            actor=actor_or_user(actor), message=message, txn_id=txn_id,
        )  # fmt: skip

    _merge(carry_out, uri, options, as_json, preview=preview)


@app.command(
    epilog=examples(
        "omniray revert ./social 01K9ZQ5T7Z0000000000000000 --preview",
        "omniray revert ./social 01K9ZQ5T7Z0000000000000000 --branch trial --message 'it was wrong'",
    )
)
def revert(
    uri: Uri,
    commit: Annotated[str, typer.Argument(metavar="COMMIT", help="The commit, as 'omniray history' shows it.")],
    branch: Branch = "main",
    preview: Preview = False,
    on_conflict: OnConflict = "fail",
    actor: Actor = "",
    message: Message = "",
    txn_id: TxnId = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Take back what a commit changed, as a new commit; what was changed again since conflicts, and ends with 4."""
    options = pairs(storage_option, "--storage-option")

    def carry_out(graph: Writable) -> MergeResult:
        return graph.revert(
            commit, branch=branch, preview=preview, on_conflict=on_conflict, actor=actor_or_user(actor),
            message=message, txn_id=txn_id,
        )  # fmt: skip

    _merge(carry_out, uri, options, as_json, preview=preview)


@app.command(
    epilog=examples(
        "omniray diff ./social main trial",
        "omniray diff ./social 01K9ZQ5T7Z0000000000000000 main --type Person --json",
    )
)
def diff(
    uri: Uri,
    before: Annotated[str, typer.Argument(metavar="A", help="A branch, or a commit of one.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Another one: what leads from A to it is shown.")],
    type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only the rows of one type.")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Only how many rows of each type.")] = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Show which rows two branches or commits have differently, and in which properties."""
    with reading(uri, storage_option, as_json) as (out, graph):
        if type is not None:
            graph.schema.type(type)
        with graph.diff(before, after) as found:
            types = [name for name in found.types if type in (None, name)]
            counts = {name: count for name, count in found.counts().items() if name in types}
            document = {**found.as_json(), "types": counts}
            if summary:
                rows: list[Any] = [(name, *count.values()) for name, count in counts.items()]
                out.table(_between(found), ["type", *_kinds(counts)], rows, document)
                return
            changes = [one for name in types for one in _changes(found, name)]
            rows = [(one["type"], one["kind"], one["id"], " ".join(one["changed"])) for one in changes]
            out.table(_between(found), ["type", "change", "id", "properties"], rows, {**document, "changes": changes})


# What is shown


def _changed(change: BranchChange) -> dict[str, Any]:
    return {
        "name": change.name,
        "branch_id": change.branch_id or None,
        "commit_id": change.commit_id,
        "repeated": change.repeated,
    }


def _info(one: BranchInfo) -> dict[str, Any]:
    return {
        "name": one.name,
        "branch_id": one.branch_id,
        "parent": one.parent or None,
        "start": one.start or None,
        "head": one.head,
        "head_at": one.head_at,
        "created_at": one.created_at,
        "actor": one.actor,
        "ahead": one.ahead,
        "behind": one.behind,
        "tables": one.tables,
    }


def _with_group(group: tuple[str, ...]) -> str:
    """What is said of a commit that landed together with others: no state lies between them."""
    return f" and the {counted(len(group) - 1, 'commit')} that landed with it" if len(group) > 1 else ""


def _merge(
    carry_out: Callable[[Writable], MergeResult], uri: str, options: dict[str, str], as_json: bool, *, preview: bool
) -> None:
    """Carry a merge or a revert out and show its result; conflicts are a result, too, and end with their exit code."""
    with reporting(as_json) as out, writing(out, uri, options) as graph:
        from omniray.engine.base.errors import MergeConflicts

        try:
            result = carry_out(graph)
        except MergeConflicts as error:
            _show_conflicts(out, {**error.facts, "outcome": CONFLICTS, "commit_id": None})
            if not as_json:  # else the document says it all
                raise
            has_conflicts = True
        else:
            has_conflicts = result.outcome == CONFLICTS
            _show(out, result, preview=preview)
        code = MergeConflicts.exit_code
    if has_conflicts:
        raise typer.Exit(code)


def _show(out: Output, result: MergeResult, *, preview: bool) -> None:
    document = result.as_json()
    if result.outcome == CONFLICTS:
        _show_conflicts(out, document)
        return
    amount = f"{counted(result.affected_nodes, 'node')} and {counted(result.affected_edges, 'edge')}"
    if result.repeated:
        text = f"done before, nothing was applied now: {amount}, commit {result.commit_id}"
    elif result.outcome == "already_up_to_date":
        text = "already up to date, nothing was committed"
    else:
        what = {"fast_forward": "fast-forwarded", "merged": "merged", "reverted": "reverted"}[result.outcome]
        end = "would change, nothing was written" if preview else f"changed, commit {result.commit_id}"
        text = f"{'would be ' if preview else ''}{what}{_with_group(result.source_group)}: {amount} {end}"
    out.line(f"{text}; {result.source_kept}" if result.source_kept else text, document)


def _show_conflicts(out: Output, document: dict[str, Any]) -> None:
    """The conflicts as a table, or the whole result as a document."""
    columns = ["conflict", "type", "id", "properties", "source", "target", "reason"]
    rows = [
        (
            one["kind"],
            one["type"],
            one["id"],
            " ".join(one["properties"]),
            one["values"]["source"],
            one["values"]["target"],
            one["reason"],
        )
        for one in document["conflicts"]
    ]
    out.table(counted(document["conflict_count"], "conflict"), columns, rows, document)


def _between(found: GraphDiff) -> str:
    return f"from {found.before.commit_id} to {found.after.commit_id}"


def _kinds(counts: dict[str, dict[str, int]]) -> list[str]:
    return list(next(iter(counts.values()), {}))


def _changes(found: GraphDiff, type: str) -> Iterator[dict[str, Any]]:
    """The changed rows of a type, their values in their JSON form."""
    from omniray.engine.rows.export import plain_value

    def plain(row: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if row is None else {name: plain_value(value) for name, value in row.items()}

    for batch in found.reader(type):
        for row in batch.to_pylist():
            yield {"type": type, **row, "before": plain(row["before"]), "after": plain(row["after"])}
