"""What stands between a site and a coordinator, for real: relays that cut, open TLS, know HTTP/1 alone, or say no."""

from __future__ import annotations

import base64
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hanse.security import Authority, Identity


class Middlebox:
    """Listens on loopback and hands each connection to `serve`, in a thread of its own."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.address = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._safely, args=(near,), daemon=True).start()

    def _safely(self, near: socket.socket) -> None:
        with near, suppress(OSError):
            self.serve(near)

    def serve(self, near: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self.target)) as far:
            relay(near, far)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes whoever waits in `accept`
        self._listener.close()


def relay(near: socket.socket, far: socket.socket, *, idle_s: float = 3600) -> None:
    """Pass bytes on until one side ends, or nobody says anything for `idle_s`."""
    last = time.monotonic()
    while True:
        pending = isinstance(near, ssl.SSLSocket) and near.pending()
        readable = [near] if pending else select.select([near, far], [], [], 0.05)[0]
        if not readable and time.monotonic() - last > idle_s:
            return
        for source in readable:
            data = source.recv(65536)
            if not data:
                return
            (far if source is near else near).sendall(data)
            last = time.monotonic()


class IdleCutter(Middlebox):
    """A firewall that forgets connections on which nothing is said for a while."""

    def __init__(self, target: int, idle_s: float) -> None:
        self.idle_s = idle_s
        super().__init__(target)

    def serve(self, near: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self.target)) as far:
            relay(near, far, idle_s=self.idle_s)


class Interceptor(Middlebox):
    """A hospital's TLS inspection: shows a certificate of its own authority, and opens what passes."""

    ISSUER = "Example Hospital TLS Inspection"

    def __init__(self, target: int, folder: Path) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(forged(folder, self.ISSUER))
        self.context.set_alpn_protocols(["h2", "http/1.1"])
        super().__init__(target)

    def serve(self, near: socket.socket) -> None:
        with (
            self.context.wrap_socket(near, server_side=True) as opened,
            socket.create_connection(("127.0.0.1", self.target)) as far,
        ):
            plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            plain.check_hostname, plain.verify_mode = False, ssl.CERT_NONE
            with plain.wrap_socket(far) as upstream:
                relay(opened, upstream)


class OldLoadBalancer(Middlebox):
    """Ends TLS with the coordinator's own certificate, and knows HTTP/1.1 alone."""

    def __init__(self, target: int, folder: Path, authority: Authority) -> None:
        path = folder / "balancer.pem"
        authority.issue(Identity.service("coordinator"), hosts=["127.0.0.1"]).save(path)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(path)
        self.context.set_alpn_protocols(["http/1.1"])
        super().__init__(target)

    def serve(self, near: socket.socket) -> None:
        with self.context.wrap_socket(near, server_side=True) as opened:
            opened.recv(65536)
            opened.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


class ConnectProxy(Middlebox):
    """An HTTP proxy that lets through to the target alone, or asks for a password, or refuses."""

    def __init__(self, target: int, *, login: str = "", refuse: bool = False) -> None:
        self.login, self.refuse = login, refuse
        self.asked: list[str] = []
        super().__init__(target)

    def serve(self, near: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            block = near.recv(4096)
            if not block:
                return
            request += block
        head = request.decode("latin-1")
        self.asked.append(head.partition("\r\n")[0])
        wanted = base64.b64encode(self.login.encode()).decode()
        if self.refuse:
            near.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        elif self.login and f"Basic {wanted}" not in head:
            near.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        else:
            with socket.create_connection(("127.0.0.1", self.target)) as far:
                near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                relay(near, far)


@contextmanager
def standing(box: Middlebox) -> Iterator[Middlebox]:
    try:
        yield box
    finally:
        box.close()


def forged(folder: Path, issuer: str) -> Path:
    """Certificate and key for the coordinator's names, from an authority that is not the federation's."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "coordinator.hanse.internal")]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("coordinator.hanse.internal")]), critical=False)
        .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    )
    path = folder / "forged.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + secret)
    return path
