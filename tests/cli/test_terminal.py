"""No verb sends to a terminal what a graph's values, names and errors have to say to it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import typer
from rich.console import Console

from omniray.coordinator.cli import output as cli_output
from omniray.coordinator.cli.app import app
from omniray.coordinator.cli.output import Output
from omniray.coordinator.demo.narrator import Narrator
from omniray.coordinator.stress import report as stress_report
from omniray.engine.base.errors import StorageError
from omniray.engine.base.principal import Author
from omniray.engine.base.printable import printable, printable_json
from omniray.engine.store.open_store import open_store
from tests.commands import omniray_command
from tests.foreign import append

ESC = "\x1b[2J\x1b]0;owned\x07"  # clears the screen, and sets the window's title
EVIL = f"{ESC}\x9b31m\x7f\x00\u202egnp\u2066\u200b\x85\r"
SCHEMA = """\
node Person { name: String @key   note: String?   tags: [String]?   age: I32? @range(age, 0..150) }
edge Knows: Person -> Person
"""
RECORD = {"type": "Person", "data": {"name": f"Ann{EVIL}", "note": EVIL, "tags": [EVIL], "age": 4}}
TXN = "01J00000000000000000000009"
NAMES = "query add($name: String) { insert Person { name: $name } }"

# Each verb with arguments that make it say something of the graph or of its input. Those without any answer in this
# process are run where a coordinator, Spark or the S3 server is; they write through `Output`, too.
VERBS: dict[str, tuple[list[str], ...]] = {
    "init": (["graph", "--schema", "evil.pg"], ["graph2", "--schema", f"no{EVIL}".replace("\0", "")]),
    "load": (["graph", "bad.jsonl"], ["graph", "people.jsonl"], ["graph", "people.jsonl", "--actor", "other"]),
    "mutate": (["graph", "add.gq", "--params", json.dumps({"name": f"Ann{EVIL}"})], ["graph", "evil.gq"]),
    "snapshot": (["graph"], ["graph", "--at", f"x{ESC}"]),
    "history": (["graph"],),
    "export": (["graph", "--type", f"x{ESC}"],),
    "sql": (
        ["graph", "SELECT * FROM Person"],
        ["graph", f"SELECT name AS \"{ESC}\", [note] AS n, {{'a': note}} AS s FROM Person"],
        ["graph", f"SELECT error('{ESC}') FROM Person"],
        ["graph", f'SELECT "{ESC}" FROM Person'],
    ),
    "branch create": (["graph", "trial", "--actor", f"x{EVIL}".replace("\0", "")], ["graph", f"no{ESC}"]),
    "branch delete": (["graph", f"no{ESC}"],),
    "branch rename": (["graph", f"no{ESC}", "other"],),
    "branch list": (["graph"],),
    "branch merge": (["graph", f"no{ESC}"],),
    "diff": (["graph", "main", f"no{ESC}"],),
    "revert": (["graph", f"no{ESC}"],),
    "version": ([],),
    "schema show": (["graph"],),
    "schema plan": (["graph", "--schema", "next.pg"], ["graph", "--schema", "evil.pg"]),
    "schema lint": (["graph"], ["next.pg"], [f"no{ESC}.pg"]),
    "recover": (["graph"],),
    "recoveries": (["graph"],),
    "repair": (["graph"], ["graph", "--adopt", "--actor", f"x{ESC}"]),
    "cleanup": (["graph", "--orphans", "--dry-run"],),
    "outcome": (["graph", TXN], ["graph", f"x{ESC}"]),
    "status": (["graph"],),
    "down": (["graph"],),
}
ELSEWHERE = {"up", "stress", "pipeline run"}


@pytest.fixture(autouse=True)
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph whose values, actors and foreign rows are hostile."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "social.pg").write_text(SCHEMA)
    (tmp_path / "evil.pg").write_text(f"node Person {{ {EVIL}: String }}")
    (tmp_path / "next.pg").write_text(
        f'node Person {{ name: String @key  x: String @default("{ESC}") }} interface I {{}}'
    )
    (tmp_path / "evil.gq").write_text(f"query add() {{ insert {EVIL} }}")
    (tmp_path / "add.gq").write_text(NAMES)
    (tmp_path / "people.jsonl").write_text(json.dumps(RECORD) + "\n")
    bad = {"type": f"No{EVIL}", "data": {"name": EVIL}}
    (tmp_path / "bad.jsonl").write_text(json.dumps(bad) + "\n")
    monkeypatch.setattr(Author, "__post_init__", lambda self: None)  # as a writer that checks nothing
    assert omniray_command("init", "graph", "--schema", "social.pg").code == 0
    assert omniray_command("load", "graph", "people.jsonl", "--actor", f"ann{EVIL}").code == 0


def is_harmless(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


def verbs(command: object, prefix: str = "") -> set[str]:
    found = set()
    for name, one in getattr(command, "commands", {}).items():
        found |= verbs(one, f"{prefix}{name} ") if hasattr(one, "commands") else {prefix + name}
    return found


def test_every_verb_is_walked() -> None:
    assert verbs(typer.main.get_command(app)) == VERBS.keys() | ELSEWHERE


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_says_nothing_to_the_terminal_that_its_graph_says(verb: str) -> None:
    if verb == "repair":
        append(open_store("graph"), f"mallory{EVIL}")
    for arguments in VERBS[verb]:
        answer = omniray_command(*verb.split(), *arguments)
        assert is_harmless(answer.out), (arguments, answer.out)
        assert is_harmless(answer.err), (arguments, answer.err)
        assert answer.out or answer.err
        told = omniray_command(*verb.split(), *arguments, "--json")
        if told.code != 2:  # a usage error is the command line's own
            json.loads(told.out or told.err)


def test_the_walk_meets_hostile_text() -> None:
    """Where it is shown, it is shown escaped."""
    rows = omniray_command("sql", "graph", "SELECT * FROM Person").out
    assert rows.count(r"\x1b[2J") == 3
    assert r"\u202e" in rows
    assert rf"ann{ESC}".encode("unicode_escape").decode() in omniray_command("history", "graph").out
    assert r"No\x1b[2J" in omniray_command("load", "graph", "bad.jsonl").err


def test_output_on_a_terminal_is_escaped_whatever_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents and raw texts, too, which stay as they are for a program."""
    monkeypatch.setattr(cli_output.sys, "stdout", stdout := Terminal())
    Output(as_json=True).line("", {"a": EVIL})
    assert json.loads(stdout.text()) == {"a": EVIL}
    assert is_harmless(stdout.text())
    monkeypatch.setattr(cli_output.sys, "stdout", stdout := Terminal())
    Output(as_json=False).raw([f'{{"a":"{ESC}"}}\n'.encode(), b"\xff\n"])
    assert is_harmless(stdout.text())


def test_what_is_drawn_again_and_again_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(as_json=False)
    with out.live_table() as redraw:
        redraw((f"a{EVIL}", "b"), [(EVIL, StorageError(f"x{EVIL}"))])
    out.table(f"title{EVIL}", ["a"], [(EVIL,)], None)
    out.note(f"note{EVIL}")
    seen = capsys.readouterr()
    assert is_harmless(seen.out)
    assert is_harmless(seen.err)
    assert "title" in seen.out


def test_the_demo_and_the_report_of_a_stress_run_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=200)
    narrator = Narrator(console)
    narrator.say(EVIL)
    narrator.show(outcome=True, sentence=EVIL)
    narrator.end(1.0)
    monkeypatch.setattr(stress_report, "_figures", lambda _: [("refusals", EVIL)])
    monkeypatch.setattr(stress_report, "_judgement", lambda _: [f"violation {EVIL}"])
    stress_report.show(None, console)  # type: ignore[arg-type]
    assert is_harmless(console.file.getvalue())  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["plain", "grüße 日本", "a\nb"])
def test_text_that_controls_nothing_stays_as_it_is(text: str) -> None:
    assert printable(text) == printable_json(text) == text


class Terminal(io.TextIOWrapper):
    """Standard output that says it is a terminal."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode()  # type: ignore[attr-defined, no-any-return]
