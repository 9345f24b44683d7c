"""One `Aggregate` call, message by message, without a network."""

from __future__ import annotations

import asyncio
import json
import sys
import types
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint

import numpy as np
import pytest
from pydantic import BaseModel

from hanse.artifacts import LocalStore
from hanse.errors import HanseError, InvalidPayload, MethodError, NotFound, OperatorError, RejectedContribution
from hanse.method import MetricValue, Outcome, Phase, Scope
from hanse.payload import Payload, chunks
from hanse.v1 import aggregator_pb2, node_pb2, payload_pb2
from hanse_aggregator.cache import PayloadCache
from hanse_aggregator.call import MOST_WAITING, AggregateCall
from hanse_aggregator.registry import GROUP, Registry

Request, Response = aggregator_pb2.AggregateRequest, aggregator_pb2.AggregateResponse


def payload(*values: int) -> Payload:
    return Payload.build(payload_pb2.Opaque(type="t"), {"v": np.array(values, np.int64)})


class Config(BaseModel):
    behave: str = ""


class Summing:
    """Adds numbers; `behave` says how it misbehaves."""

    version = "1"
    Config = Config

    def first_phase(self, job):
        return Phase(job=job, name="sum", round=1, instruction=payload(0))

    def open(self, phase, state):
        if phase.job.config.get("behave") == "fail in open":
            raise KeyError("no")
        return SummingAggregation(phase.job, state)


class SummingAggregation:
    def __init__(self, job, state):
        self.job = job
        self.behave = job.config.get("behave", "")
        self.total = int(state.arrays["v"][0]) if state is not None else 0
        self.order: list[str] = []

    def add(self, contribution):
        value = contribution.payload.arrays["v"]
        if value.size != 1:
            raise RejectedContribution(f"{value.size} numbers instead of one.", code="SHAPE")
        if self.behave == "fail in add":
            raise TypeError("what is this")
        self.total += int(value[0])
        self.order.append(contribution.node)

    def finish(self):
        if self.behave == "fetch":
            self.total += int(self.job.fetch(payload(70).digest).arrays["v"][0])
        value = float("nan") if self.behave == "nan" else float(self.total)
        metric = MetricValue(name="-".join(self.order), value=value, scope=Scope.POOLED)
        return Outcome(next_phase=None, state=payload(self.total), metrics=(metric,))


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Send messages, one after another; returns what comes back."""
    module = types.ModuleType("summing")
    module.Summing = Summing
    monkeypatch.setitem(sys.modules, "summing", module)
    registry = Registry([EntryPoint("sum", "summing:Summing", GROUP)])
    cache = PayloadCache(10**6)

    def run(messages: Iterable[Request], *, store: LocalStore | None = None) -> list[Response]:
        async def requests() -> AsyncIterator[Request]:
            for message in messages:
                yield message
            await asyncio.Event().wait()  # the caller waits for the outcome

        async def inner() -> list[Response]:
            with ThreadPoolExecutor(2) as threads:
                one = AggregateCall(registry, store=store, cache=cache, scratch=tmp_path, threads=threads)
                return [response async for response in one.responses(requests())]

        return asyncio.run(inner())

    return run


def open_(behave: str = "", phase: bool = True, state: Payload | None = None, **more: object) -> Request:
    config = json.dumps({"behave": behave}).encode()
    facts = aggregator_pb2.JobFacts(job=node_pb2.JobDescription(id="j", method="sum", rounds=1, config=config))
    opening = aggregator_pb2.OpenAggregation(facts=facts, **more)
    if phase:
        opening.phase.CopyFrom(aggregator_pb2.PhaseDescription(name="sum", round=1, purpose="train", audience="all"))
        opening.phase.instruction.inline = payload(0).image()
    if state is not None:
        opening.state.inline = state.image()
    return Request(open=opening)


def add(node: str, item: Payload | bytes) -> Request:
    image = item if isinstance(item, bytes) else item.image()
    source = payload_pb2.PayloadSource(inline=image)
    return Request(add=aggregator_pb2.AddContribution(assignment=f"as-{node}", node=node, payload=source))


CLOSE = Request(close=aggregator_pb2.CloseAggregation())


def test_a_phase_is_added_up_in_order_of_arrival_and_every_contribution_is_answered(call):
    *answers, last = call([open_(state=payload(100)), add("b", payload(2)), add("a", payload(3)), CLOSE])
    assert [answer.accepted.assignment for answer in answers] == ["as-b", "as-a"]
    assert Payload.from_image(last.outcome.state.inline).arrays["v"] == [105]
    assert [(metric.name, metric.value) for metric in last.outcome.metrics] == [("b-a", 105)]


def test_a_job_begins_with_the_plugins_first_phase(call):
    (last,) = call([open_(phase=False), CLOSE])
    assert last.outcome.next_phase.name == "sum"
    assert not last.outcome.HasField("state")


@pytest.mark.parametrize(
    ("bad", "code"), [(payload(1, 2), "SHAPE"), (b"rubbish" * 9, "INVALID_PAYLOAD"), (b"", "INVALID_PAYLOAD")]
)
def test_rubbish_is_rejected_with_a_reason_and_the_others_count(call, bad, code):
    *answers, last = call([open_(), add("a", payload(1)), add("b", bad), add("c", payload(4)), CLOSE])
    assert answers[1].rejected.assignment == "as-b"
    assert answers[1].rejected.reason.code == code
    assert answers[1].rejected.reason.owner == "site"
    assert last.outcome.metrics[0].value == 5


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        ("fail in open", "plug-in 'sum' failed: KeyError: 'no'"),
        ("fail in add", "plug-in 'sum' failed: TypeError: what is this"),
        ("nan", "metric 'a' is nan"),
    ],
)
def test_whatever_the_plugin_does_wrong_is_the_methods_fault(call, behave, words):
    with pytest.raises(MethodError, match=words):
        call([open_(behave), add("a", payload(1)), CLOSE])


def test_a_phase_without_a_single_good_contribution_has_no_outcome(call):
    with pytest.raises(MethodError) as error:
        call([open_(), add("a", payload(1, 2)), CLOSE])
    assert error.value.code == "NO_CONTRIBUTIONS"


def test_a_phase_of_adapting_may_close_over_nothing(call):
    opening = open_()
    opening.open.phase.purpose = "adapt"
    *_, last = call([opening, CLOSE])
    assert last.WhichOneof("response") == "outcome"


FOREIGN = Request(artifact=aggregator_pb2.ArtifactPart(digest=bytes(32), chunk=next(chunks(payload(1)))))


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([CLOSE], OperatorError),
        ([add("a", payload(1))], OperatorError),
        ([open_(), open_()], OperatorError),
        ([open_(), CLOSE, CLOSE, add("a", payload(1))], OperatorError),
        ([open_(), Request()], OperatorError),
        ([open_(phase=False), add("a", payload(1)), CLOSE], OperatorError),
        ([open_(), *[add(f"n{n}", payload(1)) for n in range(MOST_WAITING + 2)], CLOSE], OperatorError),
        ([open_(), FOREIGN, CLOSE], InvalidPayload),
    ],
)
def test_a_caller_that_breaks_the_protocol_is_told(call, messages, error):
    with pytest.raises(error):
        call(messages)


def referring(item: Payload) -> payload_pb2.PayloadSource:
    return payload_pb2.PayloadSource(artifact=payload_pb2.ArtifactRef(digest=item.digest, size=item.size))


class Caller:
    """Answers what the aggregator needs."""

    def __init__(self, *artifacts: Payload) -> None:
        self.artifacts = {artifact.digest: artifact for artifact in artifacts}
        self.needed: list[bytes] = []

    def run(self, tmp_path, registry, cache, messages: list[Request]) -> list[Response]:
        async def inner() -> list[Response]:
            sent: asyncio.Queue[Request] = asyncio.Queue()
            for message in messages:
                sent.put_nowait(message)

            async def requests() -> AsyncIterator[Request]:
                while True:
                    yield await sent.get()

            found = []
            with ThreadPoolExecutor(2) as threads:
                one = AggregateCall(registry, store=None, cache=cache, scratch=tmp_path, threads=threads)
                async for response in one.responses(requests()):
                    if response.HasField("need"):
                        self._answer(response.need.digest, sent)
                    else:
                        found.append(response)
            return found

        return asyncio.run(inner())

    def _answer(self, digest: bytes, sent: asyncio.Queue[Request]) -> None:
        self.needed.append(digest)
        if digest not in self.artifacts:
            missing = payload_pb2.Reason(code="GONE", sentence="It is gone.", owner="platform")
            sent.put_nowait(Request(artifact=aggregator_pb2.ArtifactPart(digest=digest, missing=missing)))
            return
        for chunk in chunks(self.artifacts[digest], size=200):
            sent.put_nowait(Request(artifact=aggregator_pb2.ArtifactPart(digest=digest, chunk=chunk)))


@pytest.fixture
def registry(monkeypatch):
    module = types.ModuleType("summing")
    module.Summing = Summing
    monkeypatch.setitem(sys.modules, "summing", module)
    return Registry([EntryPoint("sum", "summing:Summing", GROUP)])


def test_a_missing_artifact_is_asked_for_once_and_remembered_for_the_next_call(tmp_path, registry):
    state, caller, cache = payload(100), Caller(payload(100)), PayloadCache(10**6)
    opening = open_()
    opening.open.state.CopyFrom(referring(state))
    for _ in range(2):
        *_, last = caller.run(tmp_path, registry, cache, [opening, add("a", payload(1)), CLOSE])
        assert last.outcome.metrics[0].value == 101
    assert caller.needed == [state.digest]
    assert list(tmp_path.iterdir()) == []


def test_a_plugin_may_fetch_what_a_payload_refers_to_while_it_works(tmp_path, registry):
    caller = Caller(payload(70))
    *_, last = caller.run(tmp_path, registry, PayloadCache(0), [open_("fetch"), add("a", payload(1)), CLOSE])
    assert last.outcome.metrics[0].value == 71


def test_what_nobody_has_is_a_key_error_to_the_plugin_and_a_reason_to_the_caller(tmp_path, registry):
    with pytest.raises(MethodError, match=f"KeyError: '{payload(70).digest.hex()}'"):
        Caller().run(tmp_path, registry, PayloadCache(0), [open_("fetch"), add("a", payload(1)), CLOSE])
    opening = open_()
    opening.open.state.CopyFrom(referring(payload(9)))
    with pytest.raises(NotFound, match="It is gone"):
        Caller().run(tmp_path, registry, PayloadCache(0), [opening, CLOSE])


def test_bytes_that_are_not_what_the_digest_names_are_refused(tmp_path, registry):
    caller = Caller()
    caller.artifacts[payload(9).digest] = payload(10)
    opening = open_()
    opening.open.state.CopyFrom(referring(payload(9)))
    with pytest.raises(InvalidPayload, match="digest"):
        caller.run(tmp_path, registry, PayloadCache(0), [opening, CLOSE])
    assert list(tmp_path.iterdir()) == []


def test_a_caller_that_goes_away_leaves_no_thread_waiting(tmp_path, registry):
    """The plug-in waits for an artifact that never comes; the pool can be joined all the same."""
    opening = open_("fetch")

    async def inner() -> None:
        asked = asyncio.Event()

        async def requests() -> AsyncIterator[Request]:
            for message in (opening, add("a", payload(1)), CLOSE):
                yield message
            await asyncio.Event().wait()

        with ThreadPoolExecutor(1) as threads:
            one = AggregateCall(registry, store=None, cache=PayloadCache(0), scratch=tmp_path, threads=threads)

            async def consume() -> None:
                async for response in one.responses(requests()):
                    if response.HasField("need"):
                        asked.set()

            task = asyncio.ensure_future(consume())
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(inner())
    assert list(tmp_path.iterdir()) == []


def test_a_shared_store_takes_what_is_large_and_nothing_is_asked_for(call, tmp_path):
    store = LocalStore(tmp_path / "store")
    opening = open_(store=store.store_id)
    store.put(payload(100))
    opening.open.state.CopyFrom(referring(payload(100)))
    *_, last = call([opening, add("a", payload(1)), CLOSE], store=store)
    assert last.outcome.metrics[0].value == 101


def test_every_error_has_an_owner(call):
    with pytest.raises(HanseError) as error:
        call([open_(), open_()])
    assert error.value.reason.code == "PROTOCOL"
