import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from hanse.errors import OperatorError, SiteError, Unreachable
from hanse.security import Address, Identity, ServerCertificate, check_server


@pytest.fixture
def address(serve, authority, coordinator):
    return Address("127.0.0.1", serve(coordinator.mutual_credentials(authority.certificate_pem)))


def test_a_good_server_is_named_without_a_certificate_of_ours(address, authority, coordinator):
    assert check_server(address, authority_pem=authority.certificate_pem) == coordinator.pair.peer
    named = check_server(address, authority_pem=authority.certificate_pem, server_name="coordinator.hanse.internal")
    assert named.identity == Identity.service("coordinator")


def test_a_foreign_certificate_is_shown_with_its_issuer(address, stranger):
    with pytest.raises(SiteError, match="CN=Hanse authority") as error:
        check_server(address, authority_pem=stranger.certificate_pem)
    assert "TLS inspection" in error.value.remedy


def test_a_missing_name_is_shown_with_the_names_that_are_there(address, authority):
    with pytest.raises(OperatorError, match=r"name lb\.example\.org, only coordinator\.hanse\.internal, 127"):
        check_server(address, authority_pem=authority.certificate_pem, server_name="lb.example.org")


def test_a_clock_an_hour_off_is_tolerated_and_one_further_off_is_named(address, authority):
    now = datetime.now(UTC)
    for off in (-1, 1):
        check_server(address, authority_pem=authority.certificate_pem, now=now + timedelta(hours=off))
    with pytest.raises(SiteError, match="clock says") as error:
        check_server(address, authority_pem=authority.certificate_pem, now=now - timedelta(days=2))
    assert error.value.code == "CLOCK"


def test_an_expired_server_certificate_is_shown_beside_the_clock(serve, authority):
    past = datetime.now(UTC) - timedelta(days=2)
    pair = authority.issue(Identity.service("coordinator"), hosts=["127.0.0.1"], lifetime=timedelta(days=1), now=past)
    port = serve(ServerCertificate(pair).server_only_credentials())
    with pytest.raises(OperatorError, match=r"expired at .* clock says"):
        check_server(Address("127.0.0.1", port), authority_pem=authority.certificate_pem)


def test_a_port_where_nobody_listens_is_named(authority):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can take it either
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(Unreachable, match="cannot be reached: Connection refused"):
            check_server(address, authority_pem=authority.certificate_pem)


def test_a_server_that_says_nothing_is_named(authority):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address("127.0.0.1", silent.getsockname()[1])
        with pytest.raises(Unreachable, match=r"does not answer within 0\.05 s"):
            check_server(address, authority_pem=authority.certificate_pem, timeout_s=0.05)


def test_a_port_without_tls_is_named(authority):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address("127.0.0.1", server.getsockname()[1])

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(10)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        with ThreadPoolExecutor(1) as pool:
            pool.submit(answer)
            with pytest.raises(Unreachable, match="not with TLS"):
                check_server(address, authority_pem=authority.certificate_pem)


def test_an_unknown_host_is_named(authority, monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr("socket.create_connection", unknown)
    with pytest.raises(Unreachable, match=r"coordinator\.invalid is unknown to DNS"):
        check_server(Address("coordinator.invalid", 7443), authority_pem=authority.certificate_pem)
