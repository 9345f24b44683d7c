"""A job through a router that passes TLS by the name in the handshake, as the TLSRoute of the manifests says it."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from hanse.embedded.folder import free_port
from tests.chaos.world import world
from tests.deploy.manifests import KUBERNETES

pytestmark = pytest.mark.timeout(900)

ROUTES = list(yaml.safe_load_all((KUBERNETES / "components" / "gateway-tlsroute" / "routes.yaml").read_text()))


def asked_for(hello: bytes) -> str:
    """The server's name in a ClientHello (RFC 8446, 4.1.2; RFC 6066, 3); empty where there is none."""
    at = 5 + 4 + 2 + 32  # record, handshake, version, random
    at += 1 + hello[at]  # session
    at += 2 + int.from_bytes(hello[at : at + 2])  # ciphers
    at += 1 + hello[at]  # compression
    end = at + 2 + int.from_bytes(hello[at : at + 2])
    at += 2
    while at < end:
        kind, size = int.from_bytes(hello[at : at + 2]), int.from_bytes(hello[at + 2 : at + 4])
        if kind == 0:
            return hello[at + 9 : at + 4 + size].decode()
        at += 4 + size
    return ""


class Router:
    """Passes connections on to a port if they ask for one of the names, and ends the others."""

    def __init__(self, port: int, names: list[str]) -> None:
        self._target, self._names = port, names
        self.passed: list[str] = []
        self.ended: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._route, args=(near,), daemon=True).start()

    def _route(self, near: socket.socket) -> None:
        with suppress(OSError, IndexError):
            hello = near.recv(5, socket.MSG_WAITALL)
            hello += near.recv(int.from_bytes(hello[3:5]), socket.MSG_WAITALL)
            name = asked_for(hello)
            if name in self._names:
                self.passed.append(name)
                far = socket.create_connection(("127.0.0.1", self._target))
                far.sendall(hello)
                threading.Thread(target=self._pump, args=(far, near), daemon=True).start()
                self._pump(near, far)
                return
            self.ended.append(name)
        near.close()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(64 * 1024):
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


def test_nodes_reach_the_coordinator_by_the_name_of_the_route_and_no_other_name_gets_through(tmp_path: Path) -> None:
    route = next(item for item in ROUTES if item["metadata"]["name"] == "nodes")
    port = free_port("127.0.0.1")
    router = Router(port, route["spec"]["hostnames"])
    try:
        with world(tmp_path, node_port=port, coordinator={"advertise": [f"127.0.0.1:{router.port}"]}) as place:
            place.proxy = router  # type: ignore[assignment]
            place.add_site("ada")
            detail = place.until_ended(place.submit("job", rounds=1), timeout_s=400)
            assert detail.job.state == "succeeded", detail.job.reason
        assert set(router.passed) == {"coordinator.hanse.internal"}
        assert not router.ended
        with socket.create_connection(("127.0.0.1", router.port), timeout=30) as stranger:
            context = ssl.create_default_context()
            with pytest.raises(OSError, match=r"EOF|closed|reset"):
                context.wrap_socket(stranger, server_hostname="federation.example.org")
        assert router.ended == ["federation.example.org"]
    finally:
        router.close()
