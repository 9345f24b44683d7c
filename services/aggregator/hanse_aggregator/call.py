"""One `Aggregate` call: what the caller sends, handed to the plug-in in order of arrival, and its answers.

The plug-in's code runs in a thread, one step at a time, so that artifacts keep flowing and health checks are answered
while it works. The call keeps nothing when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hanse.artifacts import ArtifactStore
from hanse.errors import HanseError, InvalidPayload, MethodError, NotFound, OperatorError, RejectedContribution
from hanse.logs import logger
from hanse.method import Aggregation, Contribution, Outcome, Phase, Purpose
from hanse.payload import Payload
from hanse.rpc import to_proto
from hanse.v1 import aggregator_pb2
from hanse.wire import facts_from_proto, outcome_to_proto, phase_from_proto, placing, resolving
from hanse_aggregator.artifacts import CallArtifacts
from hanse_aggregator.cache import PayloadCache
from hanse_aggregator.metrics import AggregatorMetrics, Timed
from hanse_aggregator.registry import Registry

MOST_WAITING = 32
"""Contributions of one call that may wait for their answer (`aggregator.proto`)."""
_WAITING_RESPONSES = 4
_T = TypeVar("_T")

Request = aggregator_pb2.AggregateRequest
Response = aggregator_pb2.AggregateResponse


class AggregateCall:
    """Lives as long as one call."""

    def __init__(
        self,
        registry: Registry,
        *,
        store: ArtifactStore | None,
        cache: PayloadCache,
        scratch: Path,
        threads: Executor,
        metrics: AggregatorMetrics | None = None,
    ) -> None:
        """`store` is what this service reaches, be it the caller's or not."""
        self._registry = registry
        self._store = store
        self._cache = cache
        self._scratch = scratch
        self._threads = threads
        self._metrics = metrics or AggregatorMetrics(registry.methods)
        self._inbox: asyncio.Queue[aggregator_pb2.AddContribution | None] = asyncio.Queue()
        self._outbox: asyncio.Queue[Response] = asyncio.Queue(_WAITING_RESPONSES)

    async def responses(self, requests: AsyncIterator[Request]) -> AsyncIterator[Response]:
        """Answer the caller's requests.

        Raises:
            HanseError: the call cannot go on; a plug-in's own exception is a `MethodError` that names it.
        """
        running = asyncio.create_task(self._measured(requests), name="aggregate")
        try:
            while not running.done():
                getting = asyncio.ensure_future(self._outbox.get())
                try:
                    either: set[asyncio.Future[Any]] = {getting, running}
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                    if getting.done():
                        yield getting.result()
                finally:
                    getting.cancel()
            await running
            while not self._outbox.empty():
                yield self._outbox.get_nowait()
        finally:
            running.cancel()
            await asyncio.wait({running})

    async def _measured(self, requests: AsyncIterator[Request]) -> None:
        with self._metrics.call() as timed:
            await self._run(requests, timed)

    async def _run(self, requests: AsyncIterator[Request], timed: Timed) -> None:
        first = await anext(requests, None)
        if first is None or first.WhichOneof("request") != "open":
            raise OperatorError("an aggregation must begin with `open`.")
        timed.method = first.open.facts.job.method
        shared = self._store is not None and self._store.store_id == first.open.store
        artifacts = CallArtifacts(
            store=self._store if shared else None,
            cache=self._cache,
            scratch=self._scratch,
            send=self._outbox.put,
            metrics=self._metrics,
        )
        reading = asyncio.create_task(self._read(requests, artifacts), name="aggregate: read")
        working = asyncio.create_task(self._work(first.open, artifacts), name="aggregate: work")
        try:
            await asyncio.wait({reading, working}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
            await working
        finally:
            reading.cancel()
            working.cancel()
            await artifacts.close()
            await asyncio.gather(reading, working, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[Request], artifacts: CallArtifacts) -> None:
        """Take requests as they come, so that artifacts arrive while the plug-in works."""
        closed = False
        async for request in requests:
            match request.WhichOneof("request"):
                case "artifact":
                    await artifacts.take(request.artifact)
                case "add" if not closed and self._inbox.qsize() < MOST_WAITING:
                    self._inbox.put_nowait(request.add)
                case "close" if not closed:
                    closed = True
                    self._inbox.put_nowait(None)
                case other:
                    raise OperatorError(f"`{other}` cannot come here in an aggregation.", code="PROTOCOL")
        if not closed:
            raise OperatorError("the requests of an aggregation ended before `close`.", code="PROTOCOL")

    async def _work(self, opened: aggregator_pb2.OpenAggregation, artifacts: CallArtifacts) -> None:
        """Hand everything to the plug-in, one at a time, in order of arrival."""
        loop = asyncio.get_running_loop()
        hosted = HostedAggregation(opened, self._registry, artifacts, self._metrics)
        await loop.run_in_executor(self._threads, hosted.begin)
        while (contribution := await self._inbox.get()) is not None:
            rejection = await loop.run_in_executor(self._threads, hosted.add, contribution)
            if rejection is None:
                accepted = aggregator_pb2.ContributionAccepted(assignment=contribution.assignment)
                await self._outbox.put(Response(accepted=accepted))
            else:
                rejected = aggregator_pb2.ContributionRejected(
                    assignment=contribution.assignment, reason=to_proto(rejection.reason)
                )
                await self._outbox.put(Response(rejected=rejected))
        with self._metrics.finishing(opened.facts.job.method):
            outcome = await loop.run_in_executor(self._threads, hosted.finish)
        await artifacts.deliver(_wanted_next(outcome))
        await self._outbox.put(Response(outcome=outcome))


class HostedAggregation:
    """The plug-in's side of one call; every method runs in a thread and may block."""

    def __init__(
        self,
        opened: aggregator_pb2.OpenAggregation,
        registry: Registry,
        artifacts: CallArtifacts,
        metrics: AggregatorMetrics,
    ) -> None:
        self._opened = opened
        self._registry = registry
        self._artifacts = artifacts
        self._metrics = metrics
        self._method = opened.facts.job.method
        self._assignments: dict[str, str] = {}
        self._aggregation: Aggregation | None = None
        self._first_phase: Callable[[], Phase] | None = None

    def begin(self) -> None:
        """Make the plug-in and open the phase.

        Raises:
            NotFound: no such method here, or an artifact is missing.
            OperatorError: the configuration does not fit the method.
            MethodError: the plug-in cannot open the phase.
        """
        resolve = resolving(self._artifacts.fetch)
        job = facts_from_proto(self._opened.facts, resolve, fetch=self._lookup)
        plugin = self._registry.make(self._method, job.config)
        if not self._opened.HasField("phase"):
            self._first_phase = partial(plugin.first_phase, job)
            return
        phase = phase_from_proto(self._opened.phase, job, resolve)
        state = resolve(self._opened.state) if self._opened.HasField("state") else None
        self._aggregation = self._plugin(lambda: plugin.open(phase, state))

    def add(self, message: aggregator_pb2.AddContribution) -> HanseError | None:
        """Hand over a contribution; returns why it was rejected, or None.

        Raises:
            NotFound: the contribution's bytes are missing.
            MethodError: the plug-in failed.
        """
        aggregation = self._aggregation
        if aggregation is None:
            raise OperatorError("a job's first phase is made of no contributions.", code="PROTOCOL")
        try:
            payload = resolving(partial(self._artifacts.fetch, again=False))(message.payload)
            contribution = Contribution(node=message.node, payload=payload, unseen=message.unseen)
            self._plugin(lambda: aggregation.add(contribution))
        except (RejectedContribution, InvalidPayload) as error:
            self._metrics.contribution(self._method, _size(message), accepted=False)
            return error
        self._metrics.contribution(self._method, payload.size, accepted=True)
        self._assignments[message.node] = message.assignment
        return None

    def finish(self) -> aggregator_pb2.OutcomeMessage:
        """Close the phase; large payloads of the outcome are kept by then.

        Raises:
            MethodError: the plug-in failed, or made an outcome that cannot be.
        """
        if self._first_phase is not None:
            outcome = Outcome(next_phase=self._plugin(self._first_phase))
        elif self._aggregation is None or not (self._assignments or self._opened.phase.purpose == Purpose.ADAPT):
            raise MethodError("there is nothing to aggregate: no contribution was accepted.", code="NO_CONTRIBUTIONS")
        else:
            outcome = self._plugin(self._aggregation.finish)
        keep = self._artifacts.keep
        return self._plugin(lambda: outcome_to_proto(outcome, placing(keep), keep, assignments=self._assignments))

    def _lookup(self, digest: bytes) -> Payload:
        """What plug-ins are given as `JobContext.fetch`."""
        try:
            return self._artifacts.fetch(digest)
        except NotFound:
            raise KeyError(digest.hex()) from None

    def _plugin(self, code: Callable[[], _T]) -> _T:
        """Run the plug-in's code; whatever it raises becomes an error with an owner."""
        try:
            return code()
        except HanseError:
            raise
        except Exception as error:
            job, phase = self._opened.facts.job, self._opened.phase
            logger().exception(
                "plug-in failed", method=self._method, job=job.id, round=phase.round, phase=phase.name or "(first)"
            )
            raise MethodError(
                f"plug-in '{self._method}' failed: {type(error).__name__}: {str(error)[:1000]}",
                remedy="The aggregator's log has the details for the method's author.",
                code="PLUGIN_FAILED",
            ) from error


def _size(message: aggregator_pb2.AddContribution) -> int:
    source = message.payload
    return len(source.inline) if source.HasField("inline") else source.artifact.size


def _wanted_next(outcome: aggregator_pb2.OutcomeMessage) -> set[bytes]:
    """The artifacts that the next phase's aggregation begins with."""
    sources = [outcome.state, outcome.next_phase.instruction]
    return {source.artifact.digest for source in sources if source.WhichOneof("source") == "artifact"}
