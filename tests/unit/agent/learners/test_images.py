"""Networks at the node: what is sent, what is refused, and what a node remembers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from hanse.errors import InvalidPayload, MethodError, OperatorError, SiteError
from hanse.harness import Harness, QuorumNotMet
from hanse.learning.training_options import PublishedGperxan
from hanse.method import Evaluation, JobContext, Scope
from hanse.models import Role, load_model
from hanse.payload import Payload
from hanse.payload.kinds import read_document, read_metrics
from hanse.payload.models import model_state_payload
from hanse_agent.datasets.images import ImagesDataset
from hanse_agent.learners.images import GperxanLearner, ImageLearner
from hanse_agent.learners.network_state import FILE, NetworkState
from tests.unit.boosting_data import Desk
from tests.unit.image_data import MemoryImages, bars, domains, image_job

SPECIFICATION = image_job("fedavg", rounds=3, model={"norm": "xan"})


def context(**changes: Any) -> JobContext:
    defaults: dict[str, Any] = {
        "id": "j",
        "name": "n",
        "method": "fedavg",
        "dataset": "d",
        "rounds": 3,
        "model": "small_cnn",
        "config": SPECIFICATION.method_config,
        "evaluation": Evaluation(every=1),
    }
    return JobContext(**(defaults | changes))


def instruction(job: JobContext, version: int = 0, **model: Any) -> Payload:
    made = load_model(job.model, {**job.config["model"], **model})
    roles = made.roles()
    shared = {name: a for name, a in made.initial_state(job.seed).items() if roles[name] is Role.GLOBAL}
    return model_state_payload(job.model, version, shared, roles, judge=job.evaluation.due(version + 1, job.rounds))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, context())


def train(desk: Desk, learner: Any, number: int = 1, told: Payload | None = None) -> Payload:
    return learner.perform(desk.assignment("train", number, told or instruction(desk.job)))


# ---- what is sent


def test_a_difference_names_its_base_and_its_examples(desk: Desk) -> None:
    images = bars(20, seed=1)
    told = instruction(desk.job)
    reply = train(desk, ImageLearner(images), told=told)
    assert reply.kind == "weight_delta"
    assert reply.header.weight_delta.base_digest == told.digest
    assert reply.header.weight_delta.examples == int((~images.images.held_out).sum())
    assert all(array.dtype == np.float32 for array in reply.arrays.values())
    assert "bn1.batchnorm.num_batches_tracked" not in reply.arrays
    assert np.any(reply.arrays["conv1.weight"])


def test_classes_that_a_node_lacks_are_no_fault_and_unknown_ones_are_named(desk: Desk) -> None:
    images = bars(20, seed=1)
    images.images.labels[:] = 0
    assert train(desk, ImageLearner(images)).kind == "weight_delta"
    images.images.labels[7] = 2
    with pytest.raises(SiteError, match=r"image 8 is of class 2; the job has 2 classes") as caught:
        train(desk, ImageLearner(images))
    assert caught.value.code == "CLASS_UNKNOWN"


def test_an_evaluation_counts_held_out_rows_and_what_was_measured_before_averaging(desk: Desk) -> None:
    images = bars(40, seed=1)
    learner = ImageLearner(images)
    train(desk, learner)
    desk.keep()
    again = ImageLearner(images)  # a new process
    figures = read_metrics(again.perform(desk.assignment("evaluate", 1, instruction(desk.job, 1))))
    held_out = int(images.images.held_out.sum())
    assert {name: each.count for name, each in figures.items()} == dict.fromkeys(
        ("confusion", "log_loss", "fitted", "fitted_log_loss"), held_out
    )
    desk.keep()
    later = read_metrics(again.perform(desk.assignment("evaluate", 2, instruction(desk.job, 2))))
    assert set(later) == {"confusion", "log_loss"}  # the node did not train in round 2


# ---- what is refused


def test_an_instruction_of_another_model_is_refused_by_array(desk: Desk) -> None:
    with pytest.raises(InvalidPayload, match="bn1"):
        train(desk, ImageLearner(bars(9, seed=1)), told=instruction(desk.job, norm="batch"))
    with pytest.raises(InvalidPayload, match=r"'conv1\.weight' is float32 \(3, 1, 3, 3\)"):
        train(desk, ImageLearner(bars(9, seed=1)), told=instruction(desk.job, width=3))
    with pytest.raises(InvalidPayload, match="a model state was expected"):
        train(desk, ImageLearner(bars(9, seed=1)), told=train(desk, ImageLearner(bars(9, seed=1))))


def test_unseen_nodes_and_unknown_phases_are_refused(tmp_path: Path, desk: Desk) -> None:
    learner = ImageLearner(bars(9, seed=1))
    with pytest.raises(MethodError, match="no phase 'sketch'"):
        learner.perform(desk.assignment("sketch", 1, instruction(desk.job)))
    with pytest.raises(MethodError, match="was asked to train"):
        train(Desk(tmp_path, context(), unseen=True), learner)
    with pytest.raises(MethodError, match="no value for 'bn1"):
        learner.perform(Desk(tmp_path, context(), unseen=True).assignment("evaluate", 1, instruction(desk.job, 1)))


def test_options_are_checked_and_a_gpu_is_not_made_up(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_training(**training: Any) -> Desk:
        config = {**SPECIFICATION.method_config, "training": training}
        return dataclasses.replace(desk, job=context(config=config))

    with pytest.raises(OperatorError, match="unknown key 'lr'"):
        train(with_training(lr=1), ImageLearner(bars(9, seed=1)))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SiteError, match="wants a GPU"):
        train(with_training(device="cuda"), ImageLearner(bars(9, seed=1)))


def test_a_node_that_diverges_refuses_and_the_average_of_the_others_is_as_if_it_were_not_there() -> None:
    nodes = domains(3)
    # Compared with a job that names the same nodes: the one that diverges has no rows to train on then.
    job = image_job("fedavg", rounds=2, selection={"quorum": 0.6}, evaluation={"every": 2})
    good = Harness("fedavg", {k: v for k, v in nodes.items() if k != "node-1"}, job).run()
    result = Harness("fedavg", nodes, job, learner=_Diverging).run()
    assert {record.refusals["node-1"].code for record in result.phases if record.name == "train"} == {"NON_FINITE_LOSS"}
    assert result.model is not None
    assert good.model is not None
    mine, theirs = (each.model.arrays["model.safetensors"] for each in (result, good))
    header = int(mine[:8].view("<u8")[0])
    assert np.array_equal(mine[8 + header :], theirs[8 + int(theirs[:8].view("<u8")[0]) :])


class _Diverging(ImageLearner):
    """The middle node's images are so bright that nothing holds."""

    def perform(self, assignment: Any) -> Payload:
        if assignment.node == "node-1" and assignment.phase == "train":
            training = {**assignment.job.config["training"], "learning_rate": 1e30}
            config = {**assignment.job.config, "training": training}
            job = dataclasses.replace(assignment.job, config=config)
            assignment = dataclasses.replace(assignment, job=job)
        return super().perform(assignment)


def test_an_image_that_cannot_be_read_is_a_refusal_that_names_the_file(tmp_path: Path) -> None:
    from PIL import Image

    for name in ("a", "b"):
        for kind in ("cat", "dog"):
            (tmp_path / name / kind).mkdir(parents=True)
            for i in range(3):
                Image.new("L", (8, 8), 40 * i).save(tmp_path / name / kind / f"{i}.png")
    (tmp_path / "b" / "dog" / "1.png").write_bytes(b"not an image")
    nodes = {n: ImagesDataset("d", {"path": tmp_path / n, "classes": ("cat", "dog")}) for n in ("a", "b")}
    with pytest.raises(QuorumNotMet, match=r"dog/1\.png cannot be read"):
        Harness("fedavg", nodes, image_job("fedavg", evaluation={"every": 0})).run()


# ---- what a node remembers


def test_momentum_and_statistics_live_on_in_a_new_process_and_a_repeated_assignment_gives_the_same_bytes(
    tmp_path: Path,
) -> None:
    images = bars(40, seed=1)
    steady, killed = Desk(tmp_path / "a", context()), Desk(tmp_path / "b", context())
    for desk in (steady, killed):
        desk.folder.mkdir()
    learner = ImageLearner(images)
    for number in (1, 2):
        one = train(steady, learner, number)
        steady.keep()
    train(killed, ImageLearner(images), 1)
    killed.keep()
    train(killed, ImageLearner(images), 2)  # lost: its state is never kept
    assert train(killed, ImageLearner(images), 2).image() == one.image()
    kept = NetworkState.load(killed.state)
    assert {name.rpartition("/")[2] for name in kept.optimiser} == {"momentum_buffer"}
    assert any(np.any(array) for array in kept.optimiser.values())
    fresh = train(Desk(tmp_path / "a", context()), ImageLearner(images), 2)
    assert fresh.image() != one.image()


def test_momentum_is_forgotten_where_the_job_says_so(tmp_path: Path) -> None:
    config = {**SPECIFICATION.method_config, "training": {"keep_optimiser": False}}
    desk = Desk(tmp_path, context(config=config))
    train(desk, ImageLearner(bars(20, seed=1)))
    desk.keep()
    assert NetworkState.load(desk.state).optimiser == {}


@pytest.mark.parametrize("damage", ["cut", "nonsense"])
def test_a_damaged_state_is_reported_and_not_replaced_in_silence(desk: Desk, damage: str) -> None:
    train(desk, ImageLearner(bars(20, seed=1)))
    desk.keep()
    file = desk.state / FILE
    file.write_bytes(file.read_bytes()[:100] if damage == "cut" else b"x" * 300)
    with pytest.raises(SiteError, match="cannot be read") as caught:
        train(desk, ImageLearner(bars(20, seed=1)), 2)
    assert caught.value.code == "STATE_DAMAGED"


def test_the_state_is_one_file_without_pickles_that_an_evaluation_hands_on(desk: Desk) -> None:
    learner = ImageLearner(bars(20, seed=1))
    train(desk, learner)
    desk.keep()
    assert [path.name for path in desk.state.iterdir()] == [FILE]
    learner.perform(desk.assignment("evaluate", 1, instruction(desk.job, 1)))
    assert (desk.next_state / FILE).samefile(desk.state / FILE)


def test_a_delivered_model_is_kept_beside_the_state_and_needs_no_records(desk: Desk) -> None:
    train(desk, ImageLearner(bars(20, seed=1)))
    desk.keep()
    gone = bars(20, seed=1)
    gone.load = lambda: pytest.fail("the records were read")  # type: ignore[method-assign,assignment]
    told = instruction(desk.job, 1)
    reply = ImageLearner(gone).perform(desk.assignment("deliver", desk.job.rounds, told))
    assert read_document(reply, "model.delivered") == {}
    assert (desk.next_state / FILE).samefile(desk.state / FILE)
    with safe_open(str(desk.next_state / "model.safetensors"), framework="np") as file:
        assert file.metadata()["rounds"] == "1"
        assert np.array_equal(file.get_tensor("conv1.weight"), told.arrays["conv1.weight"])
    with pytest.raises(InvalidPayload, match="bn1"):
        ImageLearner(gone).perform(desk.assignment("deliver", 3, instruction(desk.job, 1, norm="batch")))


def test_compressed_differences_keep_what_they_leave_out(tmp_path: Path) -> None:
    result = Harness(
        "fedavg", domains(2), image_job("fedavg", rounds=2, compression={"scheme": "int8"}), tmp_path
    ).run()
    raw = Harness("fedavg", domains(2), image_job("fedavg", rounds=2)).run()
    assert sum(result.phases[0].sent.values()) < sum(raw.phases[0].sent.values())
    assert result.value("accuracy") >= 0


def test_gperxan_trains_by_the_published_options_unless_the_job_says_otherwise() -> None:
    assert GperxanLearner.training is PublishedGperxan
    guided = Harness("gperxan", domains(2), image_job(rounds=2)).run()
    plain = Harness("gperxan", domains(2), image_job(rounds=2, training={"guide": 0.0})).run()
    assert guided.phases[0].contributions != plain.phases[0].contributions


def test_fedprox_and_fedbn_are_options(tmp_path: Path) -> None:
    changes: dict[str, dict[str, Any]] = {
        "plain": {},
        "prox": {"training": {"proximal": 10.0}},
        "bn": {"model": {"personal_batch_norm": True}},
    }
    norms = {}
    for name, change in changes.items():
        result = Harness("fedavg", domains(2), image_job("fedavg", rounds=1, **change)).run()
        rows = [row.metric.value for row in result.metrics if row.metric.name == "update_norm"]
        norms[name] = max(rows)
        assert 0 <= result.value("accuracy", scope=Scope.POOLED) <= 1
    assert norms["prox"] < norms["plain"]


def test_without_anything_to_train_on_a_node_refuses(desk: Desk) -> None:
    images = bars(5, seed=1)
    images.images.held_out[:] = True
    with pytest.raises(SiteError, match="0 rows to train on"):
        train(desk, ImageLearner(MemoryImages(images.images)))
