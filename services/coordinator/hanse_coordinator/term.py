"""One term of a coordinator: everything that it holds while it leads, from the ledger to the ports."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import grpc
import grpc.aio

from hanse.artifacts import open_store
from hanse.errors import HanseError, OperatorError, Unreachable
from hanse.ledger import Ledger, Transaction
from hanse.logs import logger
from hanse.payload.raw_chunks import RawChunkHandlers
from hanse.rpc import ErrorInterceptor, add_health_and_reflection, listen, set_serving
from hanse.security import (
    Address,
    Authority,
    KeyPair,
    OperatorToken,
    Role,
    ServerCertificate,
    follow_certificate,
    server_options,
    write_atomically,
)
from hanse.v1 import control_pb2_grpc, node_pb2_grpc
from hanse_coordinator.aggregators import AggregatorPool
from hanse_coordinator.control_service import ControlService
from hanse_coordinator.drain import RunningUploads
from hanse_coordinator.engine import Engine
from hanse_coordinator.leadership import Lead
from hanse_coordinator.ledger_thread import LedgerThread
from hanse_coordinator.membership import Membership
from hanse_coordinator.metrics import CoordinatorMetrics
from hanse_coordinator.node_service import NodeService
from hanse_coordinator.operator_tokens import add_token
from hanse_coordinator.retention import keep_deleting, keep_sweeping
from hanse_coordinator.sessions import Sessions
from hanse_coordinator.settings import CoordinatorSettings

__all__ = ["CONTROL_SERVICE", "NODE_SERVICE", "Term"]

NODE_SERVICE = "hanse.v1.NodeService"
CONTROL_SERVICE = "hanse.v1.ControlService"
FIRST_TOKEN_LIFETIME = timedelta(days=365)
_GOODBYE_S = 1.0
"""For answers that are on their way when the ports close."""


class Term:
    """Serves while its coordinator leads. `start` once, then `drain` or `abandon`, then `close`."""

    def __init__(self, settings: CoordinatorSettings, lead: Lead, metrics: CoordinatorMetrics) -> None:
        self.ports: dict[str, int] = {}
        self._settings = settings
        self._lead = lead
        self._metrics = metrics
        self._stack = AsyncExitStack()
        self._uploads = RunningUploads()
        self._servers: list[grpc.aio.Server] = []
        self._healths: list[tuple[Any, str]] = []

    async def start(self) -> None:
        """Open the ledger, go on with every job, and serve.

        Raises:
            HanseError: what stands in the way, in one sentence.
        """
        settings = self._settings
        opened = await asyncio.to_thread(Ledger.open, settings.ledger_url)
        self._stack.callback(opened.close)
        self._ledger = await asyncio.to_thread(
            LedgerThread, opened, self._lead.epoch, on_fenced=self._lead.fenced, metrics=self._metrics
        )
        self._stack.callback(self._ledger.abandon)
        self._metrics.leads(self._lead.epoch)
        self._stack.callback(self._metrics.leads, None)
        facts = {"epoch": self._lead.epoch, "holder": self._lead.holder}
        await self._ledger.write(lambda tx: tx.event("coordinator_leads", body=facts))
        authority = Authority.load(settings.authority_folder)
        pair = KeyPair.load(settings.certificate, settings.key)
        client = pair
        if settings.client_certificate:
            client = KeyPair.load(settings.client_certificate, settings.client_key)
        store = await asyncio.to_thread(
            open_store, settings, default=settings.artifact_folder, cache=settings.state / "artifact-cache"
        )
        assert store is not None  # there is a default
        self._sessions = Sessions(lease=settings.lease.total_seconds(), heartbeat=settings.heartbeat.total_seconds())
        pool = AggregatorPool(settings.aggregators, authority_pem=authority.certificate_pem, pair=client, store=store)
        self._stack.push_async_callback(pool.close)
        certificate = ServerCertificate(pair)
        self._stack.push_async_callback(self._stop_servers)
        node_server = self._server(NODE_SERVICE, self._uploads)
        control_server = self._server(CONTROL_SERVICE)
        self.ports["nodes"] = listen(
            node_server, settings.nodes_listen, certificate.mutual_credentials(authority.certificate_pem)
        )
        self.ports["control"] = listen(control_server, settings.control_listen, certificate.server_only_credentials())
        membership = Membership(
            authority,
            self._ledger,
            addresses=self._advertised(),
            certificate_lifetime=settings.certificate_lifetime,
        )
        await membership.load()
        self._engine = Engine(
            ledger=self._ledger, store=store, sessions=self._sessions, aggregators=pool, settings=settings
        )
        self._nodes = NodeService(
            engine=self._engine,
            membership=membership,
            sessions=self._sessions,
            ledger=self._ledger,
            store=store,
            largest_payload=settings.largest_payload,
        )
        control = ControlService(
            name=settings.name,
            engine=self._engine,
            membership=membership,
            nodes=self._nodes,
            sessions=self._sessions,
            ledger=self._ledger,
            store=store,
            aggregators=pool,
        )
        node_pb2_grpc.add_NodeServiceServicer_to_server(self._nodes, node_server)
        control_pb2_grpc.add_ControlServiceServicer_to_server(control, control_server)
        await self._first_token()
        self._stack.push_async_callback(self._engine.stop)
        await self._engine.start()
        self._stack.callback(
            self._metrics.watch(jobs=self._engine.jobs, trust=membership.trust, sessions=self._sessions)
        )
        for which, certificate_in_use in (("server", pair), ("client", client), ("authority", authority)):
            self._metrics.certificate(which, certificate_in_use.certificate.not_valid_after_utc.timestamp())
        for server in self._servers:
            await server.start()
        self._beside(keep_deleting(self._ledger, store), "retention")
        self._beside(keep_sweeping(self._ledger, store), "sweeping")
        self._beside(_end_silent(self._sessions), "silent sessions")
        self._beside(self._note_lost(), "lost nodes")
        self._follow_certificates(certificate, pool, pair, client)
        await self._serving(True)

    async def drain(self, within_s: float) -> None:
        """Give out no more work, take what is being uploaded, say goodbye: about `within_s` seconds at most."""
        await self._serving(False)
        self._nodes.drain()
        left = await self._uploads.finish(max(0.0, within_s - _GOODBYE_S))
        logger().info("drained", uploads_left=left, nodes=len(self._sessions))
        self._nodes.dismiss(None)
        await self._stop_servers()
        await self._engine.stop()
        await asyncio.to_thread(self._ledger.close)

    async def abandon(self, error: HanseError) -> None:
        """This coordinator leads no longer: nothing more is given out or taken, and every stream ends."""
        await self._serving(False)
        await self._engine.stop()
        self._nodes.dismiss(
            Unreachable(
                f"this coordinator does not lead any more: {error.sentence}",
                remedy="The agent connects to the one that does by itself.",
                code="NOT_LEADING",
            )
        )
        await self._stop_servers()

    async def close(self) -> None:
        """Let go of whatever is still held, also after a start that failed half way."""
        await self._stack.aclose()

    def _server(self, service: str, *interceptors: grpc.aio.ServerInterceptor) -> grpc.aio.Server:
        server = grpc.aio.server(
            interceptors=[RawChunkHandlers(), *interceptors, ErrorInterceptor()], options=server_options()
        )
        self._healths.append((add_health_and_reflection(server, [service]), service))
        self._servers.append(server)
        return server

    async def _stop_servers(self) -> None:
        await asyncio.gather(*(server.stop(_GOODBYE_S) for server in self._servers))

    async def _serving(self, serving: bool) -> None:
        for health, service in self._healths:
            await set_serving(health, [service], serving)

    def _follow_certificates(
        self, certificate: ServerCertificate, pool: AggregatorPool, pair: KeyPair, shown: KeyPair
    ) -> None:
        """Certificates that are renewed in their files are shown without a restart."""
        settings = self._settings

        def use(pair: KeyPair, *, server: bool, client: bool) -> None:
            until = pair.certificate.not_valid_after_utc.timestamp()
            if server:
                certificate.replace(pair)
                self._metrics.certificate("server", until)
            if client:
                pool.show(pair)
                self._metrics.certificate("client", until)

        own = partial(use, server=True, client=settings.client_certificate is None)
        self._beside(follow_certificate(settings.certificate, settings.key, pair, own), "certificate")
        if settings.client_certificate:
            renewed = partial(use, server=False, client=True)
            work = follow_certificate(settings.client_certificate, settings.client_key, shown, renewed)
            self._beside(work, "client certificate")

    def _beside(self, work: Any, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._stack.callback(task.cancel)

    async def _note_lost(self) -> None:
        """Nodes that were connected to the former leader, and did not come back within a lease, are gone."""
        await asyncio.sleep(self._sessions.lease)

        def work(tx: Transaction) -> None:
            for node in tx.nodes():
                if node.online and self._sessions.get(node.name) is None:
                    tx.update_node(node.name, online=False)
                    tx.event("node_disconnected", node=node.name)

        try:
            await self._ledger.write(work, patience=None)
        except HanseError as error:
            logger().warning("nodes that are gone could not be noted", reason=str(error))

    def _advertised(self) -> tuple[Address, ...]:
        if self._settings.advertise:
            return tuple(Address.parse(text) for text in self._settings.advertise)
        host = self._settings.nodes_listen.rpartition(":")[0]
        return (Address.parse(f"{host}:{self.ports['nodes']}"),)

    async def _first_token(self) -> None:
        path = self._settings.first_token
        if path is None or await self._ledger.read(lambda view: bool(view.tokens())):
            return
        secret = OperatorToken.create()
        # The file first: a token that nobody can read would lock everybody out.
        write_atomically(path, (secret.text() + "\n").encode(), mode=0o600)
        await self._ledger.write(
            lambda tx: add_token(
                tx, secret, name="first administrator", role=Role.ADMIN, valid=FIRST_TOKEN_LIFETIME, actor="coordinator"
            )
        )


async def _end_silent(sessions: Sessions) -> None:
    while True:
        await asyncio.sleep(sessions.heartbeat)
        for session in sessions.silent():
            logger().info("session ended: no heartbeat", node=session.node)
            session.close(OperatorError("no heartbeat came.", code="NO_HEARTBEAT"))
