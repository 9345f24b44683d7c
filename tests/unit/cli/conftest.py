"""A coordinator's control port, played by a servicer in a thread: real TLS, real tokens, canned answers."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
import yaml

from hanse import logs
from hanse.cli.app import run
from hanse.errors import HanseError, NotFound, Unauthenticated
from hanse.payload import Payload
from hanse.rpc import ErrorInterceptor, version
from hanse.security import Authority, Identity, OperatorToken, ServerCertificate, server_options
from hanse.v1 import control_pb2, control_pb2_grpc, payload_pb2

HEAD = payload_pb2.LedgerHead(sequence=7, hash=bytes(range(32)))
MODEL = Payload.build(
    payload_pb2.Opaque(type="test", document=b"{}"),
    {"model.ubj": np.frombuffer(b"booster", np.uint8), "card.md": np.frombuffer(b"# card", np.uint8)},
)


class FakeControl(control_pb2_grpc.ControlServiceServicer):
    """Canned answers; `fail` makes a method raise, `watched` is what WatchJob streams, `requests` what was asked."""

    def __init__(self) -> None:
        self.token = OperatorToken.create()
        self.fail: dict[str, Exception] = {}
        self.requests: list[tuple[str, Any]] = []
        self.job = control_pb2.Job(
            id="j1", name="activity", method="fedscs_xgb", dataset="activity", state="running", rounds=4, round=2,
            since=1.7e9, submitted_at=1.7e9, submitted_by="ada",
        )  # fmt: skip
        self.node = control_pb2.Node(
            name="ward-3", trust="pending", health="online", last_seen=1.7e9, fingerprint="babab-babad-babaf"
        )
        self.model = MODEL
        self.pictures: dict[str, tuple[control_pb2.PictureRow, Payload]] = {}
        self.model_digest = MODEL.digest.hex()
        self.watched: list[control_pb2.JobDetail | HanseError | grpc.StatusCode] = []
        self.whole = True
        self.program = version("hanse-coordinator")

    def _take(self, method: str, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        shown = OperatorToken.from_metadata(context.invocation_metadata() or ())
        if not shown.matches(self.token.digest):
            raise Unauthenticated("This token is not known here.", remedy="Ask for another.", code="TOKEN_UNKNOWN")
        self.requests.append((method, request))
        if method in self.fail:
            raise self.fail[method]

    def asked(self, method: str) -> Any:
        """The last request of that method."""
        return next(request for name, request in reversed(self.requests) if name == method)

    def detail(self, state: str = "", **changes: Any) -> control_pb2.JobDetail:
        job = control_pb2.Job()
        job.CopyFrom(self.job)
        job.state = state or job.state
        reason = changes.pop("reason", None)
        if reason is not None:
            job.reason.CopyFrom(reason)
        return control_pb2.JobDetail(
            job=job,
            specification=json.dumps({"name": "activity"}).encode(),
            phase=control_pb2.Phase(
                id="p", name="atoms", round=2, attempt=1, state="collecting", quorum=2,
                assignments=[
                    control_pb2.AssignmentRow(id="a", node="n1", state="delivered"),
                    control_pb2.AssignmentRow(id="b", node="n2", state="leased", stage="train", fraction=0.25),
                    control_pb2.AssignmentRow(id="c", node="n3", state="expired"),
                ],
            ),
            participation=[control_pb2.Participation(node="n1", decision="accepted", bytes=2_000)],
            metrics=[control_pb2.MetricRow(name="accuracy", value=0.875, scope="pooled", round=2)],
            seconds_left=changes.pop("seconds_left", -1.0),
            model_digest=self.model_digest,
            sequence=7,
            pictures=[row for row, _ in self.pictures.values()],
        )  # fmt: skip

    async def GetFederation(self, request, context):
        self._take("GetFederation", request, context)
        return control_pb2.Federation(version=self.program, name="test", head=HEAD, role="admin", caller="ada")

    async def InviteNode(self, request, context):
        self._take("InviteNode", request, context)
        return control_pb2.Invitation(id="i1", text="HNS1_SECRET_TEXT", expires_at=1.7e9)

    async def ListNodes(self, request, context):
        self._take("ListNodes", request, context)
        return control_pb2.ListNodesResponse(nodes=[self.node])

    async def ApproveNode(self, request, context):
        self._take("ApproveNode", request, context)
        self.node.trust = "approved"
        return self.node

    async def RevokeNode(self, request, context):
        self._take("RevokeNode", request, context)
        self.node.trust = "revoked"
        return self.node

    async def SubmitJob(self, request, context):
        self._take("SubmitJob", request, context)
        return self.job

    async def ListJobs(self, request, context):
        self._take("ListJobs", request, context)
        if not request.after:  # two pages
            return control_pb2.ListJobsResponse(jobs=[self.job], next="j1")
        return control_pb2.ListJobsResponse(jobs=[control_pb2.Job(id="j0", name="older", state="succeeded")])

    async def GetJob(self, request, context):
        self._take("GetJob", request, context)
        if request.job not in (self.job.id, self.job.name):
            raise NotFound(f"There is no job {request.job}.", remedy="See `hanse job list`.")
        return self.detail()

    async def WatchJob(self, request, context) -> AsyncIterator[Any]:
        self._take("WatchJob", request, context)
        while self.watched:
            item = self.watched.pop(0)
            if isinstance(item, HanseError):
                raise item
            if isinstance(item, grpc.StatusCode):
                await context.abort(item, "gone")
            yield item
        await asyncio.sleep(60)

    async def CancelJob(self, request, context):
        self._take("CancelJob", request, context)
        self.job.state = "cancelled"
        return self.job

    async def PauseJob(self, request, context):
        self._take("PauseJob", request, context)
        self.job.state = "paused"
        return self.job

    async def ResumeJob(self, request, context):
        self._take("ResumeJob", request, context)
        self.job.state = "running"
        return self.job

    async def ListEvents(self, request, context):
        self._take("ListEvents", request, context)
        body = json.dumps({"sequence": 7, "body": {"why": "heat"}}).encode()
        event = control_pb2.Event(sequence=7, at=1.7e9, kind="job.paused", job="j1", actor="ada", body=body, hash=b"h")
        return control_pb2.ListEventsResponse(events=[event])

    async def VerifyLedger(self, request, context):
        self._take("VerifyLedger", request, context)
        if self.whole:
            return control_pb2.VerifyLedgerResponse(
                whole=True, events=7, head=HEAD, sentence="The trail of 7 events is whole."
            )
        return control_pb2.VerifyLedgerResponse(
            whole=False, events=3, head=HEAD, first_bad=4, sentence="Event 4 was changed."
        )

    async def PullModel(self, request, context) -> AsyncIterator[payload_pb2.PayloadChunk]:
        self._take("PullModel", request, context)
        for chunk in halves(self.model):
            yield chunk

    def show_picture(self, name: str, kind: str, payload: Payload) -> None:
        """The job has made a picture in round 2."""
        row = control_pb2.PictureRow(name=name, kind=kind, title=f"the {name}", round=2, digest=payload.digest.hex())
        self.pictures[payload.digest.hex()] = row, payload

    async def PullArtifact(self, request, context) -> AsyncIterator[payload_pb2.PayloadChunk]:
        self._take("PullArtifact", request, context)
        for chunk in halves(self.pictures[request.digest.hex()][1]):
            yield chunk

    async def CreateToken(self, request, context):
        self._take("CreateToken", request, context)
        token = control_pb2.OperatorToken(id="t1", name=request.name, role=request.role, expires_at=1.7e9)
        return control_pb2.CreatedToken(token=token, secret="hanse_t1_secret")

    async def ListTokens(self, request, context):
        self._take("ListTokens", request, context)
        return control_pb2.ListTokensResponse(tokens=[control_pb2.OperatorToken(id="t1", name="ada", role="admin")])

    async def RevokeToken(self, request, context):
        self._take("RevokeToken", request, context)
        return control_pb2.OperatorToken(id=request.id, name="ada", revoked_at=1.7e9)


def halves(payload: Payload) -> list[payload_pb2.PayloadChunk]:
    """A payload on its way, in two chunks."""
    image = payload.image()
    half = len(image) // 2
    return [
        payload_pb2.PayloadChunk(offset=0, data=image[:half]),
        payload_pb2.PayloadChunk(offset=half, data=image[half:], digest=hashlib.sha256(image).digest()),
    ]


@dataclass
class Served:
    """A fake coordinator and the state folder that points to it."""

    control: FakeControl
    state: Path
    port: int
    stop: Callable[[], None]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def served(authority: Authority, tmp_path: Path) -> Iterator[Served]:
    logs.configure(stream=io.StringIO())  # the server's own log is not the command line's output
    control = FakeControl()
    port, stop = _serve(control, authority)
    state = tmp_path / "state"
    state.mkdir()
    (state / "authority.crt").write_bytes(authority.certificate_pem)
    (state / "admin.token").write_text(control.token.text() + "\n")
    (state / "client.yaml").write_text(
        yaml.safe_dump({"coordinator": f"127.0.0.1:{port}", "authority": "authority.crt", "token_file": "admin.token"})
    )
    yield Served(control, state, port, stop)
    stop()


def _serve(control: FakeControl, authority: Authority) -> tuple[int, Callable[[], None]]:
    bound: list[int] = []
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    end = asyncio.Event()

    async def main() -> None:
        server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=server_options())
        control_pb2_grpc.add_ControlServiceServicer_to_server(control, server)
        pair = authority.issue(Identity.service("coordinator"))
        credentials = ServerCertificate(pair).server_only_credentials()
        bound.append(server.add_secure_port("127.0.0.1:0", credentials))
        await server.start()
        ready.set()
        await end.wait()
        await server.stop(0)

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    assert ready.wait(10)

    def stop() -> None:
        if thread.is_alive():
            loop.call_soon_threadsafe(end.set)
            thread.join(10)

    return bound[0], stop


@dataclass
class Result:
    """What a run of the command line left behind."""

    code: int
    out: str
    err: str
    document: dict[str, Any] = field(default_factory=dict)


Cli = Callable[..., Result]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """Run `hanse …` in this process, in an empty folder and without settings of the environment."""
    for name in ("HANSE_STATE", "HANSE_COORDINATOR", "HANSE_AUTHORITY", "HANSE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path) -> Result:
        texts = [str(argument) for argument in arguments]
        code = run(texts)
        out, err = capsys.readouterr()
        return Result(code, out, err, json.loads(out) if "--json" in texts else {})

    return call


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text("name: activity\nmethod: fedscs_xgb\ndataset: activity\nrounds: 4\n")
    return path
