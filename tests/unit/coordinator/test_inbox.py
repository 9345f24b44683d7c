"""What a job's task takes at a time: contributions together, everything else one by one, and in order."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import Owner, Reason
from hanse_coordinator.inbox import MOST_TOGETHER, Inbox, Item
from hanse_coordinator.inputs import Delivered, Settled, Wake
from hanse_coordinator.states import AssignmentEvent

REASON = Reason(code="FAILED", sentence="It failed.", owner=Owner.SITE, remedy="")


def delivered(assignment: str) -> Delivered:
    return Delivered(assignment, assignment, 1, "00", 1, None)  # type: ignore[arg-type]


def failed(assignment: str) -> Settled:
    return Settled(assignment, assignment, 1, AssignmentEvent.FAIL, REASON)


def taken(items: list[Item]) -> list[list[Item]]:
    async def take() -> list[list[Item]]:
        inbox = Inbox()
        for item in items:
            inbox.put(item)
        found: list[list[Item]] = []
        while sum(map(len, found)) < len(items):
            async with asyncio.timeout(5):
                found.append(await inbox.get())
        return found

    return asyncio.run(take())


def test_contributions_that_wait_are_taken_together_and_pass_what_says_nothing_of_them() -> None:
    a, b, c = delivered("a"), delivered("b"), delivered("c")
    assert taken([a, Wake(), b, c]) == [[a, b, c], [Wake()]]


def test_a_contribution_overtakes_no_failure() -> None:
    a, b = delivered("a"), delivered("b")
    assert taken([a, failed("b"), b]) == [[a], [failed("b")], [b]]


def test_two_answers_to_one_assignment_are_judged_one_after_the_other() -> None:
    a, again = delivered("a"), delivered("a")
    assert [len(each) for each in taken([a, again])] == [1, 1]


def test_no_transaction_grows_without_bound() -> None:
    counts = [len(each) for each in taken([delivered(str(number)) for number in range(MOST_TOGETHER + 5)])]
    assert counts == [MOST_TOGETHER, 5]


@given(
    st.lists(
        st.one_of(st.sampled_from("abcdef").map(delivered), st.sampled_from("abcdef").map(failed), st.just(Wake())),
        max_size=30,
    )
)
def test_nothing_is_lost_or_doubled_and_each_assignment_keeps_its_order(items: list[Item]) -> None:
    flat = [item for each in taken(items) for item in each]
    assert sorted(map(id, flat)) == sorted(map(id, items))
    for name in "abcdef":
        own = [item for item in items if not isinstance(item, Wake) and item.assignment == name]  # type: ignore[union-attr]
        assert [i for i in flat if not isinstance(i, Wake) and i.assignment == name] == own  # type: ignore[union-attr]
