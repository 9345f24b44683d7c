"""What the programs expose at `/metrics`: each program's own metrics, driven once through everything they count."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from hanse.errors import MethodError, Owner, Reason
from hanse.ledger import JobState, Trust
from hanse.ledger.events import Appended
from hanse_agent import metrics as agent
from hanse_aggregator.metrics import AggregatorMetrics
from hanse_coordinator.metrics import CoordinatorMetrics
from hanse_coordinator.sessions import Sessions
from hanse_dashboard import metrics as dashboard

TARGET_LABELS = frozenset({"instance", "job"})
"""What Prometheus adds to every series."""


def event(kind: str, at: float = 0.0, **body: Any) -> Appended:
    return Appended(kind, at, "a job", "a node", body)


def a_phase(number: int, round_: int, at: float) -> list[Appended]:
    """A phase that collects for 3 seconds and is aggregated in 4; one contribution of 10 bytes, one failure."""
    phase = f"phase {number}"
    missing = {"other": {"state": "failed"}, "third": {"state": "delivered"}}
    return [
        event("phase_opened", at, phase=phase, round=round_, purpose="train"),
        event("contribution", at + 2, phase=phase, bytes=10, late=False),
        event("assignment_failed", at + 3, phase=phase),
        event("phase_closed", at + 7, phase=phase, round=round_, missing=missing),
    ]


def coordinator() -> CollectorRegistry:
    metrics = CoordinatorMetrics()
    metrics.leads(3)
    metrics.away()
    for which in ("server", "client", "authority"):
        metrics.certificate(which, 1e9)
    paused = SimpleNamespace(
        state=JobState.PAUSED, since=1.0, reason=Reason(code="QUORUM_NOT_MET", sentence="", owner=Owner.SITE)
    )
    metrics.watch(
        jobs=lambda: [paused],  # type: ignore[list-item, return-value]
        trust=lambda: {"a node": Trust.APPROVED},
        sessions=Sessions(lease=1.0, heartbeat=1.0),
    )
    abandoned = event("phase_abandoned", 30.0, phase="phase 9", withdrawn=["a node"])
    end = [event("node_connected"), event("job_failed", code="PLUGIN_FAILED", owner="method"), event("job_running")]
    metrics.wrote(0.01, 7, [*a_phase(1, 1, 0.0), *a_phase(2, 2, 10.0), abandoned, *end])
    return metrics.registry


def aggregator() -> CollectorRegistry:
    metrics = AggregatorMetrics(["fedavg"])
    with metrics.call() as timed:
        timed.method = "fedavg"
        with metrics.finishing("fedavg"):
            metrics.contribution("fedavg", 10, accepted=True)
    with suppress(MethodError), metrics.call() as timed:
        timed.method = "an unknown one"
        raise MethodError("no")
    metrics.streamed("sent", 5)
    metrics.looked_up(hit=True)
    metrics.certificate(1e9)
    return metrics.registry


def labels_of_everything() -> dict[str, set[str]]:
    """Name of each series that any program exposes, with its labels."""
    stop = agent.watch(lambda: [datetime.now(UTC)])
    agent.connected("links", SimpleNamespace(heard_at=1.0))  # type: ignore[arg-type]
    agent.refused("POLICY_METHODS")
    dashboard.REQUESTS.labels("/", "GET", 200).inc(0)
    dashboard.SECONDS.labels("/").observe(0.01)
    found: defaultdict[str, set[str]] = defaultdict(set)
    try:
        for registry in (coordinator(), aggregator(), agent.REGISTRY, dashboard.REGISTRY):
            for family in registry.collect():
                for sample in family.samples:
                    found[sample.name] |= set(sample.labels) | TARGET_LABELS
    finally:
        agent.disconnected("links")  # type: ignore[arg-type]
        stop()
    return dict(found)
