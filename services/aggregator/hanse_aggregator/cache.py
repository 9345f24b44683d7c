"""Payloads that a later call may want again, kept under their digest; a miss costs one transfer."""

from __future__ import annotations

from collections import OrderedDict

from hanse.payload import Payload


class PayloadCache:
    """The most recently used payloads, up to a number of bytes. For one event loop."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: OrderedDict[bytes, Payload] = OrderedDict()
        self._bytes = 0

    def get(self, digest: bytes) -> Payload | None:
        """The payload, if it is here."""
        payload = self._kept.get(digest)
        if payload is not None:
            self._kept.move_to_end(digest)
        return payload

    def put(self, payload: Payload) -> None:
        """Keep a payload, at the cost of those that were not used for longest."""
        if payload.size > self._capacity or payload.digest in self._kept:
            return
        self._kept[payload.digest] = payload
        self._bytes += payload.size
        while self._bytes > self._capacity:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.size
