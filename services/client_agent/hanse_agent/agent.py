"""One node identity at work: it keeps a session, answers offers, has assignments performed, and leaves in order."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from hanse.errors import Forbidden, HanseError, PlatformError, Unauthenticated, Unreachable
from hanse.logs import logger
from hanse.rpc import version
from hanse.v1 import node_pb2
from hanse_agent.approvals import Approvals
from hanse_agent.catalogue import Catalogue
from hanse_agent.delivery import Delivery
from hanse_agent.directives import Directives
from hanse_agent.egress import EgressJournal
from hanse_agent.folder import StateFolder, utc_now
from hanse_agent.heads import LedgerHeads
from hanse_agent.identity import NodeIdentity, all_addresses
from hanse_agent.jobs import Jobs
from hanse_agent.link import Links
from hanse_agent.offers import Offers
from hanse_agent.performing import Performing
from hanse_agent.pool import WorkerPool
from hanse_agent.probing import explained
from hanse_agent.reconnecting import Reconnecting
from hanse_agent.renewal import keep_renewed
from hanse_agent.session import Session
from hanse_agent.settings import AgentConfig
from hanse_agent.spooled import Task
from hanse_agent.status import StatusBoard, dataset_dict, work_dict
from hanse_agent.work import Workbench

DRAIN_S = 20.0
RETRY_DATASETS_S = 60.0


class NodeAgent:
    """A node. `run` until `stop`, or until the coordinator will not have it any more."""

    def __init__(self, config: AgentConfig, pool: WorkerPool) -> None:
        """Set up; nothing is opened or sent yet.

        Raises:
            SiteError: the node has not joined.
            Unauthenticated: its certificate ran out.
        """
        self.config = config
        self.folder = StateFolder(config.state)
        self.identity = NodeIdentity.require(self.folder.identity)
        self.identity.require_current()
        self.node = self.identity.node
        self._log = logger(node=self.node)
        self._instance = secrets.token_bytes(16)
        self._links = Links()
        self._stopping = asyncio.Event()
        self._greet_anew = asyncio.Event()
        self._session: Session | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._fault: HanseError | None = None
        self._catalogue = Catalogue(config, pool)
        self._pool = pool

    async def run(self) -> None:
        """Work until `stop`.

        Raises:
            Conflict: another agent works in the state folder.
            OperatorError: the options of a dataset are wrong.
            Unauthenticated, Forbidden: the coordinator will not have this node any more, with its reason.
        """
        with ExitStack() as stack:
            self.folder.create()
            stack.enter_context(self.folder.lock())
            self._furnish()
            await self._catalogue.refresh()
            self.status.set(
                datasets=[dataset_dict(offer) for offer in self._catalogue.offers()], methods=self._catalogue.methods
            )
            self._bench.resume()
            helpers = [
                self._helper(keep_renewed(self.folder, self._links, self._take_renewed)),
                self._helper(self._offers.watch()),
                self._helper(self._retry_datasets()),
            ]
            try:
                await self._stay_connected()
                if self._fault is not None:
                    raise self._fault
            finally:
                for task in (*helpers, *self._retiring):
                    task.cancel()
                await asyncio.gather(*helpers, *self._retiring, return_exceptions=True)
                await self._bench.stop(deliver_for_s=0)
                self.status.set(connection={"state": "not running"})
                self.status.write()

    def stop(self) -> None:
        """Leave in good order: finish what is on its way out, say goodbye, return from `run`."""
        self._stopping.set()

    def _helper(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside the session; an unexpected error in it ends the agent rather than going unnoticed."""

        async def keep_running() -> None:
            try:
                await coroutine
            except Exception as error:  # noqa: BLE001 - whatever it was, nobody would hear of it otherwise
                self._log.exception("unexpected error", error=repr(error))
                self._fault = PlatformError(
                    f"an unexpected {type(error).__name__} in the agent.",
                    remedy="It is a fault of the platform; the agent's log has the details.",
                    code="UNEXPECTED",
                )
                self.stop()

        return asyncio.create_task(keep_running())

    def _furnish(self) -> None:
        folder = self.folder
        approvals = Approvals(folder.approvals)
        jobs = Jobs(folder.jobs)
        self._heads = LedgerHeads(folder.heads)
        self._offers = Offers(self._catalogue, approvals, self._links)
        self._bench = Workbench(
            node=self.node,
            jobs=jobs,
            links=self._links,
            performing=Performing(
                node=self.node,
                config=self.config,
                jobs=jobs,
                links=self._links,
                pool=self._pool,
                catalogue=self._catalogue,
                approvals=approvals,
            ),
            delivery=Delivery(
                node=self.node, links=self._links, journal=EgressJournal(folder.egress), on_progress=self._uploading
            ),
            on_change=lambda: self.status.changed(),
            on_error=lambda reason: self.status.error(reason),
        )
        self._directives = Directives(self.node, self._offers, self._bench)
        self.status = StatusBoard(folder, lambda: [work_dict(work) for work in self._bench.live])

    # ---- Connection
    async def _stay_connected(self) -> None:
        way = Reconnecting()
        while not self._stopping.is_set():
            self._greet_anew.clear()
            addresses = all_addresses(self.config.coordinator, self.identity.addresses)
            session = Session(
                self.identity,
                way.address(addresses),
                on_open=self._opened,
                handler=self._directives.follow,
                on_head=self._heads.saw,
            )
            running = asyncio.create_task(session.run(self._hello()))
            running.add_done_callback(partial(self._closed, session))
            welcomed = asyncio.create_task(session.welcomed.wait())
            stopping = asyncio.create_task(self._stopping.wait())
            try:
                await asyncio.wait({running, welcomed, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if session.welcomed.is_set():
                    way.connected()
                    await self._connected(running)
                if running.done():
                    running.result()
                elif self._stopping.is_set():
                    await self._leave(session, running)
                    return
                else:
                    self._keep(running)  # the next session replaces this one, which is drained in the background
            except HanseError as error:
                await self._disconnected(error, session, way.failed(len(addresses)))
            finally:
                welcomed.cancel()
                stopping.cancel()
                if running.done() or not session.welcomed.is_set():
                    running.cancel()
                    await asyncio.gather(running, return_exceptions=True)
                    self._links.lost(session.link)

    def _opened(self, session: Session) -> None:
        """From now on everything new goes over this session; what the one before carries may end there."""
        old, self._session = self._session, session
        self._links.set(session.link)
        self._log.info("connected", coordinator=str(session.address))
        self.status.set(
            connection={"state": "connected", "coordinator": str(session.address), "since": utc_now()},
            clock_skew_s=round(session.clock_skew_s, 1),
        )
        if old is not None and not old.link.gone.is_set():
            self._retire(old)
        self._bench.report_failures()

    def _closed(self, session: Session, _: asyncio.Task[None]) -> None:
        self._links.lost(session.link)

    async def _connected(self, running: asyncio.Task[None]) -> None:
        """Wait until the session ends, is to be replaced, or the agent stops."""
        renewed = asyncio.create_task(self._greet_anew.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({running, renewed, stopping}, return_when=asyncio.FIRST_COMPLETED)
        renewed.cancel()
        stopping.cancel()

    async def _disconnected(self, error: HanseError, session: Session, pause: float) -> None:
        """Say why, and pause (so many seconds) before the next attempt.

        Raises:
            Unauthenticated, Forbidden: trying again cannot help.
        """
        if isinstance(error, Unauthenticated | Forbidden) and not self._rejoined(session):
            self.status.error(error.reason)
            raise error
        if isinstance(error, Unreachable) and not session.welcomed.is_set():
            trust = self.identity
            error = await explained(
                error, session.address, authority_pem=trust.authority_pem, server_name=trust.server_name
            )
        self._log.warning("not connected", code=error.code, reason=str(error), again_in_s=round(pause, 1))
        self.status.set(connection={"state": "disconnected", "coordinator": str(session.address), "since": utc_now()})
        self.status.error(error.reason)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._stopping.wait()
        if not self._stopping.is_set():
            self.identity = NodeIdentity.require(self.folder.identity)  # `join` may have brought a new certificate
            self.identity.require_current()

    def _rejoined(self, session: Session) -> bool:
        """Whether `join` has brought another certificate than the one that was sent away."""
        found = NodeIdentity.load(self.folder.identity)
        return found is not None and found.peer.serial != session.identity.peer.serial

    async def _leave(self, session: Session, running: asyncio.Task[None]) -> None:
        if session.welcomed.is_set():
            self._log.info("leaving")
            self.status.set(connection={"state": "leaving", "since": utc_now()})
            await self._bench.stop(deliver_for_s=DRAIN_S)
            session.link.send(leaving=node_pb2.Leaving(sentence="the agent was asked to stop."))
            session.leave()
            with suppress(HanseError):
                await running
        else:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _retire(self, old: Session) -> None:
        """Let what goes over an old session's channel come to its end, then close it."""

        async def drained() -> None:
            old.link.retired.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(old.link.lease_s or DRAIN_S):
                    await old.link.drained()
            old.leave()

        self._keep(asyncio.create_task(drained()))

    def _keep(self, task: asyncio.Task[None]) -> None:
        """Let a task end in the background; how an old session ends interests nobody."""

        def over(done: asyncio.Task[None]) -> None:
            self._retiring.discard(done)
            if not done.cancelled():
                done.exception()

        self._retiring.add(task)
        task.add_done_callback(over)

    def _take_renewed(self, identity: NodeIdentity) -> None:
        self.identity = identity
        self._greet_anew.set()

    def _hello(self) -> node_pb2.Hello:
        return node_pb2.Hello(
            version=version("hanse-agent"),
            instance=self._instance,
            methods=self._catalogue.methods,
            datasets=self._catalogue.offers(),
            labels=self.config.labels,
            policy_digest=self.config.policy.digest,
            in_hand=self._bench.in_hand(),
        )

    def _uploading(self, task: Task, fence: int, fraction: float) -> None:
        if link := self._links.current:
            link.send(
                progress=node_pb2.Progress(assignment=task.assignment, fence=fence, stage="upload", fraction=fraction)
            )

    # ---- Datasets
    async def _retry_datasets(self) -> None:
        """Look again at datasets that cannot be read, and greet the coordinator anew when one has come back."""
        while True:
            await asyncio.sleep(RETRY_DATASETS_S)
            if not self._catalogue.unavailable:
                continue
            before = set(self._catalogue.unavailable)
            try:
                await self._catalogue.refresh()
            except HanseError as error:
                self._log.warning("datasets not described", reason=str(error))
                continue
            if set(self._catalogue.unavailable) != before:
                self.status.set(datasets=[dataset_dict(offer) for offer in self._catalogue.offers()])
                self._greet_anew.set()
