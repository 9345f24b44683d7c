"""Traces across coordinator, aggregator and agent: one for each phase, off unless an endpoint is given.

    tracing.configure("hanse-coordinator", "http://collector:4317")
    with tracing.within("aggregate", parent=traceparent, job=job) as span:
        span.event("closed")

Spans are OpenTelemetry's, sent by OTLP over gRPC. Context travels as W3C's `traceparent`: in gRPC's metadata to the
aggregator, and inside the assignment to an agent, since a session is one stream for all of them. While tracing is off,
nothing of OpenTelemetry is imported and every span is the same one that does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from hanse import __version__
from hanse.errors import HanseError, OperatorError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

__all__ = ["NOTHING", "Span", "close", "configure", "metadata", "parent_in", "start", "within"]

TRACEPARENT = "traceparent"
_FLUSH_MS = 2000
_LONGEST_PARENT = 100

Value = str | int | float | bool


class Span(Protocol):
    """A stretch of work."""

    @property
    def traceparent(self) -> str:
        """What makes another program's span a child of this one; empty while tracing is off."""

    def event(self, name: str, **attributes: Value) -> None:
        """Something happened in it."""

    def set(self, **attributes: Value) -> None:
        """Say more about it."""

    def end(self, error: BaseException | None = None) -> None:
        """It is over; the second time changes nothing."""


class _Nothing:
    traceparent = ""

    def event(self, name: str, **attributes: Value) -> None:
        pass

    def set(self, **attributes: Value) -> None:
        pass

    def end(self, error: BaseException | None = None) -> None:
        pass


NOTHING: Span = _Nothing()
"""The span of a program that does not trace."""

_provider: TracerProvider | None = None
_tracer: Any = None


def configure(program: str, endpoint: str) -> None:
    """Trace from now on, to an OTLP endpoint (`http://host:4317`, `https://…` with TLS); empty: do not.

    Headers, certificates and the rest are read from OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_HEADERS` …).

    Raises:
        OperatorError: the endpoint is no address, or OpenTelemetry is not installed.
    """
    global _provider, _tracer
    close()
    if not endpoint:
        return
    if not endpoint.startswith(("http://", "https://")):
        raise OperatorError(
            f"traces: '{endpoint[:100]}' is not an OTLP endpoint.", remedy="Write it as http://collector:4317."
        )
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise OperatorError(
            f"traces: the Python package {error.name} is not installed.", remedy="Install hanse[traces]."
        ) from error
    resource = Resource.create({"service.name": program, "service.version": __version__})
    _provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http://"))
    _provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    _tracer = _provider.get_tracer("hanse", __version__)


def close() -> None:
    """Send what is left, for two seconds at most, and trace no more."""
    global _provider, _tracer
    provider, _provider, _tracer = _provider, None, None
    if provider is not None:
        provider.force_flush(_FLUSH_MS)
        provider.shutdown()


def start(name: str, *, parent: str = "", **attributes: Value) -> Span:
    """Begin a span; its owner ends it. `parent`: a `traceparent`, empty for a new trace."""
    if _tracer is None:
        return NOTHING
    from hanse.observability.spans import OpenSpan

    return OpenSpan(_tracer, name, parent[:_LONGEST_PARENT], attributes)


@contextmanager
def within(name: str, *, parent: str = "", **attributes: Value) -> Iterator[Span]:
    """A span around what is done inside; an exception makes it a failed one."""
    span = start(name, parent=parent, **attributes)
    if span is NOTHING:
        yield span
        return
    try:
        yield span
    except BaseException as error:
        span.end(error)
        raise
    span.end()


def metadata(traceparent: str) -> tuple[tuple[str, str], ...] | None:
    """What a gRPC call carries so that the other side goes on with the trace."""
    return ((TRACEPARENT, traceparent),) if traceparent else None


def parent_in(found: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The `traceparent` of a call's metadata; empty when there is none."""
    if _tracer is None:
        return ""
    return next((value for key, value in found or () if key == TRACEPARENT and isinstance(value, str)), "")


def outcome_of(error: BaseException | None) -> str:
    """How a span ended, in a word: `ok`, `cancelled`, or the code of the error."""
    if error is None:
        return "ok"
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "cancelled"
    return error.code if isinstance(error, HanseError) else type(error).__name__
