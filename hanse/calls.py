"""Why a streaming call ended, in the server's own words.

grpc.aio marks a call INTERNAL when a write fails, and a write fails whenever the server has ended the call. Depending
on which is noticed first, the mark stands until the server's status arrives, or replaces it. Without care, a refusal
with its reason ("revoked", "too large") would now and then look like a fault of the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc
import grpc.aio

from hanse.errors import HanseError, PlatformError
from hanse.rpc import error_from_call

WRITE_FAILED = (grpc.RpcError, grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError)
"""What `write` and `done_writing` raise when the call has ended."""

_PATIENCE_S = (0.0, 0.0, 0.001, 0.01, 0.05, 0.2)
_T = TypeVar("_T")


class CallEnd:
    """Watches one call from its beginning, and knows how it ended."""

    def __init__(self, call: Any, *, peer: str) -> None:
        """`call` is a call of `grpc.aio` that streams; `peer` names the server in errors."""
        self._call = call
        self._peer = peer
        self._first: grpc.aio.AioRpcError | None = None
        call.add_done_callback(lambda _: self._note())

    async def error(self) -> HanseError | None:
        """Why the call ended, once it has; None when it ended well.

        For an ended call, or one that is about to end since a write failed.
        """
        await self._call.code()
        for pause in _PATIENCE_S:
            status = _at_once(self._status())
            for each in (self._first, status):
                if each is not None and each.code() is not grpc.StatusCode.INTERNAL:
                    return None if each.code() is grpc.StatusCode.OK else error_from_call(each, peer=self._peer)
            await asyncio.sleep(pause)
        return error_from_call(status, peer=self._peer) if status is not None else PlatformError("the call broke.")

    def _note(self) -> None:
        if self._first is None:
            self._first = _at_once(self._status())

    async def _status(self) -> grpc.aio.AioRpcError:
        return grpc.aio.AioRpcError(
            await self._call.code(),
            await self._call.initial_metadata(),
            await self._call.trailing_metadata(),
            await self._call.details(),
        )


def _at_once(status: Coroutine[Any, Any, _T]) -> _T | None:
    """The result of a coroutine that has nothing left to wait for; None if it has."""
    try:
        status.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    status.close()
    return None
