"""The demonstration behind `make demo`: a small social graph, from its birth to several processes writing at once.

Each step says in a sentence what it shows, does it for real in a temporary directory, and fails if the outcome is not
the promised one. So a demo that runs to its end has shown what it says.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import omniray

SCHEMA = """\
node Person {
  name: String @key
  age: I32?
  @range(age, 0..150)
}
node Company { name: String @key }
edge Knows: Person -> Person { since: Date?  @unique(src, dst) }
edge WorksAt: Person -> Company
"""

QUERIES = """\
query welcome($name: String, $age: I32, $friend: String) {
  insert Person { name: $name, age: $age }
  insert Knows { from: $name, to: $friend, since: date("2026-01-31") }
}
query birthday($name: String, $age: I32) { update Person set { age: $age } where name = $name }
query leave($name: String) { delete Person where name = $name }
"""

PEOPLE = (
    "Ada",
    "Alan",
    "Barbara",
    "Donald",
    "Edsger",
    "Frances",
    "Grace",
    "John",
    "Kathleen",
    "Leslie",
    "Niklaus",
    "Tony",
)
COMPANIES = ("Analytical Engines", "Bletchley", "Compilers & Co")
WRITERS = 4
WRITES_EACH = 5
PROCESS_TIMEOUT_S = 60

# Run by a process that has never heard of omniray.
PLAIN_LANCE = """
import sys, lance
for path in sys.argv[1:]:
    print(lance.dataset(path).count_rows())
"""


def records() -> list[dict[str, Any]]:
    """The people, the companies and who knows and employs whom; the same every time."""
    people = [{"type": "Person", "data": {"name": name, "age": 25 + 4 * n}} for n, name in enumerate(PEOPLE)]
    companies = [{"type": "Company", "data": {"name": name}} for name in COMPANIES]
    pairs = [(name, PEOPLE[(n + step) % len(PEOPLE)]) for n, name in enumerate(PEOPLE) for step in (1, 5)]
    knows = [
        {"edge": "Knows", "from": a, "to": b, "data": {"since": f"{2000 + n}-05-01"}} for n, (a, b) in enumerate(pairs)
    ]
    jobs = [
        {"edge": "WorksAt", "from": name, "to": COMPANIES[n % len(COMPANIES)], "data": {}}
        for n, name in enumerate(PEOPLE)
    ]
    return [*people, *companies, *knows, *jobs]


class Narrator:
    """Tells the story on the terminal, and keeps what has been shown for the last lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: list[str] = []

    def step(self, title: str, sentence: str) -> None:
        self._shown.append(sentence)
        self._console.print()
        self._console.rule(f"[bold]{len(self._shown)}. {title}", align="left", style="cyan")
        self._console.print(sentence, soft_wrap=True)

    def fact(self, text: str) -> None:
        self._console.print(f"   [green]✓[/] {escape(text)}", soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        table = Table(*columns, box=box.SIMPLE_HEAD, show_edge=False)
        for row in rows:
            table.add_row(*("" if value is None else str(value) for value in row))
        self._console.print(table)

    def end(self) -> None:
        self._console.print()
        self._console.rule("[bold]What was shown", align="left", style="green")
        for number, sentence in enumerate(self._shown, start=1):
            self._console.print(f"   {number}. {sentence}", soft_wrap=True)
        self._console.print("\nThe README has the same in a few lines of Python; 'omniray --help' lists the verbs.")


def prove(outcome: bool, promise: str) -> None:
    """End the demo if it does not show what it says; unlike `assert` under `python -O` too."""
    if not outcome:
        raise SystemExit(f"the demo did not show what it promised: {promise}")


def main() -> None:
    console = Console(highlight=False)
    console.print("[bold]omniray[/]: a graph of Lance tables, with one atomic commit over all of them.")
    with tempfile.TemporaryDirectory(prefix="omniray-demo-") as folder:
        tell_story(Narrator(console), Path(folder))


def tell_story(tell: Narrator, folder: Path) -> None:
    """All steps, in order, on a graph below the folder."""
    uri = str(folder / "social")
    with create(tell, uri) as graph:
        loaded = load(tell, graph, folder / "social.jsonl")
        mutate(tell, graph)
        query(tell, graph)
        travel_back(tell, graph, loaded)
        lose_strictly(tell, graph)
        write_from_everywhere(tell, graph)
        read_with_plain_lance(tell, graph)
    tell.end()


def create(tell: Narrator, uri: str) -> omniray.Graph:
    tell.step("Create", "A schema of two node types and two edge types becomes four Lance tables under one path.")
    graph = omniray.init(uri, schema=SCHEMA, actor="demo")
    tell.table(["table", "version", "rows"], _tables(graph))
    return graph


def load(tell: Narrator, graph: omniray.Graph, file: Path) -> str:
    tell.step("Load", "A JSONL file of people, companies and edges lands in all four tables in one commit.")
    file.write_text("".join(json.dumps(record) + "\n" for record in records()))
    result = graph.load(file, actor="demo")
    tell.fact(f"{result.affected_nodes} nodes and {result.affected_edges} edges in commit {result.commit_id}")
    tell.table(["table", "version", "rows"], _tables(graph))
    prove(result.commit_id is not None and graph.snapshot().count("Person") == len(PEOPLE), "everybody is loaded")
    return str(result.commit_id)


def mutate(tell: Narrator, graph: omniray.Graph) -> None:
    tell.step("Mutate", "Queries insert, update and delete; each is one commit, and a deleted person's edges go too.")
    new = {"name": "Margaret", "age": 32, "friend": "Grace"}
    welcomed = graph.mutate(QUERIES, new, name="welcome", actor="demo")
    tell.fact(f"insert: {welcomed.affected_nodes} node and {welcomed.affected_edges} edge, atomically")
    older = graph.mutate(QUERIES, {"name": "Ada", "age": 36}, name="birthday", actor="demo")
    tell.fact(f"update: {older.affected_nodes} node")
    gone = graph.mutate(QUERIES, {"name": "Tony"}, name="leave", actor="demo")
    tell.fact(f"delete: {gone.affected_nodes} node, and the {gone.affected_edges} edges that led to it or from it")
    nobody = graph.mutate(QUERIES, {"name": "Nobody"}, name="leave", actor="demo")
    tell.fact("a delete that matches nothing makes no commit")
    prove(gone.affected_edges == 5 and nobody.commit_id is None, "deletes cascade, and only where something matches")


def query(tell: Narrator, graph: omniray.Graph) -> None:
    tell.step("Query", "SQL runs over one consistent snapshot of all tables.")
    answer = graph.snapshot().sql("""
        select c.name as company, count(*) as people, round(avg(p.age), 1) as average_age
        from WorksAt w join Person p on p.id = w.src join Company c on c.id = w.dst
        group by all order by people desc, company
    """)
    tell.table(answer.column_names, (row.values() for row in answer.to_pylist()))
    prove(answer.num_rows == len(COMPANIES), "every company still has somebody")


def travel_back(tell: Narrator, graph: omniray.Graph, loaded: str) -> None:
    tell.step("Travel back", "Every commit stays readable: the graph as it was right after the load, beside now.")
    then, now = graph.snapshot(at=loaded), graph.snapshot()
    who = "select name, age from Person where name in ('Ada', 'Margaret', 'Tony') order by name"
    before, after = (dict(zip(*cut.sql(who).to_pydict().values(), strict=True)) for cut in (then, now))
    tell.table(
        ["age of", "after the load", "now"],
        ((n, before.get(n, "-"), after.get(n, "-")) for n in sorted({*before, *after})),
    )
    history = graph.history()
    tell.table(
        ["commit", "kind", "actor", "tables"], ((e.commit_id, e.kind, e.actor, " ".join(e.tables)) for e in history)
    )
    prove((before.get("Tony"), after.get("Tony")) == (69, None), "the past is as it was")


def lose_strictly(tell: Narrator, graph: omniray.Graph) -> None:
    tell.step(
        "Lose a strict write", "A writer that names the version it decided on loses if the table has moved since."
    )
    decided_on = graph.snapshot().versions["node:Person"]
    with omniray.open(graph.uri) as other:
        other.mutate(QUERIES, {"name": "Alan", "age": 41}, name="birthday", actor="somebody else")
    try:
        graph.mutate(
            QUERIES, {"name": "Alan", "age": 30}, name="birthday", expected_versions={"node:Person": decided_on}
        )
    except omniray.ExpectedVersionMismatch as error:
        tell.fact(f"ExpectedVersionMismatch: {error}")
    else:
        prove(False, "of two strict writers exactly one wins")
    prove(
        graph.snapshot().table("Person", filter="name = 'Alan'")["age"].to_pylist() == [41], "the winner's value stays"
    )


def write_from_everywhere(tell: Narrator, graph: omniray.Graph) -> None:
    tell.step(
        "Write from several processes",
        f"{WRITERS} processes insert {WRITES_EACH} people each at once, with no server between them, and all land.",
    )
    before = graph.snapshot().count("Person")
    _run_writers(graph.uri)
    landed = graph.snapshot().count("Person") - before
    commits = [entry for entry in graph.history() if entry.actor.startswith("writer")]
    tell.fact(f"{landed} of {WRITERS * WRITES_EACH} inserts landed, as {len(commits)} commits of one history")
    order = "".join(entry.actor[-1] for entry in reversed(commits))
    tell.fact(f"in this order of writers: {order}")
    prove(landed == len(commits) == WRITERS * WRITES_EACH, "every write lands exactly once")


def read_with_plain_lance(tell: Narrator, graph: omniray.Graph) -> None:
    tell.step(
        "Read with plain Lance",
        "The tables are ordinary Lance datasets: a process without omniray reads the same rows.",
    )
    graph.flush()
    paths = {
        key: f"{graph.uri}/{key.replace('node:', 'nodes/').replace('edge:', 'edges/')}" for key, *_ in _tables(graph)
    }
    command = [sys.executable, "-c", PLAIN_LANCE, *paths.values()]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PROCESS_TIMEOUT_S).stdout
    counted = dict(zip(paths, (int(line) for line in output.split()), strict=True))
    ours = {key: rows for key, _, rows in _tables(graph)}
    tell.table(["table", "omniray", "lance.dataset(path)"], ((key, rows, counted[key]) for key, rows in ours.items()))
    prove(counted == ours, "plain Lance sees the committed rows")


def insert_people(uri: str, writer: int, start: Barrier) -> None:
    """What one of the processes does: wait until all are ready, then write as fast as it can."""
    with omniray.open(uri) as graph:
        start.wait(PROCESS_TIMEOUT_S)
        for number in range(WRITES_EACH):
            new = {"name": f"Guest {writer}.{number}", "age": 20 + number, "friend": "Grace"}
            graph.mutate(QUERIES, new, name="welcome", actor=f"writer {writer}")


def _run_writers(uri: str) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(WRITERS)
    processes = [context.Process(target=insert_people, args=(uri, n + 1, start)) for n in range(WRITERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PROCESS_TIMEOUT_S)
    prove([process.exitcode for process in processes] == [0] * WRITERS, "no writer fails for another one's sake")


def _tables(graph: omniray.Graph) -> list[tuple[str, int, int]]:
    tables = graph.snapshot().describe()["tables"]
    return [(t["table_key"], t["version"], t["row_count"]) for t in tables]


if __name__ == "__main__":
    main()
