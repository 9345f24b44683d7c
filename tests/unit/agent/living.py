"""Agents in this process against a fake coordinator, and how they end with the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanse.security import Authority
from hanse_agent.agent import NodeAgent
from hanse_agent.egress import EgressJournal
from hanse_agent.pool import WorkerPool
from hanse_agent.settings import AgentConfig
from tests.unit.agent.fake_coordinator import FakeCoordinator
from tests.unit.agent.probe import write_config


@asynccontextmanager
async def a_coordinator(authority: Authority, folder: Path) -> AsyncIterator[FakeCoordinator]:
    """A fake coordinator on a free port."""
    coordinator = FakeCoordinator(authority, folder / "coordinator")
    await coordinator.start()
    try:
        yield coordinator
    finally:
        await coordinator.stop()


@dataclass(eq=False)
class Living:
    """An agent that runs."""

    agent: NodeAgent
    running: asyncio.Task[None]

    @property
    def journal(self) -> list[dict[str, Any]]:
        return list(EgressJournal(self.agent.folder.egress).entries())

    async def stop(self) -> None:
        self.agent.stop()
        await self.running

    async def kill(self) -> None:
        """End it as a crash would: no goodbye."""
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


def configure(coordinator: FakeCoordinator, folder: Path, node: str = "site-a", **changes: Any) -> AgentConfig:
    """A node with an identity and a configuration."""
    config = AgentConfig.load(write_config(folder, coordinator=coordinator.address, **changes))
    if not (config.state / "identity" / "node.pem").exists():
        coordinator.enrol(config.state / "identity", node)
    return config


@asynccontextmanager
async def an_agent(
    coordinator: FakeCoordinator, folder: Path, *, pool: WorkerPool | None = None, node: str = "site-a", **changes: Any
) -> AsyncIterator[Living]:
    """An agent of `folder`, running; killed at the end if it still lives."""
    config = configure(coordinator, folder, node, **changes)
    own = pool or WorkerPool(config.worker)
    agent = NodeAgent(config, own)
    living = Living(agent, asyncio.create_task(agent.run()))
    try:
        yield living
    finally:
        await living.kill()
        if pool is None:
            await own.close()
