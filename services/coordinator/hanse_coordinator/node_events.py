"""What comes in over a node's session: every event is judged as a call of its own, and given to whom it concerns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc.aio

from hanse.artifacts import ArtifactStore
from hanse.errors import Conflict, HanseError, InvalidPayload, OldFence, OperatorError, PlatformError
from hanse.logs import logger
from hanse.payload import Payload
from hanse.rpc import SESSION_INLINE_LIMIT, to_proto
from hanse.security import PeerIdentity
from hanse.v1 import node_pb2, payload_pb2
from hanse_coordinator.engine import Engine
from hanse_coordinator.ledger_thread import LedgerThread
from hanse_coordinator.membership import Membership
from hanse_coordinator.past_work import too_late
from hanse_coordinator.sessions import NodeSession, Sessions

__all__ = ["NodeEvents", "ledger_head"]

_MOST_UNREAD = 10_000
"""Directives that wait for a node which goes on talking but does not read."""


class NodeEvents:
    """Takes the events of every session."""

    def __init__(
        self,
        *,
        engine: Engine,
        membership: Membership,
        sessions: Sessions,
        ledger: LedgerThread,
        store: ArtifactStore,
    ) -> None:
        self._engine = engine
        self._membership = membership
        self._sessions = sessions
        self._ledger = ledger
        self._store = store

    async def take_all(
        self, session: NodeSession, peer: PeerIdentity, events: AsyncIterator[node_pb2.NodeEvent]
    ) -> None:
        """Take events until the stream ends; the session is closed then, with the error where there was one."""
        try:
            async for event in events:
                self._require_good(session, peer)
                self._sessions.heard(session)
                await self._take(session, peer, event)
        except HanseError as error:
            session.close(error)
        except (grpc.aio.UsageError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - one node's stream must not take anything else with it
            logger().exception("session failed", node=session.node, error=repr(error))
            session.close(OperatorError("the session failed at an event of this node.", code="BAD_EVENT"))
        else:
            session.close()

    def _require_good(self, session: NodeSession, peer: PeerIdentity) -> None:
        """Every event is judged as a call of its own: the stream may have outlived what it was opened with."""
        if self._sessions.get(session.node) is not session:
            raise Conflict("this session was replaced by a newer one.", code="SESSION_REPLACED")
        self._membership.require_node(peer)
        if session.outgoing.qsize() > _MOST_UNREAD:
            raise Conflict("this session is not being read.", remedy="Connect again.", code="SESSION_NOT_READ")

    async def _take(self, session: NodeSession, peer: PeerIdentity, event: node_pb2.NodeEvent) -> None:
        match event.WhichOneof("event"):
            case "heartbeat":
                reply = node_pb2.HeartbeatReply(sequence=event.heartbeat.sequence, head=ledger_head(self._ledger))
                session.send(heartbeat=reply)
            case "progress":
                self._engine.progressed(session.node, event.progress)
            case "offer_reply":
                self._engine.replied(session.node, event.offer_reply)
            case "contribution":
                await self._take_inline(session, peer, event.contribution)
            case "failed":
                self._engine.failed(session.node, event.failed)
            case "leaving":
                session.close()
            case _:
                raise OperatorError(
                    "the session brought an event that this coordinator does not know.",
                    remedy="Update the coordinator: the agent is newer.",
                )

    async def _take_inline(self, session: NodeSession, peer: PeerIdentity, given: node_pb2.InlineContribution) -> None:
        """A small contribution. What is wrong with it is the assignment's problem, never the session's."""
        try:
            if len(given.image) > SESSION_INLINE_LIMIT:
                raise InvalidPayload(f"{len(given.image)} bytes are too many for the session; upload them.")
            await self._engine.check(session.node, given.assignment, given.fence)
            artifact = await asyncio.to_thread(self._store.put, Payload.from_image(given.image))
            self._membership.require_node(peer)  # a revocation may have come while the bytes were stored
            await self._record(session, given.assignment, given.fence, artifact.digest, artifact.size)
        except OldFence:
            pass  # the assignment is on its way again, with its new number
        except PlatformError as error:
            # Our own trouble, a full disk for instance: without a receipt the node sends it again.
            logger().warning("contribution not taken", node=session.node, reason=str(error))
        except HanseError as error:
            session.send(
                withdraw=node_pb2.Withdraw(
                    assignment=given.assignment, fence=given.fence, reason=to_proto(error.reason)
                )
            )
            if isinstance(error, InvalidPayload):
                failure = node_pb2.WorkFailed(
                    assignment=given.assignment, fence=given.fence, reason=to_proto(error.reason)
                )
                self._engine.failed(session.node, failure)

    async def _record(self, session: NodeSession, assignment: str, fence: int, digest: bytes, size: int) -> None:
        if not await self._engine.deliver(session.node, assignment, fence, digest, size):
            raise too_late(assignment)
        session.send(receipt=node_pb2.Receipt(assignment=assignment, fence=fence, digest=digest))


def ledger_head(ledger: LedgerThread) -> payload_pb2.LedgerHead:
    """The ledger's newest entry, for nodes to compare later."""
    return payload_pb2.LedgerHead(sequence=ledger.head.sequence, hash=ledger.head.hash)
