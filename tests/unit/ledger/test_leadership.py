"""The leader's lease: a monotonic epoch that every write carries."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hanse.errors import Conflict, FencedOut
from hanse.ledger import Leader, Lease, Ledger, verify
from tests.unit.ledger.conftest import World


def test_the_first_epoch_is_one_and_each_taking_raises_it(ledger: Ledger) -> None:
    assert [ledger.take_lease("coordinator") for _ in range(3)] == [1, 2, 3]
    with ledger.read() as view:
        assert view.lease() == Lease(name="leader", holder="coordinator", epoch=3, expires_at=None)


def test_nobody_writes_before_the_lease_is_taken(ledger: Ledger) -> None:
    with pytest.raises(FencedOut, match="Epoch 1 does not lead"), ledger.write(1) as tx:
        tx.event("never")


@pytest.mark.parametrize("wrong", [lambda epoch: epoch - 1, lambda epoch: epoch + 1])
def test_a_write_with_another_epoch_is_refused_and_nothing_is_written(
    ledger: Ledger, wrong: Callable[[int], int]
) -> None:
    ledger.take_lease("first")
    epoch = ledger.take_lease("second")
    with pytest.raises(FencedOut) as refused, ledger.write(wrong(epoch)) as tx:
        tx.event("never")
    assert refused.value.reason.code == "FENCED_OUT"
    with ledger.read() as view:
        assert view.head().sequence == 0


def test_a_deposed_leader_is_fenced_out_and_the_new_one_writes_on(ledger: Ledger) -> None:
    old = ledger.take_lease("first")
    with ledger.write(old) as tx:
        tx.event("one")
    new = ledger.take_lease("second")
    with pytest.raises(FencedOut), ledger.write(old) as tx:
        tx.event("two")
    with ledger.write(new) as tx:
        assert tx.event("two") == 2


def test_a_lease_that_runs_is_not_taken_by_another(url: str) -> None:
    with Ledger.open(url) as ledger:
        ledger.migrate()
        epoch = ledger.take_lease("first", seconds=3600)
        with pytest.raises(Conflict, match=r"first leads for another 3[56]\d\d seconds") as refused:
            ledger.take_lease("second", seconds=3600)
        assert refused.value.code == "LEASE_HELD"
        with pytest.raises(Conflict):
            ledger.take_lease("second")
        ledger.renew_lease(epoch, 3600)
        assert ledger.take_lease("first", seconds=3600) == epoch + 1


def test_a_lease_that_ran_out_or_was_released_is_taken_at_once(url: str) -> None:
    with Ledger.open(url) as ledger:
        ledger.migrate()
        assert ledger.take_lease("first", seconds=-1) == 1
        epoch = ledger.take_lease("second", seconds=3600)
        ledger.release_lease(epoch)
        assert ledger.take_lease("third", seconds=3600) == 3


def test_who_does_not_lead_neither_renews_nor_releases(url: str) -> None:
    with Ledger.open(url) as ledger:
        ledger.migrate()
        old = ledger.take_lease("first", seconds=-1)
        ledger.take_lease("second", seconds=3600)
        with pytest.raises(FencedOut):
            ledger.renew_lease(old, 3600)
        ledger.release_lease(old)
        with pytest.raises(Conflict):
            ledger.take_lease("third", seconds=3600)


def test_a_leader_whose_time_ran_out_leads_until_somebody_else_does(url: str) -> None:
    with Ledger.open(url) as ledger:
        ledger.migrate()
        epoch = ledger.take_lease("first", seconds=-1)
        with ledger.write(epoch) as tx:
            tx.event("still")
        ledger.renew_lease(epoch, 3600)
        with pytest.raises(Conflict):
            ledger.take_lease("second", seconds=1)


def test_anybody_can_see_who_leads_and_for_how_much_longer(ledger: Ledger, url: str) -> None:
    assert ledger.leader() is None
    ledger.take_lease("forever")
    assert ledger.leader() == Leader(holder="forever", epoch=1, seconds_left=None)
    ledger.take_lease("first", seconds=3600)
    leader = ledger.leader()
    assert leader is not None
    assert (leader.holder, leader.epoch) == ("first", 2)
    assert leader.seconds_left is not None
    assert 3500 < leader.seconds_left <= 3600
    ledger.release_lease(2)
    leader = ledger.leader()
    assert leader is not None
    assert leader.seconds_left is not None
    assert leader.seconds_left <= 0


def test_the_lease_of_a_leader_that_is_known_to_be_gone_is_taken_before_it_runs_out(ledger: Ledger) -> None:
    gone = ledger.take_lease("first", seconds=3600)
    epoch = ledger.take_lease("second", seconds=3600, over=gone)
    assert epoch == gone + 1
    with pytest.raises(FencedOut), ledger.write(gone) as tx:
        tx.event("never")
    with pytest.raises(Conflict):  # what is known of an older leader says nothing of this one
        ledger.take_lease("third", seconds=3600, over=gone)


def test_many_rows_are_no_pipeline_in_which_the_server_would_not_notice_a_silent_leader(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    psycopg = pytest.importorskip("psycopg")

    def refuse(*_: object) -> None:
        raise AssertionError("the driver makes a pipeline of it")

    monkeypatch.setattr(psycopg.Cursor, "executemany", refuse)
    rows = [
        {"name": f"loss-{number}", "value": 1.0, "scope": "node", "node": None, "weight": 1.0} for number in range(50)
    ]
    with world.ledger.write(world.epoch) as tx:
        tx.add_metrics(job=world.job, round=1, phase=world.phase, rows=rows)
        for number in range(5):
            tx.event("counted", body={"number": number})
    with world.ledger.read() as view:
        assert len(view.metrics(world.job)) == 50
        assert verify(view).whole


def test_only_transactions_that_fell_silent_are_ended(url: str) -> None:
    with Ledger.open(url) as ledger, Ledger.open(url) as other:
        ledger.migrate()
        epoch = ledger.take_lease("first", 3600)
        with ledger.write(epoch) as tx:
            tx.event("still at work")
            assert not other.end_silent_leader(60)
