"""Why the coordinator is not reached, in words."""

from __future__ import annotations

import asyncio

from hanse.errors import HanseError
from hanse.security import Address, check_server
from hanse_agent.proxies import connect


async def explained(error: HanseError, address: Address, *, authority_pem: bytes, server_name: str) -> HanseError:
    """The fault behind a connection that did not come about: DNS, port, proxy, clock, a foreign certificate.

    The way is gRPC's own: through the site's proxy where there is one.
    """
    try:
        await asyncio.to_thread(
            check_server, address, authority_pem=authority_pem, server_name=server_name, connect=connect
        )
    except HanseError as found:
        return found
    return error
