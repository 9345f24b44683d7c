"""A coordinator that does as the test says, over real TLS and with real transfers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc.aio
from cryptography import x509

from hanse.artifacts import LocalStore
from hanse.errors import HanseError
from hanse.payload.desk import UploadDesk, serve
from hanse.rpc import ErrorInterceptor, version
from hanse.security import (
    Address,
    Authority,
    Identity,
    Invitation,
    ServerCertificate,
    fingerprint_words,
    peer_identity,
    server_options,
)
from hanse.v1 import node_pb2, node_pb2_grpc, payload_pb2
from hanse_agent.identity import NodeIdentity
from tests.unit.agent.probe import eventually


@dataclass(eq=False)
class FakeSession:
    """One stream, seen from the coordinator."""

    hello: node_pb2.Hello
    serial: str
    events: list[node_pb2.NodeEvent] = field(default_factory=list)
    outgoing: asyncio.Queue[node_pb2.Directive | HanseError | None] = field(default_factory=asyncio.Queue)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, **directive: Any) -> None:
        self.outgoing.put_nowait(node_pb2.Directive(**directive))

    def close(self, error: HanseError | None = None) -> None:
        self.outgoing.put_nowait(error)

    def of(self, kind: str) -> list[Any]:
        return [getattr(event, kind) for event in self.events if event.WhichOneof("event") == kind]


class FakeCoordinator(node_pb2_grpc.NodeServiceServicer):
    """A node port with real TLS and real transfers, and no mind of its own."""

    def __init__(self, authority: Authority, folder: Path) -> None:
        self.authority = authority
        self.store = LocalStore(folder / "artifacts", durable=False)
        self.desk = UploadDesk(self.store)
        self.sessions: list[FakeSession] = []
        self.uploads: list[node_pb2.OpenUploadRequest] = []
        self.heartbeat_s = 5.0
        self.lease_s = 20.0
        self.answer_heartbeats = True
        self.unix_time: float | None = None
        self.head = payload_pb2.LedgerHead(sequence=1, hash=b"h" * 32)
        self.refuse_sessions: HanseError | None = None
        self.refuse_uploads: list[HanseError] = []
        self.hold_uploads = asyncio.Event()
        self.hold_uploads.set()
        self.approved = asyncio.Event()
        self.enrolments: list[str] = []
        self.fingerprint = ""
        self.certificate_life = timedelta(days=7)
        self.renewals = 0
        self.port = 0
        self._pair = authority.issue(Identity.service("coordinator"), hosts=["127.0.0.1"])

    async def start(self) -> None:
        self.server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=server_options())
        node_pb2_grpc.add_NodeServiceServicer_to_server(self, self.server)
        credentials = ServerCertificate(self._pair).mutual_credentials(self.authority.certificate_pem)
        self.port = self.server.add_secure_port(f"127.0.0.1:{self.port}", credentials)
        await self.server.start()

    async def stop(self) -> None:
        await self.server.stop(0)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def latest(self) -> FakeSession:
        return self.sessions[-1]

    async def session(self, number: int = 1) -> FakeSession:
        """The n-th session since the start."""
        await eventually(lambda: len(self.sessions) >= number, f"session {number}")
        return self.sessions[number - 1]

    async def event(self, kind: str, number: int = 1) -> Any:
        """The n-th event of a kind, over all sessions."""

        def found() -> list[Any]:
            return [event for session in self.sessions for event in session.of(kind)]

        await eventually(lambda: len(found()) >= number, f"{kind} {number}")
        return found()[number - 1]

    def invitation(self, node: str = "site-a", number: int = 1) -> Invitation:
        address = Address("127.0.0.1", self.port)
        return Invitation.create(self.authority, invitation_id=f"inv-{number}", node=node, addresses=(address,))

    def enrol(self, folder: Path, node: str = "site-a", *, life: timedelta = timedelta(days=7)) -> None:
        """Put an identity into a state folder, as `join` would."""
        pair = self.authority.issue(Identity.node(node), lifetime=life)
        identity = NodeIdentity(
            node=node,
            pair=pair,
            authority_pem=self.authority.certificate_pem,
            addresses=(Address("127.0.0.1", self.port),),
            server_name="coordinator.hanse.internal",
            invitation="inv-1",
        )
        folder.mkdir(parents=True, exist_ok=True)
        identity.save(folder)

    # ---- The service
    async def Enroll(self, request: Any, context: Any) -> AsyncIterator[node_pb2.EnrollUpdate]:
        peer = peer_identity(context.auth_context())
        self.enrolments.append(peer.name)
        words = fingerprint_words(x509.load_pem_x509_csr(request.certificate_request))
        pending = node_pb2.PendingApproval(fingerprint=self.fingerprint or words)
        yield node_pb2.EnrollUpdate(pending=pending)
        await self.approved.wait()
        yield node_pb2.EnrollUpdate(certificate=self._certify(request.certificate_request, "site-a"))

    async def RenewCertificate(self, request: Any, context: Any) -> node_pb2.Certificate:
        self.renewals += 1
        return self._certify(request.certificate_request, peer_identity(context.auth_context()).name)

    def _certify(self, request: bytes, node: str) -> node_pb2.Certificate:
        certificate = self.authority.sign_request(request, Identity.node(node), lifetime=self.certificate_life)
        return node_pb2.Certificate(certificate=certificate, authority=self.authority.certificate_pem, node=node)

    async def Session(self, request_iterator: Any, context: Any) -> AsyncIterator[node_pb2.Directive]:
        if self.refuse_sessions is not None:
            raise self.refuse_sessions
        first = await anext(aiter(request_iterator))
        session = FakeSession(first.hello, peer_identity(context.auth_context()).serial)
        reader = asyncio.create_task(self._read(session, request_iterator))
        yield node_pb2.Directive(
            welcome=node_pb2.Welcome(
                version=version("fake"),
                node="site-a",
                heartbeat_s=self.heartbeat_s,
                lease_s=self.lease_s,
                head=self.head,
                unix_time=time.time() if self.unix_time is None else self.unix_time,
            )
        )
        self.sessions.append(session)
        try:
            while (directive := await session.outgoing.get()) is not None:
                if isinstance(directive, HanseError):
                    raise directive
                yield directive
        finally:
            session.ended.set()
            reader.cancel()

    async def _read(self, session: FakeSession, events: Any) -> None:
        async for event in events:
            session.events.append(event)
            if event.HasField("heartbeat") and self.answer_heartbeats:
                reply = node_pb2.HeartbeatReply(sequence=event.heartbeat.sequence, head=self.head)
                session.send(heartbeat=reply)
        session.close()

    async def OpenUpload(self, request: Any, context: Any) -> node_pb2.OpenUploadResponse:
        self.uploads.append(request)
        if self.refuse_uploads:
            raise self.refuse_uploads.pop(0)
        return node_pb2.OpenUploadResponse(committed=await self.desk.open(request))

    async def Upload(self, request_iterator: Any, context: Any) -> node_pb2.Receipt:
        requests = aiter(request_iterator)
        first = await anext(requests)
        if first.open not in self.uploads:  # a fresh one does not ask from which byte to go on
            self.uploads.append(first.open)
            if self.refuse_uploads:
                raise self.refuse_uploads.pop(0)
        await self.hold_uploads.wait()
        received = await self.desk.receive(chained(first, requests))
        return node_pb2.Receipt(assignment=received.assignment, fence=received.fence, digest=received.digest)

    async def Download(self, request: Any, context: Any) -> AsyncIterator[payload_pb2.PayloadChunk]:
        async for chunk in serve(self.store, request.digest, request.offset):
            yield chunk


async def chained(first: Any, rest: AsyncIterator[Any]) -> AsyncIterator[Any]:
    yield first
    async for request in rest:
        yield request
