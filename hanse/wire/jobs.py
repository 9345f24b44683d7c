"""Jobs and datasets to and from protobuf."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hanse.errors import OperatorError
from hanse.method import Column, DatasetDescription, Evaluation, JobContext
from hanse.v1 import aggregator_pb2, node_pb2
from hanse.wire.payloads import Fetch, Place, Resolve


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
