"""Why the coordinator is not reached, in words."""

from __future__ import annotations

import asyncio
import os

from hanse.errors import HanseError
from hanse.security import Address, check_server

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "GRPC_PROXY", "HTTPS_PROXY", "HTTP_PROXY")


async def explained(error: HanseError, address: Address, *, authority_pem: bytes, server_name: str) -> HanseError:
    """The fault behind a connection that did not come about: DNS, port, clock, a foreign certificate.

    Behind an HTTP proxy the direct way is closed anyway, and `error` is all there is to say.
    """
    if any(os.environ.get(name) for name in _PROXIES):
        return error
    try:
        await asyncio.to_thread(check_server, address, authority_pem=authority_pem, server_name=server_name)
    except HanseError as found:
        return found
    return error
