import asyncio
import re
import socket
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import grpc
import pytest

from hanse.errors import OperatorError
from hanse.security import (
    Address,
    Identity,
    Invitation,
    KeyPair,
    ServerCertificate,
    channel_credentials,
    channel_options,
    new_key,
    peer_identity,
    server_options,
    signing_request,
)
from hanse.security.keys import key_to_pem
from hanse.security.tls import KEEPALIVE_MS, LARGEST_MESSAGE


def node_pair(authority, name="ward-3", **given):
    key = new_key()
    certificate = authority.sign_request(signing_request(key, name), Identity.node(name), **given)
    return KeyPair(certificate_pem=certificate, key_pem=key_to_pem(key))


def refused(error: pytest.ExceptionInfo[grpc.RpcError]) -> bool:
    return error.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_node_is_known_by_the_name_in_its_certificate(serve, call, authority, coordinator):
    port = serve(coordinator.mutual_credentials(authority.certificate_pem))
    assert call(port, authority, node_pair(authority)) == "node ward-3"


def test_a_service_can_serve_and_call_with_one_certificate(serve, call, authority, coordinator):
    port = serve(coordinator.mutual_credentials(authority.certificate_pem))
    assert call(port, authority, coordinator.pair) == "service coordinator"


def test_an_invitation_alone_is_enough_to_reach_the_coordinator(serve, call, authority, coordinator):
    port = serve(coordinator.mutual_credentials(authority.certificate_pem))
    text = Invitation.create(
        authority, invitation_id="k3j2", node="ward-3", addresses=(Address("127.0.0.1", port),)
    ).text()
    invitation = Invitation.parse(text, now=datetime.now(UTC))
    assert invitation.authority_pem == authority.certificate_pem
    assert call(port, authority, invitation.key_pair, name=invitation.server_name) == "bootstrap k3j2"


def test_without_a_client_certificate_nobody_gets_in(serve, call, authority, coordinator):
    port = serve(coordinator.mutual_credentials(authority.certificate_pem))
    with pytest.raises(grpc.RpcError) as error:
        call(port, authority, None)
    assert refused(error)


def test_a_node_of_another_federation_does_not_get_in(serve, call, authority, stranger, coordinator):
    port = serve(coordinator.mutual_credentials(authority.certificate_pem))
    with pytest.raises(grpc.RpcError) as error:
        call(port, authority, node_pair(stranger))
    assert refused(error)


def test_a_node_whose_certificate_ran_out_does_not_get_in(serve, call, authority, coordinator):
    port = serve(coordinator.mutual_credentials(authority.certificate_pem))
    past = datetime.now(UTC) - timedelta(hours=2)
    with pytest.raises(grpc.RpcError) as error:
        call(port, authority, node_pair(authority, lifetime=timedelta(hours=1), now=past))
    assert refused(error)


def test_a_server_of_another_authority_never_receives_a_call(serve, call, authority, stranger):
    impostor = ServerCertificate(stranger.issue(Identity.service("coordinator"), hosts=["127.0.0.1"]))
    port = serve(impostor.server_only_credentials())
    assert call(port, stranger, None) == "anonymous"
    with pytest.raises(grpc.RpcError) as error:
        call(port, authority, None)
    assert refused(error)


@pytest.mark.parametrize("identity", [Identity.node("coordinator"), Identity.bootstrap("coordinator")])
def test_a_node_cannot_pose_as_a_server(serve, call, authority, identity):
    port = serve(ServerCertificate(authority.issue(identity)).server_only_credentials())
    with pytest.raises(grpc.RpcError) as error:
        call(port, authority, None, name="coordinator.hanse.internal")
    assert refused(error)


def test_a_service_cannot_pose_as_another(serve, call, authority):
    dashboard = ServerCertificate(authority.issue(Identity.service("dashboard")))
    port = serve(dashboard.server_only_credentials())
    with pytest.raises(grpc.RpcError) as error:
        call(port, authority, None, name="coordinator.hanse.internal")
    assert refused(error)


def test_operators_need_no_client_certificate(serve, call, authority, coordinator):
    port = serve(coordinator.server_only_credentials())
    assert call(port, authority, None) == "anonymous"


def test_the_stable_name_connects_where_the_address_is_missing_in_the_certificate(serve, call, authority):
    unnamed = ServerCertificate(authority.issue(Identity.service("coordinator")))
    port = serve(unnamed.mutual_credentials(authority.certificate_pem))
    with pytest.raises(grpc.RpcError) as error:
        call(port, authority, node_pair(authority), host="localhost")
    assert refused(error)
    named = {"host": "localhost", "name": "coordinator.hanse.internal"}
    assert call(port, authority, node_pair(authority), **named) == "node ward-3"


def test_a_replaced_server_certificate_is_shown_to_the_next_connection(serve, call, authority, coordinator):
    certificate = ServerCertificate(authority.issue(Identity.service("coordinator")))
    node = node_pair(authority)
    ports = [serve(certificate.mutual_credentials(authority.certificate_pem)) for _ in range(2)]
    for port in ports:
        with pytest.raises(grpc.RpcError):
            call(port, authority, node)  # the address is not in the first certificate
    certificate.replace(coordinator.pair)
    for port in ports:
        assert call(port, authority, node) == "node ward-3"


def test_a_certificate_is_given_to_grpc_only_when_it_changed(authority, coordinator, monkeypatch):
    """Given at each connection, it made gRPC replace what other handshakes used: servers died of many connections."""
    asked = []
    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", lambda first, again, **_: asked.append((first, again)))
    certificate = ServerCertificate(coordinator.pair)
    certificate.mutual_credentials(authority.certificate_pem)
    certificate.server_only_credentials()
    assert all(first is not None and again() is None for first, again in asked)
    certificate.replace(authority.issue(Identity.service("coordinator")))
    assert [again() is None for _, again in asked] == [False, False]
    assert [again() is None for _, again in asked] == [True, True]


def test_an_open_connection_survives_a_replaced_server_certificate(serve, authority, coordinator):
    certificate = ServerCertificate(coordinator.pair)
    port = serve(certificate.server_only_credentials())
    credentials = channel_credentials(authority.certificate_pem)
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, channel_options(proxy=False)) as channel:
        who = channel.unary_unary("/test.Echo/WhoAmI")
        assert who(b"", timeout=20) == b"anonymous"
        certificate.replace(authority.issue(Identity.service("coordinator")))
        assert who(b"", timeout=20) == b"anonymous"


def test_a_mismatched_server_key_is_refused_and_the_old_pair_stays(authority, coordinator):
    certificate = ServerCertificate(coordinator.pair)
    for key in (key_to_pem(new_key()), b"nonsense"):
        with pytest.raises(OperatorError, match="does not belong"):
            certificate.replace(KeyPair(certificate_pem=coordinator.pair.certificate_pem, key_pem=key))
    assert certificate.pair == coordinator.pair


def test_rotation_works_on_an_asyncio_server_too(authority, coordinator):
    async def who(request, context):
        return str(peer_identity(context.auth_context()).identity).encode()

    class Handler(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.unary_unary_rpc_method_handler(who)

    async def once(port, pair, name=""):
        credentials = channel_credentials(authority.certificate_pem, pair)
        options = channel_options(server_name=name, proxy=False)
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
            return await channel.unary_unary("/test.Echo/WhoAmI")(b"", timeout=20)

    async def run():
        certificate = ServerCertificate(authority.issue(Identity.service("coordinator")))
        server = grpc.aio.server(options=server_options())
        server.add_generic_rpc_handlers([Handler()])
        port = server.add_secure_port("127.0.0.1:0", certificate.mutual_credentials(authority.certificate_pem))
        await server.start()
        try:
            node = node_pair(authority)
            assert await once(port, node, "coordinator.hanse.internal") == b"node ward-3"
            with pytest.raises(grpc.RpcError):
                await once(port, node)
            certificate.replace(coordinator.pair)
            assert await once(port, node) == b"node ward-3"
        finally:
            await server.stop(None)

    asyncio.run(run())


def test_two_servers_cannot_share_a_port(serve, authority, coordinator):
    port = serve(coordinator.server_only_credentials())
    server = grpc.server(None, options=server_options())
    with pytest.raises(RuntimeError):
        server.add_secure_port(f"127.0.0.1:{port}", coordinator.server_only_credentials())


def test_both_sides_agree_on_pings_and_sizes():
    channel, server = dict(channel_options()), dict(server_options())
    for key in ("grpc.max_receive_message_length", "grpc.max_send_message_length"):
        assert channel[key] == server[key] == LARGEST_MESSAGE
    assert channel["grpc.keepalive_time_ms"] == server["grpc.keepalive_time_ms"] == KEEPALIVE_MS
    assert server["grpc.http2.min_ping_interval_without_data_ms"] < KEEPALIVE_MS < 60_000
    assert server["grpc.http2.max_ping_strikes"] == 0


def test_key_pairs_never_show_their_key(authority):
    pair = node_pair(authority)
    assert not re.search("PRIVATE", repr(pair) + str(pair))


def connect_proxy(asked):
    """An HTTP CONNECT proxy for one connection, as hospitals have them; `asked` gets the request line."""
    server = socket.create_server(("127.0.0.1", 0))

    def pump(source, sink):
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def run():
        client, _ = server.accept()
        request = b""
        while b"\r\n\r\n" not in request:
            request += client.recv(4096)
        asked.append(request.split(b"\r\n")[0].decode())
        host, port = request.split()[1].decode().rsplit(":", 1)
        with client, socket.create_connection((host, int(port))) as upstream:
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=pump, args=(upstream, client), daemon=True)
            back.start()
            pump(client, upstream)
            back.join()
        server.close()

    threading.Thread(target=run, daemon=True).start()
    return server.getsockname()[1]


def test_a_node_reaches_the_coordinator_through_an_http_connect_proxy(serve, authority, coordinator, monkeypatch):
    port = serve(coordinator.mutual_credentials(authority.certificate_pem))
    asked = []
    monkeypatch.setenv("grpc_proxy", f"http://127.0.0.1:{connect_proxy(asked)}")
    for variable in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    credentials = channel_credentials(authority.certificate_pem, node_pair(authority))
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, channel_options()) as channel:
        assert channel.unary_unary("/test.Echo/WhoAmI")(b"", timeout=20) == b"node ward-3"
    assert [line.split()[:2] for line in asked] == [["CONNECT", f"127.0.0.1:{port}"]]


def test_connections_within_a_machine_can_leave_the_proxy_out(serve, call, authority, coordinator, monkeypatch):
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:1")
    port = serve(coordinator.server_only_credentials())
    assert call(port, authority, None) == "anonymous"
