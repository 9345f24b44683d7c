"""How a node joins: an invitation becomes a certificate for a key that never leaves this machine.

Joining can be interrupted at any point and run again with the same invitation: the key is the same, so the
fingerprint that people compare is the same, and the waiting goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import grpc.aio

from hanse.errors import Conflict, FencedOut, HanseError, OperatorError, PlatformError, Unreachable
from hanse.logs import logger
from hanse.rpc import error_from_call, version
from hanse.security import (
    Address,
    Identity,
    Invitation,
    accept_certificate,
    fingerprint_words,
    load_or_create_key,
    signing_request,
)
from hanse.v1 import node_pb2, node_pb2_grpc
from hanse_agent.folder import StateFolder
from hanse_agent.identity import NodeIdentity, all_addresses, open_channel
from hanse_agent.probing import explained
from hanse_agent.reconnecting import Reconnecting
from hanse_agent.settings import AgentConfig

REACH_S = 10.0

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Joined:
    """How joining ended."""

    identity: NodeIdentity
    already: bool
    """The node had a good certificate before."""


def joined_before(folder: StateFolder, invitation: Invitation | None) -> NodeIdentity | None:
    """The identity that this node has, if there is nothing to do: its certificate is good, and the invitation none
    or the one that it joined with. Another invitation for the same node (`--again`) means a new certificate.

    Raises:
        Conflict: the folder belongs to another node, or the invitation has been used and its certificate ran out.
        SiteError: the identity is not whole.
    """
    identity = NodeIdentity.load(folder.identity)
    if identity is None:
        return None
    if invitation is not None and invitation.node != identity.node:
        raise Conflict(
            f"{folder.root} belongs to node {identity.node}; the invitation is for {invitation.node}.",
            remedy="Give the other node a state folder of its own.",
            code="OTHER_NODE",
        )
    if invitation is None or invitation.invitation_id == identity.invitation:
        identity.require_current()
        return identity
    return None


async def join(config: AgentConfig, invitation: Invitation, report: Report) -> Joined:
    """Join with an invitation; `report` is told each step.

    Runs until an operator has approved or refused: cancel it to give up waiting.

    Raises:
        HanseError: no address can be reached, the invitation is used, expired or revoked, the operator refused, or
            the state folder cannot be used. The reason is the coordinator's own where it gave one.
    """
    folder = StateFolder(config.state)
    folder.create()
    known = joined_before(folder, invitation)
    if known is not None:
        return Joined(identity=known, already=True)
    addresses = all_addresses(config.coordinator, invitation.addresses)
    address = await _reach(addresses, invitation)
    report(f"coordinator reached at {address}")
    report(f"its certificate is of the authority that the invitation names ({invitation.authority_sha256.hex()[:16]}…)")
    pending = folder.identity / f"pending-{invitation.invitation_id}.key"
    key = load_or_create_key(pending)
    words = fingerprint_words(key.public_key())
    report("key made; it stays in this folder")
    request = node_pb2.EnrollRequest(
        version=version("hanse-agent"), certificate_request=signing_request(key, invitation.node)
    )
    turn = addresses.index(address)
    certificate = await _enroll(addresses[turn:] + addresses[:turn], invitation, request, words, report)
    pair = accept_certificate(
        certificate.certificate, key, authority_pem=invitation.authority_pem, identity=Identity.node(invitation.node)
    )
    identity = NodeIdentity(
        node=invitation.node,
        pair=pair,
        authority_pem=invitation.authority_pem,
        addresses=invitation.addresses,
        server_name=invitation.server_name,
        invitation=invitation.invitation_id,
    )
    identity.save(folder.identity)
    pending.unlink(missing_ok=True)
    report(f"certificate until {identity.peer.not_after:%Y-%m-%d %H:%M} UTC; it renews itself while the agent runs")
    return Joined(identity=identity, already=False)


async def _reach(addresses: tuple[Address, ...], invitation: Invitation) -> Address:
    """The first address where a coordinator of the right authority answers. All are called at once: of several
    coordinators only the one that leads does."""
    calls = [asyncio.create_task(_answers(address, invitation)) for address in addresses]
    try:
        for call in asyncio.as_completed(calls):
            if isinstance(answer := await call, Address):
                return answer
    finally:
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    faults = [fault for task in calls if isinstance(fault := task.result(), HanseError)]
    if len(faults) == 1:
        raise faults[0]
    raise Unreachable(
        "the coordinator is reached at none of its addresses: " + " ".join(fault.sentence for fault in faults),
        remedy=faults[0].remedy,
        code=faults[0].code,
    )


async def _answers(address: Address, invitation: Invitation) -> Address | HanseError:
    """The address, or why nobody of the right authority answers there."""
    channel, _ = _bootstrap(address, invitation)
    try:
        async with asyncio.timeout(REACH_S):
            await channel.channel_ready()
        return address
    except TimeoutError:
        silent = Unreachable(
            f"{address} does not answer within {REACH_S:g} s.",
            remedy="Check the address, the network and that the coordinator is running.",
        )
        return await explained(
            silent, address, authority_pem=invitation.authority_pem, server_name=invitation.server_name
        )
    finally:
        await channel.close()


async def _enroll(
    addresses: tuple[Address, ...],
    invitation: Invitation,
    request: node_pb2.EnrollRequest,
    words: str,
    report: Report,
) -> node_pb2.Certificate:
    """Hand in the request and wait, through broken connections and from one coordinator to the next, until there is a
    certificate."""
    way, told = Reconnecting(), False

    def pending(update: node_pb2.PendingApproval) -> None:
        nonlocal told
        way.connected()
        if update.fingerprint and update.fingerprint != words:
            raise OperatorError(
                f"the coordinator holds another key's fingerprint ({update.fingerprint[:100]}) than this node's "
                f"({words}).",
                remedy="Do not approve it. Ask for a new invitation over a channel that you trust.",
                code="FINGERPRINT_DIFFERS",
            )
        if not told:
            report(f"waiting for the operator's approval; both must see this fingerprint: {words}")
            told = True

    while True:
        address = way.address(addresses)
        channel, stub = _bootstrap(address, invitation)
        try:
            async for update in stub.Enroll(request):
                if update.HasField("certificate"):
                    return update.certificate
                pending(update.pending)
        except grpc.RpcError as error:
            fault = error_from_call(error, peer=f"the coordinator at {address}")
            if not isinstance(fault, FencedOut) and not (isinstance(fault, PlatformError) and fault.retryable):
                raise fault from error
            logger().info("joining goes on when the coordinator answers again", reason=fault.sentence)
        finally:
            await channel.close()
        await asyncio.sleep(way.failed(len(addresses)))


def _bootstrap(address: Address, invitation: Invitation) -> tuple[grpc.aio.Channel, node_pb2_grpc.NodeServiceAsyncStub]:
    return open_channel(
        address,
        authority_pem=invitation.authority_pem,
        pair=invitation.key_pair,
        server_name=invitation.server_name,
    )
