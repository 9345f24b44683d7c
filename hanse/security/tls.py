"""TLS for gRPC: credentials and channel settings, the same on both sides of every connection.

A program behind an HTTP CONNECT proxy needs no setting here: gRPC reads `grpc_proxy`, `https_proxy`, `http_proxy`
and `no_proxy` from the environment. TLS goes through such a proxy untouched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import grpc

from hanse.errors import OperatorError
from hanse.security.identity import CERTIFICATE_FAULTS
from hanse.security.keys import KeyPair

KEEPALIVE_MS = 20_000
"""A ping after this long without traffic: well under the minute at which middleboxes forget a connection."""
KEEPALIVE_TIMEOUT_MS = 20_000
LARGEST_MESSAGE = 4 * 1024 * 1024
"""No message nears this; a payload travels in chunks."""

Options = list[tuple[str, str | int]]

_COMMON: Options = [
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
    ("grpc.max_send_message_length", LARGEST_MESSAGE),
    # What a fast sender may have on its way to a slow reader, for each stream: else it grows without need, and with
    # many uploads at once so does the coordinator. Enough for 80 MB/s at 50 ms.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
]


def channel_options(*, server_name: str = "", proxy: bool = True) -> Options:
    """Settings for every channel.

    `server_name` is the name that the server's certificate must carry, and the one that TLS asks for (SNI, which
    a load balancer may route by); empty: the host of the address. `proxy=False` ignores proxy variables, for
    connections that stay inside a cluster or machine.
    """
    options: Options = [
        *_COMMON,
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 500),
        ("grpc.min_reconnect_backoff_ms", 500),
        ("grpc.max_reconnect_backoff_ms", 10_000),
        # Each channel has a connection of its own: a renewed certificate is shown at once.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if server_name:
        options.append(("grpc.ssl_target_name_override", server_name))
    if not proxy:
        options.append(("grpc.enable_http_proxy", 0))
    return options


def server_options() -> Options:
    """Settings for every server: they accept the pings that `channel_options` sends."""
    return [
        *_COMMON,
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
        ("grpc.http2.max_ping_strikes", 0),
        # A second server on the port is an error, not a silent half of the traffic.
        ("grpc.so_reuseport", 0),
    ]


def channel_credentials(authority_pem: bytes, pair: KeyPair | None = None) -> grpc.ChannelCredentials:
    """Credentials that trust the federation's authority and nothing else, and show `pair` where there is one.

    The system's certificate store plays no part. Credentials are static: a renewed pair needs a new channel.
    """
    return grpc.ssl_channel_credentials(
        root_certificates=authority_pem,
        private_key=pair.key_pem if pair else None,
        certificate_chain=pair.certificate_pem if pair else None,
    )


class ServerCertificate:
    """What a server shows. `replace` takes effect on the next connection; the server keeps running.

    For `grpc.server` and `grpc.aio.server` alike, and for any number of ports; each port takes credentials of its own.
    """

    def __init__(self, pair: KeyPair) -> None:
        self.replace(pair)

    @property
    def pair(self) -> KeyPair:
        """The pair that new connections see."""
        return self._pair

    def replace(self, pair: KeyPair) -> None:
        """Show another pair from now on; open connections stay as they are.

        Raises:
            OperatorError: the key is not the certificate's; the old pair stays.
        """
        try:
            matches = pair.is_consistent()
        except CERTIFICATE_FAULTS:
            matches = False
        if not matches:
            raise OperatorError(
                "The server's new private key does not belong to its certificate.",
                remedy="Put the pair that was issued together in place.",
                code="KEY_MISMATCH",
            )
        self._pair = pair

    def mutual_credentials(self, authority_pem: bytes) -> grpc.ServerCredentials:
        """For the ports of nodes and services: only certificates of the authority get in.

        TLS lets in every certificate that the authority issued and that is not expired: kind, name and
        revocation are the server's to check, on every call.
        """
        return self._credentials(authority_pem)

    def server_only_credentials(self) -> grpc.ServerCredentials:
        """For the operators' port: TLS without client certificates; a token says who calls."""
        return self._credentials(None)

    def _credentials(self, authority_pem: bytes | None) -> grpc.ServerCredentials:
        def configuration(pair: KeyPair) -> grpc.ServerCertificateConfiguration:
            return grpc.ssl_server_certificate_configuration(
                [(pair.key_pem, pair.certificate_pem)], root_certificates=authority_pem
            )

        shown = self._pair

        def if_changed() -> grpc.ServerCertificateConfiguration | None:
            # Asked for at every connection. An answer makes gRPC replace what handshakes on other threads still use:
            # given each time, a server under many connections is killed by a segmentation fault.
            nonlocal shown
            if self._pair is shown:
                return None
            shown = self._pair
            return configuration(shown)

        # The stubs do not know that None means "as before".
        changed = cast("Callable[[], grpc.ServerCertificateConfiguration]", if_changed)
        return grpc.dynamic_ssl_server_credentials(
            configuration(shown), changed, require_client_authentication=authority_pem is not None
        )
