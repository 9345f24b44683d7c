"""One authority for all tests of this folder, and small gRPC servers on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures

import grpc
import pytest

from hanse.security import (
    Authority,
    Identity,
    KeyPair,
    ServerCertificate,
    channel_credentials,
    channel_options,
    peer_identity,
    server_options,
)

METHOD = "/test.Echo/WhoAmI"


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority of another federation, under the same name."""
    return Authority.create(tmp_path_factory.mktemp("stranger"))


def _who_am_i(request: bytes, context: grpc.ServicerContext) -> bytes:
    certificate = context.auth_context().get("x509_pem_cert")
    return str(peer_identity(context.auth_context()).identity).encode() if certificate else b"anonymous"


class _Handler(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(_who_am_i)


Serve = Callable[[grpc.ServerCredentials], int]
Call = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server that answers with its peer's identity; gives the port."""
    servers = []

    def start(credentials: grpc.ServerCredentials) -> int:
        server = grpc.server(futures.ThreadPoolExecutor(2), [_Handler()], options=server_options())
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        servers.append(server)
        return port

    yield start
    for server in servers:
        server.stop(None)


@pytest.fixture
def call() -> Call:
    """Call a server once over a new channel. A server that TLS refuses is UNAVAILABLE."""

    def once(port: int, authority: Authority, pair: KeyPair | None, *, name: str = "", host: str = "127.0.0.1"):
        options = channel_options(server_name=name, proxy=False)
        credentials = channel_credentials(authority.certificate_pem, pair)
        with grpc.secure_channel(f"{host}:{port}", credentials, options) as channel:
            return channel.unary_unary(METHOD)(b"", timeout=20).decode()

    return once


@pytest.fixture(scope="session")
def coordinator(authority: Authority) -> ServerCertificate:
    return ServerCertificate(authority.issue(Identity.service("coordinator"), hosts=["127.0.0.1"]))
