"""Methods on the wire: what the one side means is what the other side reads."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hanse.errors import InvalidPayload, MethodError, OperatorError, Owner, Reason
from hanse.method import (
    Audience,
    Column,
    DatasetDescription,
    Evaluation,
    JobContext,
    MetricValue,
    Outcome,
    Phase,
    Picture,
    Purpose,
    Rejection,
    Scope,
)
from hanse.payload import CHUNK, Payload
from hanse.rpc import INLINE_LIMIT
from hanse.v1 import aggregator_pb2, node_pb2, payload_pb2
from hanse.wire import (
    config_from_proto,
    facts_from_proto,
    facts_to_proto,
    outcome_from_proto,
    outcome_to_proto,
    phase_from_proto,
    phase_to_proto,
    placing,
    resolving,
    sources,
)


def payload(numbers: int = 3, seed: int = 0) -> Payload:
    return Payload.build(
        payload_pb2.Opaque(type="t"), {"v": np.random.default_rng(seed).integers(0, 99, numbers, np.int64)}
    )


class Shelf:
    """What a stream or a store keeps."""

    def __init__(self) -> None:
        self.kept: dict[bytes, Payload] = {}

    def keep(self, payload: Payload) -> payload_pb2.ArtifactRef:
        self.kept[payload.digest] = payload
        return payload_pb2.ArtifactRef(digest=payload.digest, size=payload.size)

    def fetch(self, digest: bytes) -> Payload:
        return self.kept[digest]


def job(**changes: object) -> JobContext:
    dataset = DatasetDescription(
        name="ecg", kind="table", rows=7, columns=(Column(name="x", dtype="float64"),), target="y", facts={"k": "v"}
    )
    known: dict = {
        "id": "j-1",
        "name": "hearts",
        "method": "m",
        "dataset": "ecg",
        "rounds": 9,
        "seed": 2**63 - 1,
        "model": "net",
        "config": {"depth": 3, "rate": 0.1, "nested": {"on": True, "list": [1, None]}},
        "evaluation": Evaluation(every=5, unseen=("c",)),
        "nodes": ("a", "b"),
        "datasets": {"a": dataset, "b": dataset, "c": dataset},
    }
    return JobContext(**(known | changes))


def test_a_job_arrives_as_it_was_sent():
    shelf = Shelf()
    sent = job(continue_from=payload())
    message = aggregator_pb2.JobFacts.FromString(facts_to_proto(sent, placing(shelf.keep)).SerializeToString())
    arrived = facts_from_proto(message, resolving(shelf.fetch), fetch=shelf.fetch)
    assert arrived.continue_from is not None
    assert arrived.continue_from.digest == payload().digest
    assert job(continue_from=arrived.continue_from) == arrived
    assert arrived.fetch == shelf.fetch


def test_a_phase_arrives_as_it_was_sent_large_payloads_by_digest():
    shelf, large = Shelf(), payload(50_000)
    sent = Phase(
        job=job(),
        name="train",
        round=4,
        instruction=large,
        purpose=Purpose.ADAPT,
        audience=Audience.UNSEEN,
        personal={"b": payload(3, 1), "a": payload(3, 2)},
    )
    message = phase_to_proto(sent, placing(shelf.keep))
    assert message.instruction.artifact.digest == large.digest
    assert list(shelf.kept) == [large.digest]
    arrived = phase_from_proto(message, job(), resolving(shelf.fetch))
    assert (arrived.name, arrived.round, arrived.purpose, arrived.audience) == ("train", 4, "adapt", "unseen")
    assert arrived.instruction.digest == large.digest
    assert {node: item.digest for node, item in arrived.personal.items()} == {
        node: item.digest for node, item in sent.personal.items()
    }


def an_outcome(**changes: object) -> Outcome:
    following = Phase(job=job(), name="evaluate", round=4, instruction=payload(1), purpose=Purpose.EVALUATE)
    known: dict = {
        "next_phase": following,
        "state": payload(40_000, 3),
        "model": payload(2, 4),
        "metrics": (MetricValue(name="accuracy", value=0.5, scope=Scope.NODE, node="a", weight=12),),
        "pictures": (Picture(name="p", kind="matrix", title="P", payload=payload(2, 5)),),
        "stored": (payload(2, 6),),
        "rejected": (Rejection(node="b", reason=Reason(code="X", sentence="Too few rows.", owner=Owner.SITE)),),
    }
    return Outcome(**(known | changes))


def test_an_outcome_arrives_as_it_was_sent():
    shelf, sent = Shelf(), an_outcome()
    assignments = {"a": "as-1", "b": "as-2"}
    message = outcome_to_proto(sent, placing(shelf.keep), shelf.keep, assignments=assignments)
    nodes = {assignment: node for node, assignment in assignments.items()}
    arrived = outcome_from_proto(message, job(), resolving(shelf.fetch), shelf.fetch, nodes=nodes)
    assert (arrived.metrics, arrived.rejected) == (sent.metrics, sent.rejected)
    assert [p.digest for p in arrived.stored] == [p.digest for p in sent.stored]
    assert arrived.state is not None
    assert arrived.state.digest == sent.state.digest
    assert arrived.model is not None
    assert arrived.model.digest == sent.model.digest
    assert arrived.next_phase is not None
    assert arrived.next_phase.instruction.digest == sent.next_phase.instruction.digest
    assert [(p.name, p.kind, p.title, p.payload.digest) for p in arrived.pictures] == [
        (p.name, p.kind, p.title, p.payload.digest) for p in sent.pictures
    ]
    assert set(shelf.kept) == {sent.state.digest, sent.stored[0].digest}
    assert len(sources(message)) == 4


def test_the_last_outcome_of_a_job_has_no_next_phase():
    shelf = Shelf()
    message = outcome_to_proto(Outcome(next_phase=None), placing(shelf.keep), shelf.keep, assignments={})
    assert message.ByteSize() == 0
    assert outcome_from_proto(message, job(), resolving(shelf.fetch), shelf.fetch, nodes={}) == Outcome(next_phase=None)


def test_many_small_payloads_do_not_make_a_message_too_large_for_grpc():
    shelf = Shelf()
    each = payload(20_000)  # 160 kB: alone, it would ride inside
    assert each.size < INLINE_LIMIT
    personal = {f"node-{n}": payload(20_000, n) for n in range(100)}
    phase = Phase(job=job(), name="train", round=1, instruction=each, personal=personal)
    message = phase_to_proto(phase, placing(shelf.keep))
    assert message.ByteSize() < CHUNK + 20_000
    arrived = phase_from_proto(message, job(), resolving(shelf.fetch))
    assert all(arrived.personal[node].digest == item.digest for node, item in personal.items())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_metric_that_is_no_number_is_the_methods_fault(value):
    shelf = Shelf()
    metric = MetricValue(name="loss", value=value, scope=Scope.POOLED)
    with pytest.raises(MethodError, match=f"metric 'loss' is {value}"):
        outcome_to_proto(an_outcome(metrics=(metric,)), placing(shelf.keep), shelf.keep, assignments={"b": "x"})


def test_a_rejection_must_speak_of_a_contribution():
    shelf = Shelf()
    with pytest.raises(MethodError, match="rejects node 'b', which contributed nothing"):
        outcome_to_proto(an_outcome(), placing(shelf.keep), shelf.keep, assignments={"a": "x"})
    message = aggregator_pb2.OutcomeMessage(rejected=[aggregator_pb2.ContributionRejected(assignment="z")])
    with pytest.raises(MethodError, match="assignment 'z', which was not given to it"):
        outcome_from_proto(message, job(), resolving(shelf.fetch), shelf.fetch, nodes={"x": "a"})


@pytest.mark.parametrize(("key", "words"), [("purpose", "the purpose of phase 'p'"), ("audience", "the audience of")])
def test_words_that_nobody_knows_are_the_methods_fault(key, words):
    known = {"purpose": "train", "audience": "all"} | {key: "sabotage"}
    message = aggregator_pb2.PhaseDescription(name="p", **known)
    message.instruction.inline = payload().image()
    with pytest.raises(MethodError, match=words):
        phase_from_proto(message, job(), resolving(Shelf().fetch))


def test_an_inline_payload_that_is_none_is_refused():
    with pytest.raises(InvalidPayload):
        resolving(Shelf().fetch)(payload_pb2.PayloadSource(inline=b"rubbish"))
    with pytest.raises(InvalidPayload):
        resolving(Shelf().fetch)(payload_pb2.PayloadSource())


@pytest.mark.parametrize("data", [b"[1]", b"{", b"\xff", b"[" * 100_000, b"3"])
def test_a_configuration_that_is_no_mapping_is_refused(data):
    with pytest.raises(OperatorError) as error:
        config_from_proto(data)
    assert error.value.code == "INVALID_CONFIGURATION"


def test_no_configuration_is_an_empty_one():
    message = aggregator_pb2.JobFacts(job=node_pb2.JobDescription(id="j"))
    assert facts_from_proto(message, resolving(Shelf().fetch)).config == {}
