"""A certificate is renewed after two thirds of its life, with a new key, while the agent goes on working."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import grpc

from hanse.errors import HanseError
from hanse.logs import logger
from hanse.rpc import error_from_call
from hanse.security import Identity, accept_certificate, new_key, signing_request
from hanse.v1 import node_pb2
from hanse_agent.folder import StateFolder
from hanse_agent.identity import NodeIdentity
from hanse_agent.link import Link, Links

SHARE_OF_LIFE = 2 / 3
SHORTEST = timedelta(seconds=3)
"""Two renewals are at least this far apart."""
_LONGEST_PAUSE_S = 3600.0
_SHORTEST_PAUSE_S = 1.0
_CALL_S = 30.0


def renewal_due(identity: NodeIdentity, since: datetime) -> datetime:
    """When a certificate that is held since then should be renewed.

    Not counted from its own beginning: authorities date that back for clocks that are slow, and of a certificate
    with a short life two thirds would be over on the day it is made. Never at once, whatever the clocks say.
    """
    return since + max((identity.peer.not_after - since) * SHARE_OF_LIFE, SHORTEST)


async def renew(link: Link, identity: NodeIdentity) -> NodeIdentity:
    """Get a certificate for a new key; the old ones stay good until they run out.

    Raises:
        HanseError: the coordinator does not answer or refuses, or its certificate does not fit.
    """
    key = new_key()
    request = node_pb2.RenewRequest(certificate_request=signing_request(key, identity.node))
    try:
        given = await link.stub.RenewCertificate(request, timeout=_CALL_S)
    except grpc.RpcError as error:
        raise error_from_call(error, peer=link.peer) from error
    pair = accept_certificate(
        given.certificate, key, authority_pem=identity.authority_pem, identity=Identity.node(identity.node)
    )
    return identity.with_pair(pair)


async def keep_renewed(folder: StateFolder, links: Links, on_renewed: Callable[[NodeIdentity], None]) -> None:
    """Renew for as long as the agent runs; `on_renewed` moves the session to the new certificate.

    A renewal that fails is tried again, more often the less time is left.
    """
    since: datetime | None = None
    while True:
        identity = NodeIdentity.require(folder.identity)
        due = renewal_due(identity, since or identity.peer.not_before)
        if (left := (due - datetime.now(UTC)).total_seconds()) > 0:
            # In short steps, since a machine may sleep and its clock be set.
            await asyncio.sleep(min(left, _LONGEST_PAUSE_S))
            continue
        try:
            renewed = await links.over(lambda link, old=identity: renew(link, old))  # type: ignore[misc]
            await asyncio.to_thread(renewed.save, folder.identity)
        except HanseError as error:
            left = (identity.peer.not_after - datetime.now(UTC)).total_seconds()
            longest = min(max(left / 10, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
            pause = longest * random.uniform(0.5, 1)  # noqa: S311
            logger(node=identity.node).warning("certificate not renewed", reason=str(error), again_in_s=round(pause))
            await asyncio.sleep(pause)
            continue
        since = datetime.now(UTC)
        logger(node=renewed.node).info("certificate renewed", until=renewed.peer.not_after.isoformat())
        on_renewed(renewed)
