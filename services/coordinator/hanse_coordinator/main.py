"""`hanse-coordinator --config FILE`: the program. It stands by until it leads, and serves while it does."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from hanse import __version__, logs
from hanse.errors import FencedOut, HanseError, OperatorError
from hanse.ledger import Ledger
from hanse.observability import PlainPort, tracing
from hanse.open_files import allow_many_open_files
from hanse.rpc import set_serving
from hanse.security import write_atomically
from hanse_coordinator.leadership import Lead, Leadership
from hanse_coordinator.metrics import CoordinatorMetrics
from hanse_coordinator.settings import CoordinatorSettings, configuration
from hanse_coordinator.standby import holder_name
from hanse_coordinator.term import CONTROL_SERVICE, NODE_SERVICE, Term
from hanse_coordinator.traces import PHASES

__all__ = ["Coordinator", "main"]

_PAUSE_S = 1.0
_CLOSE_S = 15.0
_AWAY = {"LEDGER_UNAVAILABLE", "LEDGER_BUSY"}


class Coordinator:
    """One process: alive from its start, ready while it leads."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self.settings = settings
        self.ports: dict[str, int] = {}
        self.metrics = CoordinatorMetrics()
        self._plain = PlainPort(self.metrics.registry)
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Stand by, lead, stand by again, until SIGTERM or SIGINT; then drain.

        Raises:
            HanseError: what keeps this coordinator from ever leading, in one sentence.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stopped.set)
        settings = self.settings
        settings.state.mkdir(parents=True, exist_ok=True)
        tracing.configure("hanse-coordinator", settings.traces)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, tracing.close)
            stack.callback(PHASES.end_all)
            if settings.health_listen:
                self.ports["health"] = await self._plain.start(settings.health_listen)
                stack.push_async_callback(self._plain.close)
            leadership = Leadership(
                settings.ledger_url,
                holder=holder_name(settings.health_address, settings.health_listen, self.ports.get("health")),
                lease=settings.leader_lease.total_seconds(),
            )
            while (lead := await self._won(leadership)) is not None:
                try:
                    await self._lead(lead)
                finally:
                    await lead.release()
        logs.logger().info("coordinator has stopped")

    async def _won(self, leadership: Leadership) -> Lead | None:
        """The next time of leading; None once this program is to end."""
        stopped = asyncio.create_task(self._stopped.wait())
        winning = asyncio.create_task(leadership.win())
        await asyncio.wait({stopped, winning}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not self._stopped.is_set():
            return winning.result()
        winning.cancel()
        won = (await asyncio.gather(winning, return_exceptions=True))[0]
        if not isinstance(won, BaseException):
            await won.release()
        return None

    async def _lead(self, lead: Lead) -> None:
        term = Term(self.settings, lead, self.metrics)
        lost = asyncio.create_task(lead.until_lost())
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            if await self._started(term, lost):
                await self._ready(True)
                self._announce(term, lead)
                await asyncio.wait({lost, stopped}, return_when=asyncio.FIRST_COMPLETED)
                await self._ready(False)
                if not lost.done():
                    grace = self.settings.grace.total_seconds()
                    draining = _within(grace + _CLOSE_S, term.drain(grace), "the drain does not end")
                    await _first(asyncio.create_task(draining), lost)
                if lost.done():
                    logs.logger().warning("leads no longer", epoch=lead.epoch, reason=str(lost.result()))
                    await _within(_CLOSE_S, term.abandon(lost.result()), "sessions do not end")
            if lost.done() and isinstance(lost.result(), OperatorError):
                raise lost.result()
        finally:
            lost.cancel()
            stopped.cancel()
            await _within(_CLOSE_S, term.close(), "the term does not come to its end")

    async def _started(self, term: Term, lost: asyncio.Task[HanseError]) -> bool:
        """Whether the term has begun; False when the lease, or the database, went away meanwhile."""
        starting = asyncio.create_task(term.start())
        try:
            return await _first(starting, lost)
        except HanseError as error:
            if not isinstance(error, FencedOut) and error.code not in _AWAY:
                raise
            logs.logger().warning("could not begin to lead; standing by again", reason=str(error))
            await asyncio.sleep(_PAUSE_S)
            return False

    async def _ready(self, ready: bool) -> None:
        await set_serving(self._plain.servicer, [NODE_SERVICE, CONTROL_SERVICE], ready)

    def _announce(self, term: Term, lead: Lead) -> None:
        self.ports |= term.ports
        if self.settings.ports_file:
            write_atomically(self.settings.ports_file, json.dumps(self.ports).encode(), mode=0o644)
        logs.logger().info("coordinator is serving", version=__version__, epoch=lead.epoch, **self.ports)


async def _within(seconds: float, work: Coroutine[Any, Any, None], what: str) -> None:
    """Do what must not take long. A process that cannot let go of the lead ends: its supervisor starts it anew."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not task.done():
        logs.logger().error("ending this process", reason=f"{what} within {seconds:g} s")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    task.result()


async def _first(work: asyncio.Task[None], lost: asyncio.Task[HanseError]) -> bool:
    """Wait until the work is done, unless the lease is lost before; whether it is done."""
    await asyncio.wait({work, lost}, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()
        return True
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    return False


async def _serve(settings: CoordinatorSettings) -> None:
    await Coordinator(settings).run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a thread that waits for a database in a dead network must not hold the process


def main() -> None:
    """Start the coordinator."""
    parser = argparse.ArgumentParser(prog="hanse-coordinator", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the configuration, YAML")
    parser.add_argument("--migrate", action="store_true", help="bring the ledger's tables up to date, and end")
    parser.add_argument(
        "--print-config", action="store_true", help="print every value and where it comes from, and end"
    )
    parser.add_argument("--version", action="version", version=f"hanse-coordinator {__version__}")
    arguments = parser.parse_args()
    try:
        loaded = configuration(arguments.config)
        if arguments.print_config:
            print(loaded.text())  # noqa: T201 - what was asked for
            return
        settings = loaded.settings
        logs.configure(json=settings.log_json)
        if arguments.migrate:
            with Ledger.open(settings.ledger_url) as ledger:
                ledger.migrate()
            return
        allow_many_open_files()
        asyncio.run(_serve(settings))
    except HanseError as error:
        print(f"hanse-coordinator: {error}", file=sys.stderr)  # noqa: T201 - the one line that a person must see
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
