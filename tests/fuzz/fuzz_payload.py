"""Coverage-guided fuzzing of the payload codec and of everything that reads a payload's arrays.

    python tests/fuzz/fuzz_payload.py [-runs=100000] [-max_len=8192] [-rss_limit_mb=1024] [CORPUS]

Foreign bytes must decode or be refused with an error of Hanse: no other exception, no hang, no memory beyond the bound.
A short run is part of the test suite (`test_fuzz_payload.py`).
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from contextlib import suppress

import atheris

with atheris.instrument_imports(include=["hanse"]):
    import numpy as np

    from hanse.errors import HanseError
    from hanse.learning.bin_edges import BinEdges
    from hanse.learning.fixed_point import Grid
    from hanse.learning.sketch import BucketMapping
    from hanse.payload import Payload
    from hanse.payload.kinds import (
        read_atoms,
        read_document,
        read_edges,
        read_histograms,
        read_metrics,
        read_sketches,
        read_text_array,
        read_trees,
    )
    from hanse.security import Invitation, OperatorToken
    from hanse.v1 import payload_pb2

FEATURES = 2
LAST = np.finfo(np.float32).max
EDGES = (BinEdges.of([np.array([0.0, 1.0, LAST], np.float32), np.array([2.0, LAST], np.float32)]),)
MAPPING = BucketMapping(0.01)
READERS: tuple[Callable[[Payload], object], ...] = (
    lambda payload: read_atoms(payload, edges=EDGES, outputs=1, grid=Grid()),
    lambda payload: read_document(payload, "x"),
    lambda payload: read_edges(payload, features=FEATURES, outputs=1),
    lambda payload: read_histograms(payload, EDGES, [1], Grid()),
    read_metrics,
    lambda payload: read_sketches(payload, MAPPING, features=["a", "b"], outputs=1),
    lambda payload: read_text_array(payload, "a"),
    lambda payload: read_trees(payload, features=FEATURES, outputs=1),
)


def one_input(data: bytes) -> None:
    """Decode as it is, and once more with a prefix that fits, so that the header is reached."""
    for image in (data, struct.pack("<4sB3xII", b"HNSP", 1, data[0] if data else 0, 0) + data[1:]):
        try:
            payload = Payload.from_image(image)
        except HanseError:
            continue
        assert payload.image() == image
        with suppress(HanseError):
            for name in payload.arrays:  # encoded arrays are decoded only here
                _ = payload.arrays[name]
        for read in READERS:
            with suppress(HanseError):
                read(payload)
    for parse in (Invitation.parse, OperatorToken.parse):
        with suppress(HanseError):
            parse(data.decode("latin-1"))


def seeds() -> list[bytes]:
    """Valid images to begin with."""
    kinds = [
        payload_pb2.WeightDelta(base_digest=bytes(32), examples=3),
        payload_pb2.AtomStatistics(features=2, outputs=1, rows=3, fraction_bits=-20),
        payload_pb2.Metrics(metrics=[payload_pb2.MetricSpec(name="accuracy", form=payload_pb2.MetricSpec.FORM_RATIO)]),
        payload_pb2.Opaque(type="x", document=b"{}"),
    ]
    return [Payload.build(kind, {"a": np.arange(4, dtype=np.int64)}).image() for kind in kinds]


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
