"""What operators call. Every call shows a token; its role decides, and a refusal names the role that is needed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import grpc.aio

from hanse.artifacts import ArtifactStore
from hanse.errors import HanseError, NotFound, OperatorError
from hanse.jobs import JobSpecification
from hanse.ledger import Job, JobState, View, verify
from hanse.ledger.records import OperatorToken as TokenRecord
from hanse.payload.desk import serve
from hanse.rpc import check_version, version
from hanse.security import OperatorToken, Role
from hanse.settings import validate
from hanse.v1 import control_pb2, control_pb2_grpc, payload_pb2
from hanse_coordinator import views
from hanse_coordinator.aggregators import AggregatorPool
from hanse_coordinator.engine import Engine
from hanse_coordinator.ledger_thread import LedgerThread
from hanse_coordinator.membership import Membership
from hanse_coordinator.node_service import PROGRAM, NodeService
from hanse_coordinator.operator_tokens import add_token, check_role, require, revoke_token
from hanse_coordinator.sessions import Sessions
from hanse_coordinator.states import JobEvent

__all__ = ["ControlService"]

Context = grpc.aio.ServicerContext[Any, Any]
_PAGE = 200
_LONGEST_TOKEN = timedelta(days=366)
_WATCH_PAUSE = 0.3


class ControlService(control_pb2_grpc.ControlServiceServicer):
    """The control port's service."""

    def __init__(
        self,
        *,
        name: str,
        engine: Engine,
        membership: Membership,
        nodes: NodeService,
        sessions: Sessions,
        ledger: LedgerThread,
        store: ArtifactStore,
        aggregators: AggregatorPool,
    ) -> None:
        self._name = name
        self._engine = engine
        self._membership = membership
        self._nodes = nodes
        self._sessions = sessions
        self._ledger = ledger
        self._store = store
        self._aggregators = aggregators

    async def _require(self, context: Context, role: Role) -> TokenRecord:
        """The caller, who must hold at least `role`; see `operator_tokens.require`."""
        shown = OperatorToken.from_metadata(context.invocation_metadata() or ())
        return await require(self._ledger, shown, role)

    # ---- Federation
    async def GetFederation(  # noqa: N802 - the contract's names
        self, request: control_pb2.GetFederationRequest, context: Context
    ) -> control_pb2.Federation:
        """Who we are and how we are."""
        caller = await self._require(context, Role.VIEWER)
        check_version(request.version)
        total = await self._ledger.read(lambda view: view.count_nodes()[1])
        try:
            methods = sorted(await self._aggregators.describe())
        except HanseError:
            methods = []
        return control_pb2.Federation(
            version=version(PROGRAM),
            name=self._name,
            nodes_online=len(self._sessions),
            nodes_total=total,
            head=payload_pb2.LedgerHead(sequence=self._ledger.head.sequence, hash=self._ledger.head.hash),
            methods=methods,
            role=caller.role,
            caller=caller.name,
        )

    # ---- Nodes
    async def InviteNode(  # noqa: N802
        self, request: control_pb2.InviteNodeRequest, context: Context
    ) -> control_pb2.Invitation:
        """Make an invitation; its text is shown this once."""
        caller = await self._require(context, Role.OPERATOR)
        invitation = await self._membership.invite(
            request.name,
            labels=dict(request.labels),
            valid=_seconds(request.valid_s, "valid"),
            pre_approved=request.pre_approved,
            again=request.again,
            actor=caller.name,
        )
        return control_pb2.Invitation(
            id=invitation.invitation_id, text=invitation.text(), expires_at=invitation.expires_at.timestamp()
        )

    async def ListNodes(  # noqa: N802
        self, request: control_pb2.ListNodesRequest, context: Context
    ) -> control_pb2.ListNodesResponse:
        """Nodes in order of name, a page at a time."""
        await self._require(context, Role.VIEWER)
        limit = min(request.limit or _PAGE, _PAGE)

        def read(view: View) -> tuple[list[Any], dict[str, float]]:
            return view.nodes(after=request.after, limit=limit + 1), view.certificates_expire()

        nodes, expiry = await self._ledger.read(read)
        shown = [self._show(node, expiry) for node in nodes[:limit]]
        return control_pb2.ListNodesResponse(nodes=shown, next=shown[-1].name if len(nodes) > limit else "")

    def _show(self, node: Any, expiry: dict[str, float]) -> control_pb2.Node:
        session = self._sessions.get(node.name)
        silent = session is not None and session in self._sessions.silent()
        return views.node(node, online=session is not None, silent=silent, expires=expiry.get(node.name, 0.0))

    async def ApproveNode(  # noqa: N802
        self, request: control_pb2.ApproveNodeRequest, context: Context
    ) -> control_pb2.Node:
        """Approve the key that waits at a node."""
        caller = await self._require(context, Role.OPERATOR)
        if not request.fingerprint and not request.unchecked:
            raise OperatorError(
                "no fingerprint was given.",
                remedy="Compare the words that `hanse-agent join` shows and give them; or say that you did not check.",
                code="FINGERPRINT_MISSING",
            )
        fingerprint = "" if request.unchecked else request.fingerprint
        node = await self._membership.approve(request.name, fingerprint=fingerprint, actor=caller.name)
        return self._show(node, {})

    async def RevokeNode(  # noqa: N802
        self, request: control_pb2.RevokeNodeRequest, context: Context
    ) -> control_pb2.Node:
        """Revoke a node; its open session ends at once."""
        caller = await self._require(context, Role.OPERATOR)
        node = await self._membership.revoke(request.name, why=request.why, actor=caller.name)
        await self._nodes.revoked(request.name)
        return self._show(node, {})

    # ---- Jobs
    async def SubmitJob(  # noqa: N802
        self, request: control_pb2.SubmitJobRequest, context: Context
    ) -> control_pb2.Job:
        """Take a job."""
        caller = await self._require(context, Role.RESEARCHER)
        try:
            document = json.loads(request.specification)
        except (ValueError, RecursionError):
            raise OperatorError("the job's specification is not JSON.", code="INVALID_CONFIGURATION") from None
        if not isinstance(document, dict):
            raise OperatorError("the job's specification must be an object.", code="INVALID_CONFIGURATION")
        spec = validate(JobSpecification, document, source="job")
        job = await self._engine.submit(spec, actor=caller.name, continue_from=request.continue_from)
        return views.job(job)

    async def ListJobs(  # noqa: N802
        self, request: control_pb2.ListJobsRequest, context: Context
    ) -> control_pb2.ListJobsResponse:
        """Jobs, newest first, a page at a time."""
        await self._require(context, Role.VIEWER)
        limit = min(request.limit or _PAGE, _PAGE)
        unknown = set(request.states) - set(JobState)
        if unknown:
            raise OperatorError(f"'{min(unknown)}' is no state of a job.", remedy=f"Known: {', '.join(JobState)}.")
        states = [JobState(state) for state in request.states]
        jobs = await self._ledger.read(lambda view: view.jobs(after=request.after, limit=limit + 1, states=states))
        shown = [views.job(job) for job in jobs[:limit]]
        return control_pb2.ListJobsResponse(jobs=shown, next=shown[-1].id if len(jobs) > limit else "")

    async def GetJob(  # noqa: N802
        self, request: control_pb2.GetJobRequest, context: Context
    ) -> control_pb2.JobDetail:
        """Everything about a job."""
        await self._require(context, Role.VIEWER)
        return await self._detail(await self._engine.find(request.job))

    async def WatchJob(  # noqa: N802
        self, request: control_pb2.GetJobRequest, context: Context
    ) -> AsyncIterator[control_pb2.JobDetail]:
        """A job now, and again whenever it changes, until it has ended."""
        await self._require(context, Role.VIEWER)
        job = await self._engine.find(request.job)
        changed, stop = self._engine.watch(job.id)
        try:
            while True:
                changed.clear()
                detail = await self._detail(job)
                yield detail
                if JobState(detail.job.state).ended:
                    return
                await changed.wait()
                await self._burst(job, changed)
        finally:
            stop()

    async def _burst(self, job: Job, changed: asyncio.Event) -> None:
        """Changes come in bursts, which a person sees as one; the end of the job is told at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_WATCH_PAUSE):
                while self._engine.runner(job.id) is not None:
                    changed.clear()
                    await changed.wait()

    async def _detail(self, job: Job) -> control_pb2.JobDetail:
        live = self._engine.runner(job.id)
        return await self._ledger.read(lambda view: views.job_detail(view, job.id, live))

    async def CancelJob(  # noqa: N802
        self, request: control_pb2.ChangeJobRequest, context: Context
    ) -> control_pb2.Job:
        """End a job for good."""
        return await self._change(request, context, JobEvent.CANCEL)

    async def PauseJob(  # noqa: N802
        self, request: control_pb2.ChangeJobRequest, context: Context
    ) -> control_pb2.Job:
        """Stop a job until it is resumed."""
        return await self._change(request, context, JobEvent.PAUSE)

    async def ResumeJob(  # noqa: N802
        self, request: control_pb2.ChangeJobRequest, context: Context
    ) -> control_pb2.Job:
        """Go on with a paused job."""
        return await self._change(request, context, JobEvent.RESUME)

    async def _change(
        self, request: control_pb2.ChangeJobRequest, context: Context, event: JobEvent
    ) -> control_pb2.Job:
        caller = await self._require(context, Role.RESEARCHER)
        return views.job(await self._engine.command(request.job, event, actor=caller.name, why=request.why[:1000]))

    # ---- Ledger and artifacts
    async def ListEvents(  # noqa: N802
        self, request: control_pb2.ListEventsRequest, context: Context
    ) -> control_pb2.ListEventsResponse:
        """The audit trail, a page at a time."""
        await self._require(context, Role.VIEWER)
        limit = min(request.limit or _PAGE, 1000)
        events = await self._ledger.read(
            lambda view: view.events(
                after=request.after, limit=limit + 1, job=request.job or None, node=request.node or None
            )
        )
        shown = [views.event(event) for event in events[:limit]]
        return control_pb2.ListEventsResponse(events=shown, next=shown[-1].sequence if len(events) > limit else 0)

    async def VerifyLedger(  # noqa: N802
        self, request: control_pb2.VerifyLedgerRequest, context: Context
    ) -> control_pb2.VerifyLedgerResponse:
        """Check the whole chain, and that it holds the heads that somebody saw earlier."""
        await self._require(context, Role.VIEWER)
        against = [(head.sequence, head.hash) for head in request.against]
        result = await self._ledger.read_aside(lambda view: verify(view, against))
        return control_pb2.VerifyLedgerResponse(
            whole=result.whole,
            events=result.events,
            head=payload_pb2.LedgerHead(sequence=result.head.sequence, hash=result.head.hash),
            first_bad=result.first_bad or 0,
            sentence=result.sentence,
        )

    async def PullModel(  # noqa: N802
        self, request: control_pb2.PullModelRequest, context: Context
    ) -> AsyncIterator[payload_pb2.PayloadChunk]:
        """The newest model of a job."""
        await self._require(context, Role.RESEARCHER)
        job = await self._engine.find(request.job)
        if not job.model_digest:
            raise NotFound(
                f"job '{job.name}' ({job.state.value}) has no model yet.", remedy="Wait for it.", code="NO_MODEL"
            )
        if request.format:
            raise OperatorError(
                f"method '{job.method}' exports its models in its own format alone, not as '{request.format[:40]}'.",
                remedy="Leave the format out.",
                code="UNKNOWN_FORMAT",
            )
        async for chunk in serve(self._store, bytes.fromhex(job.model_digest)):
            yield chunk

    async def PullArtifact(  # noqa: N802
        self, request: control_pb2.PullArtifactRequest, context: Context
    ) -> AsyncIterator[payload_pb2.PayloadChunk]:
        """A stored picture, or a model for whom may pull models. What nodes contributed is not given out."""
        caller = await self._require(context, Role.VIEWER)
        known = await self._ledger.read(lambda view: view.artifact(request.digest.hex()))
        if known is None or known.kind not in {"picture", "model"}:
            raise NotFound(f"there is no picture or model {request.digest.hex()[:12]}….")
        if known.kind == "model":
            check_role(caller, Role.RESEARCHER)
        async for chunk in serve(self._store, request.digest):
            yield chunk

    # ---- Tokens
    async def CreateToken(  # noqa: N802
        self, request: control_pb2.CreateTokenRequest, context: Context
    ) -> control_pb2.CreatedToken:
        """Make a token; its secret is shown this once."""
        caller = await self._require(context, Role.ADMIN)
        role, valid = Role.parse(request.role), _seconds(request.valid_s, "valid")
        if not request.name or len(request.name) > 100:
            raise OperatorError("a token needs a name of 1 to 100 characters.", code="INVALID_NAME")
        if valid > _LONGEST_TOKEN:
            raise OperatorError(f"a token can be valid for at most {_LONGEST_TOKEN.days} days.")
        secret = OperatorToken.create()
        record = await self._ledger.write(
            lambda tx: add_token(tx, secret, name=request.name, role=role, valid=valid, actor=caller.name)
        )
        return control_pb2.CreatedToken(token=views.token(record), secret=secret.text())

    async def ListTokens(  # noqa: N802
        self, request: control_pb2.ListTokensRequest, context: Context
    ) -> control_pb2.ListTokensResponse:
        """All tokens, without their secrets."""
        await self._require(context, Role.ADMIN)
        tokens = await self._ledger.read(lambda view: view.tokens())
        return control_pb2.ListTokensResponse(tokens=[views.token(item) for item in tokens])

    async def RevokeToken(  # noqa: N802
        self, request: control_pb2.RevokeTokenRequest, context: Context
    ) -> control_pb2.OperatorToken:
        """Revoke a token; its next call is refused."""
        caller = await self._require(context, Role.ADMIN)
        record = await self._ledger.write(lambda tx: revoke_token(tx, request.id, actor=caller.name))
        return views.token(record)


def _seconds(value: float, what: str) -> timedelta:
    if not 0 < value < 10**9:
        raise OperatorError(f"'{what}' must be a time above zero, not {value:g} s.", code="INVALID_LIFETIME")
    return timedelta(seconds=value)
