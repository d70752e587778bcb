"""The verbs of the coordinator: `up`, `status` and `down`. Each finds the coordinator by the graph alone."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

import omniray
from omniray.coordinator.cli.arguments import AsJson, Branch, Durability, StorageOptions, Uri, examples, pairs
from omniray.coordinator.cli.output import Output, coordinated, reporting
from omniray.coordinator.client.starting import OPTIONS_ON_STDIN, UNTIL_IDLE, Terms, refuse_without_ray

if TYPE_CHECKING:
    from omniray import Graph
    from omniray.coordinator.actors.hosting import Hosted
    from omniray.coordinator.cli.status import Lookout

DRAIN_TIMEOUT_S = 60.0

app = typer.Typer(rich_markup_mode=None)


@app.command(
    epilog=examples(
        "omniray up ./social",
        "omniray up s3://bucket/social --detach",
        "omniray up s3://bucket/social --address auto --take-over",
    )
)
def up(
    uri: Uri,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background; the command ends when the coordinator answers.")
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDR",
            help="The Ray cluster to run on: HOST:PORT, auto, or local for one of its own.  [default: $RAY_ADDRESS, "
            "else the cluster that this machine is part of, else local]",
        ),
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Serve the graph whoever did so far: a coordinator of another cluster is fenced, one of this cluster "
            "ends with this command.",
        ),
    ] = False,
    until_idle: Annotated[
        float | None,
        typer.Option(UNTIL_IDLE, min=1, metavar="SECONDS", help="End when no client has been connected for so long."),
    ] = None,
    durability: Durability = "process",
    storage_option: StorageOptions = None,
    options_on_stdin: Annotated[bool, typer.Option(OPTIONS_ON_STDIN, hidden=True)] = False,
    as_json: AsJson = False,
) -> None:
    """Serve a graph: many writers in any number of processes, committed together. Ctrl-C drains and ends it."""
    options = json.load(sys.stdin) if options_on_stdin else pairs(storage_option, "--storage-option")
    with reporting(as_json) as out, omniray.open(uri, storage_options=options, read_only=True) as graph:
        refuse_without_ray()
        terms = Terms(uri, options, address, durability)
        if detach:
            _detach(out, graph, terms, take_over=take_over, until_idle=until_idle)
        else:
            _serve(out, graph, terms, take_over=take_over, until_idle=until_idle)


@app.command(
    epilog=examples(
        "omniray status ./social", "omniray status s3://bucket/social --watch", "omniray status . --branch trial --json"
    )
)
def status(
    uri: Uri,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every second, until Ctrl-C.")] = False,
    branch: Branch = "main",
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Show the coordinator that serves a graph: queues, rounds, latencies; ends with 0 only if it answers."""
    options = pairs(storage_option, "--storage-option")
    with reporting(as_json) as out, omniray.open(uri, storage_options=options, read_only=True) as graph:
        from omniray.coordinator.cli.status import COLUMNS, Lookout, document, rows

        lookout = Lookout(graph, uri, options, branch)
        try:
            if watch:
                _watch(out, lookout)
            else:
                seen = lookout.look()
                out.table("", COLUMNS, rows(seen), document(seen))
        finally:
            lookout.leave()


@app.command(epilog=examples("omniray down ./social", "omniray down s3://bucket/social --timeout 300"))
def down(
    uri: Uri,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="How long to wait for writes that are under way.")
    ] = DRAIN_TIMEOUT_S,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Take the coordinator down: what it accepted is committed first, then everybody may write without it."""
    options = pairs(storage_option, "--storage-option")
    with reporting(as_json) as out, omniray.open(uri, storage_options=options, read_only=True) as graph:
        if not graph.served:
            out.line("no coordinator serves this graph", {"uri": graph.uri, "address": None, "url": None})
            return
        with coordinated(uri, options) as client:
            serving = client.status()
            client.down(timeout)
        out.line(
            f"the coordinator at {serving.url} was drained and taken down",
            {"uri": graph.uri, "address": serving.address, "url": serving.url},
        )


# Up


def _serve(out: Output, graph: Graph, terms: Terms, *, take_over: bool, until_idle: float | None) -> None:
    """Serve in the foreground. A coordinator that another process started is left running, unless taken over."""
    from omniray.coordinator.actors import cluster
    from omniray.coordinator.actors.hosting import host
    from omniray.coordinator.cli import upkeep

    # A named cluster may be where it is served; none, and one of its own, would be another Ray for nothing.
    if terms.address in (None, cluster.LOCAL) and not take_over and (began := _served_already(graph, terms)):
        return _stay_beside(out, graph, began)
    already = None if take_over else graph.owner
    try:
        hosted = host(
            graph, terms.uri, terms.storage_options, terms.address, take_over=take_over, durability=terms.durability
        )
        with upkeep.asked_by_signals() as asked_to_end:  # after `host`: Ray sets handlers of its own when it is joined
            began = _began(hosted, graph, already)
            is_ours = not began["joined"]
            out.line(_began_text(began), began)
            idle = upkeep.Idleness(hosted.clients, until_idle if is_ours else None)
            fate = upkeep.stay(partial(upkeep.look, graph, hosted), hosted.address, asked_to_end, idle)
            if farewell := upkeep.farewell(fate, is_ours=is_ours):
                out.note(farewell)
            if is_ours:
                upkeep.end(fate, hosted, DRAIN_TIMEOUT_S)
    finally:
        cluster.leave()
    return upkeep.refuse_lost(fate, graph, hosted.address)


def _served_already(graph: Graph, terms: Terms) -> dict[str, Any] | None:
    """The document about the coordinator that answers at its door, if there is one."""
    from omniray.engine.base.errors import Unreachable
    from omniray.engine.line.owner import is_owner_known_dead

    if not graph.served or is_owner_known_dead(graph.owner):
        return None
    try:
        with coordinated(terms.uri, terms.storage_options or {}) as client:
            seen = client.status()
    except Unreachable:
        return None
    found = {"uri": graph.uri, "url": seen.url, "address": seen.address, "owner": seen.owner, "epoch": seen.epoch}
    return {**found, "joined": True}


def _stay_beside(out: Output, graph: Graph, began: dict[str, Any]) -> None:
    """Watch a coordinator that another process started, until a signal or its end."""
    from omniray.coordinator.cli import upkeep

    address = began["address"]
    with upkeep.asked_by_signals() as asked_to_end:
        out.line(_began_text(began), began)
        look, never = partial(upkeep.look_at_line, graph, address), upkeep.Idleness(lambda: 0, None)
        fate = upkeep.stay(look, address, asked_to_end, never)
    if farewell := upkeep.farewell(fate, is_ours=False):
        out.note(farewell)
    upkeep.refuse_lost(fate, graph, address)


def _began(hosted: Hosted, graph: Graph, already: str | None) -> dict[str, Any]:
    """The document about a coordinator that serves; `joined`: it served before, and this process must not end it."""
    newest = hosted.newest()
    return {
        "uri": graph.uri,
        "url": hosted.url,
        "address": hosted.address,
        "owner": newest.owner,
        "epoch": newest.epoch,
        "joined": newest.owner == already,
    }


def _began_text(began: dict[str, Any]) -> str:
    from omniray.engine.line.owner import Incarnation

    by = f"{Incarnation.parse(began['owner']).process}, epoch {began['epoch']}"
    if began["joined"]:
        return f"{began['uri']} is already served at {began['url']} ({by})"
    return f"serving {began['uri']} at {began['url']} ({by})"


def _detach(out: Output, graph: Graph, terms: Terms, *, take_over: bool, until_idle: float | None) -> None:
    """Serve in the background."""
    more = ["--take-over"] if take_over else []
    more += [] if until_idle is None else [UNTIL_IDLE, f"{until_idle:g}"]
    detached = terms.run_detached(graph.graph_id, *more)
    began = detached.said
    if began["joined"]:
        out.line(_began_text(began), {**began, "pid": None, "log": None})
        return
    text = f"{_began_text(began)}\nin the background as process {detached.pid}, its log is {detached.log}"
    out.line(text, {**began, "pid": detached.pid, "log": str(detached.log)})


# Status


def _watch(out: Output, lookout: Lookout) -> None:
    """Show the status once a second; Ctrl-C is the way to end it, and so no error."""
    import msgspec

    from omniray.coordinator.cli.status import COLUMNS, document, rows, unreachable_rows
    from omniray.engine.base.errors import OmnirayError

    try:
        if out.as_json:
            for seen in lookout.keep_looking():
                line = {"error": seen.as_json()} if isinstance(seen, OmnirayError) else document(seen)
                out.raw([msgspec.json.encode(line, enc_hook=str) + b"\n"])
        else:
            with out.live_table() as redraw:
                for seen in lookout.keep_looking():
                    redraw(COLUMNS, unreachable_rows(seen) if isinstance(seen, OmnirayError) else rows(seen))
    except KeyboardInterrupt:
        return
