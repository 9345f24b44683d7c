"""What a coordinator that is told to stop still waits for: uploads that are running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

__all__ = ["RunningUploads"]

_UPLOAD = "/hanse.v1.NodeService/Upload"


class RunningUploads(grpc.aio.ServerInterceptor):
    """Counts the uploads that a server is taking at the moment."""

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    # No `__len__`: an interceptor that is false when it is empty would be passed over by gRPC, with all after it.
    @property
    def count(self) -> int:
        """How many run now."""
        return self._count

    async def finish(self, within_s: float) -> int:
        """Wait until no upload runs, at most so long; returns how many still do."""
        try:
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        except TimeoutError:
            return self._count
        return 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of an upload."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method != _UPLOAD:
            return handler

        async def counted(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            self._count += 1
            self._idle.clear()
            try:
                return await handler.stream_unary(requests, context)
            finally:
                self._count -= 1
                if not self._count:
                    self._idle.set()

        return grpc.stream_unary_rpc_method_handler(counted, handler.request_deserializer, handler.response_serializer)
