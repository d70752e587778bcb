"""The verbs of schemas: `schema show`, `plan` and `lint`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omniray.coordinator.cli.arguments import STDIN, AsJson, Branch, StorageOptions, Uri, examples, pairs, read_text
from omniray.coordinator.cli.output import Output, counted, opening, reading, reporting

if TYPE_CHECKING:
    from omniray.engine.alter.planning import GraphPlan
    from omniray.engine.schema.steps import Step

SUFFIX = ".pg"

app = typer.Typer(
    help="Look at the schema of a graph, and plan its changes.", no_args_is_help=True, rich_markup_mode=None
)


@app.command(epilog=examples("omniray schema show ./social > social.pg", "omniray schema show ./social --branch trial"))
def show(uri: Uri, branch: Branch = "main", storage_option: StorageOptions = None, as_json: AsJson = False) -> None:
    """Print the schema as its author wrote it."""
    with reading(uri, storage_option, as_json, branch=branch) as (out, graph):
        if not as_json:
            out.raw([graph.schema_text.rstrip("\n").encode() + b"\n"])
            return
        from omniray.engine.line.commit_object import FORMAT

        facts = {
            "schema": graph.schema_text,
            "tables": [type.table_key for type in graph.schema],
            "graph_id": graph.graph_id,
            "branch": graph.branch,
            "schema_version": graph.schema_version,
            "schema_hash": graph.schema_hash,
            "format": FORMAT,
        }
        out.line("", facts)


@app.command(
    epilog=examples(
        "omniray schema plan ./social --schema social.pg",
        "omniray schema show ./social | sed 's/age: I32/age: I64/' | omniray schema plan ./social --schema - --json",
    )
)
def plan(
    uri: Uri,
    schema: Annotated[str, typer.Option(metavar="FILE", help="The schema to have, a .pg file ('-' for stdin).")],
    branch: Branch = "main",
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Show the steps from the schema of a graph to another one, what each costs, and which are refused.

    Nothing is written, and it ends with 0 either way.
    """
    options = pairs(storage_option, "--storage-option")
    with reporting(as_json) as out:
        text = read_text(schema)
        with opening(out, uri, options) as graph:
            from omniray.engine.alter.planning import plan_on

            planned = plan_on(graph.snapshot(branch=branch), text)
            columns = ["step", "type", "property", "what", "cost", "data", "refused"]
            rows = [_row(step, planned) for step in planned.steps]
            out.table(_summary(planned), columns, rows, {"uri": graph.uri, **planned.as_json()})


@app.command(
    epilog=examples(
        "omniray schema lint social.pg", "omniray schema lint ./social --json", "cat social.pg | omniray schema lint -"
    )
)
def lint(
    source: Annotated[
        str, typer.Argument(metavar="FILE|URI", help="A schema, a .pg file ('-' for stdin), or where a graph is.")
    ],
    branch: Branch = "main",
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Find what is allowed in a schema and yet seldom meant, and say what to write instead; ends with 0 either way."""
    if _is_file(source):
        with reporting(as_json) as out:
            _lint(out, read_text(source))
        return
    with reading(source, storage_option, as_json, branch=branch) as (out, graph):
        _lint(out, graph.schema_text)


# What is shown


def _is_file(source: str) -> bool:
    """Whether a schema itself is named: a graph is a folder, or lies in a store."""
    return source == STDIN or source.endswith(SUFFIX) or Path(source).is_file()


def _lint(out: Output, text: str) -> None:
    from omniray.engine.schema.lint import lint_schema
    from omniray.engine.schema.parser import parse_schema

    found = lint_schema(parse_schema(text))
    rows = [(one.code, one.type, one.property, one.reason, one.advice) for one in found]
    document = {"finding_count": len(found), "findings": [one.as_json() for one in found]}
    out.table(counted(len(found), "finding"), ["finding", "type", "property", "reason", "advice"], rows, document)


def _summary(planned: GraphPlan) -> str:
    if not planned.steps:
        return f"the schema of {planned.branch} is this one already"
    refused = len(planned.plan.refused(allow_data_loss=True))
    steps = counted(len(planned.steps), "step")
    if refused:
        return f"{steps} from the schema of {planned.branch}, of which {refused} can't be taken"
    needs = ", with --allow-data-loss" if any(step.loses_data for step in planned.steps) else ""
    return f"{steps} from the schema of {planned.branch}; all can be taken{needs}"


def _row(step: Step, planned: GraphPlan) -> tuple[Any, ...]:
    document = step.as_json(planned.rows)
    rows = counted(document["cost"]["rows"], "row")
    cost = {"metadata": "nothing", "backfill": f"writes {rows}", "check": f"checks {rows}"}[document["cost"]["kind"]]
    refusal = "" if step.refusal is None else f"{step.refusal.code}: {step.refusal.reason}; {step.refusal.advice}"
    return step.kind.value, step.type, step.property, _what(step), cost, "is lost" if step.loses_data else "", refusal


def _what(step: Step) -> str:
    """What a step says beside its type and property: `I32 -> I64`, `constraint @unique(a, b)`."""
    details = dict(step.details)
    change = [f"{_shown(details.pop('from'))} -> {_shown(details.pop('to'))}"] if {"from", "to"} <= set(details) else []
    others = (f"{name} {_shown(value)}" for name, value in details.items() if value is not None)
    return ", ".join((*change, *others))


def _shown(value: Any) -> str:
    match value:
        case list():
            return ", ".join(map(str, value)) or "none"
        case dict():
            return "; ".join(f"{name}: {one}" for name, one in value.items()) or "none"
        case None:
            return "none"
    return str(value)
