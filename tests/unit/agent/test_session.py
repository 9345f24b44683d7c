"""An agent and its coordinator over real TLS: connections, certificates and processes may go; work does not."""

from __future__ import annotations

import asyncio
import hashlib
import json
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hanse.errors import Conflict, FencedOut, Forbidden, OperatorError, Unauthenticated
from hanse.payload import Payload
from hanse.rpc import from_proto, version
from hanse.security import Authority
from hanse.v1 import node_pb2, payload_pb2
from hanse_agent import agent as agent_module
from hanse_agent import reconnecting
from hanse_agent.agent import NodeAgent
from hanse_agent.approvals import Approvals
from hanse_agent.identity import NodeIdentity
from hanse_agent.pool import WorkerPool
from hanse_agent.session import Session
from hanse_agent.status import read_status
from tests.unit.agent.fake_coordinator import FakeCoordinator, FakeSession
from tests.unit.agent.living import Living, a_coordinator, an_agent, configure
from tests.unit.agent.probe import assign, document_of, eventually, instruction, job, receipt

pytestmark = pytest.mark.usefixtures("probe")

# ruff: noqa: SIM117 - the agent lives inside the coordinator

LARGE = 600_000
STAGE = node_pb2.WorkInHand


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnecting, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(reconnecting, "SHORT_PAUSE_S", 0.1)


def tally(path: Path) -> list[str]:
    """How often the learner has worked."""
    return path.read_text().splitlines() if path.exists() else []


async def answered(
    coordinator: FakeCoordinator, session: FakeSession, asked: node_pb2.Assign, number: int = 1
) -> dict[str, Any]:
    """Have an assignment done, and confirm it."""
    session.send(assign=asked)
    contribution = await coordinator.event("contribution", number)
    assert contribution.assignment == asked.assignment
    session.send(receipt=receipt(contribution))
    return document_of(contribution.image)


async def test_the_greeting_says_what_the_site_offers_and_no_more(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator:
        async with an_agent(coordinator, tmp_path, labels={"kind": "wearable"}) as living:
            hello = (await coordinator.session()).hello

    assert list(hello.methods) == ["probe"]
    assert dict(hello.labels) == {"kind": "wearable"}
    assert hello.policy_digest == living.agent.config.policy.digest
    assert len(hello.instance) == 16
    (offer,) = hello.datasets
    assert (offer.name, offer.kind, offer.rows, offer.target) == ("records", "probe", 100, "y")
    assert [(column.name, column.dtype) for column in offer.columns] == [("x", "float32")]


async def test_offers_are_answered_by_the_policy(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path):
        session = await coordinator.session()
        session.send(offer=node_pb2.Offer(job=job("job-1")))
        session.send(offer=node_pb2.Offer(job=job("job-2", method="other")))
        yes, no = await coordinator.event("offer_reply", 1), await coordinator.event("offer_reply", 2)

    assert (yes.job, yes.decision) == ("job-1", node_pb2.OfferReply.DECISION_ACCEPTED)
    assert (no.job, no.decision) == ("job-2", node_pb2.OfferReply.DECISION_REFUSED)
    assert from_proto(no.reason).code == "POLICY_METHODS"


async def test_a_job_waits_for_a_person_and_the_word_reaches_the_coordinator(
    authority: Authority, tmp_path: Path
) -> None:
    rules = {"methods": ["probe"], "approve": "by_hand"}
    async with a_coordinator(authority, tmp_path) as coordinator:
        async with an_agent(coordinator, tmp_path, policy=rules) as living:
            session = await coordinator.session()
            session.send(offer=node_pb2.Offer(job=job()))
            first = await coordinator.event("offer_reply")
            assert first.decision == node_pb2.OfferReply.DECISION_AWAITING_APPROVAL
            session.send(assign=assign("a0"))
            early = await coordinator.event("failed")

            Approvals(living.agent.folder.approvals).say("job-1", "approved")
            second = await coordinator.event("offer_reply", 2)
            assert second.decision == node_pb2.OfferReply.DECISION_ACCEPTED
            assert (await answered(coordinator, session, assign("a1")))["count"] == 1

    assert early.refused
    assert "nobody has approved" in early.reason.sentence


async def test_work_is_done_journaled_and_sent_in_this_order(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path) as living:
        session = await coordinator.session()
        session.send(assign=assign("a1"))
        contribution = await coordinator.event("contribution")
        (line,) = living.journal

    assert line["digest"] == hashlib.sha256(contribution.image).hexdigest()
    assert (line["event"], line["bytes"], line["kind"]) == ("left", len(contribution.image), "opaque")
    assert line["arrays"] == [{"name": "filler", "dtype": "uint8", "shape": [8]}]


async def test_each_assignment_goes_on_from_the_state_of_the_one_before(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path):
        session = await coordinator.session()
        for number in (1, 2, 3):
            answer = await answered(coordinator, session, assign(f"a{number}", round_=number), number)
            assert answer == {"count": number, "performed": number, "node": "site-a"}


async def test_a_large_contribution_is_uploaded(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path) as living:
        session = await coordinator.session()
        session.send(assign=assign("a1", ask={"bytes": LARGE}))
        await eventually(lambda: coordinator.uploads)
        digest = coordinator.uploads[0].digest
        await eventually(lambda: coordinator.store.exists(digest), "the upload")
        await eventually(lambda: not living.agent._bench.live, "the receipt")

        assert [line["digest"] for line in living.journal] == [digest.hex()]
        assert session.of("contribution") == []


async def test_large_instructions_and_what_they_refer_to_are_downloaded(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path):
        session = await coordinator.session()
        extra = coordinator.store.put(Payload.build(payload_pb2.Opaque(type="extra")))
        asked = Payload.from_image(instruction(do="fetch", digest=extra.digest.hex()))
        stored = coordinator.store.put(asked)
        source = payload_pb2.PayloadSource(artifact=payload_pb2.ArtifactRef(digest=stored.digest, size=stored.size))

        assert (await answered(coordinator, session, assign("a1", instruction=source)))["count"] == 1


async def test_the_same_assignment_again_is_worked_on_once(authority: Authority, tmp_path: Path) -> None:
    until, began, tallied = tmp_path / "until", tmp_path / "began", tmp_path / "tally"
    ask = {"do": "wait", "began": str(began), "until": str(until), "tally": str(tallied)}
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path) as living:
        session = await coordinator.session()
        for _ in range(3):
            session.send(assign=assign("a1", ask=ask))
        await eventually(began.exists)
        until.touch()
        contribution = await coordinator.event("contribution")
        session.send(receipt=receipt(contribution))
        await eventually(lambda: not living.agent._bench.live)

        session.send(assign=assign("a1", ask=ask))
        again = await coordinator.event("contribution", 2)

        assert again.image == contribution.image
        assert tally(tallied) == ["work 1"]
        assert [line["event"] for line in living.journal] == ["left", "resent"]


async def test_a_higher_fence_is_adopted_and_a_lower_one_ignored(authority: Authority, tmp_path: Path) -> None:
    until, began = tmp_path / "until", tmp_path / "began"
    ask = {"do": "wait", "began": str(began), "until": str(until)}
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path):
        session = await coordinator.session()
        session.send(assign=assign("a1", fence=3, ask=ask))
        await eventually(began.exists)
        session.send(assign=assign("a1", fence=7, ask=ask))
        session.send(assign=assign("a1", fence=2, ask=ask))
        session.send(withdraw=node_pb2.Withdraw(assignment="a1", fence=3))
        session.send(offer=node_pb2.Offer(job=job("job-2")))
        await coordinator.event("offer_reply")
        until.touch()

        assert (await coordinator.event("contribution")).fence == 7


async def test_what_was_sent_under_an_old_fence_is_sent_again_under_the_new_one(
    authority: Authority, tmp_path: Path
) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path):
        session = await coordinator.session()
        session.send(assign=assign("a1"))
        first = await coordinator.event("contribution")
        session.send(assign=assign("a1", fence=2))
        second = await coordinator.event("contribution", 2)

    assert (first.fence, second.fence) == (1, 2)
    assert first.image == second.image


async def test_work_goes_on_without_a_connection_and_is_delivered_over_the_next(
    authority: Authority, tmp_path: Path
) -> None:
    until, began, tallied = tmp_path / "until", tmp_path / "began", tmp_path / "tally"
    ask = {"do": "wait", "began": str(began), "until": str(until), "tally": str(tallied)}
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path):
        first = await coordinator.session()
        first.send(assign=assign("a1", ask=ask))
        await eventually(began.exists)
        first.close(Conflict("cut.", code="CUT"))
        second = await coordinator.session(2)
        until.touch()
        await eventually(lambda: second.of("contribution"))

        assert second.hello.instance == first.hello.instance
        (in_hand,) = second.hello.in_hand
        assert (in_hand.assignment, in_hand.fence, in_hand.stage) == ("a1", 1, STAGE.STAGE_WORKING)
        assert tally(tallied) == ["work 1"]


async def test_a_coordinator_that_restarts_finds_its_agents_again(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path):
        await coordinator.session()
        await coordinator.stop()
        await coordinator.start()
        session = await coordinator.session(2)

        assert (await answered(coordinator, session, assign("a1")))["count"] == 1


async def test_a_contribution_whose_receipt_was_lost_is_sent_again(authority: Authority, tmp_path: Path) -> None:
    tallied = tmp_path / "tally"
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path) as living:
        first = await coordinator.session()
        first.send(assign=assign("a1", ask={"tally": str(tallied)}))
        sent = await coordinator.event("contribution")
        first.close(Conflict("cut.", code="CUT"))
        second = await coordinator.session(2)
        await eventually(lambda: second.of("contribution"))
        (again,) = second.of("contribution")
        second.send(receipt=receipt(again))
        await eventually(lambda: not living.agent._bench.live)

        assert again.image == sent.image
        assert second.hello.in_hand[0].stage == STAGE.STAGE_SPOOLED
        assert tally(tallied) == ["work 1"]
        assert [line["event"] for line in living.journal] == ["left", "resent"]


async def test_a_restarted_agent_delivers_what_was_finished_under_its_new_fence(
    authority: Authority, tmp_path: Path
) -> None:
    tallied = tmp_path / "tally"
    ask = {"tally": str(tallied)}
    async with a_coordinator(authority, tmp_path) as coordinator:
        async with an_agent(coordinator, tmp_path):
            (await coordinator.session()).send(assign=assign("a1", ask=ask))
            sent = await coordinator.event("contribution")
        async with an_agent(coordinator, tmp_path) as living:
            session = await coordinator.session(2)
            session.send(assign=assign("a1", fence=2, ask=ask))
            again = await coordinator.event("contribution", 2)

            assert session.hello.in_hand[0].stage == STAGE.STAGE_SPOOLED
            assert (again.image, again.fence) == (sent.image, 2)
            assert tally(tallied) == ["work 1"]
            assert [line["event"] for line in living.journal] == ["left", "resent"]


async def test_a_restarted_agent_hears_that_its_contribution_had_arrived(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator:
        async with an_agent(coordinator, tmp_path):
            (await coordinator.session()).send(assign=assign("a1"))
            sent = await coordinator.event("contribution")
        async with an_agent(coordinator, tmp_path) as living:
            session = await coordinator.session(2)
            session.send(receipt=receipt(sent))
            await eventually(lambda: not living.agent._bench.live)
            answer = await answered(coordinator, session, assign("a2", round_=2), 2)

            assert answer["count"] == 2
            assert [line["assignment"] for line in living.journal] == ["a1", "a2"]


async def test_an_agent_killed_in_the_middle_of_work_starts_again_from_the_same_state(
    authority: Authority, tmp_path: Path
) -> None:
    began, until = tmp_path / "began", tmp_path / "until"
    ask = {"do": "wait", "began": str(began), "until": str(until)}
    async with a_coordinator(authority, tmp_path) as coordinator:
        async with an_agent(coordinator, tmp_path):
            session = await coordinator.session()
            await answered(coordinator, session, assign("a1"))
            session.send(assign=assign("a2", round_=2, ask=ask))
            await eventually(began.exists)
        until.touch()
        async with an_agent(coordinator, tmp_path):
            session = await coordinator.session(2)
            assert list(session.hello.in_hand) == []
            answer = await answered(coordinator, session, assign("a2", round_=2, fence=2, ask=ask), 2)

    assert answer["count"] == 2


async def test_withdrawn_work_is_stopped_and_its_state_taken_back(authority: Authority, tmp_path: Path) -> None:
    began = tmp_path / "began"
    ask = {"do": "wait", "began": str(began), "until": str(tmp_path / "never")}
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path) as living:
        session = await coordinator.session()
        await answered(coordinator, session, assign("a1"))
        session.send(assign=assign("a2", round_=2, ask=ask))
        await eventually(began.exists)
        session.send(withdraw=node_pb2.Withdraw(assignment="a2", fence=1))
        await eventually(lambda: not living.agent._bench.live)
        answer = await answered(coordinator, session, assign("a3", round_=3), 2)

    assert answer == {"count": 2, "performed": 1, "node": "site-a"}


async def test_a_spooled_contribution_that_is_withdrawn_is_forgotten(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path) as living:
        session = await coordinator.session()
        session.send(assign=assign("a1"))
        await coordinator.event("contribution")
        session.send(withdraw=node_pb2.Withdraw(assignment="a1", fence=1))
        answer = await answered(coordinator, session, assign("a2", round_=2), 2)

        assert answer["count"] == 1
        assert [work.assignment for work in living.agent._bench._works.values()] == ["a2"]


@pytest.mark.parametrize(
    ("ask", "code", "owner", "refused"),
    [
        ({"do": "raise"}, "LEARNER_FAILED", "method", False),
        ({"do": "site"}, "CLASS_MISSING", "site", False),
        ({"do": "exit"}, "WORKER_DIED", "site", False),
        ({"do": "policy"}, "POLICY_MINIMUM_ROWS_PER_ATOM", "site", True),
    ],
)
async def test_a_failure_reaches_the_coordinator_with_its_reason_and_the_node_stays(
    authority: Authority, tmp_path: Path, ask: dict[str, Any], code: str, owner: str, refused: bool
) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path) as living:
        session = await coordinator.session()
        session.send(assign=assign("a1", ask=ask))
        failed = await coordinator.event("failed")
        assert (failed.reason.code, failed.reason.owner, failed.refused) == (code, owner, refused)
        assert living.journal == []

        assert (await answered(coordinator, session, assign("a2", round_=2)))["count"] == 1


async def test_a_failure_is_said_again_after_a_reconnect_and_worked_on_again_under_a_higher_fence(
    authority: Authority, tmp_path: Path
) -> None:
    tallied = tmp_path / "tally"
    ask = {"do": "raise", "tally": str(tallied)}
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path):
        first = await coordinator.session()
        first.send(assign=assign("a1", ask=ask))
        await coordinator.event("failed")
        first.close(Conflict("cut.", code="CUT"))
        second = await coordinator.session(2)
        await eventually(lambda: second.of("failed"))
        assert tally(tallied) == ["work 1"]
        second.send(assign=assign("a1", fence=2, ask=ask))
        await eventually(lambda: [failed.fence for failed in second.of("failed")][-1] == 2)

    assert tally(tallied) == ["work 1", "work 1"]


async def test_what_is_too_large_for_the_policy_does_not_leave(authority: Authority, tmp_path: Path) -> None:
    rules = {"methods": ["probe"], "largest_payload": "10kB"}
    async with a_coordinator(authority, tmp_path) as coordinator:
        async with an_agent(coordinator, tmp_path, policy=rules) as living:
            session = await coordinator.session()
            session.send(assign=assign("a1", ask={"bytes": 20_000}))
            failed = await coordinator.event("failed")

            assert failed.refused
            assert failed.reason.code == "POLICY_LARGEST_PAYLOAD"
            assert living.journal == []
            assert living.agent._bench._jobs.open("job-1").current == 0


async def test_an_upload_that_is_fenced_out_goes_on_under_the_next_fence(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path) as living:
        session = await coordinator.session()
        coordinator.refuse_uploads = [FencedOut("another fence.", code="OLD_FENCE")]
        session.send(assign=assign("a1", ask={"bytes": LARGE}))
        await eventually(lambda: coordinator.uploads)
        session.send(assign=assign("a1", fence=2, ask={"bytes": LARGE}))
        await eventually(lambda: not living.agent._bench.live, "the receipt")

        assert [upload.fence for upload in coordinator.uploads] == [1, 2]


async def test_a_contribution_that_the_coordinator_will_not_take_is_dropped_with_its_reason(
    authority: Authority, tmp_path: Path
) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path):
        session = await coordinator.session()
        coordinator.refuse_uploads = [Conflict("the phase is over.", code="PHASE_OVER")]
        session.send(assign=assign("a1", ask={"bytes": LARGE}))
        assert (await coordinator.event("failed")).reason.code == "PHASE_OVER"

        assert (await answered(coordinator, session, assign("a2", round_=2)))["count"] == 1


async def test_a_job_that_is_over_leaves_the_last_state_alone(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path) as living:
        session = await coordinator.session()
        await answered(coordinator, session, assign("a1"))
        session.send(job_ended=node_pb2.JobEnded(job="job-1", state="succeeded"))
        folder = living.agent.folder.jobs / "job-1"
        await eventually(lambda: not (folder / "spool").exists() and not (folder / "cache").exists())

        assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == ["count", "job.json"]


async def test_a_session_without_heartbeat_replies_is_built_anew(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path) as living:
        coordinator.heartbeat_s = 0.05
        coordinator.answer_heartbeats = False
        (await coordinator.session()).close()
        await coordinator.session(3)

        def missed() -> bool:
            error = read_status(living.agent.config)["last_error"]
            return error is not None and error["code"] == "HEARTBEATS_MISSED"

        await eventually(missed)


async def test_heads_of_the_ledger_are_kept_once_each(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator:
        coordinator.heartbeat_s = 0.02
        async with an_agent(coordinator, tmp_path) as living:
            session = await coordinator.session()
            coordinator.head = payload_pb2.LedgerHead(sequence=2, hash=b"i" * 32)
            await eventually(lambda: len(session.of("heartbeat")) > 5)
            path = living.agent.folder.heads
            await eventually(lambda: len(path.read_text().splitlines()) == 2)

            assert [json.loads(line) for line in path.read_text().splitlines()] == [
                {"sequence": 1, "hash": (b"h" * 32).hex()},
                {"sequence": 2, "hash": (b"i" * 32).hex()},
            ]


@pytest.mark.parametrize("error", [Forbidden("revoked: stolen.", code="REVOKED"), Unauthenticated("unknown.")])
async def test_a_node_that_is_sent_away_stops_and_says_why(
    authority: Authority, tmp_path: Path, error: OperatorError
) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path) as living:
        (await coordinator.session()).close(error)
        with pytest.raises(type(error), match=error.sentence.rstrip(".")):
            await living.running

        found = read_status(living.agent.config)
        assert found["last_error"]["sentence"] == error.sentence
        assert found["running"] is False


async def test_an_expired_certificate_names_the_way_back(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator:
        config = configure(coordinator, tmp_path)
        coordinator.enrol(config.state / "identity", life=timedelta(microseconds=1))
        with pytest.raises(Unauthenticated, match="hanse node invite site-a --again"):
            NodeAgent(config, WorkerPool(config.worker))


async def test_a_certificate_is_renewed_without_losing_the_upload_under_way(
    authority: Authority, tmp_path: Path
) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator:
        config = configure(coordinator, tmp_path)
        coordinator.enrol(config.state / "identity", life=timedelta(seconds=100))
        coordinator.hold_uploads.clear()
        async with an_agent(coordinator, tmp_path) as living:
            first = await coordinator.session()
            first.send(assign=assign("a1", ask={"bytes": LARGE}))
            second = await coordinator.session(2)
            await eventually(lambda: coordinator.uploads)
            coordinator.hold_uploads.set()
            await eventually(lambda: living.journal and not living.agent._bench.live, "the receipt")
            await eventually(first.ended.is_set, "the end of the first session")
            answer = await answered(coordinator, second, assign("a2", round_=2))

            assert second.serial != first.serial
            assert second.hello.instance == first.hello.instance
            assert coordinator.renewals == 1
            assert answer["count"] == 2
            assert len({upload.digest for upload in coordinator.uploads}) == 1


async def test_a_wrong_clock_is_noticed(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator:
        coordinator.unix_time = 4e9
        async with an_agent(coordinator, tmp_path) as living:
            await coordinator.session()
            await eventually(lambda: read_status(living.agent.config)["clock_skew_s"])
            assert read_status(living.agent.config)["clock_skew_s"] > 1e6


async def test_stopping_lets_the_upload_end_and_says_goodbye(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path) as living:
        session = await coordinator.session()
        coordinator.hold_uploads.clear()
        session.send(assign=assign("a1", ask={"bytes": LARGE}))
        await eventually(lambda: coordinator.uploads)
        stopping = asyncio.create_task(living.stop())
        await eventually(living.agent._stopping.is_set)
        assert not session.of("leaving")
        coordinator.hold_uploads.set()
        await stopping

        assert coordinator.store.exists(coordinator.uploads[0].digest)
        assert session.of("leaving")
        assert read_status(living.agent.config)["connection"] == {"state": "not running"}


async def test_stopping_gives_up_work_that_is_not_finished(authority: Authority, tmp_path: Path) -> None:
    began = tmp_path / "began"
    ask = {"do": "wait", "began": str(began), "until": str(tmp_path / "never")}
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path) as living:
        session = await coordinator.session()
        session.send(assign=assign("a1", ask=ask))
        await eventually(began.exists)
        await living.stop()

        assert session.of("leaving")
        assert session.of("failed") == []


async def test_an_agent_stops_while_nobody_answers(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator:
        configure(coordinator, tmp_path)
        await coordinator.stop()
        async with an_agent(coordinator, tmp_path) as living:
            await eventually(lambda: read_status(living.agent.config)["last_error"])
            await living.stop()

            error = read_status(living.agent.config)["last_error"]
            assert "cannot be reached" in error["sentence"]


async def test_data_that_cannot_be_read_does_not_count_and_is_offered_once_it_is_there(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "RETRY_DATASETS_S", 0.05)
    datasets = {"records": {"kind": "probe", "missing": "data.csv"}}
    async with a_coordinator(authority, tmp_path) as coordinator:
        async with an_agent(coordinator, tmp_path, datasets=datasets):
            first = await coordinator.session()
            assert first.hello.datasets[0].unavailable.code == "DATA_MISSING"
            first.send(offer=node_pb2.Offer(job=job()))
            assert (await coordinator.event("offer_reply")).reason.code == "DATA_MISSING"

            (tmp_path / "data.csv").touch()
            second = await coordinator.session(2)

            assert not second.hello.datasets[0].HasField("unavailable")
            assert (await answered(coordinator, second, assign("a1")))["count"] == 1


async def test_wrong_options_of_a_dataset_stop_the_agent_with_a_sentence(authority: Authority, tmp_path: Path) -> None:
    datasets = {"records": {"kind": "probe", "colour": "red"}}
    async with a_coordinator(authority, tmp_path) as coordinator:
        async with an_agent(coordinator, tmp_path, datasets=datasets) as living:
            with pytest.raises(OperatorError, match=r"datasets\.records: unknown key 'colour'"):
                await living.running


async def test_two_agents_do_not_share_a_state_folder(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path):
        await coordinator.session()
        async with an_agent(coordinator, tmp_path) as second:
            with pytest.raises(Conflict, match="another agent works in"):
                await second.running


async def test_identities_of_one_process_share_its_workers(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator:
        pool = WorkerPool(configure(coordinator, tmp_path / "a").worker)
        try:
            async with (
                an_agent(coordinator, tmp_path / "a", pool=pool) as first,
                an_agent(coordinator, tmp_path / "b", pool=pool, node="site-b") as second,
            ):
                await coordinator.session(2)
                for session in coordinator.sessions:
                    session.send(assign=assign("a1"))
                await coordinator.event("contribution", 2)
                answers = [document_of((await coordinator.event("contribution", n)).image) for n in (1, 2)]

                assert sorted(answer["node"] for answer in answers) == ["site-a", "site-b"]
                assert len(pool.pids) == 1
                assert _journaled(first) == _journaled(second) == 1
        finally:
            await pool.close()


def _journaled(living: Living) -> int:
    return len(living.journal)


async def test_identifiers_that_would_leave_the_state_folder_are_not_followed(
    authority: Authority, tmp_path: Path
) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path):
        session = await coordinator.session()
        session.send(assign=assign("a1", job=job("../../../outside")))
        session.send(assign=assign("../../a2"))

        assert (await answered(coordinator, session, assign("a3")))["count"] == 1


async def test_a_session_ended_at_the_moment_of_the_welcome_ends(authority: Authority, tmp_path: Path) -> None:
    """A cancellation that comes when the answer does must not be lost: whoever stops the agent waits for its end."""

    class Call:
        """A stream on which the welcome comes just as the session is cancelled."""

        async def write(self, _: node_pb2.NodeEvent) -> None:
            pass

        async def read(self) -> node_pb2.Directive:
            if not session.welcomed.is_set():
                running.cancel()
                return node_pb2.Directive(welcome=node_pb2.Welcome(version=version("fake"), heartbeat_s=5, lease_s=5))
            await asyncio.Event().wait()
            raise AssertionError

        def cancel(self) -> None:
            pass

        def add_done_callback(self, _: object) -> None:
            pass

    async with a_coordinator(authority, tmp_path) as coordinator:
        config = configure(coordinator, tmp_path)
        session = Session(
            NodeIdentity.require(config.state / "identity"),
            config.coordinator[0],
            on_open=lambda _: None,
            handler=lambda _: None,
            on_head=lambda _: None,
        )
        session.link.stub = SimpleNamespace(Session=Call)  # type: ignore[assignment]
        running = asyncio.create_task(session.run(node_pb2.Hello()))
        await asyncio.wait({running}, timeout=4)
        ended = running.cancelled()
        running.cancel()
    assert ended
