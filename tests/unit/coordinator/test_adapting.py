"""A phase of purpose `adapt` is for the nodes' own sake: no job waits, and none pauses, because they are away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hanse.errors import Owner, Reason
from hanse.method import JobContext, Phase
from hanse.payload.documents import document_payload
from hanse_aggregator.plugins.delivering import DELIVER, delivery
from tests.unit.coordinator.engine_federation import PHASES_A_ROUND, AddingCall, Federation

NAMES = ["ada", "ben", "zoe"]
UNWILLING = Reason(code="POLICY_METHODS", sentence="not here.", owner=Owner.SITE)


@pytest.fixture(autouse=True)
def _adapting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The round's last training phase is followed by adapting, and that by the evaluation."""
    plain = AddingCall._next

    def following(call: AddingCall) -> tuple[str, int, str, str] | None:
        phase = call.phase
        if phase is not None and phase.name == PHASES_A_ROUND[1]:
            return "adapt", phase.round, "adapt", "unseen"
        if phase is not None and phase.name == "adapt":
            return "evaluate", phase.round, "evaluate", "all"
        return plain(call)

    monkeypatch.setattr(AddingCall, "_next", following)


def run(folder: Path, scenario: Callable[[Federation], Awaitable[None]]) -> None:
    async def play() -> None:
        federation = Federation(folder, NAMES, unseen=("zoe",))
        await federation.start()
        try:
            await scenario(federation)
        finally:
            await federation.stop()
            federation.ledger.close()

    asyncio.run(play())


async def finished(federation: Federation) -> list[tuple[str, int]]:
    """(phase, contributions) of a job of two rounds that ends well."""
    job = await federation.submit(
        rounds=2, evaluation={"every": 1, "unseen": ["zoe"]}, selection={"minimum_nodes": 2, "deadline": "60s"}
    )
    record = await federation.until(job)
    assert (record.state, record.reason) == ("succeeded", None)
    with federation.ledger.read() as view:
        return [(phase.name, len(view.contributions(phase.id))) for phase in view.phases(job)]


ROUND = [("measure", 2), ("add", 2)]


def test_unseen_nodes_adapt_and_nobody_else_is_asked(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        assert await finished(federation) == [*ROUND, ("adapt", 1), ("evaluate", 3)] * 2
        asked = {name: {phase for phase, _, _ in node.done} for name, node in federation.nodes.items()}
        assert asked["zoe"] == {"adapt", "evaluate"}
        assert "adapt" not in asked["ada"] | asked["ben"]

    run(tmp_path, scenario)


def test_a_job_goes_on_when_no_unseen_node_can_adapt(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        federation.nodes["zoe"].behaviour = lambda assign: UNWILLING if assign.phase == "adapt" else None
        assert await finished(federation) == [*ROUND, ("adapt", 0), ("evaluate", 3)] * 2

    run(tmp_path, scenario)


def test_a_job_goes_on_at_once_when_the_unseen_nodes_are_away(tmp_path: Path) -> None:
    """Well within the deadline of a minute, which it would wait for nodes that train."""

    async def scenario(federation: Federation) -> None:
        def goodbye(_assign: object) -> None:
            federation.nodes["ada"].behaviour = lambda _assign: None
            federation.nodes["zoe"].disconnect()
            federation.sessions.forget("zoe")

        federation.nodes["ada"].behaviour = goodbye
        assert await finished(federation) == [*ROUND, ("adapt", 0), ("evaluate", 2)] * 2

    run(tmp_path, scenario)


def _delivering(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's only round is followed by the delivery of its model."""
    job = JobContext(id="j", name="j", method="adding", dataset="numbers", rounds=1)
    nothing = document_payload("nothing", {})
    asked = delivery(Phase(job=job, name="evaluate", round=1, instruction=nothing), nothing)

    def following(call: AddingCall) -> tuple[str, int, str, str] | None:
        if call.phase is None:
            return PHASES_A_ROUND[0], 1, "train", "selected"
        return None if call.phase.name == DELIVER else (DELIVER, 1, asked.purpose.value, asked.audience.value)

    monkeypatch.setattr(AddingCall, "_next", following)


async def delivered(federation: Federation) -> tuple[list[str], dict[str, str]]:
    """Who was absent when the delivery opened, and what became of the others', of a job that ends well."""
    job = await federation.submit(
        rounds=1, evaluation={"every": 1, "unseen": ["zoe"]}, selection={"minimum_nodes": 2, "deadline": "60s"}
    )
    record = await federation.until(job)
    assert (record.state, record.reason) == ("succeeded", None)
    assert record.model_digest is not None
    opened = [event.facts for event in federation.events("phase_opened")]
    with federation.ledger.read() as view:
        last = view.phases(job)[-1]
        assert (last.name, last.quorum, last.state) == (DELIVER, 0, "closed")
        return opened[-1]["absent"], {a.node: a.state.value for a in view.assignments(last.id)}


def test_a_finished_model_is_the_result_though_some_are_away_when_it_is_delivered_and_the_ledger_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _delivering(monkeypatch)

    async def scenario(federation: Federation) -> None:
        def goodbye(_assign: object) -> None:
            federation.nodes["ada"].behaviour = lambda _assign: None
            federation.nodes["zoe"].disconnect()
            federation.sessions.forget("zoe")

        federation.nodes["ada"].behaviour = goodbye
        federation.nodes["ben"].behaviour = lambda assign: UNWILLING if assign.phase == DELIVER else None
        assert await delivered(federation) == (["zoe"], {"ada": "delivered", "ben": "refused"})

    run(tmp_path, scenario)


def test_a_finished_model_is_the_result_though_it_reaches_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _delivering(monkeypatch)

    async def scenario(federation: Federation) -> None:
        for node in federation.nodes.values():
            node.behaviour = lambda assign: UNWILLING if assign.phase == DELIVER else None
        assert await delivered(federation) == ([], dict.fromkeys(NAMES, "refused"))

    run(tmp_path, scenario)
