"""One process, one or many node identities: shared worker pools, signals, and how the whole ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from hanse.errors import Conflict
from hanse.logs import logger
from hanse.observability import PlainPort, tracing
from hanse.open_files import allow_many_open_files
from hanse.rpc import set_serving
from hanse_agent import metrics
from hanse_agent.agent import NodeAgent
from hanse_agent.pool import WorkerPool
from hanse_agent.settings import AgentConfig, WorkerSettings


async def run_agents(configs: Sequence[AgentConfig], *, metrics_listen: str = "", traces: str = "") -> None:
    """Run all identities until SIGTERM or SIGINT; a second signal does not wait for uploads.

    `metrics_listen`: host:port of `/metrics` and of health, without TLS; empty: none. `traces`: an OTLP endpoint;
    empty: none.

    One identity that the coordinator sends away does not stop the others; its error is raised when all have ended.

    Raises:
        HanseError: the first reason why an identity could not run or go on.
    """
    allow_many_open_files()
    states = [config.state for config in configs]
    if len(set(states)) < len(states):
        raise Conflict(
            "two configurations name the same state folder.",
            remedy="Give each identity a state folder of its own.",
            code="STATE_IN_USE",
        )
    tracing.configure("hanse-agent", traces)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, tracing.close)
        pools: dict[WorkerSettings, WorkerPool] = {}
        for config in configs:
            if config.worker not in pools:
                pools[config.worker] = WorkerPool(config.worker)
                stack.push_async_callback(pools[config.worker].close)
        agents = [NodeAgent(config, pools[config.worker]) for config in configs]
        if metrics_listen:
            await stack.enter_async_context(_measured(agents, metrics_listen))
        tasks = [asyncio.create_task(agent.run()) for agent in agents]
        _stop_on_signals(agents, tasks)
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    faults = [end for end in ends if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError)]
    for fault in faults[1:]:
        logger().error("an identity stopped", reason=str(fault))
    if faults:
        raise faults[0]


@asynccontextmanager
async def _measured(agents: Sequence[NodeAgent], address: str) -> AsyncIterator[None]:
    """Show metrics while the agents run."""
    stop = metrics.watch(lambda: [agent.identity.peer.not_after for agent in agents])
    port = PlainPort(metrics.REGISTRY)
    try:
        logger().info("metrics", port=await port.start(address))
        await set_serving(port.servicer, (), True)
        yield
    finally:
        await port.close()
        stop()


def _stop_on_signals(agents: Sequence[NodeAgent], tasks: Sequence[asyncio.Task[None]]) -> None:
    asked = False

    def stop() -> None:
        nonlocal asked
        for agent in agents:
            agent.stop()
        if asked:
            for task in tasks:
                task.cancel()
        asked = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
