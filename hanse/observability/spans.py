"""Spans of OpenTelemetry behind the small face of `tracing`. Imported only while tracing is on."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from hanse.observability.tracing import TRACEPARENT, Value, outcome_of

__all__ = ["OpenSpan"]

_PROPAGATOR = TraceContextTextMapPropagator()


class OpenSpan:
    """A span that was begun."""

    def __init__(self, tracer: trace.Tracer, name: str, parent: str, attributes: Mapping[str, Value]) -> None:
        # What is no valid traceparent, for instance from a stranger, begins a trace of its own.
        context = _PROPAGATOR.extract({TRACEPARENT: parent}, Context()) if parent else Context()
        self._span = tracer.start_span(name, context=context, attributes=_named(attributes))

    @property
    def traceparent(self) -> str:
        """What makes another program's span a child of this one."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(self._span, Context()))
        return carrier.get(TRACEPARENT, "")

    def event(self, name: str, **attributes: Value) -> None:
        """Something happened in it."""
        self._span.add_event(name, _named(attributes))

    def set(self, **attributes: Value) -> None:
        """Say more about it."""
        self._span.set_attributes(_named(attributes))

    def end(self, error: BaseException | None = None) -> None:
        """It is over."""
        if not self._span.is_recording():
            return
        outcome = outcome_of(error)
        self._span.set_attribute("hanse.outcome", outcome)
        if outcome not in ("ok", "cancelled"):
            self._span.set_status(trace.Status(trace.StatusCode.ERROR, str(error)[:500]))
        self._span.end()


def _named(attributes: Mapping[str, Value]) -> dict[str, Value]:
    return {f"hanse.{name}": value for name, value in attributes.items()}
