"""What methods exchange, as messages: the dataclasses of `hanse.method` to and from protobuf.

Payloads are placed by whoever sends (`Place`: inside the message when small, else in a store or a stream) and resolved
by whoever receives (`Resolve`), so that these conversions do no I/O of their own.
"""

from hanse.wire.jobs import (
    config_from_proto,
    config_to_proto,
    dataset_from_proto,
    dataset_to_proto,
    facts_from_proto,
    facts_to_proto,
    job_from_proto,
    job_to_proto,
)
from hanse.wire.outcomes import (
    metric_from_proto,
    metric_to_proto,
    outcome_from_proto,
    outcome_to_proto,
    phase_from_proto,
    phase_to_proto,
    sources,
)
from hanse.wire.payloads import Fetch, Keep, Place, Resolve, placing, resolving, small

__all__ = [
    "Fetch",
    "Keep",
    "Place",
    "Resolve",
    "config_from_proto",
    "config_to_proto",
    "dataset_from_proto",
    "dataset_to_proto",
    "facts_from_proto",
    "facts_to_proto",
    "job_from_proto",
    "job_to_proto",
    "metric_from_proto",
    "metric_to_proto",
    "outcome_from_proto",
    "outcome_to_proto",
    "phase_from_proto",
    "phase_to_proto",
    "placing",
    "resolving",
    "small",
    "sources",
]
