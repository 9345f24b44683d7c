"""A job of another version, whose specification cannot be read, stops nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hanse.errors import Conflict
from hanse.ledger import JobState
from hanse.ledger.states import PhaseState
from hanse_coordinator.states import JobEvent
from tests.unit.coordinator.engine_federation import Federation


def test_it_is_paused_with_a_reason_can_be_cancelled_and_the_others_go_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        federation = Federation(tmp_path, ["ada", "ben"])
        federation.nodes["ben"].behaviour = lambda assign: "stall" if assign.job.name == "strange" else None
        await federation.start()
        strange = await federation.submit(name="strange")
        async with asyncio.timeout(60):
            while (await federation.engine.find(strange)).state is not JobState.RUNNING:
                await asyncio.sleep(0.01)
        await federation.stop()
        with federation.ledger.write(federation.ledger.take_lease("other version")) as tx:
            tx.update_job(strange, specification='{"name": "strange", "colour": "red"}')

        await federation.start()
        job = await federation.engine.find(strange)
        assert job.state is JobState.PAUSED
        assert job.reason is not None
        assert job.reason.code == "SPECIFICATION_UNREADABLE"
        assert "unknown key 'colour'" in job.reason.sentence
        with federation.ledger.read() as view:
            assert {phase.state for phase in view.phases(strange)} <= {PhaseState.CLOSED, PhaseState.ABANDONED}
        with pytest.raises(Conflict, match="colour"):
            await federation.engine.command(strange, JobEvent.RESUME, actor="ada", why="")
        other = await federation.submit(name="other")
        async with asyncio.timeout(60):
            while (await federation.engine.find(other)).state is not JobState.SUCCEEDED:
                await asyncio.sleep(0.01)
        cancelled = await federation.engine.command(strange, JobEvent.CANCEL, actor="ada", why="too old")
        assert cancelled.state is JobState.CANCELLED
        await federation.stop()
        federation.ledger.close()

    asyncio.run(scenario())
