"""Payloads: typed headers and raw arrays, on disk, in memory and on the wire.

`Payload` needs numpy, which is imported when it is first asked for: a program that only passes payloads on (an idle
agent) runs without.
"""

from typing import TYPE_CHECKING, Any

from hanse.payload.chunks import CHUNK, chunks
from hanse.payload.header import MAX_HEADER_BYTES, image_size, read_header
from hanse.payload.spool import Spool

if TYPE_CHECKING:
    from hanse.payload.payload import Payload

__all__ = ["CHUNK", "MAX_HEADER_BYTES", "Payload", "Spool", "chunks", "image_size", "read_header"]


def __getattr__(name: str) -> Any:
    if name == "Payload":
        from hanse.payload.payload import Payload

        return Payload
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
