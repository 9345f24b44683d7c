"""Model files in the safetensors format: written array by array, so that a model is never in memory twice.

The format: the header's length (8 bytes, little-endian), the header (JSON: dtype, shape and place of each array),
the raw arrays. Files are read by the `safetensors` package.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.errors import InvalidPayload, PlatformError

_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_IN_MEMORY = 1024 * 1024


def safetensors_file(
    arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> NDArray[np.uint8]:
    """The bytes [n] of a safetensors file of these arrays, in the order given.

    A large file lies in a nameless temporary file that is mapped, not in memory.

    Raises:
        PlatformError: the folder for temporary files has no room.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [position, position + array.nbytes],
        }
        position += array.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    size = 8 + len(text) + position
    buffer = _room(size)
    buffer[:8] = np.frombuffer(len(text).to_bytes(8, "little"), dtype=np.uint8)
    start = 8 + len(text)
    buffer[8:start] = np.frombuffer(text, dtype=np.uint8)
    for array in arrays.values():
        flat = np.ascontiguousarray(array).reshape(-1)
        buffer[start : start + array.nbytes] = flat.astype(flat.dtype.newbyteorder("<"), copy=False).view(np.uint8)
        start += array.nbytes
    return buffer


def read_safetensors(data: NDArray[np.uint8], what: str) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file.

    Raises:
        InvalidPayload: it is none; the sentence says which file (`what`).
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return dict(load(data.tobytes()))
    except (SafetensorError, ValueError, KeyError) as error:
        raise InvalidPayload(f"{what} is not a safetensors file: {error}") from None


def _room(size: int) -> NDArray[np.uint8]:
    if size <= _IN_MEMORY:
        return np.empty(size, dtype=np.uint8)
    try:
        with tempfile.TemporaryFile(prefix="hanse-model-") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return np.frombuffer(mmap.mmap(file.fileno(), size), dtype=np.uint8)
    except OSError as error:
        raise PlatformError(
            f"there is no room for a model file of {size} bytes in {tempfile.gettempdir()}: {error.strerror}.",
            remedy="Free some space there, or set TMPDIR.",
            code="DISK_FULL",
        ) from error
