"""Phases, metrics and outcomes to and from protobuf."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from hanse.errors import MethodError
from hanse.method import Audience, JobContext, MetricValue, Outcome, Phase, Picture, Purpose, Rejection, Scope
from hanse.rpc import from_proto, to_proto
from hanse.v1 import aggregator_pb2, payload_pb2
from hanse.wire.payloads import Fetch, Keep, Place, Resolve

_Word = TypeVar("_Word", Purpose, Audience, Scope)


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
