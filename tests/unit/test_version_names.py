"""Where a pinned version's manifest lies follows from its pin, and whoever looks in order misses it nowhere."""

from __future__ import annotations

import pytest

from omniray.engine.line.commit_object import Pin
from omniray.engine.tables.version_names import (
    final_path,
    final_versions,
    history_path,
    manifest_name,
    own_path,
    possible_paths,
    transaction_mark,
    version_of,
)

MAIN, TRIAL, PATH = "line-main", "line-trial", "nodes/Person.lance"
ON_MAIN = Pin("id", PATH, 7, "tx", 3, "content", MAIN, since=4)
ON_TRIAL = Pin("id", PATH, 7, "tx", 3, "content", TRIAL, since=4)
DIGITS = "18446744073709551608"


def test_names_follow_from_the_pin_alone() -> None:
    assert own_path(ON_MAIN, MAIN) == f"{PATH}/_staged/tx/{DIGITS}.manifest"
    assert own_path(ON_TRIAL, MAIN) == f"{PATH}/_branches/{TRIAL}/tx/{DIGITS}.manifest"
    assert final_path(PATH, 7) == f"{PATH}/_versions/{DIGITS}.manifest"
    assert history_path(PATH, 7) == f"{PATH}/_history/{DIGITS}.manifest"
    assert transaction_mark(ON_MAIN) == b"-tx.txn"


@pytest.mark.parametrize("version", [1, 7, 2**40, 2**63])
def test_a_name_tells_its_version_and_newer_ones_sort_first(version: int) -> None:
    assert version_of(final_path(PATH, version)) == version_of(manifest_name(version)) == version
    assert manifest_name(version + 1) < manifest_name(version)
    assert list(final_versions([manifest_name(version)])) == [version]


def test_only_final_names_are_taken_for_versions() -> None:
    others = [
        "latest_version_hint.json",
        f"{DIGITS}.manifest-uuid",
        "7.manifest",
        f"{DIGITS}.txn",
        f"x{DIGITS}.manifest",
    ]
    assert list(final_versions([*others, f"{DIGITS}.manifest"])) == [7]


def test_a_version_of_a_branch_has_one_name_for_good() -> None:
    for is_final in (True, False):
        assert possible_paths(ON_TRIAL, MAIN, is_final=is_final) == (own_path(ON_TRIAL, MAIN),)


STEPS = (("own",), ("own", "final"), ("final",), ("final", "history"), ("history",))
"""Where a version of main is, one step of Phase D and of archiving after the other."""


def misses(paths: tuple[str, ...]) -> int:
    """How often somebody who looks there in order finds nothing, over all ways in which it may move meanwhile."""
    names = {own_path(ON_MAIN, MAIN): "own", final_path(PATH, 7): "final", history_path(PATH, 7): "history"}
    looks = [names[path] for path in paths]

    def missed(at: int, step: int) -> int:
        if at == len(looks):
            return 1
        return sum(missed(at + 1, now) for now in range(step, len(STEPS)) if looks[at] not in STEPS[now])

    return sum(missed(0, step) for step in range(len(STEPS)))


@pytest.mark.parametrize("is_final", [True, False])
def test_whoever_looks_in_order_finds_a_version_however_it_moves_meanwhile(is_final: bool) -> None:
    assert misses(possible_paths(ON_MAIN, MAIN, is_final=is_final)) == 0


def test_another_order_misses_it() -> None:
    """The twin: by the final name first, and by the version's own name last."""
    final, history, own, *_ = possible_paths(ON_MAIN, MAIN, is_final=True)
    assert misses((final, history, own)) > 0
    assert misses((history, final, own)) > 0
