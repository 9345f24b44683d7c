"""One node of four answers rubbish of every kind, over real TLS: the job goes on, and the ledger says whose fault it
is."""

from __future__ import annotations

import hashlib
import os
import queue
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from hanse.errors import Forbidden, HanseError, InvalidPayload, NotFound
from hanse.payload import Payload
from hanse.rpc import SESSION_INLINE_LIMIT, error_from_call
from hanse.security import Authority, Identity, channel_credentials, channel_options
from hanse.v1 import node_pb2, node_pb2_grpc, payload_pb2
from tests.chaos.world import World, world

HONEST = ("ada", "ben", "cyn")
LIMIT = 3_000_000


class HostileNode:
    """A node that speaks the protocol by hand. `answer` decides what to send for an assignment."""

    def __init__(self, place: World, answer: Callable[[HostileNode, node_pb2.Assign], None]) -> None:
        authority = Authority.load(place.federation.state / "authority")
        pair = authority.issue(Identity.node("mallory"))
        options = channel_options(server_name="coordinator.hanse.internal", proxy=False)
        self._channel = grpc.secure_channel(
            place.federation.nodes_address, channel_credentials(authority.certificate_pem, pair), options
        )
        self.stub = node_pb2_grpc.NodeServiceStub(self._channel)
        self._answer = answer
        self._outgoing: queue.Queue[node_pb2.NodeEvent | None] = queue.Queue()
        self.assigned: list[node_pb2.Assign] = []
        self.withdrawn: list[payload_pb2.Reason] = []
        self.errors: list[HanseError] = []
        self.ended = threading.Event()
        self._closed = False
        columns = [node_pb2.Column(name=name, dtype="float32") for name in "abcd"]
        hello = node_pb2.Hello(
            version=node_pb2.Version(protocol=1, oldest_protocol=1),
            instance=os.urandom(8),
            methods=["fedscs_xgb"],
            datasets=[node_pb2.DatasetOffer(name="ward", kind="table", rows=99, columns=columns, target="kind")],
        )
        self.say(hello=hello)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def say(self, **event: Any) -> None:
        self._outgoing.put(node_pb2.NodeEvent(**event))

    def inline(self, assign: node_pb2.Assign, image: bytes, *, fence: int | None = None) -> None:
        given = node_pb2.InlineContribution(assignment=assign.assignment, fence=fence or assign.fence, image=image)
        self.say(contribution=given)

    def call(self, method: str, request: Any) -> Any:
        """A unary call; its failure is kept and returned as the domain's error."""
        try:
            return getattr(self.stub, method)(request, timeout=20)
        except grpc.RpcError as error:
            self.errors.append(error_from_call(error, peer="the coordinator"))
            return self.errors[-1]

    def close(self) -> None:
        self._closed = True
        self._outgoing.put(None)
        self._channel.close()

    def _events(self) -> Iterator[node_pb2.NodeEvent]:
        while (event := self._outgoing.get()) is not None:
            yield event

    def _run(self) -> None:
        try:
            for directive in self.stub.Session(self._events()):
                match directive.WhichOneof("directive"):
                    case "offer":
                        accepted = node_pb2.OfferReply.DECISION_ACCEPTED
                        self.say(offer_reply=node_pb2.OfferReply(job=directive.offer.job.id, decision=accepted))
                    case "assign":
                        self.assigned.append(directive.assign)
                        self._answer(self, directive.assign)
                    case "withdraw":
                        self.withdrawn.append(directive.withdraw.reason)
                    case "job_ended":
                        self.ended.set()
        except grpc.RpcError as error:
            if not self._closed:
                self.errors.append(error_from_call(error, peer="the coordinator"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    settings = {"lease": "20s", "largest_payload": LIMIT}
    with world(tmp_path_factory.mktemp("hostile"), coordinator=settings) as made:
        for name in HONEST:
            made.add_site(name)
        mallory = made.add_site("mallory", run=False)
        assert mallory.agent is None
        yield made


def play(place: World, answer: Callable[[HostileNode, node_pb2.Assign], None], **job: Any) -> tuple[HostileNode, str]:
    """A job of one round with three honest nodes and a hostile one; it must succeed without her."""
    node = HostileNode(place, answer)
    try:
        document = {"rounds": 1, "selection": {"minimum_nodes": 4, "quorum": 0.7, "deadline": "1m"}} | job
        submitted = place.submit("job", **document)
        detail = place.until_ended(submitted)
        assert detail.job.state == "succeeded", detail.job.reason
        node.ended.wait(10)
        return node, submitted
    finally:
        node.close()


def verdicts(place: World, job: str) -> list[dict[str, str]]:
    """What the ledger says of mallory, phase by phase."""
    closed = [event for event in place.events("phase_closed") if event.job == job]
    assert closed
    assert all(sorted(event.facts["contributors"]) == sorted(HONEST) for event in closed)
    found = [event.facts["missing"]["mallory"] for event in closed if "mallory" in event.facts["missing"]]
    assert found  # once her session has ended for good she is absent, not missing
    return found


def opaque(size: int = 8) -> bytes:
    kind = payload_pb2.Opaque(type="rubbish")
    return Payload.build(kind, {"x": np.zeros(size, np.uint8)}).image()


def lying_header(nbytes: int) -> bytes:
    header = payload_pb2.PayloadHeader(opaque=payload_pb2.Opaque(type="x"))
    header.arrays.add(name="x", dtype="uint8", shape=[nbytes], encoding=payload_pb2.ENCODING_RAW, nbytes=nbytes)
    data = header.SerializeToString()
    return struct.pack("<4sB3xII", b"HNSP", 1, len(data), 0) + data


@pytest.mark.parametrize(
    ("image", "code"),
    [
        (b"", "INVALID_PAYLOAD"),
        (b"\x80\x04cos\nsystem\n", "INVALID_PAYLOAD"),
        (lying_header(10**12), "INVALID_PAYLOAD"),
        (opaque()[:-3], "INVALID_PAYLOAD"),
        (bytes(SESSION_INLINE_LIMIT + 1), "INVALID_PAYLOAD"),
        (opaque(), ""),
    ],
    ids=["nothing", "a pickle", "one terabyte", "cut short", "too much for a session", "another kind"],
)
def test_bytes_that_are_no_contribution_are_named_and_blamed(place: World, image: bytes, code: str) -> None:
    node, job = play(place, lambda node, assign: node.inline(assign, image))
    for verdict in verdicts(place, job):
        assert verdict["owner"] == "site"
        assert verdict["state"] in {"failed", "rejected"}
        assert verdict["code"] == code or not code
        assert "Traceback" not in verdict["sentence"]
        assert len(verdict["sentence"]) > 10
    assert node.errors == [], "her session was not even ended"


def test_another_nodes_assignment_is_none_of_hers(place: World) -> None:
    def answer(node: HostileNode, assign: node_pb2.Assign) -> None:
        others = [item for item in place.read(lambda view: view.live_assignments()) if item.node != "mallory"]
        done = [item for item in place.read(lambda view: view.assignments(_phase(place, assign))) if item.node == "ada"]
        for item in (others + done)[:1]:
            digest = hashlib.sha256(opaque()).digest()
            opened = node_pb2.OpenUploadRequest(assignment=item.id, fence=item.fence, digest=digest, size=8)
            assert isinstance(node.call("OpenUpload", opened), Forbidden)
            fetch = node_pb2.DownloadRequest(assignment=item.id, digest=digest)
            with pytest.raises(grpc.RpcError):
                list(node.stub.Download(fetch))
        unknown = node_pb2.OpenUploadRequest(assignment="nobody", fence=1, digest=bytes(32), size=8)
        assert isinstance(node.call("OpenUpload", unknown), NotFound)
        node.inline(assign, opaque())

    node, job = play(place, answer)
    assert len(verdicts(place, job)) >= 3
    assert all(isinstance(error, Forbidden | NotFound) for error in node.errors)


def _phase(place: World, assign: node_pb2.Assign) -> str:
    return str(place.read(lambda view: view.assignment(assign.assignment).phase))


def test_an_artifact_that_her_assignment_does_not_speak_of_stays_in_the_house(place: World) -> None:
    refused: list[HanseError] = []

    def answer(node: HostileNode, assign: node_pb2.Assign) -> None:
        given = place.read(lambda view: [c for p in view.phases(assign.job.id) for c in view.contributions(p.id)])
        for item in given[:1]:
            request = node_pb2.DownloadRequest(assignment=assign.assignment, digest=bytes.fromhex(item.digest))
            try:
                list(node.stub.Download(request, timeout=20))
            except grpc.RpcError as error:
                refused.append(error_from_call(error, peer="the coordinator"))
        node.inline(assign, opaque())

    play(place, answer)
    assert refused
    assert {error.code for error in refused} == {"NOT_ENTITLED"}


def test_uploads_that_lie_about_size_or_digest_are_refused_and_cost_nothing(place: World) -> None:
    image = opaque(300_000)

    def upload(node: HostileNode, assign: node_pb2.Assign, digest: bytes, size: int, data: bytes) -> Any:
        opening = node_pb2.OpenUploadRequest(assignment=assign.assignment, fence=assign.fence, digest=digest, size=size)

        def requests() -> Iterator[node_pb2.UploadRequest]:
            yield node_pb2.UploadRequest(open=opening)
            for at in range(0, len(data), 100_000):
                part = data[at : at + 100_000]
                last = at + len(part) == len(data)
                chunk = payload_pb2.PayloadChunk(offset=at, data=part, digest=digest if last else b"")
                yield node_pb2.UploadRequest(chunk=chunk)

        return node.call("Upload", requests())

    def answer(node: HostileNode, assign: node_pb2.Assign) -> None:
        true = hashlib.sha256(image).digest()
        assert isinstance(upload(node, assign, bytes(32), len(image), image), InvalidPayload | HanseError)
        assert isinstance(upload(node, assign, true, len(image), image[:-1] + b"\x01"), HanseError)
        assert isinstance(upload(node, assign, true, len(image) - 5, image), HanseError)
        assert isinstance(upload(node, assign, true, 10**12, image), HanseError)
        old = node_pb2.OpenUploadRequest(assignment=assign.assignment, fence=99, digest=true, size=len(image))
        assert node.call("OpenUpload", old).code == "OLD_FENCE"
        big = opaque(LIMIT + 1)
        too_large = upload(node, assign, hashlib.sha256(big).digest(), len(big), big)
        assert "at most" in str(too_large) or "limit" in str(too_large) or too_large.code == "TOO_LARGE"
        node.inline(assign, opaque())

    node, job = play(place, answer)
    verdicts(place, job)
    assert all(error.code not in {"UNEXPECTED", "UNREACHABLE"} for error in node.errors), node.errors


def test_a_replayed_contribution_changes_nothing_and_a_late_one_is_only_recorded(place: World) -> None:
    """She repeats what she sent for the first phase in every later one."""
    first: list[node_pb2.Assign] = []

    def answer(node: HostileNode, assign: node_pb2.Assign) -> None:
        first.append(assign)
        node.inline(assign, opaque())
        node.inline(first[0], opaque())
        node.inline(first[0], opaque(9))

    node, job = play(place, answer)
    verdicts(place, job)
    kept = place.read(lambda view: view.contribution(first[0].assignment))
    assert kept is not None
    assert kept.digest == hashlib.sha256(opaque()).hexdigest()
    assert any(reason.code == "ALREADY_CONTRIBUTED" for reason in node.withdrawn)


def test_events_that_no_agent_would_send_end_her_session_and_nobody_elses(place: World) -> None:
    def answer(node: HostileNode, assign: node_pb2.Assign) -> None:
        node.say()  # an event without content

    node, job = play(place, answer)
    assert [error.code for error in node.errors] in ([], ["INVALID"])
    assert all(verdict["owner"] == "site" for verdict in verdicts(place, job))
    page = {event.node for event in place.events("node_disconnected")}
    assert not page & set(HONEST)


def test_reasons_from_a_node_are_cut_to_a_bearable_length(place: World) -> None:
    def answer(node: HostileNode, assign: node_pb2.Assign) -> None:
        reason = payload_pb2.Reason(code="X" * 10_000, sentence="<script>" * 10_000, owner="the moon")
        node.say(failed=node_pb2.WorkFailed(assignment=assign.assignment, fence=assign.fence, reason=reason))

    _, job = play(place, answer)
    for verdict in verdicts(place, job):
        assert len(verdict["code"]) <= 100
        assert len(verdict["sentence"]) <= 2000


def test_the_ledger_is_whole_after_all_of_this(place: World, tmp_path: Path) -> None:
    assert place.whole()
