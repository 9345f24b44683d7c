"""How coordinators know each other: by the address of a port that only one living process can have."""

from __future__ import annotations

import os
import socket

from hanse.errors import OperatorError
from hanse.security import Address

__all__ = ["Doorbell", "holder_name"]

_RING_S = 0.5
_REFUSALS = 2
_WILDCARDS = {"0.0.0.0", "::"}  # noqa: S104 - addresses that name no machine


def holder_name(health_address: str, health_listen: str, port: int | None) -> str:
    """What this coordinator is called in the lease: `MACHINE@HOST:PORT` with the address of its plain port, or
    `MACHINE/PROCESS` when no address is known by which other coordinators could reach that port.

    `health_address` is what the configuration says; else the address follows from where the port listens (`port`: the
    one that was bound).
    """
    machine = socket.gethostname()
    if health_address:
        return f"{machine}@{Address.parse(health_address)}"
    host = health_listen.rpartition(":")[0].strip("[]")
    if port is None or not host or host in _WILDCARDS:
        return f"{machine}/{os.getpid()}"
    return f"{machine}@{Address(host, port)}"


class Doorbell:
    """Finds out that a leader is gone before its lease runs out.

    A machine that refuses the connection to the leader's plain port says that no process listens there: the leader has
    ended. Silence says nothing, since the network may be to blame; neither does a refusal by an address that never
    answered, since something between may refuse. Whoever believes wrongly does no harm: the epoch fences.
    """

    def __init__(self) -> None:
        self._answered = ""
        self._refusals = 0

    def nobody_home(self, holder: str) -> bool:
        """Ring once; whether this is the second refusal in a row by a leader that was there before."""
        refused = _refused(holder)
        if refused is None:
            self._refusals = 0
        elif not refused:
            self._answered, self._refusals = holder, 0
        elif self._answered == holder:
            self._refusals += 1
        return self._refusals >= _REFUSALS


def _refused(holder: str) -> bool | None:
    """True: nobody listens at the holder's address; False: somebody does; None: nobody knows."""
    try:
        address = Address.parse(holder.rpartition("@")[2]) if "@" in holder else None
    except OperatorError:
        return None
    if address is None:
        return None
    try:
        socket.create_connection((address.host, address.port), timeout=_RING_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return None
    return False
