"""Payloads: typed headers and raw arrays, on disk, in memory and on the wire."""

from hanse.payload.payload import MAX_HEADER_BYTES, Payload, image_size, read_header

__all__ = ["MAX_HEADER_BYTES", "Payload", "image_size", "read_header"]
