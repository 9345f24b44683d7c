"""What the pages and the API are told, against a ledger whose answers are known."""

from __future__ import annotations

import pytest

from hanse.errors import NotFound, OperatorError
from hanse.ledger import JobState, Trust
from hanse_dashboard.queries import egress, jobs, metrics, models, nodes, rounds, trail
from hanse_dashboard.queries.overview import attention, overview, slow_nodes
from hanse_dashboard.queries.paging import Page, every_row

from .conftest import DATABASES, HOSTILE, NODES, World


@pytest.fixture(params=DATABASES)
def world(request: pytest.FixtureRequest) -> World:
    found: World = request.getfixturevalue(f"{request.param}_world")
    return found


def test_jobs_come_newest_first_a_page_at_a_time(world: World) -> None:
    with world.ledger.read() as view:
        first = jobs.job_rows(view, limit=2)
        second = jobs.job_rows(view, limit=2, after=first.next)
    assert [row.id for row in first.rows] == [world.running, world.paused]
    assert ([row.id for row in second.rows], second.next) == ([world.good], "")


def test_jobs_are_filtered_by_state_and_by_part_of_the_name(world: World) -> None:
    with world.ledger.read() as view:
        assert [row.id for row in jobs.job_rows(view, states=[JobState.PAUSED]).rows] == [world.paused]
        assert [row.id for row in jobs.job_rows(view, text="SECO").rows] == [world.running]
        assert jobs.job_rows(view, text="%").rows == []
        assert jobs.job_counts(view) == {"succeeded": 1, "paused": 1, "running": 1}


def test_a_job_shows_its_best_and_its_last_value(world: World) -> None:
    with world.ledger.read() as view:
        found = {(m.name, m.scope): m for m in jobs.job_detail(view, world.good).metrics}
    accuracy, loss = found["accuracy", "pooled"], found["log_loss", "pooled"]
    assert (accuracy.last, accuracy.best, accuracy.best_round) == (0.8, 0.9, 2)
    assert (loss.last, loss.best, loss.lower_is_better) == (pytest.approx(1 / 3), pytest.approx(1 / 3), True)


def test_a_list_shows_accuracy_before_other_metrics(world: World) -> None:
    with world.ledger.read() as view:
        row = next(row for row in jobs.job_rows(view).rows if row.id == world.good)
    assert row.metric is not None
    assert row.metric.name == "accuracy"


def test_bytes_and_records_of_those_who_take_part(world: World) -> None:
    with world.ledger.read() as view:
        found = jobs.job_detail(view, world.good)
    assert {item.node: item.bytes for item in found.participants} == dict.fromkeys(NODES[:3], 6000) | {HOSTILE: 0}
    assert [item.node for item in found.participants if item.unseen] == [HOSTILE]
    assert found.bytes == 18_000


def test_time_left_is_rounds_left_times_the_usual_round(world: World) -> None:
    with world.ledger.read() as view:
        assert jobs.job_detail(view, world.running).seconds_left == pytest.approx(13 * 2)
        assert jobs.job_detail(view, world.good).seconds_left is None


def test_the_grid_has_a_cell_for_each_node_and_round(world: World) -> None:
    with world.ledger.read() as view:
        whole = rounds.grid(view, world.good)
        cut = rounds.grid(view, world.good, until=2, width=1)
    assert (list(whole.rounds), list(whole.nodes)) == ([1, 2, 3], list(NODES[:3]))
    assert [cell.seconds for cell in whole.cells if cell.node == "node-3"] == [3.0, 3.0, 3.0]
    assert {cell.state for cell in whole.cells} == {"delivered"}
    assert (list(cut.rounds), cut.first, cut.last) == ([2], 1, 3)


def test_a_round_tells_work_from_waiting(world: World) -> None:
    with world.ledger.read() as view:
        found = rounds.round_detail(view, world.good, 1)
    assert found.nodes == ["node-3", "node-2", "node-1"]
    assert (found.work_seconds, found.wait_seconds) == (6.0, 3.0)
    block = found.phases[0]
    assert (block.quorum, block.delivered, block.median_seconds) == (2, 3, 2.0)
    assert block.quorum_at == block.opened_at + 2
    assert block.closed_at == block.opened_at + 13


def test_an_open_round_has_an_open_bar(world: World) -> None:
    with world.ledger.read() as view:
        bars = {bar.node: bar for bar in rounds.round_detail(view, world.running, 2).phases[0].bars}
    assert (bars["node-3"].state, bars["node-3"].ended_at, bars["node-3"].seconds) == ("leased", None, None)
    assert bars["node-2"].seconds == 2.0


def test_a_round_that_was_never_begun_is_not_found(world: World) -> None:
    with world.ledger.read() as view, pytest.raises(NotFound, match="round 9") as missing:
        rounds.round_detail(view, world.good, 9)
    assert "rounds 1 to 3" in missing.value.remedy


def test_curves_are_pooled_then_unseen_then_nodes(world: World) -> None:
    with world.ledger.read() as view:
        found = metrics.curves(view, world.good, "accuracy")
        names = dict(metrics.metric_names(view, world.good))
    assert [(curve.scope, curve.node) for curve in found] == [
        ("pooled", ""), ("unseen", ""), ("node", "node-1"), ("node", "node-2"), ("node", "node-3"),
    ]  # fmt: skip
    assert list(found[0].values) == [0.5, 0.9, 0.8]
    assert names == {"accuracy": True, "log_loss": True, HOSTILE: False}


def test_nodes_stand_on_two_axes(world: World) -> None:
    with world.ledger.read() as view:
        up = nodes.node_rows(view, now=world.clock.now, coordinator_answers=True).rows
        down = nodes.node_rows(view, now=world.clock.now, coordinator_answers=False).rows
        pending = nodes.node_rows(view, now=world.clock.now, coordinator_answers=True, trust=[Trust.PENDING]).rows
    assert {row.name: (row.trust, row.health) for row in up} == {
        "node-1": ("approved", "online"),
        "node-2": ("approved", "online"),
        "node-3": ("approved", "online"),
        HOSTILE: ("approved", "offline"),
        "new-node": ("pending", "never_seen"),
    }
    assert {row.health for row in down if row.name.startswith("node-")} == {"unknown"}
    assert [row.name for row in pending] == ["new-node"]


def test_what_left_a_node_is_complete_and_newest_first(world: World) -> None:
    def read(after: str) -> Page[egress.EgressRow]:
        with world.ledger.read() as view:
            return egress.egress_rows(view, "node-1", after=after, limit=2)

    rows = list(every_row(read, most=100))
    assert [(row.job, row.round, row.bytes) for row in rows] == [
        (world.running, 2, 2000), (world.running, 1, 1000),
        (world.good, 3, 3000), (world.good, 2, 2000), (world.good, 1, 1000),
    ]  # fmt: skip
    assert len({row.digest for row in rows if row.job == world.good}) == 3
    with world.ledger.read() as view:
        totals = egress.egress_totals(view, "node-1")
        assert [(row.job, row.contributions, row.bytes) for row in totals] == [
            (world.running, 2, 3000),
            (world.good, 3, 6000),
        ]
        assert egress.egress_rows(view, HOSTILE).rows == []
        with pytest.raises(OperatorError):
            egress.egress_rows(view, "node-1", after="x~y")


def test_a_node_far_behind_the_others_is_slow(world: World) -> None:
    with world.ledger.read() as view:
        assert slow_nodes(view, world.clock.now + 1) == frozenset()
        assert slow_nodes(view, world.clock.now + 60) == {"node-3"}


def test_what_needs_somebody_says_who_and_what_to_do(world: World) -> None:
    with world.ledger.read() as view:
        found = {item.code: item for item in attention(view, world.clock.now + 60)}
    assert set(found) == {"QUORUM_NOT_MET", "SLOW_NODE", "WAITS_FOR_APPROVAL", "NODE_OFFLINE"}
    assert (found["QUORUM_NOT_MET"].owner, found["QUORUM_NOT_MET"].job) == ("site", world.paused)
    assert (found["NODE_OFFLINE"].tone, found["NODE_OFFLINE"].node) == ("bad", HOSTILE)
    assert all(item.remedy for item in found.values())


def test_the_overview_counts_what_left_in_a_day(world: World) -> None:
    with world.ledger.read() as view:
        found = overview(view, world.clock.now)
    assert found.bytes_today == 18_000 + 3_000 + 2 * 2_000
    assert found.contributions_today == 9 + 3 + 2
    assert (found.nodes["approved"], found.nodes["online"]) == (4, 3)
    assert [item.job.id for item in found.running] == [world.running]


def test_models_know_where_they_came_from(world: World) -> None:
    with world.ledger.read() as view:
        (row,) = models.model_rows(view).rows
    assert (row.job, row.size, row.there, row.nodes, row.unseen) == (world.good, 1234, True, list(NODES[:3]), [HOSTILE])


def test_job_files_are_compared_key_by_key(world: World) -> None:
    with world.ledger.read() as view:
        second = view.job(world.running)
        good = models.last_good_job(view, second)
        assert good is not None
        found = models.differences([good, second])
    assert good.id == world.good
    assert [(row.key, row.values) for row in found if not row.same] == [("method_config.eta", ["0.3", "0.2"])]


def test_an_entry_fits_between_its_neighbours(world: World) -> None:
    with world.ledger.read() as view:
        head = view.head()
        first, last = trail.entry(view, 1), trail.entry(view, head.sequence)
        assert (first.fits, first.previous_hash, first.next) == (True, "00" * 32, 2)
        assert (last.fits, last.next, last.event.hash) == (True, None, head.hash.hex())
        for missing in (0, head.sequence + 1, 10**18):
            with pytest.raises(NotFound):
                trail.entry(view, missing)


@pytest.mark.parametrize("newest_first", [True, False])
def test_the_trail_is_read_in_both_directions_without_a_gap(world: World, newest_first: bool) -> None:
    def read(after: str) -> trail.Page[trail.EventRow]:
        with world.ledger.read() as view:
            return trail.event_rows(view, after=after, limit=7, newest_first=newest_first)

    sequences = [row.sequence for row in every_row(read, most=1000)]
    with world.ledger.read() as view:
        wanted = list(range(1, view.head().sequence + 1))
    assert sequences == (wanted[::-1] if newest_first else wanted)


def test_one_box_finds_entries_jobs_nodes_tokens_and_digests(world: World) -> None:
    with world.ledger.read() as view:
        assert {hit.kind for hit in trail.find(view, "3")} == {"event"}
        assert [hit.job for hit in trail.find(view, world.good)] == [world.good]
        assert [hit.job for hit in trail.find(view, "activity")] == [world.good]
        assert [hit.node for hit in trail.find(view, HOSTILE)] == [HOSTILE]
        assert {hit.kind for hit in trail.find(view, "ab" * 8)} == {"artifact", "model"}
        assert [hit.sequence for hit in trail.find(view, view.head().hash.hex())] == [view.head().sequence]
        contributed = egress.egress_rows(view, "node-1").rows[0].digest
        assert "node-1" in {hit.node for hit in trail.find(view, contributed[:12])}
        assert trail.find(view, "nobody") == trail.find(view, "  ") == []


def test_metrics_of_a_round_stand_in_one_line_a_name(world: World) -> None:
    with world.ledger.read() as view:
        found = metrics.metrics_of_round(rounds.round_detail(view, world.good, 2))
    assert [item.name for item in found] == ["accuracy", "log_loss", HOSTILE]
    accuracy = found[0]
    assert accuracy.whole == {"pooled": 0.9, "unseen": 0.4}
    assert [node for node, _ in accuracy.nodes] == list(NODES[:3])
    assert (accuracy.low, accuracy.high) == (0.5, 0.5)
