"""What agents call. Identity, expiry and revocation are checked on every call, since a channel outlives its
certificate; an open session ends at the certificate's end and at a revocation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, cast

import grpc.aio
from google.protobuf.json_format import MessageToDict

from hanse.artifacts import ArtifactStore
from hanse.errors import Conflict, Forbidden, HanseError, InvalidPayload, OperatorError
from hanse.ledger import Transaction
from hanse.payload.desk import UploadDesk, serve_packed
from hanse.rpc import check_version, to_proto, version
from hanse.security import PeerIdentity, peer_identity
from hanse.v1 import node_pb2, node_pb2_grpc, payload_pb2
from hanse_coordinator.engine import Engine
from hanse_coordinator.ledger_thread import LedgerThread
from hanse_coordinator.membership import Membership, seconds_left
from hanse_coordinator.node_events import NodeEvents, ledger_head
from hanse_coordinator.past_work import too_late
from hanse_coordinator.sessions import NodeSession, Sessions

__all__ = ["NodeService"]

Context = grpc.aio.ServicerContext[Any, Any]
PROGRAM = "hanse-coordinator"
_MOST_DATASETS = 1000


class NodeService(node_pb2_grpc.NodeServiceServicer):
    """The node port's service."""

    def __init__(
        self,
        *,
        engine: Engine,
        membership: Membership,
        sessions: Sessions,
        ledger: LedgerThread,
        store: ArtifactStore,
        largest_payload: int,
    ) -> None:
        self._engine = engine
        self._membership = membership
        self._sessions = sessions
        self._ledger = ledger
        self._store = store
        self._events = NodeEvents(engine=engine, membership=membership, sessions=sessions, ledger=ledger, store=store)
        self._desk = UploadDesk(store, limit=largest_payload)
        self._serving = True

    def drain(self) -> None:
        """No new sessions, and no more work over those that are open; what is on its way in is still taken."""
        self._serving = False
        for session in self._sessions:
            session.held = True
            session.send(drain=node_pb2.Drain(reason=to_proto(_draining().reason)))

    def dismiss(self, error: HanseError | None) -> None:
        """End every session; the nodes count as present for the next coordinator, and come back to it."""
        self._serving = False
        for session in self._sessions:
            session.close(error)

    # ---- Membership
    async def Enroll(  # noqa: N802 - the contract's name
        self, request: node_pb2.EnrollRequest, context: Context
    ) -> AsyncIterator[node_pb2.EnrollUpdate]:
        """Certify a node's key once an operator has approved it."""
        check_version(request.version)
        peer = self._peer(context)
        while True:
            enrolment = await self._membership.enrol(peer, request.certificate_request)
            if enrolment.certificate is not None:
                certificate = node_pb2.Certificate(
                    certificate=enrolment.certificate,
                    authority=self._membership.authority.certificate_pem,
                    node=enrolment.node,
                )
                yield node_pb2.EnrollUpdate(certificate=certificate)
                return
            yield node_pb2.EnrollUpdate(pending=node_pb2.PendingApproval(fingerprint=enrolment.fingerprint))
            await self._membership.approved(enrolment.node)

    async def RenewCertificate(  # noqa: N802
        self, request: node_pb2.RenewRequest, context: Context
    ) -> node_pb2.Certificate:
        """A new certificate for a node that is approved."""
        node = self._node(context)
        return node_pb2.Certificate(
            certificate=await self._membership.renew(node, request.certificate_request),
            authority=self._membership.authority.certificate_pem,
            node=node,
        )

    def _peer(self, context: Context) -> PeerIdentity:
        return peer_identity(context.auth_context())

    def _node(self, context: Context) -> str:
        return self._membership.require_node(self._peer(context))

    # ---- Session
    async def Session(  # noqa: N802
        self, request_iterator: AsyncIterator[node_pb2.NodeEvent], context: Context
    ) -> AsyncIterator[node_pb2.Directive]:
        """A node's stream of events, and ours of directives."""
        peer = self._peer(context)
        node = self._membership.require_node(peer)
        session = NodeSession(node, await self._hello(request_iterator))
        if not self._serving:
            raise _draining()
        fresh = self._sessions.open(session)
        end = asyncio.get_running_loop().call_later(max(0.0, seconds_left(peer)), self._expire, session, peer)
        reader = asyncio.create_task(self._events.take_all(session, peer, request_iterator), name=f"session {node}")
        try:
            await self._note_connected(session)
            yield node_pb2.Directive(welcome=self._welcome(node))
            await self._engine.connected(session, fresh=fresh)
            while (directive := await session.outgoing.get()) is not None:
                if isinstance(directive, HanseError):
                    raise directive
                yield directive
        finally:
            end.cancel()
            reader.cancel()
            if self._sessions.end(session):
                await asyncio.shield(self._note_gone(session))

    async def _hello(self, events: AsyncIterator[node_pb2.NodeEvent]) -> node_pb2.Hello:
        first = await anext(aiter(events), None)
        if first is None or first.WhichOneof("event") != "hello":
            raise OperatorError("a session must begin with a hello.", code="NO_HELLO")
        check_version(first.hello.version)
        if len(first.hello.datasets) > _MOST_DATASETS:
            raise OperatorError(f"a node may offer at most {_MOST_DATASETS} datasets.", code="TOO_MANY_DATASETS")
        return first.hello

    def _welcome(self, node: str) -> node_pb2.Welcome:
        return node_pb2.Welcome(
            version=version(PROGRAM),
            node=node,
            heartbeat_s=self._sessions.heartbeat,
            lease_s=self._sessions.lease,
            head=ledger_head(self._ledger),
            unix_time=time.time(),
        )

    def _expire(self, session: NodeSession, peer: PeerIdentity) -> None:
        try:
            peer.require_current()
        except HanseError as error:
            session.close(error)

    async def revoked(self, node: str) -> None:
        """End a revoked node's session now."""
        session = self._sessions.get(node)
        if session is not None:
            session.close(Forbidden(f"node '{node}' was revoked.", code="NODE_REVOKED"))
            self._sessions.end(session)
        self._sessions.forget(node)
        self._engine.node_changed()
        if session is not None:
            await self._note_gone(session)

    async def _note_connected(self, session: NodeSession) -> None:
        hello = session.hello

        def work(tx: Transaction) -> dict[str, str]:
            node = tx.node(session.node)
            labels = dict(hello.labels) or dict(node.labels)
            tx.update_node(
                session.node,
                online=True,
                last_seen_at=tx.now,
                labels=labels,
                program=hello.version.program[:200],
                methods=list(hello.methods)[:200],
                datasets=[MessageToDict(offer, preserving_proto_field_name=True) for offer in hello.datasets],
                policy_digest=hello.policy_digest.hex(),
            )
            if not node.online:
                tx.event("node_connected", node=session.node, body={"program": hello.version.program[:200]})
            return labels

        session.labels = await self._ledger.write(work)

    async def _note_gone(self, session: NodeSession) -> None:
        if not self._serving:
            return  # it is we who leave, not the node
        asyncio.get_running_loop().call_later(self._sessions.lease + 0.01, self._engine.node_changed)
        self._engine.node_changed()

        def work(tx: Transaction) -> None:
            if self._sessions.get(session.node) is None:
                tx.update_node(session.node, online=False, last_seen_at=tx.now)
                tx.event("node_disconnected", node=session.node)

        with suppress(HanseError):
            await self._ledger.write(work)

    # ---- Transfer
    async def OpenUpload(  # noqa: N802
        self, request: node_pb2.OpenUploadRequest, context: Context
    ) -> node_pb2.OpenUploadResponse:
        """From which byte an upload goes on."""
        node = self._node(context)
        await self._engine.check(node, request.assignment, request.fence)
        known = await self._engine.recorded(node, request.assignment)
        if known is not None and bytes.fromhex(known.digest) == request.digest:
            if known.late:
                raise too_late(request.assignment)
            return node_pb2.OpenUploadResponse(committed=request.size, complete=True)
        return node_pb2.OpenUploadResponse(committed=await self._desk.open(request))

    async def Upload(  # noqa: N802
        self, request_iterator: AsyncIterator[node_pb2.UploadRequest], context: Context
    ) -> node_pb2.Receipt:
        """Take the bytes of a contribution, commit it once, and give a receipt."""
        node = self._node(context)
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        if first is None or first.WhichOneof("part") != "open":
            raise InvalidPayload("an upload must begin by saying what it is.")
        opening = first.open
        await self._engine.check(node, opening.assignment, opening.fence)
        received = await self._desk.receive(_chain(first, requests))
        self._node(context)  # a revocation may have come while the bytes did
        counted = await self._engine.deliver(node, received.assignment, received.fence, received.digest, received.size)
        await self._desk.settle(received.assignment)
        if not counted:
            raise too_late(received.assignment)
        return node_pb2.Receipt(assignment=received.assignment, fence=received.fence, digest=received.digest)

    async def Download(  # noqa: N802
        self, request: node_pb2.DownloadRequest, context: Context
    ) -> AsyncIterator[payload_pb2.PayloadChunk]:
        """The bytes of an artifact that an assignment of the node speaks of."""
        node = self._node(context)
        if not await self._engine.entitled(node, request.assignment, request.digest):
            raise Forbidden(
                f"assignment {request.assignment[:64]} does not speak of artifact {request.digest.hex()[:12]}….",
                code="NOT_ENTITLED",
            )
        async for message in serve_packed(self._store, request.digest, request.offset):
            yield cast("payload_pb2.PayloadChunk", message)


async def _chain(
    first: node_pb2.UploadRequest, rest: AsyncIterator[node_pb2.UploadRequest]
) -> AsyncIterator[node_pb2.UploadRequest]:
    yield first
    async for request in rest:
        yield request


def _draining() -> Conflict:
    return Conflict("the coordinator is restarting.", remedy="The agent comes back by itself.", code="DRAINING")
