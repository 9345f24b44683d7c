"""Robust rules as plug-ins: hand-worked contributions, hostile ones, any order, bounded memory."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest

from hanse.errors import MethodError, OperatorError, RejectedContribution
from hanse.method import Contribution, JobContext, Outcome, Phase, Scope
from hanse.payload import Payload
from hanse.payload.models import delta_payload
from hanse_aggregator.plugins import robust
from hanse_aggregator.plugins.robust import Robust

pytestmark = pytest.mark.usefixtures("reference_models")


def first_phase(nodes: int = 5, numbers: int = 4, **config: object) -> Phase:
    context = JobContext(
        id="j",
        name="r",
        method="robust",
        dataset="d",
        rounds=2,
        model="reference_bulk",
        config={"model": {"numbers": numbers, "arrays": 1}, **config},
        nodes=tuple(f"n{number}" for number in range(nodes)),
    )
    return Robust().first_phase(context)


def delta(phase: Phase, *values: float, examples: int = 1) -> Payload:
    return delta_payload(phase.instruction.digest, examples, {"block000.weight": np.array(values, np.float32)})


def close(phase: Phase, payloads: dict[str, Payload]) -> Outcome:
    aggregation = Robust().open(phase, None)
    for node, payload in payloads.items():
        aggregation.add(Contribution(node=node, payload=Payload.from_image(payload.image())))
    return aggregation.finish()


def moved(phase: Phase, outcome: Outcome) -> np.ndarray:
    after = outcome.next_phase.instruction.arrays["block000.weight"].astype(np.float64)
    return after - phase.instruction.arrays["block000.weight"]


VECTORS = ((1, 0, 0, 9), (2, 0, 1, 9), (3, 0, 2, 9), (4, 0, 3, 9), (1000, 0, -1000, 9))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"rule": "median"}, (3, 0, 1, 9)),
        ({"rule": "trimmed_mean", "trim": 0.2}, (3, 0, 1, 9)),
        ({"rule": "krum"}, (2, 0, 1, 9)),  # of two with the same score the first in order of name
        ({"rule": "multi_krum"}, (2.5, 0, 1.5, 9)),
        ({"rule": "multi_krum", "keep": 2}, (2.5, 0, 1.5, 9)),
        ({"rule": "norm_clipping", "clip_norm": 1e9}, (202, 0, -198.8, 9)),
    ],
)
def test_each_rule_on_vectors_of_four_numbers(config, expected):
    phase = first_phase(**config)
    outcome = close(phase, {f"n{row}": delta(phase, *vector) for row, vector in enumerate(VECTORS)})
    np.testing.assert_allclose(moved(phase, outcome), expected, rtol=1e-6, atol=2e-5)


def test_norm_clipping_without_a_limit_clips_to_the_median_length():
    phase = first_phase(3, rule="norm_clipping")
    payloads = {"n0": delta(phase, 3, 4, 0, 0), "n1": delta(phase, 0, 0, 1, 0), "n2": delta(phase, 0, 0, 0, 500)}
    outcome = close(phase, payloads)
    np.testing.assert_allclose(moved(phase, outcome), (1, 4 / 3, 1 / 3, 5 / 3), rtol=1e-5, atol=1e-6)
    values = {row.name: row.value for row in outcome.metrics if row.scope is Scope.AGGREGATION}
    assert (values["norm_limit"], values["clipped"], values["chosen"]) == (5.0, 1.0, 3.0)


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "krum", "multi_krum", "norm_clipping"])
def test_every_order_of_arrival_gives_the_same_bytes(rule):
    phase = first_phase(rule=rule)
    rng = np.random.default_rng(3)
    payloads = {f"n{number}": delta(phase, *rng.standard_normal(4)) for number in range(5)}
    digests = set()
    for order in itertools.islice(itertools.permutations(payloads), 0, 120, 7):
        outcome = close(phase, {node: payloads[node] for node in order})
        digests.add((outcome.next_phase.instruction.digest, outcome.metrics))
    assert len(digests) == 1


def test_too_few_for_krum_and_weights_without_an_effect_are_refused():
    phase = first_phase(rule="krum", hostile=2)
    with pytest.raises(MethodError, match="needs 7 contributions, and 2 came"):
        close(phase, {"n0": delta(phase, 1, 2, 3, 4), "n1": delta(phase, 1, 2, 3, 4)})
    with pytest.raises(OperatorError, match="weighting: examples has no meaning for the rule median"):
        first_phase(rule="median", weighting="examples")


def test_a_number_that_is_not_finite_is_named():
    phase = first_phase()
    with pytest.raises(RejectedContribution, match=r"node 'n0': the array 'block000\.weight' holds nan"):
        close(phase, {"n0": delta(phase, 1, np.nan, 3, 4)})


@pytest.mark.parametrize("rule", ["median", "krum"])
def test_memory_is_bounded_by_blocks_whatever_the_number_of_contributions(rule, monkeypatch):
    monkeypatch.setattr(robust, "BLOCK_BYTES", 1_000_000)
    numbers, peaks = 1_000_000, []
    for nodes in (5, 15):
        phase = first_phase(nodes, numbers, rule=rule)
        payload = delta_payload(phase.instruction.digest, 1, {"block000.weight": np.ones(numbers, np.float32)})
        tracemalloc.start()
        aggregation = Robust().open(phase, None)
        for number in range(nodes):
            aggregation.add(Contribution(node=f"n{number}", payload=payload))
        aggregation.finish()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # One new model (4 bytes a number) and some blocks.
    assert max(peaks) < 4 * numbers + 6_000_000
