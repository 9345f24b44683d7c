"""What the coordinator says about a job: descriptions for nodes and for aggregators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from google.protobuf.json_format import MessageToDict, ParseDict

from hanse.artifacts import ArtifactStore
from hanse.jobs import JobSpecification
from hanse.ledger import records
from hanse.ledger.chain import canonical_json
from hanse.ledger.states import Decision
from hanse.rpc import INLINE_LIMIT, SESSION_INLINE_LIMIT
from hanse.v1 import aggregator_pb2, node_pb2, payload_pb2

__all__ = [
    "dataset_to_dict",
    "facts",
    "for_aggregator",
    "inline_limit",
    "job_description",
    "phase_description",
    "source",
]

_INLINE_ROOM = 64 * 1024 * 1024
"""Bytes that the sessions of one phase may hold at once of payloads that ride in them."""


def inline_limit(nodes: int) -> int:
    """Bytes of the largest payload that rides in a session, where a phase has that many nodes.

    All may be on their way at the same moment, and are in memory meanwhile; what is larger goes from disk to disk.
    """
    return max(INLINE_LIMIT, min(SESSION_INLINE_LIMIT, _INLINE_ROOM // max(nodes, 1)))


def job_description(job: records.Job, spec: JobSpecification, *, unseen: bool = False) -> node_pb2.JobDescription:
    """What a node or an aggregator needs to know of a job."""
    return node_pb2.JobDescription(
        id=job.id,
        name=job.name,
        method=job.method,
        dataset=job.dataset,
        model=spec.model,
        rounds=job.rounds,
        seed=job.seed,
        config=canonical_json(spec.method_config).encode(),
        unseen=unseen,
        submitted_by=job.submitted_by,
    )


def source(store: ArtifactStore, digest: bytes, *, limit: int = INLINE_LIMIT) -> payload_pb2.PayloadSource:
    """A stored payload as it travels: its bytes when they are at most `limit`, else a reference.

    Raises:
        NotFound: the store does not hold it.
    """
    size = store.size(digest)  # a large one is not fetched from a remote store for its length alone
    if size <= limit:
        return payload_pb2.PayloadSource(inline=store.open(digest).image())
    return payload_pb2.PayloadSource(artifact=payload_pb2.ArtifactRef(digest=digest, size=size))


def for_aggregator(given: payload_pb2.PayloadSource, digest: bytes) -> payload_pb2.PayloadSource:
    """A payload as it travels outside a session: a reference if it is larger than what rides in any message."""
    size = len(given.inline)
    if size <= INLINE_LIMIT:
        return given
    return payload_pb2.PayloadSource(artifact=payload_pb2.ArtifactRef(digest=digest, size=size))


def facts(
    job: records.Job,
    spec: JobSpecification,
    participants: Iterable[records.Participation],
    continue_from: payload_pb2.PayloadSource | None = None,
) -> aggregator_pb2.JobFacts:
    """What an aggregator is told of a job: who accepted it, with which data."""
    accepted = sorted((item for item in participants if item.decision is Decision.ACCEPTED), key=lambda i: i.node)
    return aggregator_pb2.JobFacts(
        job=job_description(job, spec),
        nodes=[item.node for item in accepted if not item.unseen],
        unseen=[item.node for item in accepted if item.unseen],
        datasets={item.node: dataset_from_dict(item.dataset or {}) for item in accepted},
        evaluate_every=spec.evaluation.every,
        continue_from=continue_from,
    )


def phase_description(
    phase: records.Phase, source_of: Callable[[str], payload_pb2.PayloadSource]
) -> aggregator_pb2.PhaseDescription:
    """A phase for the aggregator that closes it; `source_of` gives a payload by its digest in hex."""
    assert phase.instruction_digest is not None
    return aggregator_pb2.PhaseDescription(
        name=phase.name,
        round=phase.round,
        purpose=phase.purpose.value,
        audience=phase.audience.value,
        instruction=source_of(phase.instruction_digest),
        personal={node: source_of(digest) for node, digest in phase.personal.items()},
    )


def dataset_to_dict(offer: node_pb2.DatasetOffer) -> dict[str, object]:
    """A dataset's description for the ledger."""
    return MessageToDict(offer, preserving_proto_field_name=True)


def dataset_from_dict(stored: Mapping[str, object]) -> node_pb2.DatasetOffer:
    """A dataset's description from the ledger."""
    return ParseDict(dict(stored), node_pb2.DatasetOffer())
