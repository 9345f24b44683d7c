"""`hanse-coordinator --config FILE`: the program."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from hanse import __version__, logs
from hanse.artifacts import open_store
from hanse.errors import HanseError, OperatorError
from hanse.ledger import Ledger
from hanse.observability import PlainPort
from hanse.payload.raw_chunks import RawChunkHandlers
from hanse.rpc import ErrorInterceptor, add_health_and_reflection, set_serving
from hanse.security import (
    Address,
    Authority,
    KeyPair,
    OperatorToken,
    Role,
    ServerCertificate,
    server_options,
    write_atomically,
)
from hanse.v1 import control_pb2_grpc, node_pb2_grpc
from hanse_coordinator.aggregators import AggregatorPool
from hanse_coordinator.control_service import ControlService, add_token
from hanse_coordinator.engine import Engine
from hanse_coordinator.ledger_thread import LedgerThread
from hanse_coordinator.membership import Membership
from hanse_coordinator.metrics import CoordinatorMetrics
from hanse_coordinator.node_service import NodeService
from hanse_coordinator.retention import keep_deleting, keep_sweeping
from hanse_coordinator.sessions import Sessions
from hanse_coordinator.settings import CoordinatorSettings, configuration

__all__ = ["Coordinator", "main"]

NODE_SERVICE = "hanse.v1.NodeService"
CONTROL_SERVICE = "hanse.v1.ControlService"
FIRST_TOKEN_LIFETIME = timedelta(days=365)
GRACE = 10.0


class Coordinator:
    """Everything that the program holds, from the ledger to the ports."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self.settings = settings
        self.ports: dict[str, int] = {}
        self.metrics = CoordinatorMetrics()
        self._stack = AsyncExitStack()
        self._stopped = asyncio.Event()

    async def start(self) -> None:
        """Open the ledger, go on with every job, and serve.

        Raises:
            HanseError: what stands in the way, in one sentence.
        """
        settings = self.settings
        settings.state.mkdir(parents=True, exist_ok=True)
        self._ledger = await asyncio.to_thread(self._open_ledger)
        self._stack.callback(self._ledger.close)
        authority = Authority.load(settings.authority_folder)
        pair = KeyPair.load(settings.certificate, settings.key)
        client = pair
        if settings.client_certificate:
            client = KeyPair.load(settings.client_certificate, settings.client_key)
        store = await asyncio.to_thread(
            open_store, settings, default=settings.artifact_folder, cache=settings.state / "artifact-cache"
        )
        assert store is not None  # there is a default
        epoch = await asyncio.to_thread(self._ledger.take_lease, f"{socket.gethostname()}:{os.getpid()}")
        ledger = LedgerThread(self._ledger, epoch, on_fenced=self.stop_soon, metrics=self.metrics)
        self.metrics.leads(epoch)
        self._stack.callback(ledger.close)
        sessions = Sessions(lease=settings.lease.total_seconds(), heartbeat=settings.heartbeat.total_seconds())
        pool = AggregatorPool(settings.aggregators, authority_pem=authority.certificate_pem, pair=client, store=store)
        self._stack.push_async_callback(pool.close)
        certificate = ServerCertificate(pair)
        node_server, self._node_health = _server([NODE_SERVICE])
        control_server, self._control_health = _server([CONTROL_SERVICE])
        self.ports["nodes"] = _bind(
            node_server, settings.nodes_listen, certificate.mutual_credentials(authority.certificate_pem)
        )
        self.ports["control"] = _bind(control_server, settings.control_listen, certificate.server_only_credentials())
        membership = Membership(
            authority,
            ledger,
            addresses=self._advertised(),
            certificate_lifetime=settings.certificate_lifetime,
        )
        await membership.load()
        engine = Engine(ledger=ledger, store=store, sessions=sessions, aggregators=pool, settings=settings)
        nodes = NodeService(
            engine=engine,
            membership=membership,
            sessions=sessions,
            ledger=ledger,
            store=store,
            largest_payload=settings.largest_payload,
        )
        control = ControlService(
            name=settings.name,
            engine=engine,
            membership=membership,
            nodes=nodes,
            sessions=sessions,
            ledger=ledger,
            store=store,
            aggregators=pool,
        )
        node_pb2_grpc.add_NodeServiceServicer_to_server(nodes, node_server)
        control_pb2_grpc.add_ControlServiceServicer_to_server(control, control_server)
        self._servers, self._nodes, self._engine = [node_server, control_server], nodes, engine
        await self._first_token(ledger)
        await engine.start()
        self.metrics.watch(jobs=engine.jobs, trust=membership.trust, sessions=sessions)
        for which, certificate_in_use in (("server", pair), ("client", client), ("authority", authority)):
            self.metrics.certificate(which, certificate_in_use.certificate.not_valid_after_utc.timestamp())
        if settings.health_listen:
            plain = PlainPort(self.metrics.registry)
            self._plain_health = plain.servicer
            self.ports["health"] = await plain.start(settings.health_listen)
            self._stack.push_async_callback(plain.close)
        for server in self._servers:
            await server.start()
        self._background = [
            asyncio.create_task(keep_deleting(ledger, store), name="retention"),
            asyncio.create_task(keep_sweeping(store), name="sweeping"),
            asyncio.create_task(_end_silent(sessions), name="silent sessions"),
        ]
        await self._serving(True)
        if settings.ports_file:
            write_atomically(settings.ports_file, json.dumps(self.ports).encode(), mode=0o644)

    def _open_ledger(self) -> Ledger:
        ledger = Ledger.open(self.settings.ledger_url)
        if self.settings.ledger_url.startswith("sqlite"):
            ledger.migrate()
        else:
            ledger.require_schema()
        return ledger

    def _advertised(self) -> tuple[Address, ...]:
        if self.settings.advertise:
            return tuple(Address.parse(text) for text in self.settings.advertise)
        host = self.settings.nodes_listen.rpartition(":")[0]
        return (Address.parse(f"{host}:{self.ports['nodes']}"),)

    async def _first_token(self, ledger: LedgerThread) -> None:
        path = self.settings.first_token
        if path is None or await ledger.read(lambda view: bool(view.tokens())):
            return
        secret = OperatorToken.create()
        # The file first: a token that nobody can read would lock everybody out.
        write_atomically(path, (secret.text() + "\n").encode(), mode=0o600)
        await ledger.write(
            lambda tx: add_token(
                tx, secret, name="first administrator", role=Role.ADMIN, valid=FIRST_TOKEN_LIFETIME, actor="coordinator"
            )
        )

    async def _serving(self, serving: bool) -> None:
        await set_serving(self._node_health, [NODE_SERVICE], serving)
        await set_serving(self._control_health, [CONTROL_SERVICE], serving)
        if self.settings.health_listen:
            await set_serving(self._plain_health, [NODE_SERVICE, CONTROL_SERVICE], serving)

    def stop_soon(self) -> None:
        """Ask the program to end; safe from any thread of the loop's process."""
        loop = self._loop
        loop.call_soon_threadsafe(self._stopped.set)

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain."""
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopped.set)
        async with self._stack:
            await self.start()
            logs.logger().info("coordinator is serving", version=__version__, **self.ports)
            await self._stopped.wait()
            await self._drain()

    async def _drain(self) -> None:
        await self._serving(False)
        self._nodes.drain()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*(server.stop(GRACE) for server in self._servers))
        await self._engine.stop()
        logs.logger().info("coordinator has stopped")


def _server(services: list[str]) -> tuple[grpc.aio.Server, Any]:
    server = grpc.aio.server(interceptors=[RawChunkHandlers(), ErrorInterceptor()], options=server_options())
    return server, add_health_and_reflection(server, services)


def _bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    try:
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    except RuntimeError as error:
        raise OperatorError(
            f"cannot listen on {address}.",
            remedy="Is another program on that port? Choose another, or stop it.",
            code="PORT_TAKEN",
        ) from error
    return int(port)


async def _end_silent(sessions: Sessions) -> None:
    while True:
        await asyncio.sleep(sessions.heartbeat)
        for session in sessions.silent():
            logs.logger().info("session ended: no heartbeat", node=session.node)
            session.close(OperatorError("no heartbeat came.", code="NO_HEARTBEAT"))


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
        asyncio.run(Coordinator(settings).run())
    except HanseError as error:
        print(f"hanse-coordinator: {error}", file=sys.stderr)  # noqa: T201 - the one line that a person must see
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
