"""Whole jobs of FedSCS-XGB through the harness: by histograms, early stopping, continuation, delivery, coarsening."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hanse.errors import NotFound, OperatorError, SiteError
from hanse.harness import Harness, HarnessResult, QuorumNotMet
from hanse.jobs import JobSpecification
from hanse.learning.booster import from_json
from hanse.method import Assignment, Dataset, LearnerLimits, Scope
from hanse.payload import Payload
from hanse.payload.kinds import read_document
from hanse_agent.learners.boosting import BoostingLearner
from tests.unit.boosting_data import MemoryDataset, make_table, random_table, specification, split


def run(datasets: Mapping[str, Dataset], job: JobSpecification, **changes: Any) -> HarnessResult:
    return Harness("fedscs_xgb", datasets, job, **changes).run()


def parts(rows: int, nodes: int, seed: int = 0) -> list[np.ndarray]:
    return np.array_split(np.random.default_rng(seed).permutation(rows), nodes)


def trees(result: HarnessResult) -> tuple[np.ndarray, Any, tuple[str, ...]]:
    assert result.model is not None
    return from_json(result.model.arrays["model.json"].tobytes())


# ---- histograms

JOBS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "binary": {"classes": 0, "objective": "binary:logistic"},
    "squared error": {"classes": 0},
    "edges per class": {"edges": "per_class"},
    "edges once": {"sketch_every": 0},
    "exact edges": {"bin_source": "exact"},
    "rows and columns drawn": {"subsample": 0.6, "colsample_bytree": 0.5, "seed": 9},
    "few leaves": {"max_leaves": 3},
    "strict": {"gamma": 1.0, "alpha": 0.2, "min_child_weight": 5.0, "max_delta_step": 0.5},
}


@pytest.mark.parametrize("name", JOBS)
def test_histograms_give_the_model_of_atoms_to_the_byte(name: str) -> None:
    table = random_table(240, seed=5, classes={"binary": 2, "squared error": 0}.get(name, 3))
    datasets = split(table, parts(240, 4))
    by_atoms = run(datasets, specification(every=2, **JOBS[name]))
    by_histograms = run(datasets, specification(every=2, statistics="histograms", **JOBS[name]))
    assert by_histograms.model_digest == by_atoms.model_digest
    assert by_histograms.value("trees", scope=Scope.AGGREGATION) == by_atoms.value("trees", scope=Scope.AGGREGATION)
    levels = [record.round for record in by_histograms.phases if record.name == "histogram"]
    assert max(levels.count(number) for number in set(levels)) <= 3  # one exchange a level, all classes in it


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 3), min_size=60, max_size=60), st.integers(0, 3))
def test_by_histograms_any_partition_gives_the_same_model(owners: list[int], seed: int) -> None:
    table, owner = random_table(60, seed=seed), np.array(owners)
    job = specification(rounds=2, statistics="histograms")
    split_up = run(split(table, [np.flatnonzero(owner == k) for k in np.unique(owner)]), job)
    assert split_up.model_digest == run(split(table, [np.arange(60)]), job).model_digest


class Forgetful(BoostingLearner):
    """Begins every assignment with neither memory nor state."""

    def perform(self, assignment: Assignment) -> Payload:
        self.__init__(self._dataset)  # type: ignore[misc]
        return super().perform(assignment)


def test_a_worker_that_starts_anew_at_every_level_sends_the_same_bytes() -> None:
    datasets = split(random_table(240, seed=5), parts(240, 3))
    job = specification(rounds=3, statistics="histograms", subsample=0.8)
    assert run(datasets, job, learner=Forgetful).contributions == run(datasets, job).contributions


class Fleeting(BoostingLearner):
    """Falls away at the second level of the second round."""

    def perform(self, assignment: Assignment) -> Payload:
        seen = self.__dict__.setdefault("levels", [])
        if assignment.phase == "histogram":
            seen.append(assignment.round)
            if assignment.round == 2 and seen.count(2) == 2 and assignment.node == "node-01":
                raise SiteError("The disk is full.")
        return super().perform(assignment)


def test_a_node_that_falls_away_in_the_middle_of_a_tree_leaves_nothing_behind() -> None:
    datasets = split(random_table(240, seed=5), parts(240, 4))
    job = specification(rounds=2, statistics="histograms", selection={"quorum": 0.5})
    result = run(datasets, job, learner=Fleeting)
    begun = [row for row in result.metrics if row.metric.name == "trees_begun_again"]
    assert [(row.round, row.metric.value) for row in begun] == [(2, 1.0)]

    class Absent(BoostingLearner):
        def perform(self, assignment: Assignment) -> Payload:
            if assignment.phase == "histogram" and assignment.round == 2 and assignment.node == "node-01":
                raise SiteError("The disk is full.")
            return super().perform(assignment)

    assert result.model_digest == run(datasets, job, learner=Absent).model_digest


# ---- early stopping


def test_a_job_stops_when_the_validation_loss_no_longer_falls_and_keeps_its_best_rounds() -> None:
    table = random_table(300, seed=2, missing=0.0)
    datasets = split(table, parts(300, 3))
    changes: dict[str, Any] = {"max_depth": 6, "eta": 1.0, "min_child_weight": 0, "every": 1}
    full = run(datasets, specification(rounds=12, **changes))
    losses = [r.metric.value for r in full.metrics if (r.metric.name, r.metric.scope) == ("log_loss", Scope.POOLED)]
    best = int(np.argmin(losses)) + 1
    assert best + 2 < 12
    stopped = run(datasets, specification(rounds=12, early_stopping_rounds=2, **changes))
    assert max(record.round for record in stopped.phases) == best + 2
    assert stopped.value("best_round", scope=Scope.AGGREGATION) == best
    assert stopped.value("best_loss", scope=Scope.AGGREGATION) == losses[best - 1]
    assert stopped.model is not None
    document = read_document(stopped.model, "xgboost.booster")
    assert (document["rounds"], document["rounds_grown"]) == (best, best + 2)
    same = run(datasets, specification(rounds=best, **changes))
    for name, array in trees(stopped)[1].arrays().items():
        np.testing.assert_array_equal(array, trees(same)[1].arrays()[name])


def test_a_job_that_never_gets_worse_runs_to_its_end() -> None:
    datasets = split(random_table(300, seed=2), parts(300, 3))
    job = specification(rounds=4, early_stopping_rounds=3, every=2, eta=0.1)
    result = run(datasets, job)
    assert result.value("best_round", scope=Scope.AGGREGATION) == 4
    assert result.model_digest == run(datasets, specification(rounds=4, every=2, eta=0.1)).model_digest


def test_early_stopping_without_held_out_rows_is_refused() -> None:
    table = random_table(60, seed=1)
    whole = MemoryDataset(make_table(table.features, table.target, feature_names=table.feature_names))
    with pytest.raises(OperatorError, match="no training node holds any out"):
        run({"a": whole}, specification(early_stopping_rounds=1, every=1))


# ---- continuation


@pytest.mark.parametrize("statistics", ["atoms", "histograms"])
@pytest.mark.parametrize("changes", [{}, {"subsample": 0.7, "colsample_bytree": 0.6}, {"classes": 0}], ids=str)
def test_five_rounds_continued_by_five_are_ten_rounds(changes: dict[str, Any], statistics: str) -> None:
    datasets = split(random_table(240, seed=5, classes=changes.get("classes", 3)), parts(240, 3))
    job = specification(rounds=5, every=5, statistics=statistics, **changes)
    first = run(datasets, job)
    more = run(datasets, job, continue_from=first.model)
    ten = run(datasets, specification(rounds=10, every=10, statistics=statistics, **changes))
    assert more.model_digest == ten.model_digest
    assert more.value("trees", scope=Scope.AGGREGATION) == ten.value("trees", scope=Scope.AGGREGATION)


def test_new_records_at_a_node_are_learned_from_where_the_earlier_model_ends() -> None:
    table = random_table(400, seed=8)
    old = run(split(table, [np.arange(0, 100), np.arange(100, 200)]), specification(rounds=3))
    new = run(split(table, [np.arange(0, 300), np.arange(100, 400)]), specification(rounds=2), continue_from=old.model)
    _, before, _ = trees(old)
    _, after, _ = trees(new)
    assert (len(before), len(after)) == (9, 15)
    for one, other in zip(before.trees, after.trees, strict=False):
        np.testing.assert_array_equal(one.threshold, other.threshold)
    training = ~table.held_out
    rows = xgboost.DMatrix(table.features[training], feature_names=list(table.feature_names))

    def loss(result: HarnessResult) -> float:
        assert result.model is not None
        booster = xgboost.Booster()
        booster.load_model(bytearray(result.model.arrays["model.ubj"].tobytes()))
        own = booster.predict(rows)[np.arange(int(training.sum())), table.target[training].astype(int)]
        return float(-np.log(own).mean())

    assert loss(new) < loss(old)


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        (specification(classes=0), "was trained for multi:softprob, not for reg:squarederror"),
        (specification(classes=4), "has 3 outputs, not 4"),
        (specification(features=["f0", "f2"]), r"3 columns and the job has 2; .*'f1' in the model and 'f2' in the job"),
    ],
    ids=["objective", "classes", "columns"],
)
def test_a_model_of_something_else_is_not_continued(job: JobSpecification, sentence: str) -> None:
    datasets = split(random_table(120, seed=5), parts(120, 2))
    model = run(datasets, specification(rounds=1)).model
    with pytest.raises(OperatorError, match=sentence) as caught:
        run(datasets, job, continue_from=model)
    assert caught.value.remedy


# ---- the finished model at the node


def test_every_node_gets_the_finished_model_and_predicts_with_it(tmp_path: Path) -> None:
    table = random_table(240, seed=5)
    datasets = split(table, parts(240, 3))
    job = specification(rounds=3, evaluation={"every": 0, "unseen": ["node-02"]})
    result = run(datasets, job, workdir=tmp_path)
    assert result.phases[-1].name == "deliver"
    assert sorted(result.phases[-1].contributions) == sorted(datasets)
    assert result.model is not None
    booster = xgboost.Booster()
    booster.load_model(bytearray(result.model.arrays["model.ubj"].tobytes()))
    expected = booster.predict(xgboost.DMatrix(table.features[:20], feature_names=list(table.feature_names)))
    np.savez(tmp_path / "new.npz", X=table.features[:20], feature_names=np.array(table.feature_names))
    for node, dataset in datasets.items():
        (state,) = (tmp_path / "nodes" / node).iterdir()
        found = BoostingLearner(dataset).predict(state, tmp_path / "new.npz").columns
        assert list(found) == ["prediction", "probability_0", "probability_1", "probability_2"]
        np.testing.assert_array_equal(found["prediction"], expected.argmax(axis=1))
        np.testing.assert_allclose(found["probability_1"], expected[:, 1], atol=1e-6)


class Away(BoostingLearner):
    """Away when the model is delivered."""

    def perform(self, assignment: Assignment) -> Payload:
        if assignment.phase == "deliver":
            raise SiteError("This node is away.", code="NODE_GONE")
        return super().perform(assignment)


def test_a_finished_model_that_reaches_no_node_is_the_result_all_the_same() -> None:
    datasets = split(random_table(60, seed=5), parts(60, 2))
    result = run(datasets, specification(rounds=1), learner=Away)
    assert result.model is not None
    assert set(result.phases[-1].refusals) == set(datasets)
    assert result.value("nodes_with_the_model", scope=Scope.AGGREGATION) == 0


def test_a_node_without_the_model_says_so(tmp_path: Path) -> None:
    datasets = split(random_table(60, seed=5), parts(60, 1))
    run(datasets, specification(rounds=1, deliver_model=False), workdir=tmp_path)
    (state,) = (tmp_path / "nodes" / "node-00").iterdir()
    with pytest.raises(NotFound, match="has not come to this node"):
        BoostingLearner(datasets["node-00"]).predict(state, tmp_path / "new.csv")


# ---- small atoms


def test_a_site_that_coarsens_sends_no_small_atom_and_the_job_reports_the_share() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(400, 2)).astype(np.float32)
    table = make_table(values, (values[:, 0] > 0).astype(float), feature_names=("f0", "f1"))
    datasets = split(table, parts(400, 2))
    job = specification(rounds=2, classes=2, bins=32)
    limits = {
        "node-00": LearnerLimits(minimum_rows_per_atom=5, small_atoms="coarsen"),
        "node-01": LearnerLimits(minimum_rows_per_atom=1),
    }
    result = run(datasets, job, limits=limits)
    shares, factors = result.by_node("small_atoms"), result.by_node("coarsened")
    assert shares["node-00"] > 0.5
    assert (shares["node-01"], factors["node-01"]) == (0.0, 1.0)
    assert factors["node-00"] >= 4
    assert result.by_node("single_row_atoms")["node-00"] == 0.0
    assert 0 < result.value("small_atoms", scope=Scope.AGGREGATION) < shares["node-00"]


def test_a_site_that_refuses_names_the_share_and_what_to_do() -> None:
    datasets = split(random_table(120, seed=5), parts(120, 2))
    limits = {"node-01": LearnerLimits(minimum_rows_per_atom=5)}
    with pytest.raises(QuorumNotMet) as caught:
        run(datasets, specification(selection={"quorum": 1.0}), limits=limits)
    reason = caught.value.refusals["node-01"]
    assert "% hold fewer than 5 rows" in reason.sentence.replace("(", "").replace(")", "")
    assert "statistics: histograms" in reason.remedy
    by_histograms = specification(selection={"quorum": 1.0}, statistics="histograms")
    assert run(datasets, by_histograms, limits=limits).model is not None


def test_coarser_bins_that_do_not_help_are_a_refusal() -> None:
    table = make_table([[1.0], [np.nan], [1.0], [1.0]], [0, 1, 1, 0], feature_names=("f0",))
    limits = {"node-00": LearnerLimits(minimum_rows_per_atom=2, small_atoms="coarsen")}
    with pytest.raises(QuorumNotMet, match="coarser bins do not help"):
        run(split(table, [np.arange(4)]), specification(classes=2), limits=limits)
