"""An aggregation as part of the trace of its phase."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable

from hanse.observability import tracing
from hanse.observability.tracing import NOTHING, Span
from hanse.v1 import aggregator_pb2

__all__ = ["traced"]

Requests = AsyncIterator[aggregator_pb2.AggregateRequest]
Responses = AsyncIterator[aggregator_pb2.AggregateResponse]


async def traced(
    parent: str, requests: Requests, answer: Callable[[Requests], Responses]
) -> AsyncGenerator[aggregator_pb2.AggregateResponse, None]:
    """Answer requests inside a span `aggregate`; a span `finish` in it begins when all contributions have come."""
    with tracing.within("aggregate", parent=parent) as span:
        if span is NOTHING:
            async for response in answer(requests):
                yield response
            return
        seen = _Seen(span)
        async for response in answer(seen.passing(requests)):
            seen.answered(response)
            yield response


class _Seen:
    """Reads along."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._finish: Span = NOTHING

    async def passing(self, requests: Requests) -> Requests:
        """The requests as they come."""
        async for request in requests:
            match request.WhichOneof("request"):
                case "open":
                    job, phase = request.open.facts.job, request.open.phase
                    self._span.set(job=job.id, method=job.method, round=phase.round, phase=phase.name)
                case "add":
                    self._span.event("contribution", node=request.add.node)
                case "close":
                    self._finish = tracing.start("finish", parent=self._span.traceparent)
            yield request

    def answered(self, response: aggregator_pb2.AggregateResponse) -> None:
        """A response goes out."""
        match response.WhichOneof("response"):
            case "rejected":
                self._span.event("rejected", code=response.rejected.reason.code[:100])
            case "outcome":
                self._finish.end()
