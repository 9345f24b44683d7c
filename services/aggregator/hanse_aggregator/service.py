"""What a coordinator calls: which plug-ins are here, whether a configuration fits, and to aggregate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc.aio

from hanse.artifacts import ArtifactStore
from hanse.errors import Forbidden
from hanse.observability import tracing
from hanse.rpc import check_version, version
from hanse.security import Identity, peer_identity
from hanse.v1 import aggregator_pb2, aggregator_pb2_grpc
from hanse.wire import config_from_proto
from hanse_aggregator.cache import PayloadCache
from hanse_aggregator.call import AggregateCall
from hanse_aggregator.metrics import AggregatorMetrics
from hanse_aggregator.registry import Registry
from hanse_aggregator.traced import traced

SERVICE = "hanse.v1.AggregatorService"
PROGRAM = "hanse-aggregator"
CALLER = Identity.service("coordinator")

Context = grpc.aio.ServicerContext[Any, Any]


class AggregatorService(aggregator_pb2_grpc.AggregatorServiceServicer):
    """Hosts plug-ins for a coordinator; nobody else may call."""

    def __init__(
        self,
        registry: Registry,
        *,
        store: ArtifactStore | None,
        scratch: Path,
        cache: int,
        threads: int,
        metrics: AggregatorMetrics | None = None,
    ) -> None:
        """`cache` bounds the bytes that are kept between calls; `threads` the calls that run plug-in code at once."""
        self._registry = registry
        self._store = store
        self._scratch = scratch
        self._metrics = metrics or AggregatorMetrics(registry.methods)
        self._cache = PayloadCache(cache)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="plug-in")

    async def Describe(  # noqa: N802
        self, request: aggregator_pb2.DescribeRequest, context: Context
    ) -> aggregator_pb2.DescribeResponse:
        """The plug-ins that can be used here."""
        _require_coordinator(context)
        check_version(request.version)
        return aggregator_pb2.DescribeResponse(
            version=version(PROGRAM),
            plugins=self._registry.describe(),
            store=self._store.store_id if self._store is not None else "",
        )

    async def CheckConfiguration(  # noqa: N802
        self, request: aggregator_pb2.CheckConfigurationRequest, context: Context
    ) -> aggregator_pb2.CheckConfigurationResponse:
        """Whether a job's configuration fits its method."""
        _require_coordinator(context)
        self._registry.check(request.method, config_from_proto(request.config))
        return aggregator_pb2.CheckConfigurationResponse()

    async def Aggregate(  # noqa: N802
        self, request_iterator: AsyncIterator[aggregator_pb2.AggregateRequest], context: Context
    ) -> AsyncIterator[aggregator_pb2.AggregateResponse]:
        """One phase's aggregation, or a job's beginning."""
        _require_coordinator(context)
        call = AggregateCall(
            self._registry,
            store=self._store,
            cache=self._cache,
            scratch=self._scratch,
            threads=self._threads,
            metrics=self._metrics,
        )
        parent = tracing.parent_in(context.invocation_metadata())
        async for response in traced(parent, aiter(request_iterator), call.responses):
            yield response

    def close(self) -> None:
        """Begin no more plug-in code."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _require_coordinator(context: Context) -> None:
    peer = peer_identity(context.auth_context())
    peer.require_current()
    if peer.identity != CALLER:
        raise Forbidden(f"an aggregator answers to {CALLER} alone, not to {peer.identity}.", code="NOT_THE_COORDINATOR")
