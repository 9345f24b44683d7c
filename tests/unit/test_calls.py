"""How a call ended, however the ends of it race."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc
import grpc.aio

from hanse.calls import WRITE_FAILED, CallEnd
from hanse.errors import Forbidden
from hanse.rpc import ErrorInterceptor
from hanse.v1 import node_pb2, node_pb2_grpc, payload_pb2


class Refusing(node_pb2_grpc.NodeServiceServicer):
    async def Upload(self, request_iterator, context):
        raise Forbidden("node-1 was revoked.", code="REVOKED")


class Satisfied(node_pb2_grpc.NodeServiceServicer):
    async def Upload(self, request_iterator, context):
        return node_pb2.Receipt(assignment="a-1")


async def ends(servicer: node_pb2_grpc.NodeServiceServicer, calls: int) -> Counter:
    """Write until the server has had enough; count how that is told."""
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    node_pb2_grpc.add_NodeServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    request = node_pb2.UploadRequest(chunk=payload_pb2.PayloadChunk(data=bytes(100_000)))
    found: Counter = Counter()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = node_pb2_grpc.NodeServiceStub(channel)
        for _ in range(calls):
            call = stub.Upload()
            end = CallEnd(call, peer="the coordinator")
            try:
                while True:
                    await call.write(request)
            except WRITE_FAILED:
                error = await end.error()
                found[(type(error), getattr(error, "code", ""))] += 1
    await server.stop(None)
    return found


def test_a_refusal_while_writing_is_told_in_the_servers_own_words():
    assert asyncio.run(ends(Refusing(), 300)) == {(Forbidden, "REVOKED"): 300}


def test_a_server_that_has_all_it_wants_is_no_error():
    assert asyncio.run(ends(Satisfied(), 100)) == {(type(None), ""): 100}
