"""A job that continues another: which it may be, and what the aggregator is given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hanse.errors import Conflict, NotFound
from hanse.jobs import JobSpecification
from tests.unit.coordinator.engine_federation import AddingPool, Federation


def run(folder: Path, scenario: Callable[[Federation], Awaitable[None]]) -> None:
    async def play() -> None:
        federation = Federation(folder, ["ada", "ben"])
        await federation.start()
        try:
            await scenario(federation)
        finally:
            await federation.stop()
            federation.ledger.close()

    asyncio.run(play())


async def submit(federation: Federation, base: str, *, method: str = "adding", minimum: int = 2) -> str:
    specification = JobSpecification.model_validate(
        {
            "name": "more",
            "method": method,
            "dataset": "numbers",
            "rounds": 2,
            "selection": {"minimum_nodes": minimum, "deadline": "20s"},
        }
    )
    job = await federation.engine.submit(specification, actor="researcher", continue_from=base)
    return job.id


def test_the_aggregator_is_given_the_earlier_jobs_model_in_every_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[bytes] = []
    opened = AddingPool.open

    def opening(self: AddingPool, facts, phase, state):  # type: ignore[no-untyped-def]
        given.append(facts.continue_from.inline or facts.continue_from.artifact.digest)
        return opened(self, facts, phase, state)

    monkeypatch.setattr(AddingPool, "open", opening)

    async def scenario(federation: Federation) -> None:
        first = await federation.submit()
        await federation.until(first)
        assert set(given) == {b""}
        given.clear()
        second = await submit(federation, "test")
        assert (await federation.until(second)).continue_from == first
        model = federation.model(first)
        assert len(given) == 5  # the beginning, and two rounds of two phases
        assert set(given) == {model}

    run(tmp_path, scenario)


def test_a_job_that_is_unknown_or_still_at_work_cannot_be_continued(tmp_path: Path) -> None:
    async def scenario(federation: Federation) -> None:
        with pytest.raises(NotFound):
            await submit(federation, "nothing")
        waiting = await federation.submit(selection={"minimum_nodes": 9})
        with pytest.raises(Conflict, match="may still change"):
            await submit(federation, waiting)

    run(tmp_path, scenario)
