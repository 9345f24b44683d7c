"""Payloads to store."""

from __future__ import annotations

import numpy as np

from hanse.payload import Payload
from hanse.v1 import payload_pb2


def a_payload(seed: int = 0, *, values: int = 5000) -> Payload:
    """Normal numbers; another seed, other bytes."""
    drawn = np.random.default_rng(seed).normal(size=values)
    return Payload.build(payload_pb2.WeightDelta(examples=seed), {"v": drawn})
