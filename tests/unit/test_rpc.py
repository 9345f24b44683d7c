"""What servers and callers share."""

from __future__ import annotations

import asyncio
import socket

import grpc.aio
import pytest

from hanse.errors import OperatorError
from hanse.rpc import listen
from hanse.security import server_options


def test_a_taken_port_is_named_and_a_free_one_is_given() -> None:
    async def test() -> None:
        server = grpc.aio.server(options=server_options())
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(OperatorError, match=f"cannot listen on {address}") as caught:
                listen(server, address, None)
        assert caught.value.code == "PORT_TAKEN"
        assert "another program" in caught.value.remedy
        assert listen(server, "127.0.0.1:0", None) > 0

    asyncio.run(test())
