"""The harness: whole federations in one process, and what they promise."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import xgboost
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from hanse.errors import NotFound, OperatorError, SiteError
from hanse.harness import Harness, HarnessResult, QuorumNotMet
from hanse.jobs import JobSpecification
from hanse.learning.drawing import chosen_columns
from hanse.method import (
    Assignment,
    Audience,
    Contribution,
    Dataset,
    JobContext,
    LearnerLimits,
    MetricValue,
    Outcome,
    Phase,
    Purpose,
    Scope,
)
from hanse.payload import Payload
from hanse.payload.kinds import document_payload, read_document, read_trees
from hanse_agent.datasets.table import TableDataset
from hanse_agent.learners.boosting import BoostingLearner
from hanse_aggregator.plugins.histogram_split_finder import HistogramSplitFinder
from tests.unit.boosting_data import MemoryDataset, make_table, random_table, specification, split

DATA = Path(os.environ.get("HANSE_TEST_DATA") or Path(__file__).parents[3] / "shared" / "data")


def run(datasets: Mapping[str, Dataset], job: JobSpecification, **changes: Any) -> HarnessResult:
    return Harness("fedscs_xgb", datasets, job, **changes).run()


def whole(rows: int = 240, **changes: Any) -> Any:
    return random_table(rows, seed=5, **changes)


def parts(rows: int, nodes: int, seed: int = 0) -> list[np.ndarray]:
    order = np.random.default_rng(seed).permutation(rows)
    return np.array_split(order, nodes)


# ---- FedSCS-XGB as a federation

JOBS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "binary": {"classes": 0, "objective": "binary:logistic"},
    "squared error": {"classes": 0},
    "edges per class": {"edges": "per_class"},
    "edges once": {"sketch_every": 0},
    "exact edges": {"bin_source": "exact"},
    "columns drawn": {"colsample_bytree": 0.5, "seed": 9},
    "columns named": {"features": ["f2", "f0"]},
    "not centred": {"centring": False, "base_score": "0.5"},
}


@pytest.mark.parametrize("name", JOBS)
def test_any_number_of_nodes_gives_the_model_of_one_node_with_all_rows(name: str) -> None:
    changes = dict(JOBS[name])
    table = whole(classes={"binary": 2, "squared error": 0}.get(name, 3))
    job = specification(**changes)
    one = run(split(table, [np.arange(240)]), job)
    five = run(split(table, parts(240, 5)), job)
    assert five.model_digest == one.model_digest


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 3), min_size=60, max_size=60), st.integers(0, 3))
def test_any_partition_gives_the_same_model(owners: list[int], seed: int) -> None:
    table = random_table(60, seed=seed)
    owner = np.array(owners)
    job = specification(rounds=2)
    split_up = run(split(table, [np.flatnonzero(owner == k) for k in np.unique(owner)]), job)
    assert split_up.model_digest == run(split(table, [np.arange(60)]), job).model_digest


def test_exact_edges_give_the_predictions_of_central_xgboost() -> None:
    table = whole(missing=0.2)
    job = specification(rounds=4, bin_source="exact", every=4)
    result = run(split(table, parts(240, 4)), job)
    training = ~table.held_out
    data = xgboost.DMatrix(table.features[training], label=table.target[training])
    parameters = {"objective": "multi:softprob", "num_class": 3, "max_depth": 3, "max_bin": 4096, "nthread": 1}
    central = xgboost.train(parameters, data, 4)
    ours = xgboost.Booster()
    assert result.model is not None
    ours.load_model(bytearray(result.model.arrays["model.ubj"].tobytes()))
    names = list(table.feature_names)
    theirs = central.predict(xgboost.DMatrix(table.features))
    mine = ours.predict(xgboost.DMatrix(table.features, feature_names=names))
    np.testing.assert_allclose(mine, theirs, atol=2e-5)
    right = mine.argmax(axis=1)[table.held_out] == table.target[table.held_out]
    assert result.value("accuracy") == pytest.approx(right.mean())


def test_the_same_job_gives_the_same_bytes_again_and_another_name_or_identifier_changes_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = whole()
    datasets = split(table, parts(240, 3))
    first = run(datasets, specification(every=2, subsample=0.7))
    monkeypatch.setattr(
        Harness, "job", lambda self, fetch, real=Harness.job: dataclasses.replace(real(self, fetch), id="another")
    )
    second = run(datasets, specification(every=2, subsample=0.7, name="another"))
    assert second.contributions == first.contributions
    assert second.model_digest == first.model_digest
    assert [record.instruction for record in second.phases] == [record.instruction for record in first.phases]
    other_seed = run(datasets, specification(every=2, subsample=0.7, seed=1))
    assert other_seed.model_digest != first.model_digest


class Forgetful(BoostingLearner):
    """Begins every assignment with neither memory nor state."""

    def perform(self, assignment: Assignment) -> Payload:
        self.__init__(self._dataset)  # type: ignore[misc]
        return super().perform(dataclasses.replace(assignment, state=None))


def test_nodes_that_miss_rounds_catch_up_to_the_same_bytes() -> None:
    datasets = split(whole(), parts(240, 4))
    job = specification(rounds=6, selection={"fraction": 0.5}, every=3)
    remembering, forgetful = run(datasets, job), run(datasets, job, learner=Forgetful)
    chosen = {record.round: tuple(record.contributions) for record in remembering.phases if record.name == "atoms"}
    assert all(len(nodes) == 2 for nodes in chosen.values())
    assert len(set(chosen.values())) > 1
    assert forgetful.contributions == remembering.contributions


@pytest.mark.parametrize("edges", ["shared", "per_class"])
def test_columns_are_drawn_anew_for_every_round_and_class(edges: str) -> None:
    job = specification(rounds=4, colsample_bytree=0.34, edges=edges, seed=2)
    result = run(split(random_table(300, seed=3, features=6), parts(300, 2)), job)
    stored = [artifact for record in result.phases for artifact in record.outcome.stored][:-1]  # last is the model
    drawn = set()
    for number, artifact in enumerate(stored):
        for k, tree in enumerate(read_trees(artifact, features=6, outputs=3).trees):
            offered = chosen_columns(2, number, k, 6, 0.34).tolist()
            drawn.add(tuple(offered))
            assert set(tree.feature[tree.left >= 0].tolist()) <= set(offered)
    assert len(drawn) > 3


def test_every_training_node_evaluates_also_where_a_share_is_drawn_for_training() -> None:
    job = specification(rounds=1, selection={"fraction": 0.5}, every=1)
    phases = run(split(whole(), parts(240, 4)), job).phases
    assert [len(record.contributions) for record in phases] == [2, 2, 2, 4, 4]


class Undescribed(HistogramSplitFinder):
    """Knows no schema beforehand."""

    def first_phase(self, job: JobContext) -> Phase:
        return super().first_phase(dataclasses.replace(job, datasets={}))


def test_a_contribution_rejected_at_the_end_is_named_with_the_refusals() -> None:
    odd = make_table(np.ones((4, 3)), np.zeros(4), feature_names=("f0", "f1", "height"))
    datasets = {**split(whole(), parts(240, 3)), "node-09": MemoryDataset(odd)}
    job = specification(rounds=1, selection={"quorum": 0.7})
    record = run(datasets, job, plugin=Undescribed).phases[0]
    assert "'height'" in record.refusals["node-09"].sentence
    assert "node-09" in record.contributions


def test_unseen_nodes_are_evaluated_on_all_their_rows_and_never_train() -> None:
    table = whole()
    datasets = split(table, parts(240, 3))
    result = run(datasets, specification(rounds=3, every=2, evaluation={"every": 2, "unseen": ["node-01"]}))
    for record in result.phases:
        assert ("node-01" in record.contributions) == (record.purpose is not Purpose.TRAIN)
    assert [record.round for record in result.phases if record.name == "evaluate"] == [2, 3]
    assert {row.metric.weight for row in result.metrics if row.metric.scope is Scope.UNSEEN} == {80.0}
    assert 0 < result.value("accuracy", scope=Scope.UNSEEN) < 1
    trained = run({k: v for k, v in datasets.items() if k != "node-01"}, specification(rounds=3))
    assert trained.model_digest == result.model_digest


def test_a_node_that_refuses_is_named_and_the_others_go_on() -> None:
    table = whole()
    datasets = split(table, parts(240, 5))
    good = run({k: v for k, v in datasets.items() if k != "node-03"}, specification())
    bad = make_table(np.full((5, 3), np.inf), np.zeros(5), feature_names=table.feature_names)
    result = run({**datasets, "node-03": MemoryDataset(bad)}, specification(selection={"quorum": 0.8}))
    assert all(record.refusals["node-03"].code == "INFINITE_VALUE" for record in result.phases[:-1])
    assert "node-03" in result.phases[-1].contributions  # the finished model may be used there all the same
    assert result.model_digest == good.model_digest


def test_below_the_quorum_the_run_ends_with_every_reason() -> None:
    datasets = split(whole(), parts(240, 2))
    limits = {"node-01": LearnerLimits(minimum_rows_per_atom=5)}
    with pytest.raises(QuorumNotMet, match=r"1 of 2 nodes contributed to the phase 'atoms'.*node-01") as caught:
        run(datasets, specification(selection={"quorum": 1.0}), limits=limits)
    assert caught.value.refusals["node-01"].code == "POLICY_MINIMUM_ROWS_PER_ATOM"


def test_bytes_are_counted_by_node() -> None:
    result = run(split(whole(), parts(240, 2)), specification(rounds=2))
    for node in ("node-00", "node-01"):
        assert result.bytes_sent[node] == sum(record.sent[node] for record in result.phases)
        assert result.bytes_received[node] > 0


def test_artifacts_and_states_lie_in_the_given_folder(tmp_path: Path) -> None:
    result = run(split(whole(), parts(240, 2)), specification(rounds=2), workdir=tmp_path)
    assert len(list((tmp_path / "artifacts").iterdir())) == 3  # the trees of two rounds, and the model
    assert [path.name for path in (tmp_path / "nodes" / "node-00").iterdir()] == [str(len(result.phases))]


def test_unknown_methods_and_nodes_are_named() -> None:
    with pytest.raises(NotFound, match=r"'nothing'.*fedscs_xgb"):
        Harness("nothing", {}, specification(method="nothing"))
    with pytest.raises(OperatorError, match="'node-77' has no dataset"):
        Harness("fedscs_xgb", {}, specification(evaluation={"unseen": ["node-77"]}))


@pytest.mark.skipif(not (DATA / "dsads_har").is_dir(), reason="set HANSE_TEST_DATA to a folder with dsads_har")
def test_eight_people_reach_the_accuracy_of_central_training_on_real_activities() -> None:
    path = DATA / "dsads_har" / "dsads_features.npz"
    with np.load(path, allow_pickle=False) as file:
        names = [str(name) for name in file["feature_names"]]
        chosen = [name for name in names if name.endswith("mean")]
        values = file["X"][:, [names.index(name) for name in chosen]]
        labels, held_out = file["y"], file["segment"] > 48
    options = {"path": path, "target": "y", "features": chosen, "holdout_column": "segment", "holdout_above": 48}
    datasets = {f"person-{i}": TableDataset("har", {**options, "where": {"subject": i}}) for i in range(1, 9)}
    job = specification(rounds=10, classes=19, bins=256, max_depth=6, every=10)
    result = run(datasets, job)
    parameters = {"objective": "multi:softprob", "num_class": 19, "max_bin": 256, "nthread": 1}
    central = xgboost.train(parameters, xgboost.DMatrix(values[~held_out], label=labels[~held_out]), 10)
    right = central.predict(xgboost.DMatrix(values[held_out])).argmax(axis=1) == labels[held_out]
    assert len(chosen) == 45
    assert abs(result.value("accuracy") - right.mean()) <= 0.005
    assert len(result.by_node("accuracy")) == 8


# ---- any method


class SharesPlugin:
    """Sends each node the sum of the others' numbers in private; unseen nodes adapt and report at the end."""

    version: ClassVar[str] = "1"
    Config: ClassVar[type[BaseModel]] = BaseModel

    def first_phase(self, job: JobContext) -> Phase:
        return Phase(job=job, name="share", round=1, instruction=document_payload("go", {}))

    def open(self, phase: Phase, state: Payload | None) -> SharesAggregation:
        return SharesAggregation(phase, state)


class SharesAggregation:
    def __init__(self, phase: Phase, state: Payload | None) -> None:
        self.phase, self.state = phase, state
        self.numbers: dict[str, int] = {}

    def add(self, contribution: Contribution) -> None:
        assert contribution.unseen == (self.phase.purpose is Purpose.ADAPT)
        self.numbers[contribution.node] = read_document(contribution.payload, "number")["value"]

    def finish(self) -> Outcome:
        if self.phase.purpose is Purpose.ADAPT:
            metrics = [
                MetricValue(name="value", value=value, scope=Scope.NODE, node=node)
                for node, value in self.numbers.items()
            ]
            return Outcome(next_phase=None, metrics=tuple(metrics))
        total = sum(self.numbers.values())
        personal = {node: document_payload("yours", {"value": total - own}) for node, own in self.numbers.items()}
        artifact = document_payload("total", {"value": total})
        told = document_payload("go", {}, references=[artifact.digest])
        if self.phase.name == "share":
            return Outcome(next_phase=self.phase.then("again", told, personal=personal, round=2), stored=(artifact,))
        adapting = self.phase.then("adapt", told, purpose=Purpose.ADAPT, audience=Audience.UNSEEN)
        return Outcome(next_phase=adapting, stored=(artifact,))


class SharesLearner:
    version: ClassVar[str] = "1"
    dataset_kinds: ClassVar[tuple[str, ...]] = ("table",)

    def __init__(self, dataset: Any) -> None:
        self.own = dataset.number

    def perform(self, assignment: Assignment) -> Payload:
        if self.own < 0:
            raise SiteError("There is nothing to share.")
        before = int((assignment.state / "n").read_text()) if assignment.state else 0
        (assignment.next_state / "n").write_text(str(before + 1))
        value = self.own
        if assignment.personal is not None:
            value += 100 * read_document(assignment.personal, "yours")["value"]
        if assignment.unseen:
            value += read_document(assignment.fetch(assignment.instruction.references[0]), "total")["value"]
        return document_payload("number", {"value": value, "times": before})


@dataclasses.dataclass
class Number:
    number: int

    def describe(self) -> Any:
        return None


def test_personal_payloads_reach_their_node_alone_and_unseen_nodes_adapt() -> None:
    job = JobSpecification.model_validate(
        {"name": "t", "method": "shares", "dataset": "d", "rounds": 2, "evaluation": {"unseen": ["z"]}}
    )
    datasets: Any = {"b": Number(2), "z": Number(7), "a": Number(1)}
    result = Harness("shares", datasets, job, plugin=SharesPlugin, learner=SharesLearner).run()
    assert [(record.name, tuple(record.contributions)) for record in result.phases] == [
        ("share", ("a", "b")),
        ("again", ("a", "b")),
        ("adapt", ("z",)),
    ]
    # a: 1 + 100 * 2, b: 2 + 100 * 1; z: 7 + their sum.
    assert result.by_node("value") == {"z": 7 + 201 + 102}
    with pytest.raises(NotFound, match="no model"):
        _ = result.model_digest


def test_a_contribution_that_is_made_twice_counts_its_state_once(tmp_path: Path) -> None:
    datasets: Any = {"a": Number(1), "b": Number(-1)}
    job = JobSpecification.model_validate(
        {"name": "t", "method": "shares", "dataset": "d", "rounds": 2, "selection": {"quorum": 0.5}}
    )
    harness = Harness("shares", datasets, job, tmp_path, plugin=SharesPlugin, learner=SharesLearner)
    result = harness.run()
    assert not result.phases[-1].contributions  # nobody is unseen: nobody adapts
    assert (tmp_path / "nodes" / "a" / "2" / "n").read_text() == "2"
    assert not (tmp_path / "nodes" / "b" / "1" / "n").exists()
