"""The plaintext port for the kubelet and Prometheus, apart from the one that browsers reach."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hanse.errors import HanseError
from hanse.observability import PlainPort
from hanse.rpc import set_serving
from hanse_dashboard import metrics
from hanse_dashboard.state import Dashboard

__all__ = ["plain_port"]

LOOK_EVERY_S = 2.0


@asynccontextmanager
async def plain_port(dashboard: Dashboard, address: str) -> AsyncIterator[int]:
    """Health, readiness and metrics at `host:port` for as long as the block runs; gives the port.

    Ready is a dashboard whose ledger has the tables of this version.

    Raises:
        OperatorError: that is no address, or it is taken.
    """
    port = PlainPort(metrics.REGISTRY)
    number = await port.start(address)
    looking = asyncio.create_task(_keep_looking(dashboard, port), name="readiness")
    try:
        yield number
    finally:
        looking.cancel()
        await port.close()


async def _keep_looking(dashboard: Dashboard, port: PlainPort) -> None:
    while True:
        await set_serving(port.servicer, (), await asyncio.to_thread(_ready, dashboard))
        await asyncio.to_thread(metrics.refresh, dashboard)
        await asyncio.sleep(LOOK_EVERY_S)


def _ready(dashboard: Dashboard) -> bool:
    try:
        dashboard.ledger.require_schema()
    except HanseError:
        return False
    return True
