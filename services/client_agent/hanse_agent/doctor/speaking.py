"""What only a certificate lets one examine: gRPC itself, the coordinator's clock, and a stream that idles."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hanse.rpc import TIME_KEY
from hanse.security import Address, KeyPair
from hanse_agent.doctor.findings import Finding, failed, ok, skipped, warning
from hanse_agent.doctor.network import PATIENCE_S, Trust, cut
from hanse_agent.identity import open_channel

TOLERATED_S = 5.0
WRONG_S = 60.0


async def examine_speech(address: Address, trust: Trust, pair: KeyPair, idle_s: float) -> AsyncIterator[Finding]:
    """HTTP/2, clock and the idle connection, over a channel that is made as the agent's own."""
    channel, _ = open_channel(address, authority_pem=trust.authority_pem, pair=pair, server_name=trust.server_name)
    try:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await channel.channel_ready()
        except TimeoutError:
            yield failed(
                "http2",
                f"TLS reaches {address}, but HTTP/2 does not come about.",
                cause="A proxy or load balancer on the way does not carry HTTP/2, or the coordinator refuses this "
                "node's certificate.",
                remedy="Let it pass TLS through untouched (layer 4); see also the line for the certificate.",
            )
            yield skipped("clock", "needs HTTP/2")
            yield skipped("idle", "needs HTTP/2")
            return
        yield ok("http2", f"HTTP/2 and gRPC reach {address}")
        yield await _clock(channel)
        yield await _idle(channel, address, idle_s)
    finally:
        await channel.close()


async def _clock(channel: grpc.aio.Channel) -> Finding:
    sent = time.time()
    call = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    try:
        await call
    except grpc.RpcError as error:
        return skipped("clock", f"the coordinator does not answer a health check ({error})")
    received = time.time()
    told = dict(await call.trailing_metadata() or ()).get(TIME_KEY)
    if told is None:
        return skipped("clock", "the coordinator is of an older release and does not tell its time")
    return judged(float(told) - (sent + received) / 2)


def judged(skew: float) -> Finding:
    """The finding for a clock that is `skew` seconds behind the coordinator's (negative: ahead)."""
    said = f"This machine's clock is {abs(skew):.0f} s {'behind' if skew > 0 else 'ahead of'} the coordinator's."
    facts = {"skew_s": round(skew, 3)}
    cause = "The clock is not kept by a time server."
    remedy = "Have it kept: timedatectl set-ntp true, or your site's own way."
    if abs(skew) > WRONG_S:
        return failed("clock", said, cause=cause, remedy=remedy, **facts)
    if abs(skew) > TOLERATED_S:
        return warning("clock", said, cause=cause, remedy=remedy, **facts)
    return ok("clock", f"within {max(abs(skew), 0.1):.1f} s of the coordinator's", **facts)


async def _idle(channel: grpc.aio.Channel, address: Address, seconds: float) -> Finding:
    if seconds <= 0:
        return skipped("idle", "not asked for (--idle 0s)")
    begun = time.monotonic()
    try:
        async with asyncio.timeout(seconds):
            await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
    except TimeoutError:
        return ok("idle", f"an idle connection was still good after {seconds:.0f} s", seconds=round(seconds, 1))
    return cut(address, time.monotonic() - begun)
