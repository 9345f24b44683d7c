"""gPerXAN as a federation: who ends up with which arrays, what unseen nodes read, and which round wins."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.errors import MethodError, OperatorError, SiteError
from hanse.harness import Harness, HarnessResult
from hanse.learning.training_options import learning_rate
from hanse.method import Assignment, DatasetDescription, Purpose, Scope
from hanse.models import Role, load_model
from hanse.payload import Payload
from hanse.payload.models import read_roles
from hanse.payload.safetensors import read_safetensors
from hanse_agent.learners.images import GperxanLearner
from hanse_agent.learners.network_state import NetworkState
from hanse_aggregator.plugins.gap_averaging import moved
from tests.unit.image_data import MemoryImages, bars, domains, image_job


class Recording(GperxanLearner):
    """Keeps what came and what went."""

    log: ClassVar[list[tuple[Assignment, Payload]]] = []

    def perform(self, assignment: Assignment) -> Payload:
        reply = super().perform(assignment)
        Recording.log.append((assignment, reply))
        return reply


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Recording.log.clear()


def run(nodes: dict[str, MemoryImages], workdir: Path | None = None, **changes: Any) -> HarnessResult:
    job = image_job(**changes)
    return Harness("gperxan", nodes, job, workdir, learner=Recording).run()


def replies(phase: str, round_number: int) -> dict[str, tuple[Assignment, Payload]]:
    return {a.node: (a, reply) for a, reply in Recording.log if (a.phase, a.round) == (phase, round_number)}


def roles(**model: Any) -> dict[str, Role]:
    return dict(load_model("small_cnn", {"classes": 2, "size": 8, "width": 2, "norm": "xan", **model}).roles())


def of_role(role: Role, **model: Any) -> set[str]:
    return {name for name, each in roles(**model).items() if each is role}


def file_of(result: HarnessResult) -> dict[str, Any]:
    assert result.model is not None
    return read_safetensors(result.model.arrays["model.safetensors"], "the model")


# ---- property 3: sharing


@pytest.mark.parametrize("sharing", ["code", "global", "personal"])
@pytest.mark.parametrize("upload", ["average_for_unseen", "never"])
def test_nodes_keep_their_own_arrays_and_share_all_others_bit_for_bit(
    tmp_path: Path, sharing: str, upload: str
) -> None:
    model = {"score_sharing": sharing, "bn_upload": upload}
    unseen_bn = "average" if upload == "average_for_unseen" else "in_only"
    evaluation = {"every": 1, "unseen": ["node-2"]}
    run(domains(3), tmp_path, model=model, evaluation=evaluation, unseen_bn=unseen_bn, rounds=2)
    shared = of_role(Role.GLOBAL, **model)
    own = set(roles(**model)) - shared
    assert {"bn1.batchnorm.weight", "bn1.batchnorm.running_mean"} <= own
    assert ("bn1.score_batchnorm" in own) == (sharing != "global")
    assert ("bn1.score_instancenorm" in own) == (sharing == "personal")
    for number in (1, 2):
        found = replies("train", number)
        instructions = {a.instruction.digest for a, _ in found.values()}
        assert len(instructions) == 1
        for assignment, reply in found.values():
            assert set(assignment.instruction.arrays) == shared  # no personal name travels to nodes that train
            assert assignment.personal is None
            left = shared | (of_role(Role.EVALUATION_ONLY, **model))
            assert set(reply.arrays) == left
            if upload == "never":
                assert set(reply.arrays) == shared
    # After the job each node's state holds just what it trained itself.
    for node in ("node-0", "node-1"):
        (folder,) = (tmp_path / "nodes" / node).iterdir()
        kept = NetworkState.load(folder)
        assert set(kept.own) == own
        _, reply = replies("train", 2)[node]
        for name in of_role(Role.EVALUATION_ONLY, **model):
            assert np.array_equal(kept.own[name], reply.arrays[name])


def test_what_a_node_keeps_is_what_it_starts_the_next_round_from(tmp_path: Path) -> None:
    run(domains(2), tmp_path, rounds=2, training={"schedule": "published", "keep_optimiser": False})
    first, last = replies("train", 1)["node-0"][1], replies("train", 2)["node-0"][1]
    # Round 2 of 2 trains at rate 0: affine and score stay, running statistics move on from the node's own.
    for name in ("bn1.batchnorm.weight", "bn1.batchnorm.bias", "bn1.score_batchnorm"):
        assert np.array_equal(first.arrays[name], last.arrays[name])
    assert not np.array_equal(first.arrays["bn1.batchnorm.running_mean"], last.arrays["bn1.batchnorm.running_mean"])
    assert not np.any(last.arrays["conv1.weight"])
    assert learning_rate(0.1, "published", 2, 2) == 0.0


# ---- property 4: what unseen nodes receive


def test_unseen_nodes_receive_the_mean_by_examples_and_nobody_else_does() -> None:
    nodes = {"a": bars(30, seed=1), "b": bars(60, seed=2, brightness=0.5), "z": bars(20, seed=3)}
    result = run(nodes, evaluation={"every": 1, "unseen": ["z"]}, rounds=1)
    sent = {node: reply for node, (_, reply) in replies("train", 1).items()}
    counts = {node: int(reply.header.weight_delta.examples) for node, reply in sent.items()}
    total = sum(counts.values())
    evaluation = replies("evaluate", 1)
    assert evaluation["a"][0].personal is None
    given = evaluation["z"][0].personal
    assert given is not None
    assert set(given.arrays) == of_role(Role.EVALUATION_ONLY)
    for name, array in given.arrays.items():
        exact = sum(counts[node] * sent[node].arrays[name].astype(np.float64) for node in sent) / total
        np.testing.assert_allclose(array, exact, rtol=1e-6, atol=1e-7)
    assert 0 <= result.value("accuracy", scope=Scope.UNSEEN) <= 1
    assert set(file_of(result)) == of_role(Role.EVALUATION_ONLY) | of_role(Role.GLOBAL)


def test_identical_nodes_without_guide_are_fedavg_and_the_unseen_bn_is_theirs() -> None:
    twins = {"a": bars(30, seed=1), "b": bars(30, seed=1)}
    # One whole batch a round: the order of rows within it changes sums in the last bits alone.
    training = {"guide": 0.0, "batch_size": 64, "schedule": "constant"}
    personal = run(twins, rounds=3, training=training, select="last")
    mean = file_of(personal)
    alone = {"a": twins["a"]}
    single = file_of(run(alone, rounds=3, training=training, select="last"))
    shared = Harness("fedavg", twins, image_job("fedavg", rounds=3, model={"norm": "xan"}, training=training)).run()
    averaged = file_of(shared)
    for name in mean:
        np.testing.assert_allclose(mean[name], averaged[name], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(mean[name], single[name], rtol=1e-4, atol=1e-5)
    own = replies("train", 3)["a"][1]
    for name in of_role(Role.EVALUATION_ONLY):
        np.testing.assert_allclose(mean[name], own.arrays[name], rtol=1e-4, atol=1e-5)


def test_moments_pool_the_variance_of_all_values_together() -> None:
    nodes = {"a": bars(30, seed=1), "b": bars(60, seed=2, brightness=0.4)}
    results = {pool: file_of(run(nodes, rounds=1, bn_pool=pool, select="last")) for pool in ("naive", "moments")}
    sent = {node: reply for node, (_, reply) in replies("train", 1).items()}
    weights = np.array([sent[node].header.weight_delta.examples for node in ("a", "b")], dtype=np.float64)
    weights /= weights.sum()
    for layer in ("bn1", "bn2", "bn3"):
        mean, var = (
            np.stack([sent[node].arrays[f"{layer}.batchnorm.running_{what}"] for node in ("a", "b")]).astype(float)
            for what in ("mean", "var")
        )
        naive = weights @ var
        pooled = weights @ (var + mean**2) - (weights @ mean) ** 2
        name = f"{layer}.batchnorm.running_var"
        np.testing.assert_allclose(results["naive"][name], naive, rtol=1e-5)
        np.testing.assert_allclose(results["moments"][name], pooled, rtol=1e-4)
        assert np.all(results["moments"][name] >= results["naive"][name] - 1e-6)


def test_every_way_of_reading_has_figures_of_its_own_and_none_needs_another_training() -> None:
    evaluation = {"every": 2, "unseen": ["node-2"]}
    also = {"also_read": ["in_only", "batch_stats", "average", "client_ensemble"]}
    first = run(domains(3), evaluation=evaluation, training=also)
    names = {row.metric.name for row in first.metrics if row.metric.scope is Scope.UNSEEN}
    assert {"accuracy", "in_only_accuracy", "batch_stats_accuracy", "batch_stats_log_loss"} <= names
    assert "client_ensemble_accuracy" in names
    assert "average_accuracy" not in names  # it is the first way already
    instance = run(domains(3), evaluation=evaluation, unseen_bn="in_only")
    assert instance.value("accuracy", scope=Scope.UNSEEN) == first.value("in_only_accuracy", scope=Scope.UNSEEN)
    assert instance.value("log_loss", scope=Scope.UNSEEN) == first.value("in_only_log_loss", scope=Scope.UNSEEN)
    members = run(domains(3), evaluation=evaluation, unseen_bn="client_ensemble", training={"also_read": ["average"]})
    for mine, theirs in (("log_loss", "client_ensemble_log_loss"), ("average_log_loss", "log_loss")):
        assert members.value(mine, scope=Scope.UNSEEN) == first.value(theirs, scope=Scope.UNSEEN)


def test_an_ensemble_gives_unseen_nodes_every_nodes_bn_by_number_and_never_by_name() -> None:
    result = run(domains(3), evaluation={"every": 1, "unseen": ["node-2"]}, unseen_bn="client_ensemble", rounds=1)
    given = replies("evaluate", 1)["node-2"][0].personal
    assert given is not None
    assert {name.partition("/")[0] for name in given.arrays if "/" in name} == {"0000", "0001"}
    assert {name for name in given.arrays if "/" not in name} == of_role(Role.EVALUATION_ONLY)  # the averages
    sent = replies("train", 1)["node-1"][1]
    name = "bn2.batchnorm.weight"
    assert np.array_equal(given.arrays[f"0001/{name}"], sent.arrays[name])
    assert b"node-1" not in given.image()
    assert set(read_roles(given).values()) == {Role.EVALUATION_ONLY}
    assert result.value("log_loss", scope=Scope.UNSEEN) >= 0


def test_with_nothing_uploaded_unseen_nodes_read_by_batch_statistics() -> None:
    evaluation = {"every": 1, "unseen": ["node-2"]}
    result = run(domains(3), evaluation=evaluation, model={"bn_upload": "never"}, unseen_bn="batch_stats", rounds=1)
    assert 0 <= result.value("accuracy", scope=Scope.UNSEEN) <= 1
    assert replies("evaluate", 1)["node-2"][0].personal is None
    assert set(file_of(result)) == of_role(Role.GLOBAL)


# ---- which round wins


def test_the_round_of_the_best_fitted_models_is_the_result_and_the_earlier_of_equals() -> None:
    result = run(domains(2), rounds=4, training={"learning_rate": 0.3, "schedule": "constant"})
    scores, chosen = {}, {}
    for record in result.phases:
        if record.purpose is not Purpose.EVALUATE:
            continue
        rows = {(m.name, m.node): m.value for m in record.outcome.metrics if m.scope is Scope.NODE}
        examples = {n: r.header.weight_delta.examples for n, (_, r) in replies("train", record.round).items()}
        total = sum(examples.values())
        scores[record.round] = sum(rows[("fitted_accuracy", n)] * examples[n] for n in examples) / total
        if record.outcome.model is not None:
            chosen[record.round] = record.outcome.model
    best = max(scores, key=lambda number: (round(scores[number], 12), -number))
    assert result.value("selected_round", scope=Scope.AGGREGATION) == best
    assert result.model is chosen[best]
    assert result.value("selection_score", scope=Scope.AGGREGATION) == pytest.approx(scores[4])
    card = chosen[best].arrays["card.md"].tobytes().decode()
    assert f"of round {best}" in card
    assert "score_sharing code" in card
    assert all(record.outcome.model is None for record in result.phases if record.name == "train")


def test_the_last_round_can_be_the_result() -> None:
    result = run(domains(2), rounds=2, select="last", evaluation={"every": 0})
    assert result.model is not None
    assert result.model is result.phases[-1].outcome.model


# ---- what people see


def test_a_picture_shows_the_mixture_of_every_layer_at_every_node() -> None:
    result = run(domains(2), rounds=1, model={"init_scores": [2.0, 0.0]}, training={"learning_rate": 1e-6})
    (picture,) = next(record.outcome.pictures for record in result.phases if record.name == "train")
    values = picture.payload.arrays["values"]
    assert (picture.kind, values.shape) == ("matrix", (3, 2))
    np.testing.assert_allclose(values, 1 / (1 + np.exp(-2)), atol=1e-3)
    assert b'"columns":["node-0","node-1"]' in picture.payload.header.opaque.document


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": {"norm": "batch"}}, "for models with XAN layers"),
        ({"model": {"bn_upload": "never"}, "evaluation": {"every": 1, "unseen": ["node-0"]}}, "nothing for unseen"),
        (
            {
                "model": {"bn_upload": "never"},
                "unseen_bn": "in_only",
                "training": {"also_read": ["client_ensemble"]},
                "evaluation": {"every": 1, "unseen": ["node-0"]},
            },
            "by unseen_bn 'client_ensemble'",
        ),
        ({"evaluation": {"every": 0}}, "the job evaluates none"),
        ({"unseen_bn": "magic"}, "unseen_bn"),
        ({"bn_pol": "naive"}, "bn_pol"),
    ],
)
def test_contradicting_jobs_are_refused_before_anything_is_sent(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OperatorError, match=sentence):
        run(domains(2), **changes)
    assert not Recording.log


# ---- what decides which round is the result


class Silent(MemoryImages):
    """Does not tell how many images are held out."""

    def describe(self) -> DatasetDescription:
        return dataclasses.replace(super().describe(), facts={})


def without_held_out(kind: type[MemoryImages] = MemoryImages) -> dict[str, MemoryImages]:
    nodes = {f"node-{i}": kind(bars(20, seed=i, held_out=0.0).images) for i in range(2)}
    return nodes | {"node-2": kind(bars(20, seed=2).images)}


UNSEEN = {"every": 1, "unseen": ["node-2"]}


@pytest.mark.parametrize(
    ("method", "changes"), [("gperxan", {}), ("gperxan", {"select": "aggregated_val"}), ("feddg_ga", {})]
)
def test_what_held_out_rows_decide_is_refused_at_once_where_no_node_that_trains_has_any(
    method: str, changes: dict[str, Any]
) -> None:
    job = image_job(method, evaluation=UNSEEN, **changes)
    with pytest.raises(
        OperatorError, match="held-out rows at the nodes that train, and their dataset 'd' has none"
    ) as e:
        Harness(method, without_held_out(), job, learner=Recording).run()
    assert (e.value.code, "holdout" in e.value.remedy) == ("NO_HELD_OUT_ROWS", True)
    assert not Recording.log
    run(without_held_out(), evaluation=UNSEEN, select="last", rounds=1)


def test_a_dataset_that_does_not_tell_is_found_out_after_the_first_round() -> None:
    with pytest.raises(MethodError, match="none of those that answered has any") as caught:
        run(without_held_out(Silent), evaluation=UNSEEN)
    assert caught.value.code == "NO_HELD_OUT_ROWS"


def test_a_node_without_held_out_rows_trains_all_the_same() -> None:
    nodes = domains(2) | {"node-2": bars(20, seed=2, held_out=0.0)}
    result = run(nodes, rounds=1)
    assert set(result.by_node("fitted_accuracy")) == {"node-0", "node-1"}
    assert set(result.phases[0].contributions) == set(nodes)


class Unjudged(Recording):
    """After the first round, no node that trains answers an evaluation."""

    def perform(self, assignment: Assignment) -> Payload:
        if assignment.phase == "evaluate" and assignment.round > 1 and not assignment.unseen:
            raise SiteError("Not now.")
        return super().perform(assignment)


def test_a_round_that_nobody_with_held_out_rows_has_judged_is_passed_over(tmp_path: Path) -> None:
    job = image_job(rounds=3, evaluation=UNSEEN, selection={"minimum_nodes": 1, "quorum": 0.3})
    result = Harness("gperxan", domains(3), job, tmp_path, learner=Unjudged).run()
    assert result.value("selected_round", scope=Scope.AGGREGATION) == 1
    assert [row.round for row in result.metrics if row.metric.name == "selection_score"] == [1]
    assert result.phases[-1].name == "deliver"


# ---- FedDG-GA


@given(st.dictionaries(st.sampled_from("abcd"), st.floats(-5, 5), min_size=1), st.floats(0.01, 1.0))
def test_gap_weights_stay_a_distribution_and_favour_larger_gaps(gaps: dict[str, float], step: float) -> None:
    weights = moved({}, gaps, step)
    assert sum(weights.values()) == pytest.approx(1.0)
    assert min(weights.values()) >= 0
    for a in gaps:
        for b in gaps:
            if gaps[a] >= gaps[b]:
                assert weights[a] >= weights[b] - 1e-12


def test_gap_weights_worked_out_by_hand() -> None:
    # Two nodes at 1/2 each; gaps 2 and -1: 1/2 + .2 * 1 / 2 = .6 and 1/2 - .2 * .5 / 2 = .45; together 1.05.
    assert moved({}, {"a": 2.0, "b": -1.0}, 0.2) == pytest.approx({"a": 0.6 / 1.05, "b": 0.45 / 1.05})
    assert moved({"a": 0.7, "b": 0.3}, {"a": 0.0, "b": 0.0}, 0.2) == {"a": 0.7, "b": 0.3}
    assert moved({"a": 1.0}, {}, 0.2) == {"a": 1.0}


def test_feddg_ga_moves_the_mean_towards_the_node_with_the_larger_gap() -> None:
    nodes = {"a": bars(30, seed=1), "b": bars(60, seed=2, brightness=0.3)}
    job = image_job("feddg_ga", rounds=2, gap_step=1.0)
    result = Harness("feddg_ga", nodes, job, learner=Recording).run()
    weights = {r.metric.node: r.metric.value for r in result.metrics if r.metric.name == "gap_weight" and r.round == 1}
    assert sum(weights.values()) == pytest.approx(1.0)
    assert weights["a"] != weights["b"]
    sent = {node: reply for node, (_, reply) in replies("train", 2).items()}
    base = replies("train", 2)["a"][0].instruction.arrays["fc.weight"].astype(np.float64)
    moved_by = sum(weights[node] * sent[node].arrays["fc.weight"].astype(np.float64) for node in sent)
    np.testing.assert_allclose(file_of(result)["fc.weight"], base + moved_by, rtol=1e-4, atol=1e-6)
    with pytest.raises(OperatorError, match="after every round"):
        Harness("feddg_ga", nodes, image_job("feddg_ga", evaluation={"every": 2})).run()
