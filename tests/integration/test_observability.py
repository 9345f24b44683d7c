"""A real federation that is watched: one trace across its three programs, and what each tells Prometheus."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from hanse.embedded import Child
from hanse.embedded.folder import free_port
from tests.chaos.world import World, world


class TraceCollector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP collector in this process."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        """(program, span)"""

    def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            names = {item.key: item.value.string_value for item in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(names["service.name"], span) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


@contextmanager
def collecting() -> Iterator[tuple[TraceCollector, str]]:
    collector = TraceCollector()
    server = grpc.server(ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def attribute(span: Any, name: str) -> Any:
    for item in span.attributes:
        if item.key == f"hanse.{name}":
            return getattr(item.value, item.value.WhichOneof("value"))
    return None


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_a_job_leaves_one_trace_a_phase_and_counts_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent_port = free_port("127.0.0.1")
    with collecting() as (collector, endpoint):
        monkeypatch.setenv("HANSE_TRACES", endpoint)
        with world(tmp_path) as made:
            for name in ("site-a", "site-b"):
                made.add_site(name, run=False)
            run_watched(made, agent_port)
            job = made.submit("watched", rounds=2)
            assert made.until_ended(job).job.state == "succeeded"
            whole = made.until(lambda: one_whole_trace(collector), 60)
            check_trace(whole, job)
            check_metrics(made, agent_port)


def run_watched(made: World, port: int) -> None:
    """The first site shows its metrics; both send traces, as their environment says."""
    for site, more in zip(made.sites.values(), (["--metrics", f"127.0.0.1:{port}"], []), strict=True):
        arguments = ["hanse_agent.main", "run", str(site.config), *more]
        site.agent = Child(site.name, arguments, log=site.folder / "agent.log", say=lambda _: None)
        site.agent.start()
        site.agent.assume_ready()


def one_whole_trace(collector: TraceCollector) -> dict[str, list[Any]] | None:
    """The spans of the first training phase that all programs have reported, by program and name."""
    for phase in [span for where, span in list(collector.spans) if where == "hanse-coordinator"]:
        together: dict[str, list[Any]] = {}
        for where, span in list(collector.spans):
            if span.trace_id == phase.trace_id:
                together.setdefault(f"{where.removeprefix('hanse-')}: {span.name}", []).append(span)
        if len(together.get("agent: assignment", [])) == 2 and "aggregator: finish" in together:
            return together
    return None


def check_trace(spans: dict[str, list[Any]], job: str) -> None:
    (name,) = [name for name in spans if name.startswith("coordinator: phase ")]
    (phase,), (aggregate,), (finish,) = spans[name], spans["aggregator: aggregate"], spans["aggregator: finish"]
    assert not phase.parent_span_id
    assert attribute(phase, "job") == attribute(aggregate, "job") == job
    assert (aggregate.parent_span_id, finish.parent_span_id) == (phase.span_id, aggregate.span_id)
    assert {event.name for event in phase.events} == {"delivered"}
    assignments = {attribute(span, "node"): span for span in spans["agent: assignment"]}
    assert set(assignments) == {"site-a", "site-b"}
    for span in assignments.values():
        assert span.parent_span_id == phase.span_id
        parts = [
            part.name
            for step in ("download", "train", "upload")
            for part in spans[f"agent: {step}"]
            if part.parent_span_id == span.span_id
        ]
        assert parts == ["download", "train", "upload"]
        assert attribute(span, "outcome") == "ok"
        assert phase.start_time_unix_nano <= span.start_time_unix_nano


def check_metrics(made: World, agent_port: int) -> None:
    ports = json.loads((made.federation.state / "ports.json").read_text())
    told = scrape(ports["coordinator_health"])
    assert told['hanse_coordinator_nodes{health="connected",trust="approved"}'] == 2
    assert told["hanse_coordinator_rounds_total"] >= 1
    assert told["hanse_coordinator_leader"] == 1
    delivered = told['hanse_coordinator_assignments_total{outcome="delivered"}']
    assert delivered >= 4
    assert told["hanse_coordinator_contribution_bytes_total"] > 0
    assert told["hanse_coordinator_ledger_write_seconds_count"] > delivered
    assert told['hanse_coordinator_jobs_entered_total{reason="",state="succeeded"}'] == 1
    aggregated = scrape(ports["aggregator_health"])
    assert aggregated['hanse_aggregator_calls_total{method="fedscs_xgb",outcome="ok"}'] >= 3
    assert aggregated["hanse_aggregator_calls_in_flight"] == 0
    at_site = scrape(agent_port)
    assert at_site['hanse_agent_assignments_total{outcome="delivered"}'] == delivered / 2
    assert at_site["hanse_agent_nodes_connected"] == 1
    assert at_site['hanse_agent_left_bytes_total{event="left"}'] == sum(
        line["bytes"] for line in made.sites["site-a"].journal if line["event"] == "left"
    )
    for told_by in (told, aggregated, at_site):
        assert not [name for name in told_by if re.search(r"site-[ab]|watched|ward", name)]
