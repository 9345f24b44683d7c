"""Who takes part in a round: the same choice on every machine."""

from __future__ import annotations

from hanse.jobs import Selection
from hanse.method import Purpose
from hanse.selection import draw_cohort, needed_to_open, quorum

NAMES = [f"node-{i}" for i in range(10)]


def test_all_take_part_by_default_in_order_of_name() -> None:
    assert draw_cohort(reversed(NAMES), Selection(), seed=1, round_number=3) == tuple(NAMES)


def test_a_share_is_drawn_by_seed_and_round_and_never_below_the_minimum() -> None:
    half = Selection(fraction=0.5)
    draws = {draw_cohort(NAMES, half, seed=s, round_number=r) for s in range(2) for r in range(4)}
    assert {len(draw) for draw in draws} == {5}
    assert len(draws) > 1
    assert len(draw_cohort(NAMES, Selection(fraction=0.1, minimum_nodes=4), seed=0, round_number=1)) == 4
    assert len(draw_cohort(NAMES, Selection(fraction=0.5, over_selection=0.3), seed=0, round_number=1)) == 7


def test_a_node_that_leaves_changes_nobody_elses_lot() -> None:
    half = Selection(fraction=0.5)
    before = draw_cohort(NAMES, half, seed=0, round_number=1)
    gone = next(name for name in NAMES if name not in before)
    after = draw_cohort([name for name in NAMES if name != gone], half, seed=0, round_number=1)
    assert set(after) <= set(before)


def test_the_quorum_is_a_share_of_those_assigned_before_over_selection() -> None:
    assert quorum(Selection(quorum=0.8), NAMES) == 8
    assert quorum(Selection(quorum=0.75, over_selection=0.5), NAMES) == 5
    assert quorum(Selection(quorum=0.8), []) == 1


def test_adapting_waits_for_nobody() -> None:
    assert quorum(Selection(quorum=0.8), NAMES, Purpose.ADAPT) == 0
    assert quorum(Selection(quorum=0.8), NAMES, Purpose.EVALUATE) == 8
    few = Selection(minimum_nodes=5)
    assert [needed_to_open(few, purpose) for purpose in Purpose] == [4, 0, 1]
