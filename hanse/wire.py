"""What methods exchange, as messages: the dataclasses of `hanse.method` to and from protobuf.

Payloads are placed by whoever sends (`Place`: inside the message when small, else in a store or a stream) and resolved
by whoever receives (`Resolve`), so that these conversions do no I/O of their own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hanse.errors import MethodError, OperatorError
from hanse.method import (
    Audience,
    Column,
    DatasetDescription,
    Evaluation,
    JobContext,
    MetricValue,
    Outcome,
    Phase,
    Picture,
    Purpose,
    Rejection,
    Scope,
)
from hanse.payload import CHUNK, Payload
from hanse.rpc import INLINE_LIMIT, from_proto, to_proto
from hanse.v1 import aggregator_pb2, node_pb2, payload_pb2

Place = Callable[[Payload], payload_pb2.PayloadSource]
Resolve = Callable[[payload_pb2.PayloadSource], Payload]
Fetch = Callable[[bytes], Payload]
Keep = Callable[[Payload], payload_pb2.ArtifactRef]
_Word = TypeVar("_Word", Purpose, Audience, Scope)


def small(payload: Payload) -> bool:
    """Whether a payload rides inside the message that speaks of it."""
    return payload.size <= INLINE_LIMIT


def placing(keep: Keep) -> Place:
    """Small payloads inside the message; `keep` takes the others and says what they are called.

    One `Place` serves one message: when 1 MiB is inside it, further payloads are kept, however small.
    """
    room = CHUNK

    def place(payload: Payload) -> payload_pb2.PayloadSource:
        nonlocal room
        if not small(payload) or payload.size > room:
            return payload_pb2.PayloadSource(artifact=keep(payload))
        room -= payload.size
        return payload_pb2.PayloadSource(inline=payload.image())

    return place


def resolving(fetch: Fetch) -> Resolve:
    """Decode what is inside the message; `fetch` finds the others by digest."""

    def resolve(source: payload_pb2.PayloadSource) -> Payload:
        if source.WhichOneof("source") == "artifact":
            return fetch(source.artifact.digest)
        return Payload.from_image(source.inline)

    return resolve


# ---- Jobs


def config_to_proto(config: Mapping[str, Any]) -> bytes:
    """A method's configuration as canonical JSON."""
    return json.dumps(dict(config), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def config_from_proto(data: bytes) -> dict[str, Any]:
    """A method's configuration from JSON; nothing at all is an empty one.

    Raises:
        OperatorError: it is not a JSON object.
    """
    try:
        config = json.loads(data or b"{}")
    except (ValueError, RecursionError) as error:
        raise OperatorError(f"the method's configuration is not JSON: {error}", code="INVALID_CONFIGURATION") from None
    if not isinstance(config, dict):
        raise OperatorError("the method's configuration is not a mapping.", code="INVALID_CONFIGURATION")
    return config


def dataset_to_proto(dataset: DatasetDescription) -> node_pb2.DatasetOffer:
    """What a node offers."""
    return node_pb2.DatasetOffer(
        name=dataset.name,
        kind=dataset.kind,
        rows=dataset.rows,
        columns=[node_pb2.Column(name=column.name, dtype=column.dtype) for column in dataset.columns],
        target=dataset.target,
        facts=dict(dataset.facts),
    )


def dataset_from_proto(message: node_pb2.DatasetOffer) -> DatasetDescription:
    """What a node offers."""
    return DatasetDescription(
        name=message.name,
        kind=message.kind,
        rows=message.rows,
        columns=tuple(Column(name=column.name, dtype=column.dtype) for column in message.columns),
        target=message.target,
        facts=dict(message.facts),
    )


def job_to_proto(job: JobContext) -> node_pb2.JobDescription:
    """The part of a job that every node is told."""
    return node_pb2.JobDescription(
        id=job.id,
        name=job.name,
        method=job.method,
        dataset=job.dataset,
        model=job.model,
        rounds=job.rounds,
        seed=job.seed,
        config=config_to_proto(job.config),
    )


def job_from_proto(message: node_pb2.JobDescription, *, fetch: Fetch | None = None, **more: Any) -> JobContext:
    """A job as a node knows it; `more` are further fields of `JobContext`.

    Raises:
        OperatorError: its configuration is not a JSON object.
    """
    if fetch is not None:
        more["fetch"] = fetch
    return JobContext(
        id=message.id,
        name=message.name,
        method=message.method,
        dataset=message.dataset,
        model=message.model,
        rounds=message.rounds,
        seed=message.seed,
        config=config_from_proto(message.config),
        **more,
    )


def facts_to_proto(job: JobContext, place: Place) -> aggregator_pb2.JobFacts:
    """The whole of a job, for aggregators."""
    return aggregator_pb2.JobFacts(
        job=job_to_proto(job),
        nodes=job.nodes,
        unseen=job.evaluation.unseen,
        datasets={node: dataset_to_proto(dataset) for node, dataset in job.datasets.items()},
        evaluate_every=job.evaluation.every,
        continue_from=place(job.continue_from) if job.continue_from is not None else None,
    )


def facts_from_proto(message: aggregator_pb2.JobFacts, resolve: Resolve, *, fetch: Fetch | None = None) -> JobContext:
    """The whole of a job, for aggregators.

    Raises:
        OperatorError: its configuration is not a JSON object.
    """
    return job_from_proto(
        message.job,
        fetch=fetch,
        evaluation=Evaluation(every=message.evaluate_every, unseen=tuple(message.unseen)),
        nodes=tuple(message.nodes),
        datasets={node: dataset_from_proto(message.datasets[node]) for node in sorted(message.datasets)},
        continue_from=resolve(message.continue_from) if message.HasField("continue_from") else None,
    )


# ---- Phases and outcomes


def phase_to_proto(phase: Phase, place: Place) -> aggregator_pb2.PhaseDescription:
    """A phase without its job, which travels once."""
    return aggregator_pb2.PhaseDescription(
        name=phase.name,
        round=phase.round,
        purpose=phase.purpose.value,
        audience=phase.audience.value,
        instruction=place(phase.instruction),
        personal={node: place(payload) for node, payload in sorted(phase.personal.items())},
    )


def phase_from_proto(message: aggregator_pb2.PhaseDescription, job: JobContext, resolve: Resolve) -> Phase:
    """A phase of `job`.

    Raises:
        MethodError: an unknown purpose or audience.
    """
    return Phase(
        job=job,
        name=message.name,
        round=message.round,
        purpose=_word(Purpose, message.purpose, f"the purpose of phase '{message.name}'"),
        audience=_word(Audience, message.audience, f"the audience of phase '{message.name}'"),
        instruction=resolve(message.instruction),
        personal={node: resolve(message.personal[node]) for node in sorted(message.personal)},
    )


def metric_to_proto(metric: MetricValue) -> aggregator_pb2.MetricValue:
    """One number.

    Raises:
        MethodError: it is not finite.
    """
    if not (math.isfinite(metric.value) and math.isfinite(metric.weight)):
        raise MethodError(
            f"metric '{metric.name}' is {metric.value} with weight {metric.weight}.",
            remedy="A plug-in leaves out what it cannot say as a finite number.",
        )
    return aggregator_pb2.MetricValue(
        name=metric.name, value=metric.value, node=metric.node, scope=metric.scope.value, weight=metric.weight
    )


def metric_from_proto(message: aggregator_pb2.MetricValue) -> MetricValue:
    """One number.

    Raises:
        MethodError: an unknown scope, or not finite.
    """
    metric = MetricValue(
        name=message.name,
        value=message.value,
        node=message.node,
        scope=_word(Scope, message.scope, f"the scope of metric '{message.name}'"),
        weight=message.weight,
    )
    metric_to_proto(metric)
    return metric


def outcome_to_proto(
    outcome: Outcome, place: Place, keep: Keep, *, assignments: Mapping[str, str]
) -> aggregator_pb2.OutcomeMessage:
    """What an aggregation made. `assignments` gives each contributing node's assignment.

    Raises:
        MethodError: a metric is not finite, or a rejection names a node that contributed nothing.
    """
    for rejection in outcome.rejected:
        if rejection.node not in assignments:
            raise MethodError(f"the outcome rejects node '{rejection.node}', which contributed nothing.")
    return aggregator_pb2.OutcomeMessage(
        state=place(outcome.state) if outcome.state is not None else None,
        next_phase=phase_to_proto(outcome.next_phase, place) if outcome.next_phase is not None else None,
        metrics=[metric_to_proto(metric) for metric in outcome.metrics],
        pictures=[
            aggregator_pb2.PictureMessage(
                name=picture.name, kind=picture.kind, title=picture.title, payload=place(picture.payload)
            )
            for picture in outcome.pictures
        ],
        model=place(outcome.model) if outcome.model is not None else None,
        stored=[keep(payload) for payload in outcome.stored],
        rejected=[
            aggregator_pb2.ContributionRejected(
                assignment=assignments[rejection.node], reason=to_proto(rejection.reason)
            )
            for rejection in outcome.rejected
        ],
    )


def outcome_from_proto(
    message: aggregator_pb2.OutcomeMessage,
    job: JobContext,
    resolve: Resolve,
    fetch: Fetch,
    *,
    nodes: Mapping[str, str],
) -> Outcome:
    """What an aggregation made. `nodes` gives the node of each assignment.

    Raises:
        MethodError: an unknown purpose, audience or scope, a metric that is not finite, or a foreign assignment.
    """
    for rejection in message.rejected:
        if rejection.assignment not in nodes:
            raise MethodError(f"the outcome rejects assignment '{rejection.assignment}', which was not given to it.")
    return Outcome(
        next_phase=phase_from_proto(message.next_phase, job, resolve) if message.HasField("next_phase") else None,
        state=resolve(message.state) if message.HasField("state") else None,
        model=resolve(message.model) if message.HasField("model") else None,
        metrics=tuple(metric_from_proto(metric) for metric in message.metrics),
        pictures=tuple(
            Picture(name=picture.name, kind=picture.kind, title=picture.title, payload=resolve(picture.payload))
            for picture in message.pictures
        ),
        stored=tuple(fetch(reference.digest) for reference in message.stored),
        rejected=tuple(
            Rejection(node=nodes[rejection.assignment], reason=from_proto(rejection.reason))
            for rejection in message.rejected
        ),
    )


def sources(message: aggregator_pb2.OutcomeMessage) -> list[payload_pb2.PayloadSource]:
    """Every place of an outcome where a payload stands, to be read or replaced."""
    found = [picture.payload for picture in message.pictures]
    if message.HasField("state"):
        found.append(message.state)
    if message.HasField("model"):
        found.append(message.model)
    if message.HasField("next_phase"):
        found.append(message.next_phase.instruction)
        found.extend(message.next_phase.personal[node] for node in sorted(message.next_phase.personal))
    return found


def _word(kind: type[_Word], value: str, what: str) -> _Word:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(word.value for word in kind)
        raise MethodError(f"{what} is {value[:40]!r}, not one of {known}.") from None
