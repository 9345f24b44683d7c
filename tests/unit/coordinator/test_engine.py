"""What a job is promised, whatever nodes, aggregators and the coordinator's own machine do."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hanse.errors import MethodError, NotFound, Owner, PolicyRefusal
from hanse.ledger import AssignmentState, verify
from hanse.v1 import node_pb2
from hanse_coordinator.retention import delete_expired
from hanse_coordinator.states import JobEvent
from tests.unit.coordinator.engine_federation import AWAY, REJECTED, Crash, Crashed, Federation

NAMES = ["ada", "ben", "cyn", "dov"]


@pytest.fixture(autouse=True)
def _database(new_database: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test of this file runs on every kind of database."""
    monkeypatch.setattr(sys.modules[__name__], "new_url", new_database)


def new_url(folder: Path) -> str:
    raise AssertionError("replaced by the fixture")


def run(folder: Path, scenario: Callable[[Federation], Awaitable[None]], **options: Any) -> None:
    """Play a scenario in a fresh federation, and check the audit trail afterwards."""

    async def play() -> None:
        federation = Federation(folder, NAMES, url=new_url(folder), **options)
        await federation.start()
        try:
            await scenario(federation)
        finally:
            await federation.stop()
        with federation.ledger.read() as view:
            assert verify(view).whole
        federation.ledger.close()

    asyncio.run(play())


def undisturbed_model(folder: Path, **job: Any) -> bytes:
    models: list[bytes] = []

    async def scenario(federation: Federation) -> None:
        job_id = await federation.submit(**job)
        assert (await federation.until(job_id)).state == "succeeded"
        models.append(federation.model(job_id))

    folder.mkdir(exist_ok=True)
    run(folder, scenario)
    return models[0]


def test_a_job_runs_through_its_rounds_and_ends_with_a_model(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        job = await federation.submit(rounds=3, evaluation={"every": 2})
        record = await federation.until(job)
        assert (record.state, record.round, record.reason) == ("succeeded", 3, None)
        closed = [event.facts["name"] for event in federation.events("phase_closed")]
        assert closed == ["measure", "add", "measure", "add", "evaluate", "measure", "add", "evaluate"]
        assert all(set(node.done.values()) == {1} for node in federation.nodes.values())
        await federation.eventually(lambda: all(node.ended == ["succeeded"] for node in federation.nodes.values()))

    run(tmp_path, scenario)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(crashes=st.lists(st.tuples(st.integers(1, 14), st.booleans()), min_size=1, max_size=6), number=st.integers())
def test_a_coordinator_killed_at_any_transition_goes_on_to_the_same_model(
    tmp_path_factory: pytest.TempPathFactory, crashes: list[tuple[int, bool]], number: int
) -> None:
    folder = tmp_path_factory.mktemp("killed")
    expected = undisturbed_model(folder / "quiet", evaluation={"every": 2})

    async def play() -> None:
        federation = Federation(folder, NAMES, url=new_url(folder))
        await federation.start()
        job = await federation.submit(evaluation={"every": 2})
        await federation.stop()
        for at, after in crashes:
            await federation.start(Crash(at, after))
            try:
                await federation.until(job)
            except Crashed:
                await federation.stop()
            else:
                await federation.stop()
                break
        await federation.start()
        record = await federation.until(job)
        await federation.stop()
        assert record.state == "succeeded"
        assert federation.model(job) == expected
        for node in federation.nodes.values():
            assert set(node.done.values()) == {1}, "a node repeated work that it had already delivered"
        with federation.ledger.read() as view:
            assert verify(view).whole
            assert {phase.attempt for phase in view.phases(job)} == {1}
        federation.ledger.close()

    asyncio.run(play())


def test_every_single_transition_survives_a_kill_before_and_after_its_commit(tmp_path: Path) -> None:
    expected = undisturbed_model(tmp_path / "quiet", rounds=1, evaluation={"every": 1})

    async def play(folder: Path, at: int, after: bool) -> bool:
        folder.mkdir()
        federation = Federation(folder, NAMES, url=new_url(folder))
        await federation.start()
        job = await federation.submit(rounds=1, evaluation={"every": 1})
        await federation.stop()
        await federation.start(Crash(at, after))
        crashed = False
        try:
            await federation.until(job)
        except Crashed:
            crashed = True
        await federation.stop()
        await federation.start()
        assert (await federation.until(job)).state == "succeeded"
        await federation.stop()
        assert federation.model(job) == expected
        federation.ledger.close()
        return crashed

    at, crashed = 1, True
    stride = 1 if new_url(tmp_path).startswith("sqlite") else 3
    while crashed:
        crashed = all(asyncio.run(play(tmp_path / f"{at}-{after}", at, after)) for after in (False, True))
        at += stride
    assert at > 15, "the sweep ended before it had met the job's transitions"


def test_a_node_that_stalls_is_left_out_and_welcomed_back(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        federation.nodes["ben"].behaviour = lambda assign: "stall" if assign.round == 2 else None
        job = await federation.submit(selection={"minimum_nodes": 4, "quorum": 0.7, "deadline": "20s"})
        assert (await federation.until(job)).state == "succeeded"
        closed = federation.events("phase_closed")
        assert [sorted(event.facts["missing"]) for event in closed] == [[], [], ["ben"], ["ben"], [], []]
        why = closed[2].facts["missing"]["ben"]
        assert (why["state"], why["code"], why["owner"]) == ("expired", "NO_PROGRESS", "site")
        assert "ben" in why["sentence"]
        await federation.eventually(lambda: "NO_PROGRESS" in federation.nodes["ben"].withdrawn)

    run(tmp_path, scenario, lease=0.3)


def test_a_node_that_vanishes_is_named_as_gone_and_the_job_goes_on(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        dov = federation.nodes["dov"]

        def vanish(assign: node_pb2.Assign) -> str | None:
            if assign.round == 1:
                asyncio.get_running_loop().call_soon(dov.disconnect)
                return "stall"
            return None

        dov.behaviour = vanish
        job = await federation.submit(selection={"minimum_nodes": 4, "quorum": 0.7, "deadline": "20s"})
        assert (await federation.until(job)).state == "succeeded"
        missing = federation.events("phase_closed")[0].facts["missing"]["dov"]
        assert (missing["code"], missing["owner"]) == ("NODE_GONE", "site")
        opened = federation.events("phase_opened")
        assert opened[-1].facts["absent"] == ["dov"]

    run(tmp_path, scenario, lease=0.3)


def test_rubbish_is_rejected_and_recorded_as_the_sites_fault(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        federation.pool.reject = lambda node, phase: REJECTED if (node, phase) == ("ada", "add") else None
        job = await federation.submit(selection={"minimum_nodes": 4, "quorum": 0.7, "deadline": "20s"})
        assert (await federation.until(job)).state == "succeeded"
        assert [set(e.facts["contributors"]) for e in federation.events("phase_closed")][1] == set(NAMES) - {"ada"}
        rejected = federation.events("assignment_rejected")
        assert {(event.node, event.facts["code"], event.facts["owner"]) for event in rejected} == {
            ("ada", "REJECTED", "site")
        }

    run(tmp_path, scenario)


def test_what_the_aggregator_rejects_does_not_count_for_the_quorum(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        federation.pool.reject = lambda node, _phase: None if node == "ada" else REJECTED
        job = await federation.submit(selection={"minimum_nodes": 4, "quorum": 0.5, "tries": 1})
        record = await federation.until(job)
        assert (record.state, record.reason.code) == ("paused", "QUORUM_NOT_MET")
        assert "1 of 4 assigned nodes contributed" in record.reason.sentence

    run(tmp_path, scenario)


def test_a_restart_after_a_rejection_goes_on_without_the_rejected(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        federation.pool.reject = lambda node, _phase: REJECTED if node == "ben" else None
        federation.nodes["dov"].behaviour = lambda _assign: "stall"
        job = await federation.submit(rounds=1, selection={"minimum_nodes": 4, "quorum": 0.5})
        await federation.until(job, "running")
        await federation.eventually(lambda: bool(federation.events("assignment_rejected")))
        await federation.stop()
        federation.nodes["dov"].behaviour = lambda _assign: None
        await federation.start()
        assert (await federation.until(job)).state == "succeeded"

    run(tmp_path, scenario)


def test_below_quorum_the_phase_is_tried_again_and_then_the_job_pauses_with_a_reason(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        refusal = PolicyRefusal("only 10 rows.", rule="minimum_rows", remedy="Add records.").reason
        for name in ("ada", "ben"):
            federation.nodes[name].behaviour = lambda assign: refusal if assign.round == 2 else None
        job = await federation.submit(selection={"minimum_nodes": 4, "quorum": 0.8, "tries": 2, "deadline": "20s"})
        record = await federation.until(job)
        assert record.state == "paused"
        assert record.reason.code == "QUORUM_NOT_MET"
        assert record.reason.owner is Owner.SITE
        assert "2 of 4" in record.reason.sentence
        assert "only 10 rows." in record.reason.sentence
        for name in ("ada", "ben"):
            federation.nodes[name].behaviour = lambda _assign: None
        await federation.engine.command("test", JobEvent.RESUME, actor="op", why="fixed")
        assert (await federation.until(job, "succeeded", "failed")).state == "succeeded"
        with federation.ledger.read() as view:
            attempts = [phase.attempt for phase in view.phases(job) if phase.round == 2 and phase.name == "measure"]
        assert attempts == [1, 2, 3]

    run(tmp_path, scenario)


def test_the_quorum_is_judged_only_when_everybody_has_answered(tmp_path: Path) -> None:
    """Three of four would do, but the fourth is healthy and at work: the phase waits for it."""

    async def scenario(federation: Federation) -> None:
        held: list[node_pb2.Assign] = []

        def hold(assign: node_pb2.Assign) -> str | None:
            if assign.round == 1 and assign.phase == "measure" and not held:
                held.append(assign)
                return "stall"
            return None

        cyn = federation.nodes["cyn"]
        cyn.behaviour = hold
        job = await federation.submit(selection={"minimum_nodes": 4, "quorum": 0.5, "deadline": "20s"})
        changed, stop = federation.engine.watch(job)
        runner = federation.engine.runner(job)
        assert runner is not None
        while not (runner.phase and runner.phase.valid() == 3):
            changed.clear()
            await asyncio.wait_for(changed.wait(), 10)
        stop()
        assert runner.phase.record.state == "collecting"
        await cyn._perform(federation.engine, held[0])
        assert (await federation.until(job)).state == "succeeded"
        assert set(federation.events("phase_closed")[0].facts["contributors"]) == set(NAMES)

    run(tmp_path, scenario)


def test_a_contribution_after_the_lease_is_recorded_and_not_used(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        held: list[node_pb2.Assign] = []
        ada = federation.nodes["ada"]
        ada.behaviour = lambda assign: held.append(assign) or "stall" if assign.round == 1 else None
        job = await federation.submit(selection={"minimum_nodes": 4, "quorum": 0.7, "deadline": "20s"})
        assert (await federation.until(job)).state == "succeeded"
        ada.behaviour = lambda _assign: None
        await ada._perform(federation.engine, held[0])
        with federation.ledger.read() as view:
            late = view.contribution(held[0].assignment)
            assert late is not None
            assert late.late
            assert view.assignment(held[0].assignment).state is AssignmentState.LATE
        assert "ada" not in federation.events("phase_closed")[0].facts["contributors"]

    run(tmp_path, scenario, lease=0.3)


def test_an_unseen_node_evaluates_and_never_trains(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        job = await federation.submit(
            evaluation={"every": 1, "unseen": ["dov"]}, selection={"minimum_nodes": 3, "deadline": "20s"}
        )
        assert (await federation.until(job)).state == "succeeded"
        assert {phase for phase, _, _ in federation.nodes["dov"].done} == {"evaluate"}
        assert {phase for phase, _, _ in federation.nodes["ada"].done} == {"measure", "add", "evaluate"}

    run(tmp_path, scenario)


def test_an_aggregator_that_comes_back_in_time_costs_nothing(tmp_path: Path) -> None:
    expected = undisturbed_model(tmp_path / "quiet")

    async def scenario(federation: Federation) -> None:
        failures = iter([AWAY, None, AWAY, None, None, AWAY, AWAY])
        federation.pool.fail = lambda: next(failures, None)
        job = await federation.submit()
        assert (await federation.until(job)).state == "succeeded"
        assert federation.model(job) == expected
        assert all(set(node.done.values()) == {1} for node in federation.nodes.values())

    run(tmp_path, scenario)


def test_an_aggregator_that_stays_away_pauses_the_job_and_no_work_is_lost(tmp_path: Path) -> None:
    expected = undisturbed_model(tmp_path / "quiet")

    async def scenario(federation: Federation) -> None:
        count = 0

        def fail() -> Any:
            nonlocal count
            count += 1
            return AWAY if count > 3 else None

        federation.pool.fail = fail
        job = await federation.submit()
        record = await federation.until(job)
        assert (record.state, record.reason.owner) == ("paused", Owner.PLATFORM)
        federation.pool.fail = lambda: None
        await federation.engine.command("test", JobEvent.RESUME, actor="op", why="")
        assert (await federation.until(job, "succeeded", "failed")).state == "succeeded"
        assert federation.model(job) == expected

    run(tmp_path, scenario)


def test_a_plug_in_that_comes_to_no_end_pauses_the_job_and_no_work_is_lost(tmp_path: Path) -> None:
    expected = undisturbed_model(tmp_path / "quiet")

    async def scenario(federation: Federation) -> None:
        federation.settings.aggregation_limit = timedelta(seconds=0.2)
        federation.pool.hang = lambda phase: phase == "add"
        job = await federation.submit()
        record = await federation.until(job)
        assert (record.state, record.reason.code) == ("paused", "AGGREGATION_ENDLESS")
        assert "aggregation_limit" in record.reason.remedy
        federation.settings.aggregation_limit = timedelta(minutes=1)
        federation.pool.hang = lambda _phase: False
        await federation.engine.command("test", JobEvent.RESUME, actor="op", why="")
        assert (await federation.until(job, "succeeded", "failed")).state == "succeeded"
        assert federation.model(job) == expected

    run(tmp_path, scenario)


def test_a_method_that_gives_up_fails_the_job_with_its_reason(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        count = 0

        def fail() -> Any:
            nonlocal count
            count += 1
            return MethodError("the objective diverged.", remedy="Lower eta.") if count > 4 else None

        federation.pool.fail = fail
        record = await federation.until(await federation.submit())
        assert record.state == "failed"
        assert (record.reason.owner, record.reason.sentence) == (Owner.METHOD, "the objective diverged.")
        await federation.eventually(lambda: all(node.ended == ["failed"] for node in federation.nodes.values()))

    run(tmp_path, scenario)


def test_an_aggregator_without_the_plug_in_pauses_the_job_until_it_has_it_again(tmp_path: Path) -> None:
    expected = undisturbed_model(tmp_path / "quiet")

    async def scenario(federation: Federation) -> None:
        count = 0

        def fail() -> Any:
            nonlocal count
            count += 1
            return NotFound("no plug-in for method 'adding'.", code="UNKNOWN_METHOD") if count > 4 else None

        federation.pool.fail = fail
        job = await federation.submit()
        record = await federation.until(job)
        assert (record.state, record.reason.code) == ("paused", "UNKNOWN_METHOD")
        federation.pool.fail = lambda: None
        await federation.engine.command("test", JobEvent.RESUME, actor="op", why="")
        assert (await federation.until(job, "succeeded", "failed")).state == "succeeded"
        assert federation.model(job) == expected

    run(tmp_path, scenario)


def test_a_job_whose_artifacts_were_lost_pauses_with_that_reason_and_can_be_cancelled(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        for node in federation.nodes.values():
            node.behaviour = lambda _assign: "stall"
        job = await federation.submit()
        await federation.until(job, "running")
        await federation.eventually(lambda: bool(federation.events("phase_opened")))
        await federation.stop()
        with federation.ledger.read() as view:
            phase = view.open_phase(job)
        assert phase is not None
        assert phase.instruction_digest
        federation.store.delete(bytes.fromhex(phase.instruction_digest))
        await federation.start()
        record = await federation.until(job)
        assert (record.state, record.reason.code) == ("paused", "ARTIFACT_NOT_FOUND")
        async with asyncio.timeout(5):
            await federation.engine.command("test", JobEvent.CANCEL, actor="op", why="")
        assert (await federation.until(job)).state == "cancelled"

    run(tmp_path, scenario)


def test_contributions_to_a_phase_that_was_given_up_are_deleted_after_the_retention_too(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        federation.pool.reject = lambda node, phase: REJECTED if phase == "add" and node != "ada" else None
        job = await federation.submit(selection={"minimum_nodes": 4, "tries": 1})
        assert (await federation.until(job)).state == "paused"
        with federation.ledger.read() as view:
            kept = [item for item in view.artifacts(job) if item.kind == "contribution"]
        assert kept
        assert all(item.retain_until is not None for item in kept)

    run(tmp_path, scenario)


def test_what_phases_were_made_of_is_deleted_and_a_job_that_has_not_ended_keeps_what_it_needs(tmp_path: Path) -> None:
    """Two jobs with the same settings make the same bytes: what one is done with, the other still needs."""

    async def scenario(federation: Federation) -> None:
        federation.settings.retention = timedelta(0)
        paused = await federation.submit(name="paused", rounds=5)
        runner = federation.engine.runner(paused)
        assert runner is not None
        await federation.eventually(lambda: runner.job.round >= 2)
        await federation.engine.command(paused, JobEvent.PAUSE, actor="op", why="")
        done = await federation.submit(name="done", rounds=5)
        assert (await federation.until(done)).state == "succeeded"
        deleted = 0
        while found := await delete_expired(federation.thread, federation.store):
            deleted += found
        with federation.ledger.read() as view:
            left = {item.kind for item in view.artifacts(done) if item.deleted_at is None}
            needed = view.still_needed([item.digest for item in view.artifacts(paused)])
        assert deleted
        assert left == {"model"}
        assert needed
        await federation.engine.command(paused, JobEvent.RESUME, actor="op", why="")
        assert (await federation.until(paused, "succeeded", "failed")).state == "succeeded"
        assert federation.model(paused) == federation.model(done)

    run(tmp_path, scenario)


def test_pause_withdraws_work_and_resume_goes_on_to_the_same_model(tmp_path: Path) -> None:
    expected = undisturbed_model(tmp_path / "quiet")

    async def scenario(federation: Federation) -> None:
        federation.nodes["ben"].behaviour = lambda assign: "stall" if assign.round == 2 else None
        job = await federation.submit()
        changed, stop = federation.engine.watch(job)
        runner = federation.engine.runner(job)
        assert runner is not None
        while not (runner.job.round == 2 and runner.phase and runner.phase.valid() == 3):
            changed.clear()
            await asyncio.wait_for(changed.wait(), 10)
        stop()
        await federation.engine.command("test", JobEvent.PAUSE, actor="op", why="lunch")
        with federation.ledger.read() as view:
            record = view.job(job)
        assert (record.state, record.reason.code) == ("paused", "PAUSED_BY_OPERATOR")
        assert "lunch" in record.reason.sentence
        federation.nodes["ben"].behaviour = lambda _assign: None
        await federation.engine.command("test", JobEvent.RESUME, actor="op", why="")
        assert (await federation.until(job, "succeeded", "failed")).state == "succeeded"
        assert federation.model(job) == expected
        await federation.eventually(lambda: federation.nodes["ben"].withdrawn == ["PAUSED_BY_OPERATOR"])

    run(tmp_path, scenario)


def test_a_cancelled_job_stays_cancelled_after_a_restart(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        for node in federation.nodes.values():
            node.behaviour = lambda _assign: "stall"
        job = await federation.submit()
        await federation.until(job, "running")
        await federation.engine.command(job, JobEvent.CANCEL, actor="op", why="wrong data")
        assert (await federation.until(job)).state == "cancelled"
        await federation.stop()
        await federation.start()
        with federation.ledger.read() as view:
            assert view.job(job).state == "cancelled"
            assert view.open_phase(job) is None

    run(tmp_path, scenario)


def test_the_same_answer_again_adds_nothing_to_the_trail(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        federation.nodes["ada"].behaviour = lambda _assign: "stall"
        job = await federation.submit()
        await federation.until(job, "running")
        reply = node_pb2.OfferReply(job=job, decision=node_pb2.OfferReply.DECISION_ACCEPTED)
        for _ in range(5):
            federation.engine.replied("ada", reply)
        await federation.engine.command(job, JobEvent.CANCEL, actor="op", why="")
        await federation.until(job)
        assert [event.node for event in federation.events("offer_accepted")].count("ada") == 1

    run(tmp_path, scenario)


def test_a_node_that_was_away_when_a_job_ended_is_told_when_it_comes_back(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        job = await federation.submit()
        await federation.until(job)
        dov = federation.nodes["dov"]
        await federation.eventually(lambda: dov.ended == ["succeeded"])
        dov.disconnect()
        dov.ended.clear()
        dov.connect()
        await federation.eventually(lambda: dov.ended == ["succeeded"])

    run(tmp_path, scenario)


def test_a_job_waits_and_says_for_what(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        answers = {"ada": node_pb2.OfferReply.DECISION_AWAITING_APPROVAL}
        federation.decide = lambda name: answers.get(name, node_pb2.OfferReply.DECISION_ACCEPTED)
        job = await federation.submit()
        record = await federation.until(job, "waiting")
        changed, stop = federation.engine.watch(job)
        while record.reason is None or "3 of 4" not in record.reason.sentence:
            changed.clear()
            await asyncio.wait_for(changed.wait(), 10)
            with federation.ledger.read() as view:
                record = view.job(job)
        stop()
        assert "ada" in record.reason.sentence
        assert record.reason.owner is Owner.SITE
        reply = node_pb2.OfferReply(job=job, decision=node_pb2.OfferReply.DECISION_ACCEPTED)
        federation.engine.replied("ada", reply)
        assert (await federation.until(job)).state == "succeeded"

    run(tmp_path, scenario)


def test_another_agent_process_gets_a_new_fence_and_the_old_one_is_refused(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        held: list[node_pb2.Assign] = []
        ada = federation.nodes["ada"]
        ada.behaviour = lambda assign: held.append(assign) or "stall" if len(held) < 1 else None
        job = await federation.submit(rounds=1)
        changed, stop = federation.engine.watch(job)
        while not held:
            changed.clear()
            await asyncio.wait_for(changed.wait(), 10)
        stop()
        ada.disconnect()
        ada.instance = b"2"
        ada.connect()
        assert (await federation.until(job)).state == "succeeded"
        with federation.ledger.read() as view:
            assert view.assignment(held[0].assignment).fence == 2
            assert view.assignment(held[0].assignment).state is AssignmentState.DELIVERED

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "unknown"}, "no aggregator of this federation knows the method 'unknown'"),
        ({"method_config": {"steps": 3}}, "'steps'"),
        ({"evaluation": {"every": 1, "unseen": ["zoe"]}}, "'zoe'"),
    ],
)
def test_a_job_that_cannot_run_is_refused_at_submission(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    async def scenario(federation: Federation) -> None:
        with pytest.raises(Exception, match=words):
            await federation.submit(**changes)
        assert federation.events("job_submitted") == []

    run(tmp_path, scenario)


def test_half_a_megabyte_rides_in_the_session_but_not_where_an_assignment_ran_out(tmp_path: Path) -> None:
    """Inside the session nothing shows how far the bytes are: on a slow line no lease would ever be long enough."""
    sent: dict[tuple[str, str, int], tuple[str | None, int]] = {}

    async def scenario(federation: Federation) -> None:
        federation.pool.padding = 500_000

        def behaviour(node: str) -> Callable[[node_pb2.Assign], Any]:
            def behave(assign: node_pb2.Assign) -> Any:
                how = assign.instruction.WhichOneof("source")
                sent[(node, assign.phase, assign.round)] = (how, assign.inline_limit)
                return "stall" if (node, assign.phase, assign.round) == ("dov", "measure", 1) else None

            return behave

        for name, node in federation.nodes.items():
            node.behaviour = behaviour(name)
        job = await federation.submit(rounds=1, selection={"minimum_nodes": 4, "quorum": 0.5, "deadline": "20s"})
        assert (await federation.until(job)).state == "succeeded"

    run(tmp_path, scenario, lease=0.5)
    assert sent[("dov", "measure", 1)] == ("inline", 1024 * 1024)
    assert sent[("dov", "add", 1)] == ("artifact", 0)
    assert sent[("ada", "add", 1)] == ("inline", 1024 * 1024)


def test_contributions_that_come_together_are_recorded_in_one_transaction(tmp_path: Path) -> None:
    written: list[int] = []

    def kinds(tx: Any) -> list[str]:
        return [event.kind for event in tx.appended if event.kind == "contribution"]

    async def scenario(federation: Federation) -> None:
        real = federation.thread.write

        async def counting(work: Any, **options: Any) -> Any:
            def counted(tx: Any) -> Any:
                before = len(kinds(tx))
                try:
                    return work(tx)
                finally:
                    written.append(len(kinds(tx)) - before)

            return await real(counted, **options)

        federation.thread.write = counting  # type: ignore[method-assign]
        job = await federation.submit(rounds=1)
        assert (await federation.until(job)).state == "succeeded"
        assert len(federation.events("contribution")) == 2 * len(NAMES)

    run(tmp_path, scenario)
    assert max(written) > 1, "every contribution had a transaction of its own"
