"""Federated averaging: the arithmetic by hand, any order the same bytes, and no bad contribution counts."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load

from hanse.errors import OperatorError, RejectedContribution
from hanse.harness import Harness
from hanse.jobs import EvaluationSettings, JobSpecification, Selection
from hanse.method import Audience, Contribution, Evaluation, JobContext, Outcome, Phase, Purpose, Scope
from hanse.models import Role
from hanse.payload import Payload
from hanse.payload.encodings import encode_bf16, encode_zstd
from hanse.payload.models import delta_payload, read_roles
from hanse.v1 import payload_pb2
from hanse_aggregator.plugins.averaging import Averaging
from tests.unit.reference import MODEL, datasets, reference

pytestmark = pytest.mark.usefixtures("reference_models")

SHARED = {"layer0.weight": (6, 3), "layer0.bias": (3,)}
ABSOLUTE = {"inputs.mean": (6,), "inputs.scale": (6,)}


def job(rounds: int = 3, *, model: str = "reference_mlp", evaluate: int = 0, **config: object) -> JobContext:
    return JobContext(
        id="j",
        name="averages",
        method="fedavg",
        dataset="rows",
        rounds=rounds,
        seed=7,
        model=model,
        config={"model": MODEL, **config},
        evaluation=Evaluation(every=evaluate, unseen=("far",)),
        nodes=("a", "b", "c", "d"),
    )


def delta(phase: Phase, *, value: float = 1.0, examples: int = 10, **changes: object) -> Payload:
    """A difference of the same number everywhere, but for `changes` (None: the array is left out)."""
    arrays = {name: np.full(shape, value, np.float32) for name, shape in {**SHARED, **ABSOLUTE}.items()}
    for name, array in changes.items():
        arrays[name.replace("__", ".")] = array
    return delta_payload(phase.instruction.digest, examples, {k: v for k, v in arrays.items() if v is not None})


def decoded(payload: Payload) -> Payload:
    return Payload.from_image(payload.image())


def close(phase: Phase, state: Payload | None, **contributions: Payload) -> Outcome:
    aggregation = Averaging().open(phase, state)
    for node, payload in contributions.items():
        aggregation.add(Contribution(node=node, payload=decoded(payload)))
    return aggregation.finish()


def moved(before: Phase, after: Outcome, name: str = "layer0.bias") -> np.ndarray:
    assert after.next_phase is not None
    return after.next_phase.instruction.arrays[name] - before.instruction.arrays[name]


def test_the_first_phase_sends_the_shared_arrays_and_nothing_else():
    phase = Averaging().first_phase(job())
    assert (phase.name, phase.round, phase.purpose) == ("train", 1, Purpose.TRAIN)
    assert read_roles(phase.instruction) == dict.fromkeys(SHARED, Role.GLOBAL)
    assert phase.instruction.header.model_state.version == 0
    assert Averaging().first_phase(job()).instruction.digest == phase.instruction.digest


@pytest.mark.parametrize(("weighting", "mean"), [("examples", 2.5), ("uniform", 2.0)])
def test_the_next_model_is_the_last_plus_the_mean_difference(weighting, mean):
    phase = Averaging().first_phase(job(weighting=weighting))
    outcome = close(phase, None, a=delta(phase, value=1.0, examples=1), b=delta(phase, value=3.0, examples=3))
    np.testing.assert_array_equal(moved(phase, outcome), np.full(3, mean, np.float32))
    assert outcome.next_phase is not None
    assert (outcome.next_phase.round, outcome.next_phase.instruction.header.model_state.version) == (2, 1)


def test_momentum_is_in_the_state_and_goes_on_in_the_next_round():
    phase = Averaging().first_phase(job(server={"optimiser": "momentum", "beta1": 0.5}))
    first = close(phase, None, a=delta(phase, value=0.5))
    second = close(first.next_phase, decoded(first.state), a=delta(first.next_phase, value=1.0))
    np.testing.assert_allclose(moved(first.next_phase, second), 1.25, rtol=1e-6)
    assert second.state.size == first.state.size  # it does not grow


def test_a_difference_that_is_too_long_is_scaled_down_and_absolute_values_are_not():
    phase = Averaging().first_phase(job(clip_norm=1.0, evaluate=1))
    outcome = close(phase, None, a=delta(phase, value=2.0))
    length = np.sqrt(sum(np.sum(moved(phase, outcome, name).astype(float) ** 2) for name in SHARED))
    assert length == pytest.approx(1.0, rel=1e-6)
    np.testing.assert_array_equal(outcome.next_phase.personal["far"].arrays["inputs.mean"], np.full(6, 2.0))
    values = {row.name: row.value for row in outcome.metrics if row.scope is Scope.AGGREGATION}
    assert values["clipped"] == 1


def test_evaluation_is_for_all_and_goes_on_from_the_model_that_was_evaluated():
    phase = Averaging().first_phase(job(rounds=2, evaluate=1))
    outcome = close(phase, None, a=delta(phase))
    evaluation = outcome.next_phase
    assert (evaluation.name, evaluation.audience, evaluation.purpose) == ("evaluate", Audience.ALL, Purpose.EVALUATE)
    assert set(evaluation.personal) == {"far"}
    assert read_roles(evaluation.personal["far"]) == dict.fromkeys(ABSOLUTE, Role.EVALUATION_ONLY)
    following = Averaging().after_evaluation(evaluation)
    assert (following.name, following.round) == ("train", 2)
    assert following.instruction.digest == evaluation.instruction.digest  # stored and fetched once
    assert not following.personal


def test_the_last_round_gives_the_model_as_files_that_others_read():
    phase = Averaging().first_phase(job(rounds=1))
    outcome = close(phase, None, a=delta(phase, value=0.25))
    assert outcome.next_phase is None
    files = load(outcome.model.arrays["model.safetensors"].tobytes())
    assert {name: array.shape for name, array in files.items()} == {**SHARED, **ABSOLUTE}
    np.testing.assert_array_equal(files["layer0.bias"], np.full(3, 0.25))
    card = outcome.model.arrays["card.md"].tobytes().decode()
    assert "reference_mlp, trained by a federation" in card
    assert "nodes that trained: 4" in card


def test_a_job_continues_from_the_model_of_another():
    first = Averaging().first_phase(job(rounds=1))
    model = close(first, None, a=delta(first, value=0.25)).model
    import dataclasses

    continued = Averaging().first_phase(dataclasses.replace(job(), continue_from=decoded(model)))
    np.testing.assert_array_equal(continued.instruction.arrays["layer0.bias"], np.full(3, 0.25))
    other = dataclasses.replace(job(), config={"model": {**MODEL, "classes": 4}}, continue_from=decoded(model))
    with pytest.raises(OperatorError, match=r"'layer0.weight' is float32 of shape \(6, 4\).*shape \(6, 3\)"):
        Averaging().first_phase(other)


def test_every_order_of_arrival_gives_the_same_bytes():
    phase = Averaging().first_phase(job(rounds=1, server={"optimiser": "yogi"}))
    rng = np.random.default_rng(0)
    payloads = {
        node: delta(phase, examples=examples, layer0__bias=rng.standard_normal(3).astype(np.float32) * 10.0**examples)
        for node, examples in zip("abcd", (1, 2, 3, 4), strict=True)
    }
    outcomes = [close(phase, None, **{n: payloads[n] for n in order}) for order in itertools.permutations("abcd")]
    assert len({outcome.model.digest for outcome in outcomes}) == 1
    assert len({outcome.state.digest for outcome in outcomes}) == 1
    assert len({outcome.metrics for outcome in outcomes}) == 1


BAD = [
    ({"layer0__bias": np.zeros(4, np.float32)}, r"array 'layer0.bias' has shape \(4,\), not \(3,\)"),
    ({"layer0__bias": np.zeros(3, np.float64)}, "array 'layer0.bias' is of float64"),
    ({"layer0__bias": None}, "array 'layer0.bias' is missing"),
    ({"inputs__mean": None}, "array 'inputs.mean' is missing"),
    ({"steps": np.zeros((), np.int64)}, "array 'steps' is not one that this model shares"),
    ({"layer0__bias": np.array([0, np.nan, 0], np.float32)}, "array 'layer0.bias' holds nan"),
    ({"layer0__bias": np.array([0, np.inf, 0], np.float32)}, "array 'layer0.bias' holds inf"),
    ({"layer0__bias": np.full(3, 1e30, np.float32)}, r"'layer0.bias' holds 1e\+30 in magnitude"),
    ({"examples": 0}, "it comes from 0 examples"),
    ({"examples": 2**33}, f"it comes from {2**33} examples"),
    ({"layer0__weight": encode_bf16(np.zeros((6, 3), np.float32))}, "arrives as bf16; the job agreed on raw"),
    ({"layer0__weight": encode_zstd(np.zeros((6, 3), np.float32))}, "arrives as zstd; the job agreed on raw"),
]


@pytest.mark.parametrize(("changes", "words"), BAD)
def test_a_contribution_that_cannot_be_used_is_named_and_leaves_no_trace(changes, words):
    phase = Averaging().first_phase(job(rounds=1))
    alone = close(phase, None, a=delta(phase, value=0.5))
    aggregation = Averaging().open(phase, None)
    aggregation.add(Contribution(node="a", payload=delta(phase, value=0.5)))
    with pytest.raises(RejectedContribution, match=f"node 'evil': .*{words}") as error:
        aggregation.add(Contribution(node="evil", payload=decoded(delta(phase, **changes))))
    assert error.value.remedy
    assert aggregation.finish().model.digest == alone.model.digest


def test_another_base_and_another_kind_are_rejected():
    phase = Averaging().first_phase(job())
    aggregation = Averaging().open(phase, None)
    stale = delta_payload(bytes(32), 10, {name: np.zeros(shape, np.float32) for name, shape in SHARED.items()})
    with pytest.raises(RejectedContribution, match=r"measured against the model 000000000000…") as error:
        aggregation.add(Contribution(node="a", payload=stale))
    assert error.value.code == "WRONG_BASE"
    with pytest.raises(RejectedContribution, match="not a payload of kind 'opaque'"):
        aggregation.add(Contribution(node="a", payload=Payload.build(payload_pb2.Opaque(type="x"))))


def test_counters_may_come_along_and_are_never_averaged(monkeypatch):
    mlp = reference().Mlp
    counted = {**mlp(mlp.Config(**MODEL)).roles(), "steps": Role.GLOBAL}
    monkeypatch.setattr(mlp, "roles", lambda _self: counted)
    phase = Averaging().first_phase(job())
    assert "steps" in phase.instruction.arrays
    with_counter = delta(phase, steps=np.array(9, np.int64))
    outcome = close(phase, None, a=with_counter, b=delta(phase))
    assert outcome.next_phase.instruction.arrays["steps"] == 0


@pytest.mark.parametrize(("model", "words"), [("", "names none"), ("unheard_of", "there is no model 'unheard_of'")])
def test_a_job_without_a_model_that_is_here_is_refused(model, words):
    with pytest.raises(OperatorError, match=words):
        Averaging().first_phase(job(model=model))


def run(rounds: int = 4, **config: object):
    specification = JobSpecification(
        name="x",
        method="reference_averaging",
        dataset="rows",
        model="reference_mlp",
        rounds=rounds,
        selection=Selection(minimum_nodes=3),
        evaluation=EvaluationSettings(every=rounds, unseen=("n3",)),
        method_config={"model": MODEL, "training": {"learning_rate": 0.5, "local_epochs": 3}, **config},
    )
    return Harness(
        "reference_averaging", datasets(), specification, plugin=Averaging, learner=reference().ReferenceLearner
    ).run()


def test_a_federation_learns_and_a_node_that_never_trained_gains():
    result = run()
    assert [len(record.contributions) for record in result.phases] == [3, 3, 3, 3, 4]
    assert result.value("accuracy") > 0.8
    assert result.value("accuracy", scope=Scope.UNSEEN) > 0.8


@pytest.mark.parametrize(
    "compression",
    [{"scheme": "bf16"}, {"scheme": "int8"}, {"scheme": "top_k", "keep": 0.25}, {"scheme": "none", "lossless": True}],
)
def test_compressed_differences_learn_as_well_and_send_no_more(compression):
    plain, small = run(), run(compression=compression)
    assert small.value("accuracy") >= plain.value("accuracy") - 0.08
    assert small.bytes_sent["n0"] <= plain.bytes_sent["n0"] + 100


def test_memory_is_that_of_the_model_whatever_the_number_of_nodes():
    numbers = 2_000_000
    bulk = {"model": {"numbers": numbers, "arrays": 4}}
    peaks = []
    for nodes in (2, 12):
        names = tuple(f"n{number}" for number in range(nodes))
        context = JobContext(
            id="j", name="m", method="fedavg", dataset="d", rounds=2, model="reference_bulk", config=bulk, nodes=names
        )
        phase = Averaging().first_phase(context)
        once = np.ones(numbers // 4, np.float32)
        payload = delta_payload(phase.instruction.digest, 5, dict.fromkeys(phase.instruction.arrays, once))
        tracemalloc.start()
        aggregation = Averaging().open(phase, None)
        for name in names:
            aggregation.add(Contribution(node=name, payload=payload))
        outcome = aggregation.finish()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert outcome.next_phase is not None
    # The sums themselves (8 bytes a number) lie outside of what is traced; nothing else may be of the model's size.
    assert max(peaks) < numbers
