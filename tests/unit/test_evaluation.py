"""Evaluation: sums of the nodes become numbers per node, pooled and unseen."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hanse.errors import RejectedContribution
from hanse.evaluation import EvaluationAggregation
from hanse.method import Contribution, JobContext, Outcome, Phase, Purpose, Scope
from hanse.payload.kinds import ConfusionSum, MetricSum, RankingSum, RatioSum, document_payload, metrics_payload

JOB = JobContext(id="j", name="n", method="m", dataset="d", rounds=2)
PHASE = Phase(job=JOB, name="evaluate", round=1, instruction=document_payload("i", {}), purpose=Purpose.EVALUATE)
NEXT = PHASE.then("sketch", document_payload("next", {}), round=2)


def contribution(node: str, right: int, wrong: int, *, unseen: bool = False, **more: MetricSum) -> Contribution:
    sums = {"confusion": ConfusionSum(np.array([[right, wrong], [0, 0]])), **more}
    return Contribution(node=node, payload=metrics_payload(sums), unseen=unseen)


def run(*contributions: Contribution) -> Outcome:
    aggregation = EvaluationAggregation(PHASE, None, then=lambda: NEXT)
    for each in contributions:
        aggregation.add(each)
    return aggregation.finish()


def values(outcome: Outcome, name: str) -> dict[tuple[str, str], float]:
    return {(m.scope.value, m.node): m.value for m in outcome.metrics if m.name == name}


def test_pooled_accuracy_is_that_of_all_rows_and_unseen_nodes_are_apart() -> None:
    outcome = run(contribution("b", 1, 1), contribution("a", 8, 0), contribution("z", 1, 3, unseen=True))
    assert values(outcome, "accuracy") == {
        ("node", "a"): 1.0,
        ("node", "b"): 0.5,
        ("node", "z"): 0.25,
        ("pooled", ""): 0.9,
        ("unseen", ""): 0.25,
    }
    assert {m.weight for m in outcome.metrics if m.scope is Scope.POOLED} == {10.0}
    assert outcome.next_phase is NEXT


def test_ratios_and_squared_errors_are_named_as_people_know_them() -> None:
    outcome = run(contribution("a", 1, 0, mse=RatioSum.of(np.array([4.0, 14.0]))))
    assert values(outcome, "mse") == {("node", "a"): 9.0, ("pooled", ""): 9.0}
    assert values(outcome, "rmse") == {("node", "a"): 3.0, ("pooled", ""): 3.0}


def test_the_order_of_arrival_does_not_matter() -> None:
    three = [
        contribution("a", 5, 2, loss=RatioSum.of(np.array([0.1, 0.2]))),
        contribution("b", 3, 4, loss=RatioSum.of(np.array([0.7]))),
        contribution("c", 1, 1, unseen=True),
    ]
    outcomes = [run(*order) for order in itertools.permutations(three)]
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_a_node_without_rows_reports_nothing() -> None:
    outcome = run(contribution("a", 0, 0), contribution("b", 1, 1))
    assert values(outcome, "accuracy") == {("node", "b"): 0.5, ("pooled", ""): 0.5}


def test_a_metric_of_another_shape_is_rejected_whoever_comes_first() -> None:
    odd = Contribution(node="b", payload=metrics_payload({"confusion": ConfusionSum(np.eye(3, dtype=np.int64))}))
    for order in ([contribution("a", 1, 0), odd], [odd, contribution("a", 1, 0)]):
        outcome = run(*order)
        assert [rejection.node for rejection in outcome.rejected] == ["b"]
        assert "'confusion' of node 'b'" in outcome.rejected[0].reason.sentence
        assert values(outcome, "accuracy") == {("node", "a"): 1.0, ("pooled", ""): 1.0}


def test_expected_metrics_are_checked_on_arrival() -> None:
    aggregation = EvaluationAggregation(PHASE, None, then=lambda: None, expected={"confusion": (2, 2)})
    aggregation.add(contribution("a", 1, 0))
    with pytest.raises(RejectedContribution, match="Node 'b'"):
        aggregation.add(Contribution(node="b", payload=metrics_payload({"loss": RatioSum.of(np.ones(1))})))
    with pytest.raises(RejectedContribution, match="node 'c'"):
        aggregation.add(Contribution(node="c", payload=document_payload("x", {})))


def test_state_is_handed_on_as_it_came() -> None:
    state = document_payload("state", {})
    aggregation = EvaluationAggregation(PHASE, state, then=lambda: None)
    aggregation.add(contribution("a", 1, 0))
    outcome = aggregation.finish()
    assert outcome.state is state
    assert outcome.next_phase is None


def test_rankings_add_up_to_one_area_under_the_curve() -> None:
    """Node a ranks its two rows right, node b its two rows wrong; over all four rows three of four pairs are right."""

    def ranked(node: str, negative: int, positive: int) -> Contribution:
        counts = np.zeros((2, 1024), dtype=np.int64)
        counts[0, negative] = counts[1, positive] = 1
        return Contribution(node=node, payload=metrics_payload({"ranking": RankingSum(counts)}))

    outcome = run(ranked("a", 100, 900), ranked("b", 800, 200))
    assert values(outcome, "auc") == {("node", "a"): 1.0, ("node", "b"): 0.0, ("pooled", ""): 0.75}
    one_class = RankingSum(np.array([[2, 1], [0, 0]]))
    assert values(run(Contribution(node="a", payload=metrics_payload({"ranking": one_class}))), "auc") == {}


@pytest.mark.parametrize(
    "counts", [np.ones((3, 4)), -np.ones((2, 4)), np.ones(4), np.zeros((2, 0)), np.full((2, 2), 2**52)]
)
def test_what_is_no_ranking_is_rejected(counts: np.ndarray) -> None:
    payload = metrics_payload({"ranking": RankingSum(counts.astype(np.int64))})
    with pytest.raises(RejectedContribution, match="'ranking'"):
        run(Contribution(node="a", payload=payload))
