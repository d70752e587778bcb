"""`omniray stress` tells its verdict by its exit code, and keeps what is needed to understand it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import omniray
from omniray.coordinator.stress import moto_server
from omniray.coordinator.stress import run as run_module
from omniray.coordinator.stress.final_graph import FinalGraph
from omniray.coordinator.stress.moto_server import Bucket
from omniray.coordinator.stress.operation import ROW_TYPES, SCHEMA
from omniray.coordinator.stress.report import Report, summarise
from omniray.coordinator.stress.run import Plan
from omniray.coordinator.stress.violation import Rule, Verdict, Violation
from omniray.coordinator.stress.workloads import Workload
from omniray.engine.base.errors import Unreachable
from tests.commands import omniray_command

MOTO = Bucket("s3://bucket-1", {"aws_endpoint": "http://127.0.0.1:1"})
LOST = Violation(Rule.LOST_COMMIT, "01 was acknowledged and is not in the lineage", ("a line of the history",))


def report_of(plan: Plan, *violations: Violation) -> Report:
    return summarise((), FinalGraph(dict.fromkeys(ROW_TYPES, ()), (), ()), Verdict(violations), seed=plan.seed)


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs keep what is temporary."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Plan]]:
    """Have plans carried out in no time, with an end that the test chooses."""

    def end_with(*violations: Violation, error: Exception | None = None) -> list[Plan]:
        plans = []

        def run_stress(plan: Plan, tell: Any) -> Report:
            plans.append(plan)
            plan.folder.mkdir(parents=True, exist_ok=True)
            if error is not None:
                raise error
            return report_of(plan, *violations)

        monkeypatch.setattr(run_module, "run_stress", run_stress)
        monkeypatch.setattr(moto_server, "s3_bucket", lambda: contextlib.nullcontext(MOTO))
        return plans

    return end_with


def test_a_clean_run_ends_with_0_and_leaves_nothing(runs: Any) -> None:
    plans = runs()
    answer = omniray_command("stress", "--seed", "7")
    assert (answer.code, answer.out.splitlines()[-1]) == (0, "0 violations")
    assert f"on {plans[0].uri}, a new graph; seed 7" in answer.err
    assert not plans[0].folder.parent.exists()


def test_a_violation_ends_with_1_and_says_the_seed_and_where_the_histories_are(runs: Any) -> None:
    plans = runs(LOST)
    answer = omniray_command("stress", "--seed", "7")
    assert answer.code == 1
    assert "violation lost_commit: 01 was acknowledged" in answer.out
    assert "--seed 7 tries it again" in answer.out
    assert answer.out.splitlines()[-1] == f"the histories are in {plans[0].folder}"
    assert plans[0].folder.exists()


def test_a_violation_in_json_is_the_same_document_with_exit_1(runs: Any) -> None:
    plans = runs(LOST)
    answer = omniray_command("stress", "--seed", "7", "--json")
    assert answer.code == 1
    document = answer.document
    assert (document["ok"], document["seed"], document["uri"]) == (False, 7, plans[0].uri)
    assert document["histories"] == str(plans[0].folder)
    assert document["violations"][0]["excerpt"] == ["a line of the history"]
    assert answer.err == ""


def test_histories_are_kept_where_they_are_wanted(runs: Any, tmp_path: Path) -> None:
    plans = runs()
    answer = omniray_command("stress", "--keep", tmp_path / "kept", "--json")
    assert answer.code == 0
    assert answer.document["histories"] == str(tmp_path / "kept")
    assert plans[0].folder.exists()
    assert not Path(plans[0].uri).parent.exists()


def test_a_run_that_could_not_be_finished_says_where_its_histories_are(runs: Any) -> None:
    plans = runs(error=Unreachable("no answer"))
    answer = omniray_command("stress")
    assert answer.code == 5
    assert f"what the writers did is in {plans[0].folder}" in answer.err


def test_a_seed_is_drawn_where_none_is_given(runs: Any) -> None:
    plans = runs()
    omniray_command("stress")
    omniray_command("stress")
    assert plans[0].seed != plans[1].seed


def test_a_graph_that_is_there_is_left_alone(tmp_path: Path, scratch: Path) -> None:
    omniray.init(tmp_path / "graph", schema=SCHEMA).close()
    answer = omniray_command("stress", "--uri", tmp_path / "graph", "--json")
    assert (answer.code, answer.error["kind"]) == (3, "exists")
    assert list(scratch.iterdir()) == []


def test_histories_of_another_run_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    (tmp_path / "writer-0000.jsonl").touch()
    answer = omniray_command("stress", "--uri", tmp_path / "graph", "--keep", tmp_path)
    assert answer.code == 3
    assert f"there are histories in {tmp_path} already" in answer.err
    assert not (tmp_path / "graph").exists()


@pytest.mark.parametrize(
    ("endpoint", "breakable"), [("http://localhost:9000", "http://localhost:9000"), ("https://s3.example.com", None)]
)
def test_a_store_can_be_broken_if_it_is_reached_without_tls(
    runs: Any, endpoint: str, breakable: str | None, tmp_path: Path
) -> None:
    plans = runs()
    option = ("--storage-option", f"aws_endpoint={endpoint}")
    answer = omniray_command("stress", "--uri", "s3://bucket/graph", "--chaos", "--keep", tmp_path, *option)
    assert plans[0].breakable_endpoint == breakable
    assert ("requests to S3 are not broken" in answer.err) == (breakable is None)


def test_a_disk_has_no_requests_to_break(runs: Any, tmp_path: Path) -> None:
    plans = runs()
    assert "S3" not in omniray_command("stress", "--uri", tmp_path / "graph", "--chaos").err
    assert plans[0].breakable_endpoint is None


def test_without_a_uri_it_runs_on_an_s3_server_of_its_own_which_can_be_broken(runs: Any) -> None:
    plans = runs()
    assert omniray_command("stress", "--chaos").code == 0
    assert (plans[0].uri, plans[0].storage_options) == ("s3://bucket-1/graph", MOTO.storage_options)
    assert plans[0].breakable_endpoint == "http://127.0.0.1:1"


def test_without_moto_one_line_says_what_to_install_or_give(monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    monkeypatch.setattr(moto_server, "find_spec", lambda name: None)
    answer = omniray_command("stress")
    assert answer.code == 3
    assert answer.err == "error: moto is not installed: pip install 'omniray[testing]', or give the URI of a store\n"


def test_options_of_a_store_need_the_store_that_they_are_for(runs: Any) -> None:
    answer = omniray_command("stress", "--storage-option", "aws_region=eu-west-1")
    assert answer.code == 2
    assert "give the --uri that they are for" in answer.err


def test_the_workload_and_the_file_for_elle_are_part_of_the_plan(runs: Any, tmp_path: Path) -> None:
    plans = runs()
    file = tmp_path / "history.edn"
    assert omniray_command("stress", "--workload", "list-append", "--export-edn", file).code == 0
    assert omniray_command("stress").code == 0
    assert [(plan.workload, plan.edn) for plan in plans] == [(Workload.LIST_APPEND, file), (Workload.GRAPH, None)]


def test_only_lists_have_a_history_for_elle(runs: Any, tmp_path: Path) -> None:
    answer = omniray_command("stress", "--export-edn", tmp_path / "history.edn")
    assert answer.code == 2
    assert "only --workload list-append has such a history" in answer.err
