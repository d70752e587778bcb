"""The command line: `omniray VERB URI …`, over the engine in this process or a coordinator.

A verb opens the graph, calls one method and shows the result; errors are decided in the engine. Verbs that read write
nothing of their own, but recover the operations of dead writers. The verbs themselves import the engine, since Lance
and DuckDB take a second that `--help` and a mistyped option should not cost.

Exit codes: 0 fine, 1 a bug, 2 usage, 3 bad input, 4 conflict, 5 storage, 6 recovery required.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import omniray
from omniray.coordinator.cli.arguments import (
    Actor,
    AsJson,
    At,
    Branch,
    Durability,
    Message,
    StorageOptions,
    TxnId,
    Uri,
    actor_or_user,
    examples,
    expected_versions,
    load_source,
    pairs,
    parameters,
    read_text,
)
from omniray.coordinator.cli.branches import app as branches_app
from omniray.coordinator.cli.output import counted, reading, reporting, writing
from omniray.coordinator.cli.pipeline import app as pipeline_app
from omniray.coordinator.cli.recovery import app as recovery_app
from omniray.coordinator.cli.schema import app as schema_app
from omniray.coordinator.cli.service import app as service_app
from omniray.coordinator.cli.stress import app as stress_app

if TYPE_CHECKING:
    from omniray import LineageEntry, WriteResult

REJECTS = "rejects.jsonl"

app = typer.Typer(
    name="omniray",
    help="Graphs of Lance tables, with one atomic commit over all of them.",
    epilog="Exit codes: 0 fine, 2 usage, 3 bad input, 4 conflict, 5 storage, 6 recovery required.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(schema_app, name="schema")
app.add_typer(branches_app)
app.add_typer(recovery_app)
app.add_typer(service_app)
app.add_typer(stress_app)
app.add_typer(pipeline_app)


@app.command(
    epilog=examples(
        "omniray init ./social --schema social.pg",
        "omniray init s3://bucket/social --schema social.pg --storage-option aws_region=eu-west-1",
    )
)
def init(
    uri: Uri,
    schema: Annotated[str, typer.Option(metavar="FILE", help="The schema, a .pg file ('-' for stdin).")],
    actor: Actor = "",
    durability: Durability = "process",
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Create a graph where nothing is yet."""
    options = pairs(storage_option, "--storage-option")
    with (
        reporting(as_json) as out,
        omniray.init(
            uri, schema=read_text(schema), storage_options=options, actor=actor_or_user(actor), durability=durability
        ) as graph,
    ):
        born = graph.snapshot().describe()
        text = f"created {graph.uri} with {counted(len(born['tables']), 'table')}, commit {born['commit_id']}"
        out.line(text, {"uri": graph.uri, **born})


@app.command(
    epilog=examples(
        "omniray load ./social people.jsonl knows.jsonl",
        "omniray load ./social Person.parquet --mode merge --actor nightly",
        "omniray load ./social people.csv --type Person --on-error reject --rejects refused.jsonl",
        "omniray export ./social | omniray load ./copy -",
        "omniray load ./social people.jsonl --branch trial",
        "gunzip -c people.csv.gz | omniray load ./social - --format csv --type Person",
    )
)
def load(
    uri: Uri,
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="JSONL, CSV or Parquet files ('-' for stdin).")],
    mode: Annotated[
        Literal["append", "merge", "overwrite"],
        typer.Option(
            help="append: an existing key is a conflict; merge: replace by key; overwrite: replace the touched tables."
        ),
    ] = "append",
    branch: Branch = "main",
    type: Annotated[
        str | None,
        typer.Option("--type", metavar="TYPE", help="All files hold plain rows of this type, JSONL ones too."),
    ] = None,
    format: Annotated[
        Literal["jsonl", "csv", "parquet"] | None,
        typer.Option(help="What all files are, if their names don't tell; of '-' it is jsonl unless told."),
    ] = None,
    actor: Actor = "",
    on_error: Annotated[
        Literal["fail", "reject"],
        typer.Option(help="fail: a bad record ends the load; reject: it is set aside and the others are loaded."),
    ] = "fail",
    rejects: Annotated[
        str | None, typer.Option(metavar="FILE", help=f"Where rejected records go.  [default: {REJECTS}]")
    ] = None,
    message: Message = "",
    txn_id: TxnId = None,
    durability: Durability = "process",
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Load any number of records as one atomic commit."""
    options = pairs(storage_option, "--storage-option")
    if rejects is not None and on_error == "fail":
        raise typer.BadParameter("rejected records are only written with --on-error reject", param_hint="--rejects")
    rejects_to = (rejects or REJECTS) if on_error == "reject" else None
    source, of_format = load_source(files, format)
    with reporting(as_json) as out, writing(out, uri, options, durability=durability) as graph:
        with out.progress_bar() as progress:
            result = graph.load(
                source, mode=mode, branch=branch, type=type, format=of_format, actor=actor_or_user(actor),
                message=message, on_error=on_error, rejects=rejects_to, progress=progress, txn_id=txn_id,
            )  # fmt: skip
        written_to = rejects_to if result.rejected else None
        text = _sentence(result)
        if written_to is not None:
            text += f"\n{counted(result.rejected, 'record')} rejected, with the reasons in {written_to}"
        out.line(text, {**_document(result), "rejected": result.rejected, "rejects": written_to})


@app.command(
    epilog=examples(
        'omniray mutate ./social people.gq --name add_person --params \'{"name": "Ann"}\'',
        "omniray mutate ./social fix.gq --expect node:Person=4",
        "omniray mutate ./social fix.gq --txn-id 01K9ZQ5T7Z0000000000000000",
        "echo 'query old() { delete Person where age > 120 }' | omniray mutate ./social -",
    )
)
def mutate(
    uri: Uri,
    file: Annotated[str, typer.Argument(metavar="FILE.gq", help="A text with the query ('-' for stdin).")],
    name: Annotated[str | None, typer.Option(metavar="QUERY", help="Which query, if the text has several.")] = None,
    params: Annotated[str, typer.Option(metavar="JSON", help="The query's parameters, a JSON object.")] = "{}",
    expect: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE_KEY=VERSION", help="Fail if the table is not at this version; repeatable."),
    ] = None,
    branch: Branch = "main",
    actor: Actor = "",
    message: Message = "",
    txn_id: TxnId = None,
    durability: Durability = "process",
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Run one query (insert, update, delete) as one atomic commit."""
    options = pairs(storage_option, "--storage-option")
    values, expected = parameters(params), expected_versions(expect)
    with reporting(as_json) as out:
        text = read_text(file)
        with writing(out, uri, options, durability=durability) as graph:
            result = graph.mutate(
                text, values, name=name, branch=branch, actor=actor_or_user(actor), message=message,
                expected_versions=expected, txn_id=txn_id,
            )  # fmt: skip
            out.line(_sentence(result), _document(result))


@app.command(
    epilog=examples(
        "omniray snapshot ./social",
        "omniray snapshot ./social --at 2026-01-31T12:00:00Z --json",
        "omniray snapshot ./social --branch trial",
    )
)
def snapshot(
    uri: Uri, at: At = None, branch: Branch = "main", storage_option: StorageOptions = None, as_json: AsJson = False
) -> None:
    """Show every table's version and number of rows, now or as of a commit or a time."""
    with reading(uri, storage_option, as_json) as (out, graph):
        cut = graph.snapshot(branch=branch, at=at).describe()
        rows = [(t["table_key"], t["version"], t["row_count"]) for t in cut["tables"]]
        out.table(f"{cut['branch']} at {cut['commit_id']}", ["table", "version", "rows"], rows, cut)


@app.command(epilog=examples("omniray history ./social --limit 10", "omniray history ./social --branch trial"))
def history(
    uri: Uri,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the newest N commits.")] = None,
    branch: Branch = "main",
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """List the commits of a branch, newest first: its own, then those that it began with."""
    with reading(uri, storage_option, as_json) as (out, graph):
        entries = graph.history(limit, branch=branch)
        rows = [(e.at, e.commit_id, e.kind, e.actor, " ".join(e.tables), e.message) for e in entries]
        document = {"branch": branch, "commits": [_commit(e) for e in entries]}
        out.table("", ["time", "commit", "kind", "actor", "tables", "message"], rows, document)


@app.command(
    epilog=examples(
        "omniray export ./social > social.jsonl",
        "omniray export ./social --type Person --at 01K9ZQ5T7Z0000000000000000 | head",
    )
)
def export(
    uri: Uri,
    type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only the records of one type.")] = None,
    at: At = None,
    branch: Branch = "main",
    storage_option: StorageOptions = None,
    as_json: Annotated[bool, typer.Option("--json", help="Records are JSON anyway; errors too then.")] = False,
) -> None:
    """Write all records to stdout as JSONL that loads back, nodes before edges."""
    with reading(uri, storage_option, as_json) as (out, graph):
        out.raw(graph.snapshot(branch=branch, at=at).export(type))


@app.command(
    epilog=examples(
        'omniray sql ./social "select name, age from Person where age > 40 order by age"',
        'omniray sql ./social "select count(*) from Knows" --at 2026-01-31',
    )
)
def sql(
    uri: Uri,
    query: Annotated[str, typer.Argument(metavar="SELECT", help="One SELECT; every type is a table of its name.")],
    at: At = None,
    branch: Branch = "main",
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Run one SELECT over a snapshot (DuckDB)."""
    with reading(uri, storage_option, as_json) as (out, graph):
        result = graph.snapshot(branch=branch, at=at).sql(query)
        columns = _distinct(result.column_names)
        rows = list(zip(*(column.to_pylist() for column in result.columns), strict=True))
        out.table("", columns, rows, {"columns": columns, "rows": [dict(zip(columns, r, strict=True)) for r in rows]})


@app.command(epilog=examples("omniray version --json"))
def version(as_json: AsJson = False) -> None:
    """Print the version of omniray, of Lance and of the storage format."""
    from importlib.metadata import version as installed

    from omniray.engine.line.commit_object import FORMAT

    with reporting(as_json) as out:
        ours, lance, python = omniray.__version__, installed("pylance"), platform.python_version()
        text = f"omniray {ours} (storage format {FORMAT}, pylance {lance}, Python {python})"
        out.line(text, {"omniray": ours, "format": FORMAT, "pylance": lance, "python": python})


def main() -> None:
    """The console script."""
    app()


# What the verbs share


def _sentence(result: WriteResult) -> str:
    if result.commit_id is None:
        return "nothing changed, nothing was committed"
    nodes, edges = counted(result.affected_nodes, "node"), counted(result.affected_edges, "edge")
    if result.repeated:
        return f"written before, nothing was applied now: {nodes} and {edges}, commit {result.commit_id}"
    return f"{nodes} and {edges} written, commit {result.commit_id}"


def _document(result: WriteResult) -> dict[str, Any]:
    return {
        "commit_id": result.commit_id,
        "affected_nodes": result.affected_nodes,
        "affected_edges": result.affected_edges,
        "versions": dict(result.versions),
        "repeated": result.repeated,
    }


def _commit(entry: LineageEntry) -> dict[str, Any]:
    return {
        "commit_id": entry.commit_id,
        "parent": entry.parent or None,
        "kind": entry.kind,
        "actor": entry.actor,
        "tenant": entry.tenant,
        "at": entry.at,
        "tables": entry.tables,
        "message": entry.message,
        "merged": [one.commit_id for one in entry.merged],
    }


def _distinct(names: Sequence[str]) -> list[str]:
    """Column names with repeated ones numbered, so that each value of a row has a key of its own."""
    distinct: list[str] = []
    for name in names:
        candidate, number = name, 1
        while candidate in distinct:
            number += 1
            candidate = f"{name}_{number}"
        distinct.append(candidate)
    return distinct


if __name__ == "__main__":
    main()
