"""Tracing is off unless it is asked for, costs nothing then, and says plainly why it cannot be turned on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from hanse.errors import OperatorError, SiteError
from hanse.observability import tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.spans: dict[str, object] = {}

    def Export(self, request, context):
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans |= {span.name: span for span in scope.spans}
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made, server = Collector(), grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(made, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    tracing.configure("a program", f"http://127.0.0.1:{port}")
    yield made
    tracing.close()
    server.stop(None).wait()


def test_off_every_span_is_the_same_nothing() -> None:
    tracing.configure("a program", "")
    with tracing.within("work", parent=PARENT, bytes=3) as span:
        span.event("x")
        span.set(y=1)
    assert span is tracing.start("other") is tracing.NOTHING
    assert span.traceparent == ""
    assert tracing.metadata(span.traceparent) is None
    assert tracing.parent_in([("traceparent", PARENT)]) == ""


@pytest.mark.parametrize("program", ["hanse_coordinator", "hanse_aggregator", "hanse_agent"])
def test_off_nothing_of_opentelemetry_is_loaded(program: str) -> None:
    more = "work" if program == "hanse_agent" else "main"
    code = f"import sys, {program}.{more}; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_span_goes_on_with_its_parents_trace_and_tells_how_it_ended(collector: Collector) -> None:
    with pytest.raises(SiteError), tracing.within("failing", parent=PARENT, node="a"):
        raise SiteError("no rows.", code="NO_ROWS")
    with pytest.raises(asyncio.CancelledError), tracing.within("given up", parent=PARENT):
        raise asyncio.CancelledError
    span = tracing.start("child", parent=tracing.start("root").traceparent)
    span.end()
    span.end()
    tracing.close()
    failing, given_up, child = (collector.spans[name] for name in ("failing", "given up", "child"))
    assert failing.trace_id.hex() == PARENT.split("-")[1]
    assert failing.parent_span_id.hex() == PARENT.split("-")[2]
    told = {item.key: item.value.string_value for item in failing.attributes}
    assert told == {"hanse.node": "a", "hanse.outcome": "NO_ROWS"}
    assert (failing.status.code, given_up.status.code) == (2, 0)
    assert child.trace_id.hex() != PARENT.split("-")[1]


@pytest.mark.parametrize("parent", ["x", "00-zz-yy-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "a" * 10_000])
def test_what_a_stranger_sends_as_parent_begins_a_trace_of_its_own(collector: Collector, parent: str) -> None:
    with tracing.within("work", parent=parent):
        pass
    tracing.close()
    assert collector.spans["work"].parent_span_id == b""


def test_a_wrong_endpoint_and_a_missing_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OperatorError, match=r"'collector:4317' is not an OTLP endpoint.*http://collector:4317"):
        tracing.configure("a program", "collector:4317")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(OperatorError, match=r"Install hanse\[traces\]"):
        tracing.configure("a program", "http://collector:4317")
