"""A coordinator that is told to stop: uploads that run are waited for, work that is held stays here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from hanse.v1 import node_pb2, node_pb2_grpc
from hanse_coordinator.drain import RunningUploads
from hanse_coordinator.sessions import NodeSession

PATIENCE_S = 60.0


class Slow(node_pb2_grpc.NodeServiceServicer):
    """Takes an upload until its sender is done."""

    async def Upload(self, request_iterator: AsyncIterator[Any], context: Any) -> node_pb2.Receipt:
        async for _ in request_iterator:
            pass
        return node_pb2.Receipt(assignment="a")


async def served(uploads: RunningUploads) -> tuple[grpc.aio.Server, grpc.aio.Channel]:
    server = grpc.aio.server(interceptors=[uploads])
    node_pb2_grpc.add_NodeServiceServicer_to_server(Slow(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)])


def test_uploads_that_run_are_waited_for_but_not_for_ever() -> None:
    async def scenario() -> None:
        uploads = RunningUploads()
        server, channel = await served(uploads)
        assert await uploads.finish(0) == 0
        call: Any = node_pb2_grpc.NodeServiceStub(channel).Upload()
        await call.write(node_pb2.UploadRequest())
        async with asyncio.timeout(PATIENCE_S):
            while not uploads.count:
                await asyncio.sleep(0.01)
        assert await uploads.finish(0.05) == 1
        finishing = asyncio.create_task(uploads.finish(PATIENCE_S))
        await call.done_writing()
        assert (await call).assignment == "a"
        assert await finishing == 0
        await channel.close()
        await server.stop(None)

    asyncio.run(scenario())


def test_a_session_that_is_held_gives_out_no_more_work() -> None:
    session = NodeSession("ward", node_pb2.Hello())
    session.held = True
    session.send(assign=node_pb2.Assign(assignment="a"))
    session.send(offer=node_pb2.Offer())
    session.send(receipt=node_pb2.Receipt(assignment="b"))
    directive = session.outgoing.get_nowait()
    assert isinstance(directive, node_pb2.Directive)
    assert directive.WhichOneof("directive") == "receipt"
    assert session.outgoing.empty()
