"""Opaque payloads: a small JSON document of a method's own, beside raw arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from hanse.errors import InvalidPayload
from hanse.payload.payload import Payload
from hanse.v1 import payload_pb2

MAX_DOCUMENT_BYTES = 64 * 1024


def document_payload(
    kind: str,
    document: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]] | None = None,
    *,
    references: Sequence[bytes] = (),
) -> Payload:
    """An `Opaque` payload of the type `kind`. The same document gives the same bytes: keys are sorted.

    Raises:
        InvalidPayload: the document is longer than 64 KiB or holds what JSON has no word for (NaN, bytes).
    """
    try:
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidPayload(f"the document of '{kind}' is not JSON: {error}") from error
    data = text.encode()
    if len(data) > MAX_DOCUMENT_BYTES:
        raise InvalidPayload(f"the document of '{kind}' has {len(data)} bytes; at most {MAX_DOCUMENT_BYTES}.")
    return Payload.build(payload_pb2.Opaque(type=kind, document=data), arrays, references=references)


def read_document(payload: Payload, kind: str) -> dict[str, Any]:
    """The document of an `Opaque` payload of the type `kind`.

    Raises:
        InvalidPayload: another kind or type, too long, or not a JSON object.
    """
    if payload.kind != "opaque" or payload.header.opaque.type != kind:
        found = payload.header.opaque.type[:80] if payload.kind == "opaque" else payload.kind
        raise InvalidPayload(f"a payload of '{kind}' was expected, not one of '{found}'.")
    data = payload.header.opaque.document
    if len(data) > MAX_DOCUMENT_BYTES:
        raise InvalidPayload(f"the document of '{kind}' has {len(data)} bytes; at most {MAX_DOCUMENT_BYTES}.")
    document = _parse(data, f"the document of '{kind}'")
    if not isinstance(document, dict):
        raise InvalidPayload(f"the document of '{kind}' is not a JSON object.")
    return document


def text_array(texts: Sequence[str]) -> NDArray[np.uint8]:
    """A list of texts of any length as an array of bytes (JSON, UTF-8)."""
    data = json.dumps(list(texts), ensure_ascii=False, separators=(",", ":")).encode()
    return np.frombuffer(data, dtype=np.uint8)


def read_text_array(payload: Payload, name: str) -> tuple[str, ...]:
    """The inverse of `text_array`.

    Raises:
        InvalidPayload: no such array, or not a list of texts.
    """
    array = payload.arrays.get(name)
    if array is None or array.dtype != np.uint8 or array.ndim != 1:
        raise InvalidPayload(f"the array '{name}' is missing or not text.")
    texts = _parse(array.tobytes(), f"the array '{name}'")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidPayload(f"the array '{name}' is not a list of texts.")
    return tuple(texts)


def _parse(data: bytes, what: str) -> Any:
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidPayload(f"{what} is not JSON: {' '.join(str(error).split())[:120]}") from error


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")
