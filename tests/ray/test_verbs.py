"""Every verb of the command line says the same of a graph that a coordinator serves as of one that nobody serves."""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import omniray
from omniray.engine.line.commit_object import EMBEDDED
from omniray.engine.store.open_store import open_store
from tests.commands import Answer, omniray_command, run
from tests.foreign import append
from tests.graphs import AGE, INSERT, PERSON, new_graph
from tests.ray.world import Served, served
from tests.stores import Root

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]

ORPHAN = "nodes/Person.lance/data/orphan.lance"
COMMITTED, NOT_COMMITTED = "01K9ZQ5T7Z0000000000000000", "01K9ZQ5T7Z0000000000000001"  # each process collects the same
_MASKS = (
    (re.compile(r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b"), "ULID"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ][0-9:.]+(?:Z|[+-]\d\d:\d\d)"), "TIME"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UUID"),
)
_MASKED = ("bytes", "found_files")  # files differ in number and size, and what the verb says of them does not


@dataclass(frozen=True)
class Twins:
    """The same graph twice: one that nobody serves, and one with a coordinator."""

    embedded: str
    served: Served

    @property
    def uris(self) -> tuple[str, str]:
        return self.embedded, self.served.uri


@pytest.fixture(scope="module")
def twins(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    root = Root(str(tmp_path_factory.mktemp("root")), {})
    with served(root, ray_address, "served") as one:
        with new_graph(root, "embedded") as other:
            uri = other.uri
        both = Twins(uri, one)
        for each in both.uris:
            run("mutate", each, "-", "--params", '{"name": "ann", "age": 3}', stdin=INSERT)
        yield both


_drifts: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
_trials: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
ON_TRIAL = ("--branch", "trial")
Prepare = Callable[[str], object]


def nothing(uri: str) -> None:
    """No preparation."""


def commit_with_id(uri: str) -> None:
    run("mutate", uri, "-", "--params", '{"name": "known"}', "--txn-id", COMMITTED, stdin=INSERT)


def drift(uri: str) -> None:
    append(open_store(uri), f"mallory-{next(_drifts[uri])}")


def leave_orphan(uri: str) -> None:
    Path(uri, ORPHAN).write_bytes(b"of nobody")


def without_trial(uri: str) -> None:
    omniray_command("branch", "delete", uri, "trial", "--force")


def with_trial(uri: str) -> None:
    """A branch with a person of its own."""
    without_trial(uri)
    run("branch", "create", uri, "trial")
    run("mutate", uri, "-", *ON_TRIAL, "--params", json.dumps({"name": f"tim-{next(_trials[uri])}"}), stdin=INSERT)


def with_trial_to_rename(uri: str) -> None:
    omniray_command("branch", "delete", uri, "renamed", "--force")
    with_trial(uri)


def with_conflict(uri: str) -> None:
    """A branch whose ann has another age than that of main, and both are new."""
    with_trial(uri)
    for age, arguments in ((100 + next(_trials[uri]), ON_TRIAL), (50 - next(_trials[uri]), ())):
        run("mutate", uri, "-", *arguments, "--params", json.dumps({"name": "ann", "age": age}), stdin=AGE)


@dataclass(frozen=True)
class Case:
    """A verb with its arguments after the graph, what is true before, its standard input, and the records to load."""

    verb: str
    arguments: Sequence[str] = ()
    prepare: Prepare = nothing
    stdin: str = ""
    code: int = 0
    records: str = ""

    def __str__(self) -> str:
        return " ".join((self.verb, *self.arguments)).replace("/", "-")[:60]


BOB = '{"type": "Person", "data": {"name": "bob"}}\n'
UNFIT = '{"type": "Person", "data": {"name": "cid", "age": "old"}}\n'
FILE = "records.jsonl"
ADD = ("-", "--params", '{"name": "dan"}')
SWEEP = ("--orphans", "--older-than", "0s")
CASES = [
    Case("load", [FILE, "--mode", "merge"], records=BOB),
    Case("load", [FILE, "--type", "Person"], records='{"name": "ann"}\n', code=4),
    Case("load", [FILE], records=UNFIT, code=3),
    Case("load", [FILE, "--on-error", "reject"], records=UNFIT),
    Case("load", [FILE, "--branch", "other"], records=BOB, code=3),
    Case("mutate", ["-", "--params", '{"name": "ann", "age": 4}'], stdin=AGE),
    Case("mutate", [*ADD, "--expect", f"{PERSON}=1"], stdin=INSERT, code=4),
    Case("mutate", ADD, stdin="query {", code=3),
    Case("mutate", ["-", "--params", '{"name": "known"}', "--txn-id", COMMITTED], commit_with_id, INSERT),
    Case("snapshot"),
    Case("snapshot", ["--at", NOT_COMMITTED], code=3),
    Case("history"),
    Case("export"),
    Case("export", ["--type", "City"]),
    Case("sql", ["select name, age from Person order by name"]),
    Case("sql", ["select nonsense from Person"], code=3),
    Case("schema show"),
    Case("schema plan", ["--schema", "-"], stdin="node City { name: String @key }"),
    Case("schema lint"),
    Case("recover"),
    Case("recover", ["--grace", "30s"]),
    Case("recover", ["--grace", "0s"], code=2),
    Case("recoveries"),
    Case("repair"),
    Case("repair", prepare=drift),
    Case("repair", ["--adopt", "--table", "node:City"], drift),
    Case("mutate", ADD, drift, INSERT, code=6),
    Case("repair", ["--discard"], drift),
    Case("repair", ["--adopt"], drift),
    Case("cleanup", [*SWEEP, "--dry-run"], leave_orphan),
    Case("cleanup", SWEEP, leave_orphan),
    Case("cleanup", ["--orphans"]),
    Case("outcome", [COMMITTED], commit_with_id),
    Case("outcome", [NOT_COMMITTED]),
    Case("outcome", ["no id"], code=3),
    Case("branch create", ["trial", "--message", "why"], without_trial),
    Case("branch create", ["trial"], with_trial, code=4),
    Case("branch create", ["a b"], code=3),
    Case("branch create", ["trial", "--from", "nobody"], without_trial, code=3),
    Case("branch list", prepare=with_trial),
    Case("branch rename", ["trial", "renamed"], with_trial_to_rename),
    Case("branch rename", ["trial", "trial"], with_trial, code=4),
    Case("branch rename", ["nobody", "trial"], without_trial, code=3),
    Case("branch delete", ["trial"], with_trial),
    Case("branch delete", ["trial"], without_trial, code=3),
    Case("load", [FILE, "--mode", "merge", *ON_TRIAL], with_trial, records=BOB),
    Case("load", [FILE, *ON_TRIAL], without_trial, records=BOB, code=3),
    Case("mutate", ["-", "--params", '{"name": "ann", "age": 7}', *ON_TRIAL], with_trial, AGE),
    Case("snapshot", ON_TRIAL, with_trial),
    Case("history", ["--limit", "3", *ON_TRIAL], with_trial),
    Case("export", ON_TRIAL, with_trial),
    Case("sql", ["select name, age from Person order by name", *ON_TRIAL], with_trial),
    Case("outcome", [NOT_COMMITTED, *ON_TRIAL], with_trial),
    Case("recoveries", ON_TRIAL, with_trial),
    Case("diff", ["main", "trial"], with_trial),
    Case("branch merge", ["trial", "--preview"], with_trial),
    Case("branch merge", ["trial", "--delete-source"], with_trial),
    Case("branch merge", ["main", "--into", "trial"], with_conflict, code=4),
    Case("branch merge", ["trial"], with_conflict, code=4),
    Case("branch merge", ["trial", "--preview"], with_conflict, code=4),
    Case("branch merge", ["trial", "--on-conflict", "theirs"], with_conflict),
    Case("branch merge", ["trial", "--into", "trial"], with_trial, code=3),
    Case("revert", [NOT_COMMITTED], code=3),
    Case("revert", [COMMITTED, "--preview"], commit_with_id),
]


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "text"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_verb_says_the_same_with_a_coordinator_as_without(
    twins: Twins, case: Case, as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No fault but those of the case. Oracle: the embedded graph, which has been through the same before."""
    monkeypatch.setenv("OMNIRAY_ACTOR", "tester")
    monkeypatch.chdir(tmp_path)
    Path(FILE).write_text(case.records)
    said = [_said(case, uri, as_json) for uri in twins.uris]
    if case.prepare is drift:  # leave none to the next case
        for uri in twins.uris:
            run("repair", uri, "--discard")
    embedded, through_the_door = ((code, masked(out, uri), masked(err, uri)) for (code, out, err), uri in said)
    assert through_the_door == embedded
    assert embedded[0] == case.code


def _said(case: Case, uri: str, as_json: bool) -> tuple[Answer, str]:
    case.prepare(uri)
    flag = ["--json"] if as_json else []
    return omniray_command(*case.verb.split(), uri, *case.arguments, *flag, stdin=case.stdin), uri


def masked(text: str, uri: str) -> Any:
    """A document or text in which ids, times and places are not told apart."""
    text = text.replace(uri, "GRAPH")
    for pattern, name in _MASKS:
        text = pattern.sub(name, text)
    try:
        return _unsized(json.loads(text))
    except ValueError:
        return re.sub(r"[\d,]+ (bytes?|files?)", r"N \1", text)


def _unsized(value: Any) -> Any:
    match value:
        case dict():
            return {key: "N" if key in _MASKED else _unsized(one) for key, one in value.items()}
        case list():
            return [_unsized(one) for one in value]
        case _:
            return value


def test_status_and_down_tell_whether_there_is_a_coordinator_in_documents_of_one_shape(
    disk: Root, ray_address: str
) -> None:
    with served(disk, ray_address) as graph:
        status = run("status", graph.uri, "--json").document
        taken_down = run("down", graph.uri, "--json").document
        assert taken_down == {name: status[name] for name in ("uri", "address", "url")}
        assert graph.newest().owner == EMBEDDED
        nobody = omniray_command("status", graph.uri, "--json")
        assert (nobody.code, nobody.error["kind"]) == (omniray.StorageError.exit_code, "unreachable")
        again = run("down", graph.uri, "--json").document
        assert again == {"uri": graph.uri, "address": None, "url": None}
