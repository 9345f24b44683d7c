"""A federation in one process for tests of the engine: the real engine, ledger and store; nodes and aggregator are
small and honest. `Crash` stops the engine at a chosen ledger write, before or after it is committed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from hanse.artifacts import LocalStore
from hanse.errors import HanseError, OperatorError, Reason, RejectedContribution, Unreachable
from hanse.jobs import JobSpecification
from hanse.ledger import Ledger
from hanse.payload import Payload
from hanse.rpc import INLINE_LIMIT, to_proto
from hanse.v1 import aggregator_pb2, node_pb2, payload_pb2
from hanse_coordinator.engine import Engine
from hanse_coordinator.ledger_thread import LedgerThread
from hanse_coordinator.sessions import NodeSession, Sessions

PHASES_A_ROUND = ("measure", "add")


def opaque(**values: Any) -> Payload:
    """A payload of named integers."""
    arrays = {name: np.asarray(value, dtype=np.int64) for name, value in values.items()}
    return Payload.build(payload_pb2.Opaque(type="test"), arrays)


def inline(payload: Payload) -> payload_pb2.PayloadSource:
    return payload_pb2.PayloadSource(inline=payload.image())


class AddingPool:
    """An aggregator whose state is the sum of all that was contributed; two phases a round, and an evaluation."""

    def __init__(self, store: LocalStore) -> None:
        self.store = store
        self.reject: Callable[[str, str], Reason | None] = lambda _node, _phase: None
        self.fail: Callable[[], HanseError | None] = lambda: None
        self.hang: Callable[[str], bool] = lambda _phase: False
        self.calls = 0
        self.padding = 0
        """Bytes that every instruction is larger by."""

    async def describe(self) -> dict[str, Any]:
        return {"adding": SimpleNamespace()}

    async def check_configuration(self, method: str, config: Mapping[str, Any]) -> None:
        if unknown := set(config) - {"step"}:
            raise OperatorError(f"method_config: unknown key '{min(unknown)}'.")

    @asynccontextmanager
    async def open(
        self, facts: aggregator_pb2.JobFacts, phase: aggregator_pb2.PhaseDescription | None, state: bytes | None
    ) -> AsyncIterator[AddingCall]:
        self.calls += 1
        if error := self.fail():
            raise error
        yield AddingCall(self, facts, phase, state)

    async def close(self) -> None:
        return None


@dataclass
class AddingCall:
    pool: AddingPool
    facts: aggregator_pb2.JobFacts
    phase: aggregator_pb2.PhaseDescription | None
    state: bytes | None
    total: int = 0
    used: int = 0

    async def add(self, assignment: str, node: str, digest: bytes, *, unseen: bool) -> Reason | None:
        assert self.phase is not None
        if reason := self.pool.reject(node, self.phase.name):
            return reason
        assert not (unseen and self.phase.purpose == "train"), "an unseen node's contribution in a training phase"
        self.total += int(self.pool.store.open(digest).arrays["value"])
        self.used += 1
        return None

    async def close(self) -> aggregator_pb2.OutcomeMessage:
        if error := self.pool.fail():
            raise error
        if self.phase is not None and self.pool.hang(self.phase.name):
            await asyncio.Event().wait()
        outcome = aggregator_pb2.OutcomeMessage()
        before = int(self.pool.store.open(self.state).arrays["sum"]) if self.state else 0
        training = self.phase is not None and self.phase.purpose == "train"
        after = (before * 31 + self.total) % 1_000_003 if training else before
        outcome.state.CopyFrom(inline(opaque(sum=after)))
        outcome.model.CopyFrom(inline(opaque(model=after)))
        following = self._next()
        if following is not None:
            name, number, purpose, audience = following
            outcome.next_phase.CopyFrom(
                aggregator_pb2.PhaseDescription(
                    name=name,
                    round=number,
                    purpose=purpose,
                    audience=audience,
                    instruction=self._instruction(sum=after, round=number),
                )
            )
        if self.phase is not None:
            outcome.metrics.add(name="used", value=self.used, scope="aggregation")
        return outcome

    def _instruction(self, **values: int) -> payload_pb2.PayloadSource:
        payload = opaque(**values, padding=np.zeros(self.pool.padding // 8))
        if payload.size <= INLINE_LIMIT:
            return inline(payload)
        artifact = self.pool.store.put(payload)
        return payload_pb2.PayloadSource(artifact=payload_pb2.ArtifactRef(digest=artifact.digest, size=artifact.size))

    def _next(self) -> tuple[str, int, str, str] | None:
        every, rounds = self.facts.evaluate_every, self.facts.job.rounds
        if self.phase is None:
            return PHASES_A_ROUND[0], 1, "train", "selected"
        number = self.phase.round
        if self.phase.name == PHASES_A_ROUND[0]:
            return PHASES_A_ROUND[1], number, "train", "selected"
        if self.phase.name == PHASES_A_ROUND[1] and every and (number % every == 0 or number == rounds):
            return "evaluate", number, "evaluate", "all"
        return (PHASES_A_ROUND[0], number + 1, "train", "selected") if number < rounds else None


@dataclass
class FakeNode:
    """A node that works at once, remembers what it delivered, and reconnects when the engine is replaced."""

    name: str
    federation: Federation
    behaviour: Callable[[node_pb2.Assign], Any] = lambda _assign: None
    """May return a HanseError-like reason (refuse), "stall" or "rubbish"."""
    unseen: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    done: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    spool: dict[str, Payload] = field(default_factory=dict)
    withdrawn: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    instance: bytes = b"1"
    session: NodeSession | None = None
    task: asyncio.Task[None] | None = None

    def connect(self) -> None:
        hello = node_pb2.Hello(
            instance=self.instance,
            methods=["adding"],
            labels=self.labels,
            datasets=[node_pb2.DatasetOffer(name="numbers", kind="table", rows=10)],
        )
        self.session = NodeSession(self.name, hello)
        fresh = self.federation.sessions.open(self.session)
        self.task = asyncio.create_task(self._run(self.session, fresh))

    def disconnect(self) -> None:
        assert self.session is not None
        assert self.task is not None
        self.task.cancel()
        self.federation.sessions.end(self.session)
        self.federation.engine.node_changed()

    async def _run(self, session: NodeSession, fresh: bool) -> None:
        engine = self.federation.engine
        await engine.connected(session, fresh=fresh)
        while True:
            directive = await session.outgoing.get()
            if not isinstance(directive, node_pb2.Directive):
                return
            match directive.WhichOneof("directive"):
                case "offer":
                    reply = node_pb2.OfferReply(job=directive.offer.job.id, decision=self.federation.decide(self.name))
                    engine.replied(self.name, reply)
                case "assign":
                    await self._perform(engine, directive.assign)
                case "withdraw":
                    self.withdrawn.append(directive.withdraw.reason.code)
                case "job_ended":
                    self.ended.append(directive.job_ended.state)

    async def _perform(self, engine: Engine, assign: node_pb2.Assign) -> None:
        what = self.behaviour(assign)
        if what == "stall":
            return
        if isinstance(what, Reason):
            failure = node_pb2.WorkFailed(
                assignment=assign.assignment, fence=assign.fence, reason=to_proto(what), refused=True
            )
            engine.failed(self.name, failure)
            return
        if assign.assignment not in self.spool:
            self.done[(assign.phase, assign.round, assign.attempt)] += 1
            sent = assign.instruction
            instruction = (
                Payload.from_image(sent.inline) if sent.inline else self.federation.store.open(sent.artifact.digest)
            )
            basis = int(instruction.arrays["sum"])
            weight = sum(self.name.encode()) + len(assign.phase)
            self.spool[assign.assignment] = opaque(value=(basis * weight + assign.round) % 10_007)
        payload = self.spool[assign.assignment]
        artifact = self.federation.store.put(payload)
        with suppress(HanseError):
            await engine.deliver(self.name, assign.assignment, assign.fence, artifact.digest, artifact.size)


class Federation:
    """Everything but sockets."""

    def __init__(
        self, folder: Path, names: list[str], *, lease: float = 5.0, unseen: tuple[str, ...] = (), url: str = ""
    ) -> None:
        self.ledger = Ledger.open(url or f"sqlite:///{folder / 'ledger.sqlite'}")
        self.ledger.migrate()
        self.store = LocalStore(folder / "artifacts", durable=False)
        self.pool = AddingPool(self.store)
        self.settings = SimpleNamespace(
            lease=timedelta(seconds=lease),
            retention=timedelta(days=1),
            aggregator_patience=timedelta(seconds=0.5),
            aggregation_limit=timedelta(minutes=1),
        )
        self.decide: Callable[[str], int] = lambda _name: node_pb2.OfferReply.DECISION_ACCEPTED
        self.nodes = {name: FakeNode(name, self, unseen=name in unseen) for name in names}
        self._lease = lease
        epoch = self.ledger.take_lease("test")
        with self.ledger.write(epoch) as tx:
            for name in names:
                tx.add_node(name=name)
        self.crash: Crash | None = None

    async def start(self, crash: Crash | None = None) -> None:
        """A coordinator comes up on whatever the ledger says."""
        self.crash = crash
        epoch = self.ledger.take_lease("test")
        self.sessions = Sessions(lease=self._lease, heartbeat=10.0)
        self.thread = CrashingLedgerThread(self.ledger, epoch, crash)
        self.engine = Engine(
            ledger=self.thread,
            store=self.store,
            sessions=self.sessions,
            aggregators=self.pool,  # type: ignore[arg-type]
            settings=self.settings,  # type: ignore[arg-type]
        )
        await self.engine.start()
        # What a real coordinator reads from `node.online`: these were here a moment ago.
        self.sessions.presume_present(self.nodes)
        for node in self.nodes.values():
            node.connect()

    async def stop(self) -> None:
        """The coordinator is gone; nodes notice."""
        for node in self.nodes.values():
            if node.task:
                node.task.cancel()
        await asyncio.gather(*(node.task for node in self.nodes.values() if node.task), return_exceptions=True)
        await self.engine.stop()
        self.thread.close()

    async def submit(self, **changes: Any) -> str:
        document = {
            "name": "test",
            "method": "adding",
            "dataset": "numbers",
            "rounds": 3,
            "selection": {"minimum_nodes": len(self.nodes), "deadline": "20s"},
        }
        spec = JobSpecification.model_validate(document | changes)
        return (await self.engine.submit(spec, actor="researcher")).id

    async def until(self, job: str, *states: str) -> Any:
        """Wait until the job is in one of these states (any end, by default); return its record."""
        wanted = set(states) or {"succeeded", "failed", "cancelled", "paused"}
        changed, stop = self.engine.watch(job)
        try:
            while True:
                changed.clear()
                with self.ledger.read() as view:
                    record = view.job(job)
                if record.state.value in wanted:
                    return record
                crashed = asyncio.ensure_future(self.crash.happened.wait()) if self.crash else None
                waiting = asyncio.ensure_future(changed.wait())
                pending = [task for task in (crashed, waiting) if task]
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED, timeout=20)
                for task in pending:
                    task.cancel()
                if self.crash and self.crash.happened.is_set():
                    raise Crashed
        finally:
            stop()

    async def eventually(self, condition: Callable[[], bool]) -> None:
        """What nodes are told follows what the ledger says by a moment."""
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)

    def events(self, kind: str) -> list[Any]:
        with self.ledger.read() as view:
            return [event for event in view.every_event() if event.kind == kind]

    def model(self, job: str) -> bytes:
        with self.ledger.read() as view:
            digest = view.job(job).model_digest
        assert digest is not None
        return self.store.open(bytes.fromhex(digest)).image()


class Crashed(Exception):
    """The engine died, as planned."""


@dataclass
class Crash:
    """Die at the n-th ledger write from now, before or after it is committed."""

    at: int
    after_commit: bool
    happened: asyncio.Event = field(default_factory=asyncio.Event)
    count: int = 0


class CrashingLedgerThread(LedgerThread):
    """Writes until the crash; from then on nothing is ever written, as after `kill -9`."""

    def __init__(self, ledger: Ledger, epoch: int, crash: Crash | None) -> None:
        super().__init__(ledger, epoch)
        self._crash = crash

    async def write(self, work: Any, *, patience: float | None = 5.0) -> Any:
        crash = self._crash
        if crash is None:
            return await super().write(work, patience=patience)
        crash.count += 1
        if crash.count < crash.at:
            return await super().write(work, patience=patience)
        if crash.count == crash.at and crash.after_commit:
            await super().write(work, patience=patience)
        crash.happened.set()
        return await asyncio.Event().wait()


REJECTED = RejectedContribution("rubbish", remedy="Send something else.").reason
AWAY = Unreachable("the aggregator does not answer.")
