"""`hanse-dashboard`: pages and REST API over the ledger, until it is told to stop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
import uvicorn

from hanse import __version__
from hanse.errors import HanseError, OperatorError
from hanse.logs import configure, logger
from hanse.security import write_atomically
from hanse_dashboard.app import create_app
from hanse_dashboard.plain import plain_port
from hanse_dashboard.settings import DashboardSettings, configuration
from hanse_dashboard.state import Dashboard

GRACE_S = 5


class _Server(uvicorn.Server):
    """Ends the pages' event streams first, so that a stop waits for nobody who only watches."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.config.app.state.dashboard.feed.close()  # type: ignore[union-attr]
        super().handle_exit(sig, frame)


def serve(settings: DashboardSettings) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Raises:
        HanseError: a file of the settings cannot be used, or the address is taken.
    """
    app = create_app(settings)
    listener = _listen(settings.listen)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        proxy_headers=True,
        forwarded_allow_ips=settings.trusted_proxies,
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=30,
        ssl_certfile=str(settings.certificate) if settings.certificate else None,
        ssl_keyfile=str(settings.key or settings.certificate) if settings.certificate else None,
    )
    server = _Server(config)
    asyncio.run(_run(server, listener, app.state.dashboard))


async def _run(server: uvicorn.Server, listener: socket.socket, dashboard: Dashboard) -> None:
    settings = dashboard.settings
    async with AsyncExitStack() as stack:
        ports = {"dashboard": listener.getsockname()[1]}
        if settings.health_listen:
            ports["health"] = await stack.enter_async_context(plain_port(dashboard, settings.health_listen))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.02)
        if server.started:
            address = f"{listener.getsockname()[0]}:{ports['dashboard']}"
            logger().info("dashboard serves", address=address, version=__version__)
            if settings.ports_file is not None:
                document = ports | {"pid": os.getpid()}
                write_atomically(settings.ports_file, json.dumps(document).encode() + b"\n", mode=0o644)
        await serving


def _listen(text: str) -> socket.socket:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise OperatorError(
            f"listen: '{text[:80]}' is not host:port.", remedy="Write it as 0.0.0.0:7480, for instance."
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named: asyncio then sends at once
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, int(port)))
    except OSError as error:
        listener.close()
        raise OperatorError(
            f"The dashboard cannot listen on {text}: {error.strerror or error}.", remedy="Change the key `listen`."
        ) from error
    listener.listen(256)
    return listener


def main() -> None:
    """Entry point."""
    typer.run(_command)


def _command(
    config: Annotated[
        Path | None, typer.Option("--config", help="YAML file; HANSE_DASHBOARD_… variables win over it.")
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print every value and where it comes from, and end.")
    ] = False,
) -> None:
    """Serve the dashboard."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        loaded = configuration(config)
        if print_config:
            print(loaded.text())  # noqa: T201 - what was asked for
            return
        settings = loaded.settings
        configure(json=settings.log_json, level=settings.log_level)
        serve(settings)
    except HanseError as error:
        print(f"hanse-dashboard: {error}", file=sys.stderr)  # noqa: T201 - the last word of a program that cannot start
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
