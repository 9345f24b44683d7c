"""FedSCS-XGB at the aggregator: phases, edges, trees, and contributions that cannot be used."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import xgboost

from hanse.errors import OperatorError, RejectedContribution
from hanse.learning.atoms import Atoms
from hanse.learning.fixed_point import Grid
from hanse.learning.objectives import make_objective
from hanse.learning.setup_sums import SetupSums
from hanse.learning.sketch import BucketMapping, Sketch
from hanse.method import (
    Audience,
    Column,
    Contribution,
    DatasetDescription,
    Evaluation,
    JobContext,
    Outcome,
    Phase,
    Purpose,
    Scope,
)
from hanse.payload import Payload
from hanse.payload.boosting import DELIVERED, SETUP, BoostingInstruction, Schema
from hanse.payload.kinds import (
    AtomCounts,
    ConfusionSum,
    MetricSum,
    RankingSum,
    RatioSum,
    atoms_payload,
    document_payload,
    metrics_payload,
    read_trees,
    sketches_payload,
    text_array,
)
from hanse_aggregator.plugins.boosting_state import MergingStack
from hanse_aggregator.plugins.histogram_split_finder import FedScsConfig, HistogramSplitFinder

UNIT = 2**20
MAPPING = BucketMapping(0.01)
NAMES = ("age", "weight")


def described(*names: str, classes: str = "") -> DatasetDescription:
    columns = tuple(Column(name=name, dtype="float32") for name in (*names, "label"))
    facts = {"classes": classes} if classes else {}
    return DatasetDescription(name="d", kind="table", rows=4, columns=columns, target="label", facts=facts)


def job(**changes: Any) -> JobContext:
    config: dict[str, Any] = {"objective": "binary:logistic", "bins": 4, "max_depth": 2, "statistics": "atoms"}
    config |= {"min_child_weight": 0, "lambda": 0} | changes.pop("config", {})
    defaults: dict[str, Any] = {
        "id": "j",
        "name": "n",
        "method": "fedscs_xgb",
        "dataset": "d",
        "rounds": 2,
        "nodes": ("a", "b"),
        "datasets": {"a": described(*NAMES), "b": described(*NAMES)},
        "config": config,
    }
    return JobContext(**(defaults | changes))


def setup(values: Any, labels: Any, names: Sequence[str] = NAMES, classes: Sequence[str] = ()) -> Payload:
    objective = make_objective(FedScsConfig(objective="binary:logistic"))
    sums = SetupSums.of(objective, np.asarray(values, np.float32), np.asarray(labels, np.float32), None)
    texts = {"features": text_array(names), "classes": text_array(classes)}
    return document_payload(SETUP, {}, texts | sums.arrays())


def sketches(*ordinals: Sequence[int]) -> Payload:
    """One unit of weight in each of these buckets (from the zero bucket), by feature."""
    made = [
        Sketch.of(np.array(each, np.int32) + MAPPING.zero, np.full(len(each), UNIT, dtype=np.int64))
        for each in ordinals
    ]
    return sketches_payload([made], MAPPING)


def atoms(ids: Any, gradient: Any, *, rows: int | None = None) -> Payload:
    count = len(ids)
    made = Atoms(
        ids=np.array(ids, np.uint8).reshape(count, 2),
        weight=np.full(count, UNIT, dtype=np.int64),
        gradient=np.array(gradient, np.int64).reshape(count, 1) * UNIT,
        hessian=np.full((count, 1), UNIT, dtype=np.int64),
    )
    return atoms_payload([made], AtomCounts(rows=count if rows is None else rows, single=count), Grid())


def close(phase: Phase, state: Payload | None, **contributions: Payload) -> Outcome:
    aggregation = HistogramSplitFinder().open(phase, state)
    for node, payload in contributions.items():
        aggregation.add(Contribution(node=node, payload=payload))
    return aggregation.finish()


def first(context: JobContext | None = None) -> Phase:
    return HistogramSplitFinder().first_phase(context or job())


def prepared(context: JobContext | None = None) -> Outcome:
    return close(first(context), None, a=setup([[1, 2], [3, 4]], [0, 1]), b=setup([[5, 0]], [1]))


def next_of(outcome: Outcome) -> Phase:
    assert outcome.next_phase is not None
    return outcome.next_phase


def sketched(context: JobContext | None = None) -> Outcome:
    before = prepared(context)
    return close(next_of(before), before.state, a=sketches([-5, 5], [0]), b=sketches([5, 9], [0, 3]))


def grown(context: JobContext | None = None) -> Outcome:
    before = sketched(context)
    return close(next_of(before), before.state, a=atoms([[1, 1], [2, 1]], [1, -1]), b=atoms([[2, 1]], [-3]))


def read(phase: Phase) -> BoostingInstruction:
    return BoostingInstruction.from_payload(Payload.from_image(phase.instruction.image()))


# ---- phases


def test_a_round_is_a_sketch_phase_and_an_atoms_phase() -> None:
    outcomes = [prepared(), sketched(), grown()]
    assert [(next_of(o).name, next_of(o).round) for o in outcomes] == [("sketch", 1), ("atoms", 1), ("sketch", 2)]
    assert {next_of(o).audience for o in outcomes} == {Audience.SELECTED}
    assert {next_of(o).purpose for o in outcomes} == {Purpose.TRAIN}


def test_rounds_that_keep_the_edges_skip_the_sketches() -> None:
    following = next_of(grown(job(config={"sketch_every": 0})))
    assert (following.name, following.round) == ("atoms", 2)
    told, before = read(following), read(next_of(sketched()))
    assert [e.cuts.tolist() for e in told.edges] == [e.cuts.tolist() for e in before.edges]
    assert told.newest is not None


def test_evaluation_follows_when_due_with_the_new_trees_for_all_nodes() -> None:
    context = job(evaluation=Evaluation(every=1, unseen=("z",)))
    phase = next_of(grown(context))
    assert (phase.name, phase.round, phase.purpose, phase.audience) == ("evaluate", 1, "evaluate", "all")
    told = read(phase)
    assert told.newest is not None
    assert len(told.grown) == 1
    metrics: dict[str, MetricSum] = {
        "log_loss": RatioSum.of(np.array([0.5, 0.5])),
        "confusion": ConfusionSum(np.array([[1, 0], [0, 1]])),
        "ranking": RankingSum(np.eye(2, 1024, dtype=np.int64)),
    }
    outcome = close(phase, grown(context).state, a=metrics_payload(metrics))
    assert {(m.name, m.scope.value) for m in outcome.metrics} == {
        (name, scope) for name in ("accuracy", "auc", "macro_f1", "log_loss") for scope in ("node", "pooled")
    }
    assert (next_of(outcome).name, next_of(outcome).round) == ("sketch", 2)


def test_the_last_round_ends_the_job_with_a_booster_in_both_formats() -> None:
    outcome = grown(job(rounds=1))
    assert outcome.model is not None
    delivery = next_of(outcome)
    assert (delivery.name, delivery.purpose, delivery.audience) == ("deliver", Purpose.ADAPT, Audience.ALL)
    assert delivery.instruction.references == (outcome.model.digest,)
    assert outcome.model in outcome.stored
    assert close(delivery, outcome.state, a=document_payload(DELIVERED, {})).next_phase is None
    assert grown(job(rounds=1, config={"deliver_model": False})).next_phase is None
    assert outcome.model.kind == "opaque"
    rows = xgboost.DMatrix(np.array([[0, 0], [4, 0]], np.float32), feature_names=list(NAMES))
    predictions = []
    for name in ("model.ubj", "model.json"):
        booster = xgboost.Booster()
        booster.load_model(bytearray(outcome.model.arrays[name].tobytes()))
        predictions.append(booster.predict(rows, output_margin=True).tolist())
    assert predictions[0] == predictions[1]
    # Prior 2/3; the leaves are -0.3 * 1 / 1 and 0.3 * 4 / 2.
    np.testing.assert_allclose(predictions[0], np.log(2) + np.array([-0.3, 0.6]), rtol=1e-5)


def test_checkpoints_give_the_model_as_it_stands() -> None:
    assert grown().model is None
    assert grown(job(config={"checkpoint_every": 1})).model is not None


def test_state_and_instructions_grow_by_one_reference_a_round() -> None:
    stored: dict[bytes, Payload] = {}
    context = job(rounds=50, fetch=stored.__getitem__)
    outcome, sizes, states = prepared(context), [], []
    for _ in range(4):
        outcome = close(next_of(outcome), outcome.state, a=sketches([-5, 5, 9], [0, 3]))
        outcome = close(next_of(outcome), outcome.state, a=atoms([[1, 1], [2, 1]], [1, -1]))
        stored |= {artifact.digest: artifact for artifact in outcome.stored}
        assert outcome.state is not None
        states.append(outcome.state.size)
        sizes.append(next_of(outcome).instruction.size)
    assert len(set(states)) == 1
    assert max(np.diff(sizes)) <= 64  # 34 bytes, rounded up to the alignment of arrays
    assert read(next_of(outcome)).grown == tuple(stored)


# ---- what is made of the contributions


def test_preparation_fixes_margins_centres_and_units_from_all_nodes() -> None:
    told = read(next_of(prepared()))
    assert told.schema.features == NAMES
    assert told.setup is not None
    np.testing.assert_allclose(told.setup.base_margins, [np.log(2)], rtol=1e-6)
    assert told.setup.centres.tolist() == [3.0, 2.0]
    assert told.setup.grid == Grid()


def test_without_centring_centres_are_zero() -> None:
    told = read(next_of(prepared(job(config={"centring": False}))))
    assert told.setup is not None
    assert told.setup.centres.tolist() == [0.0, 0.0]


def test_edges_lie_on_the_boundaries_of_the_merged_sketches() -> None:
    told = read(next_of(sketched()))
    (edges,) = told.edges
    cuts = MAPPING.upper_cuts(3.0)
    zero = MAPPING.zero
    assert edges.of_feature(0)[:-1].tolist() == cuts[[zero - 5, zero + 5]].tolist()
    assert edges.of_feature(1)[:-1].tolist() == MAPPING.upper_cuts(2.0)[[zero]].tolist()


def test_trees_are_stored_once_and_referred_to() -> None:
    outcome = grown()
    (artifact,) = outcome.stored
    forest = read_trees(artifact, features=2, outputs=1)
    assert forest.trees[0].feature[0] == 0
    np.testing.assert_allclose(np.sort(forest.trees[0].value[forest.trees[0].left < 0]), [-0.3, 0.6], rtol=1e-6)
    assert read(next_of(outcome)).grown == (artifact.digest,)


def test_metrics_say_trees_bins_atoms_single_rows_and_bytes() -> None:
    aggregation = {m.name: m.value for m in grown().metrics if m.scope is Scope.AGGREGATION}
    assert aggregation.keys() == {"trees", "leaves", "atoms", "single_row_atoms", "small_atoms", "atom_bytes"}
    assert (aggregation["trees"], aggregation["leaves"], aggregation["atoms"]) == (1, 2, 2)
    assert aggregation["single_row_atoms"] == 1.0
    per_node = {(m.name, m.node): m.value for m in grown().metrics if m.scope is Scope.NODE}
    assert per_node["atoms", "a"] == 2
    assert per_node["single_row_atoms", "b"] == 1.0
    assert per_node["atom_bytes", "a"] == atoms([[1, 1], [2, 1]], [1, -1]).size
    bins = {m.name: m.value for m in sketched().metrics if m.scope is Scope.AGGREGATION}
    assert bins["bins"] == 5


def test_pictures_show_what_the_round_has_made() -> None:
    occupancy, importance, tree = grown().pictures
    assert (importance.kind, occupancy.kind, tree.kind) == ("table", "matrix", "tree")
    assert importance.payload.arrays["splits"].tolist() == [1, 0]
    assert importance.payload.arrays["share_of_gain"].tolist() == [1.0, 0.0]
    np.testing.assert_allclose(occupancy.payload.arrays["values"], [[1 / 3, 2 / 3, 0], [1, 0, 0]], rtol=1e-6)
    assert tree.payload.arrays["feature"].tolist() == [0, -1, -1]
    assert tree.payload.arrays["gain"][0] > 0


def test_importance_is_summed_over_the_rounds() -> None:
    outcome = grown(job(rounds=3))
    again = close(next_of(outcome), outcome.state, a=sketches([-5, 5, 9], [0, 3]))
    again = close(next_of(again), again.state, a=atoms([[1, 1], [2, 1]], [1, -1]))
    assert again.pictures[1].payload.arrays["splits"].tolist() == [2, 0]


def test_the_order_of_arrival_changes_no_byte() -> None:
    before = sketched()
    parts = {
        "a": atoms([[1, 1], [2, 1]], [1, -1]),
        "b": atoms([[2, 1]], [-3]),
        "c": atoms([[3, 2], [1, 2], [1, 1]], [5, 2, 7]),
    }

    def digests(order: tuple[str, ...]) -> list[bytes]:
        outcome = close(next_of(before), before.state, **{node: parts[node] for node in order})
        assert outcome.state is not None
        shown = [picture.payload.digest for picture in outcome.pictures]
        return [outcome.state.digest, outcome.stored[0].digest, next_of(outcome).instruction.digest, *shown]

    assert len({tuple(digests(order)) for order in itertools.permutations(parts)}) == 1


# ---- what cannot be used


def test_another_schema_is_rejected_by_node_and_column() -> None:
    aggregation = HistogramSplitFinder().open(first(), None)
    with pytest.raises(RejectedContribution, match=r"column 2 of node 'b' is 'height', .* 'weight'") as caught:
        aggregation.add(Contribution(node="b", payload=setup([[1, 1]], [0], names=("age", "height"))))
    assert "features" in caught.value.remedy
    with pytest.raises(RejectedContribution, match=r"node 'b' has 3 columns and the job has 2; they differ in 'x'"):
        aggregation.add(Contribution(node="b", payload=setup([[1, 1, 1]], [0], names=(*NAMES, "x"))))


def test_without_a_known_schema_the_first_node_by_name_is_the_measure() -> None:
    parts = {
        "c": setup([[1, 1]], [0], names=("weight", "age")),
        "b": setup([[1, 1]], [0]),
        "d": setup([[1, 1]], [1]),
    }
    outcomes = [
        close(first(job(datasets={})), None, **{node: parts[node] for node in order})
        for order in itertools.permutations(parts)
    ]
    for outcome in outcomes:
        assert [rejection.node for rejection in outcome.rejected] == ["c"]
        assert "column 1 of node 'c' is 'weight', and that of node 'b' is 'age'" in outcome.rejected[0].reason.sentence
        assert next_of(outcome).instruction.digest == next_of(outcomes[0]).instruction.digest


def test_classes_numbered_otherwise_are_rejected() -> None:
    known = described(*NAMES, classes='["ill", "well"]')
    aggregation = HistogramSplitFinder().open(first(job(datasets={"a": known})), None)
    with pytest.raises(RejectedContribution, match="node 'b' numbers the classes"):
        aggregation.add(Contribution(node="b", payload=setup([[1, 1]], [0], classes=("well", "ill"))))


def test_sums_that_cannot_be_are_rejected() -> None:
    good = setup([[1, 1]], [0])

    def altered(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Payload:
        arrays = dict(good.arrays)
        arrays[name] = change(arrays[name].copy())
        return Payload.build(good.header.opaque, arrays)

    aggregation = HistogramSplitFinder().open(first(), None)
    for name, change in (
        ("weight_sum", lambda limbs: limbs * 2),
        ("class_weights", lambda limbs: -limbs),
        ("feature_counts", lambda counts: counts + 5),
        ("feature_sums", lambda limbs: limbs + 2**60),
        ("rows", lambda rows: rows - 7),
    ):
        with pytest.raises(RejectedContribution, match="node 'b'"):
            aggregation.add(Contribution(node="b", payload=altered(name, change)))
    aggregation.add(Contribution(node="a", payload=good))
    assert aggregation.finish().next_phase is not None


def test_rubbish_is_rejected_and_the_others_go_on() -> None:
    rubbish = document_payload("x", {})
    for before, good in ((prepared(), sketches([-5, 5], [0])), (sketched(), atoms([[1, 1], [2, 1]], [1, -1]))):
        phase = next_of(before)
        aggregation = HistogramSplitFinder().open(phase, before.state)
        with pytest.raises(RejectedContribution, match="node 'b'"):
            aggregation.add(Contribution(node="b", payload=rubbish))
        aggregation.add(Contribution(node="a", payload=good))
        alone = close(phase, before.state, a=good)
        assert next_of(aggregation.finish()).instruction.digest == next_of(alone).instruction.digest


# ---- configuration


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"early_stopping_rounds": 2}, "this job never evaluates"),
        ({"statistics": "records"}, "statistics"),
        ({"maxdepth": 3}, "unknown key 'maxdepth'"),
        ({"colsample_bynode": 0.5}, "use colsample_bytree"),
        ({"bins": 1}, "bins"),
        ({"features": ["a", "a"]}, "twice"),
        ({"num_class": 3}, "num_class"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused_by_key(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OperatorError, match=sentence):
        first(job(config=config))


def test_the_published_schema_names_every_option() -> None:
    properties = HistogramSplitFinder.Config.model_json_schema(by_alias=True)["properties"]
    assert {"objective", "eta", "lambda", "alpha", "statistics", "centring", "features", "bins"} <= properties.keys()


def test_the_seed_is_the_jobs_unless_the_method_names_its_own() -> None:
    assert read(first(job(seed=7))).parameters.seed == 7
    assert read(first(job(seed=7, config={"seed": 3}))).parameters.seed == 3


def test_columns_named_by_the_job_are_its_schema() -> None:
    told = read(first(job(config={"features": ["weight"]})))
    assert told.schema == Schema(features=("weight",))
    assert told.select


def test_the_first_training_node_is_the_measure_and_no_unseen_one() -> None:
    datasets = {"a": described("x"), "b": described(*NAMES)}
    told = read(first(job(datasets=datasets, evaluation=Evaluation(unseen=("a",)))))
    assert told.schema.features == NAMES


def test_what_the_method_cannot_do_is_refused() -> None:
    with pytest.raises(OperatorError, match="no model 'resnet'"):
        first(job(model="resnet"))
    with pytest.raises(OperatorError, match="earlier model cannot be read"):
        first(job(continue_from=document_payload("x", {})))
    with pytest.raises(OperatorError, match="at most 25000 rounds"):
        first(job(rounds=25_001))
    known = {"a": described(*NAMES, classes='["a", "b", "c"]')}
    with pytest.raises(OperatorError, match="3 classes, but num_class is 2"):
        first(job(datasets=known, config={"objective": "multi:softprob", "num_class": 2}))


# ---- merging


def test_a_merging_stack_merges_like_with_like() -> None:
    class Bag(list[int]):
        merges = 0

        def merge(self, other: Bag) -> Bag:
            Bag.merges += 1
            return Bag(sorted([*self, *other]))

    stack: MergingStack[Bag] = MergingStack()
    for i in range(64):
        stack.push(Bag([i]))
        assert len(stack._items) <= 7
    assert stack.total() == list(range(64))
    assert Bag.merges == 63
    assert MergingStack[Bag]().total() is None
