"""The workload over lists follows from its seed, and makes histories that are worth checking."""

from __future__ import annotations

from itertools import islice

from omniray.coordinator.stress.list_workload import LISTS, STEPS_EACH, AppendAll, ListStep, ReadAll, list_steps
from omniray.coordinator.stress.lists import TYPES, _type_of

STEPS = 3 * STEPS_EACH
I64_MAX = (1 << 63) - 1


def steps(seed: int, writer_no: int) -> list[ListStep]:
    return list(islice(list_steps(seed, writer_no), STEPS))


def test_a_seed_and_a_number_tell_all_steps() -> None:
    assert steps(1, 0) == steps(1, 0)
    assert steps(1, 0) != steps(2, 0)
    assert steps(1, 0) != steps(1, 1)


def test_no_two_appends_have_the_same_value_and_all_fit_the_column() -> None:
    values = [
        op.value for writer in range(4) for step in steps(1, writer) if isinstance(step, AppendAll) for op in step.ops
    ]
    assert len(values) == len(set(values))
    assert max(value for step in steps(1, 9999) if isinstance(step, AppendAll) for value in [step.ops[0].value]) < (
        I64_MAX
    )


def test_there_are_appends_to_two_tables_at_once_and_reads_of_several_lists() -> None:
    concerned = [{_type_of(op.key) for op in step.ops} for step in steps(1, 0) if isinstance(step, AppendAll)]
    assert set(TYPES) in concerned
    assert any(len(step.ops) > 2 for step in steps(1, 0) if isinstance(step, ReadAll))


def test_writers_append_to_the_same_lists_and_turn_to_new_ones_together() -> None:
    for era in range(3):
        lists = [
            {op.key for step in steps(1, writer)[era * STEPS_EACH :][:STEPS_EACH] for op in step.ops}
            for writer in range(2)
        ]
        assert {*range(era * LISTS, (era + 1) * LISTS)} <= lists[0] & lists[1]


def test_reads_sometimes_go_back_to_lists_that_are_done() -> None:
    last = steps(1, 0)[2 * STEPS_EACH :]
    assert any(op.key < 2 * LISTS for step in last for op in step.ops if isinstance(step, ReadAll))
    assert not any(op.key < 2 * LISTS for step in last for op in step.ops if isinstance(step, AppendAll))
