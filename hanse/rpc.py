"""What every Hanse server and client does the same way: errors on the wire, health, reflection, versions.

A `HanseError` raised in a handler reaches the caller as the same reason (code, sentence, owner, remedy);
anything else becomes a sentence without a traceback, and the traceback goes to the log.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NoReturn

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from hanse import __version__
from hanse.errors import (
    Conflict,
    FencedOut,
    Forbidden,
    HanseError,
    MethodError,
    NotFound,
    OperatorError,
    Owner,
    PlatformError,
    Reason,
    SiteError,
    Unauthenticated,
    Unreachable,
    grpc_status_name,
)
from hanse.logs import logger
from hanse.v1 import node_pb2, payload_pb2

REASON_KEY = "hanse-reason-bin"
TIME_KEY = "hanse-time"
"""Trailing metadata of a health check: the server's clock, seconds since 1970."""
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
PROTOCOL = 1
OLDEST_PROTOCOL = 1
INLINE_LIMIT = 256 * 1024
"""Bytes of the largest payload that rides inside the message that speaks of it."""
SESSION_INLINE_LIMIT = 1024 * 1024
"""… inside a session's, where the coordinator allows it (`Assign.inline_limit`): a transfer is a call of its own."""
CHUNK = 1024 * 1024
LONGEST_MESSAGE = 4 * 1024 * 1024


def version(program: str) -> node_pb2.Version:
    """What this program says of itself in a handshake."""
    return node_pb2.Version(protocol=PROTOCOL, oldest_protocol=OLDEST_PROTOCOL, program=f"{program} {__version__}")


def check_version(peer: node_pb2.Version) -> None:
    """Refuse a peer that cannot understand us, or that we cannot understand.

    Raises:
        Conflict: the sentence names both programs and says which one to update.
    """
    name = peer.program or "the peer"
    if peer.protocol < OLDEST_PROTOCOL:
        raise Conflict(
            f"{name} speaks protocol {peer.protocol}; hanse {__version__} needs at least {OLDEST_PROTOCOL}.",
            remedy=f"Update {name.split()[0]}.",
            code="PROTOCOL_TOO_OLD",
        )
    if peer.oldest_protocol > PROTOCOL:
        raise Conflict(
            f"{name} needs protocol {peer.oldest_protocol} or newer; hanse {__version__} speaks {PROTOCOL}.",
            remedy="Update this program.",
            code="PROTOCOL_TOO_NEW",
        )


def to_proto(reason: Reason | None) -> payload_pb2.Reason | None:
    """A reason for the wire."""
    if reason is None:
        return None
    return payload_pb2.Reason(
        code=reason.code, sentence=reason.sentence, owner=reason.owner.value, remedy=reason.remedy
    )


def from_proto(message: payload_pb2.Reason) -> Reason:
    """A reason from the wire. Foreign text is cut to a bearable length."""
    owner = message.owner if message.owner in set(Owner) else Owner.PLATFORM
    return Reason(
        code=message.code[:100] or "UNKNOWN",
        sentence=message.sentence[:2000],
        owner=Owner(owner),
        remedy=message.remedy[:2000],
    )


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: HanseError) -> NoReturn:
    """End a call with an error, its reason in the trailing metadata."""
    reason = to_proto(error.reason)
    assert reason is not None
    await context.abort(
        getattr(grpc.StatusCode, grpc_status_name(error)),
        str(error)[:1500],
        ((REASON_KEY, reason.SerializeToString()),),
    )


_BY_STATUS: dict[grpc.StatusCode, type[HanseError]] = {
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: Conflict,
    grpc.StatusCode.INVALID_ARGUMENT: OperatorError,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: Forbidden,
    grpc.StatusCode.ABORTED: FencedOut,
    grpc.StatusCode.UNAVAILABLE: Unreachable,
    grpc.StatusCode.DEADLINE_EXCEEDED: Unreachable,
    grpc.StatusCode.CANCELLED: Unreachable,
}
_BY_OWNER: dict[Owner, type[HanseError]] = {
    Owner.SITE: SiteError,
    Owner.METHOD: MethodError,
    Owner.OPERATOR: OperatorError,
    Owner.PLATFORM: PlatformError,
}


def error_from_call(error: grpc.RpcError, *, peer: str) -> HanseError:
    """The domain error behind a failed call: the server's own reason where it sent one.

    `peer` is what the reader knows the server by, for instance `coordinator federation.example.org:7443`.
    """
    status = error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else grpc.StatusCode.UNKNOWN
    details = (error.details() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else str(error)) or ""
    metadata = error.trailing_metadata() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else None
    cls = _BY_STATUS.get(status)
    for key, value in metadata or ():
        if key == REASON_KEY and isinstance(value, bytes):
            reason = from_proto(payload_pb2.Reason.FromString(value))
            chosen = cls if cls and cls.owner == reason.owner else _BY_OWNER[reason.owner]
            return chosen(reason.sentence, remedy=reason.remedy, code=reason.code)
    if cls is Unreachable:
        return Unreachable(
            f"{peer} does not answer ({details}).",
            remedy="Check the address, the network and that the server is running.",
        )
    return (cls or PlatformError)(f"{peer} answered {status.name}: {details}")


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns exceptions of handlers into statuses with reasons; no traceback ever reaches a caller."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap the handler of the call."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        if handler.response_streaming:
            inner = handler.stream_stream if handler.request_streaming else handler.unary_stream
            wrapped: Any = _guard_stream(inner, method)
            make = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
        else:
            inner = handler.stream_unary if handler.request_streaming else handler.unary_unary
            wrapped = _guard_unary(_with_time(inner) if method == HEALTH_CHECK else inner, method)
            make = (
                grpc.stream_unary_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_unary_rpc_method_handler
            )
        return make(wrapped, handler.request_deserializer, handler.response_serializer)


def _guard_unary(inner: Any, method: str) -> Any:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await inner(request, context)
        except HanseError as error:
            await abort(context, error)
        except (grpc.aio.AbortError, grpc.aio.BaseError):
            raise
        except Exception as error:  # noqa: BLE001 - the last line of defence: log it, tell the caller plainly
            await _unexpected(context, method, error)

    return call


def _with_time(inner: Any) -> Any:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        context.set_trailing_metadata(((TIME_KEY, f"{time.time():.3f}"),))
        return await inner(request, context)

    return call


def _guard_stream(inner: Any, method: str) -> Any:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        try:
            async for response in inner(request, context):
                yield response
        except HanseError as error:
            await abort(context, error)
        except (grpc.aio.AbortError, grpc.aio.BaseError):
            raise
        except Exception as error:  # noqa: BLE001 - the last line of defence: log it, tell the caller plainly
            await _unexpected(context, method, error)

    return call


async def _unexpected(context: grpc.aio.ServicerContext[Any, Any], method: str, error: Exception) -> NoReturn:
    logger().exception("unexpected error", method=method, error=repr(error))
    await abort(
        context,
        PlatformError(
            f"an unexpected {type(error).__name__} in {method}.",
            remedy="It is a fault of the platform; the server's log has the details.",
            code="UNEXPECTED",
        ),
    )


def listen(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    """Open a port; without credentials, one without TLS. Returns its number.

    Raises:
        OperatorError: the port is taken, or the address is not this machine's.
    """
    try:
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if port == 0:
        raise OperatorError(
            f"cannot listen on {address}.",
            remedy="Is another program on that port, or the address not this machine's? Choose another, or stop it.",
            code="PORT_TAKEN",
        )
    return int(port)


def add_health_and_reflection(server: grpc.aio.Server, services: Sequence[str]) -> health.aio.HealthServicer:
    """Register the standard health service (all `services` NOT_SERVING at first) and reflection."""
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    return servicer


async def set_serving(servicer: health.aio.HealthServicer, services: Sequence[str], serving: bool) -> None:
    """Say whether the services (and the server as a whole) take calls."""
    status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
    for name in ("", *services):
        await servicer.set(name, status)
