"""A job whose result is an earlier round: every node reads that round's model with its own arrays of that round."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from hanse.errors import SiteError
from hanse.harness import Harness, HarnessResult
from hanse.method import Assignment, Audience, Purpose, Scope
from hanse.models import load_model
from hanse.payload import Payload
from hanse.v1 import payload_pb2
from hanse_agent.learners.image_predictions import predict
from hanse_agent.learners.images import GperxanLearner
from hanse_agent.learners.network_state import FILE, NetworkState
from tests.unit.image_data import domains, image_job

UNSEEN = "node-3"


class Remembering(GperxanLearner):
    """Keeps what every node held after each round, and at most how many earlier states it kept."""

    own: ClassVar[dict[tuple[str, int], Any]] = {}
    kept: ClassVar[set[int]] = set()

    def perform(self, assignment: Assignment) -> Payload:
        reply = super().perform(assignment)
        state = NetworkState.load(assignment.next_state)
        Remembering.kept.add(len(state.earlier))
        if assignment.phase == "train":
            Remembering.own[assignment.node, assignment.round] = dict(state.own)
        return reply


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Remembering.own.clear()
    Remembering.kept.clear()


def trained(folder: Path, learner: type[GperxanLearner] = Remembering, **changes: Any) -> HarnessResult:
    """A run whose best round is not its last, its model in `folder/model`, and images in `folder/images`."""
    changes = {"rounds": 5, "seed": 3, "evaluation": {"every": 1, "unseen": [UNSEEN]}, **changes}
    job = image_job(**changes, training={"learning_rate": 0.3, "schedule": "constant"})
    result = Harness("gperxan", domains(4), job, folder / "work", learner=learner).run()
    assert result.model is not None
    (folder / "model").mkdir()
    for name, array in result.model.arrays.items():
        (folder / "model" / name).write_bytes(array.tobytes())
    for node, domain in domains(4).items():
        (folder / "images" / node).mkdir(parents=True)
        for i, image in enumerate(domain.images.images):
            Image.fromarray(image).save(folder / "images" / node / f"{i:03d}.png")
    return result


def selected(result: HarnessResult) -> int:
    return int(result.value("selected_round", scope=Scope.AGGREGATION))


def chances(folder: Path, node: str, own: Path | None, model: Path | None = None) -> Any:
    return predict(model or folder / "model", folder / "images" / node, own=own).columns["chance"]


def state(folder: Path, node: str) -> Path:
    """The node's state; a refused assignment leaves its unfinished folder, of a higher number."""
    return min((folder / "work" / "nodes" / node).iterdir(), key=lambda version: int(version.name))


def written(folder: Path, own: Any, number: int) -> Path:
    folder.mkdir()
    NetworkState(round=number, own=own).save(folder)
    return folder


def test_a_node_predicts_with_the_selected_model_and_its_own_arrays_of_that_round(tmp_path: Path) -> None:
    result = trained(tmp_path)
    best = selected(result)
    assert 1 <= best < 5  # else this run shows nothing
    for node in ("node-0", "node-1", "node-2"):
        found = GperxanLearner(domains(4)[node]).predict(state(tmp_path, node), tmp_path / "images" / node)
        right = chances(tmp_path, node, written(tmp_path / f"{node}-best", Remembering.own[node, best], best))
        wrong = chances(tmp_path, node, written(tmp_path / f"{node}-last", Remembering.own[node, 5], best))
        assert np.array_equal(found.columns["chance"], right)
        assert not np.array_equal(right, wrong)
        assert found.columns["read"][0].endswith(f"own batch normalisation (round {best})")
    # An unseen node has the pulled file's model too, and reads it by the averages of that round.
    stranger = GperxanLearner(domains(4)[UNSEEN]).predict(state(tmp_path, UNSEEN), tmp_path / "images" / UNSEEN)
    assert np.array_equal(stranger.columns["chance"], chances(tmp_path, UNSEEN, None))
    labels = domains(4)[UNSEEN].images.labels
    accuracy = float((stranger.columns["class"] == labels).mean())
    assert result.value("selected_accuracy", scope=Scope.UNSEEN) == pytest.approx(accuracy)
    assert max(Remembering.kept) <= 2
    last = result.phases[-1]
    assert (last.name, last.round, last.purpose) == ("deliver", 5, Purpose.ADAPT)
    assert result.value("nodes_with_the_model", scope=Scope.AGGREGATION) == 4
    before = result.phases[-2].outcome.next_phase
    assert before is not None
    assert before.audience is Audience.ALL
    assert set(before.personal) == {UNSEEN}  # nodes that train receive nobody's arrays


def test_where_no_batch_normalisation_leaves_the_nodes_each_still_has_its_own_of_that_round(tmp_path: Path) -> None:
    result = trained(tmp_path, model={"bn_upload": "never"}, unseen_bn="in_only", seed=1)
    best = selected(result)
    assert best < 5
    found = GperxanLearner(domains(4)["node-0"]).predict(state(tmp_path, "node-0"), tmp_path / "images" / "node-0")
    right = chances(tmp_path, "node-0", written(tmp_path / "best", Remembering.own["node-0", best], best))
    assert np.array_equal(found.columns["chance"], right)
    stranger = GperxanLearner(domains(4)[UNSEEN]).predict(state(tmp_path, UNSEEN), tmp_path / "images" / UNSEEN)
    accuracy = float((stranger.columns["class"] == domains(4)[UNSEEN].images.labels).mean())
    assert "in_only" in stranger.columns["read"][0]
    assert result.value("selected_accuracy", scope=Scope.UNSEEN) == pytest.approx(accuracy)


class Away(GperxanLearner):
    """Trains, and is away when the model is delivered; of `node-0` alone, or everywhere."""

    everywhere: ClassVar[bool] = False

    def perform(self, assignment: Assignment) -> Payload:
        if assignment.phase == "deliver" and (self.everywhere or assignment.node == "node-0"):
            raise SiteError("This node is away.", code="NODE_GONE")
        return super().perform(assignment)


class AllAway(Away):
    everywhere = True


@pytest.mark.parametrize(("learner", "reached"), [(Away, 3), (AllAway, 0)])
def test_a_job_succeeds_whoever_is_away_when_its_model_is_delivered(
    tmp_path: Path, learner: type[Away], reached: int
) -> None:
    result = trained(tmp_path, learner=learner)
    assert 1 <= selected(result) < 5
    assert result.phases[-1].name == "deliver"
    assert result.value("nodes_with_the_model", scope=Scope.AGGREGATION) == reached
    assert set(result.phases[-1].refusals) == (set(domains(4)) if reached == 0 else {"node-0"})
    assert result.model is not None
    # What such a node has is the last round's, and its predictions say so.
    found = learner(domains(4)["node-0"]).predict(state(tmp_path, "node-0"), tmp_path / "images" / "node-0")
    assert found.columns["read"][0].endswith("own batch normalisation (round 5)")


def test_a_result_of_the_last_round_is_there_already(tmp_path: Path) -> None:
    result = trained(tmp_path, rounds=1)
    assert result.phases[-1].name == "evaluate"
    found = GperxanLearner(domains(4)["node-0"]).predict(state(tmp_path, "node-0"), tmp_path / "images" / "node-0")
    assert found.columns["read"][0].endswith("own batch normalisation (round 1)")


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_node_that_sat_out_the_selected_round_takes_what_it_had_then_and_says_so(
    tmp_path: Path, every: int, seed: int
) -> None:
    selection = {"fraction": 0.5, "minimum_nodes": 1, "quorum": 1.0}
    evaluation = {"every": every, "unseen": [UNSEEN]}
    result = trained(tmp_path, rounds=7, seed=seed, selection=selection, evaluation=evaluation)
    best = selected(result)
    for node in ("node-0", "node-1", "node-2"):
        rounds = sorted(number for name, number in Remembering.own if name == node)
        if not rounds:
            continue
        then = max((number for number in rounds if number <= best), default=0)
        own_of, own = NetworkState.load(state(tmp_path, node)).own_of(best)
        assert own_of == then if then else own_of in rounds  # a node that came later has later ones alone
        assert all(np.array_equal(array, own[name]) for name, array in Remembering.own[node, own_of].items())
        found = GperxanLearner(domains(4)[node]).predict(state(tmp_path, node), tmp_path / "images" / node)
        right = chances(tmp_path, node, written(tmp_path / f"{node}-then", own, best))
        assert np.array_equal(found.columns["chance"], right)
        says = f"(round {best})" if then == best else f"of round {own_of}: of round {best}, whose model this is"
        assert says in found.columns["read"][0]
    assert max(Remembering.kept) <= 2


def test_unseen_nodes_of_an_ensemble_predict_by_all_models(tmp_path: Path) -> None:
    result = trained(tmp_path, unseen_bn="client_ensemble")
    assert selected(result) < 5
    found = GperxanLearner(domains(4)[UNSEEN]).predict(state(tmp_path, UNSEEN), tmp_path / "images" / UNSEEN)
    assert "mean of the models" in found.columns["read"][0]
    accuracy = float((found.columns["class"] == domains(4)[UNSEEN].images.labels).mean())
    assert result.value("selected_accuracy", scope=Scope.UNSEEN) == pytest.approx(accuracy)


def arrays(value: float) -> dict[str, Any]:
    return {"bn.weight": np.full(2, value, dtype=np.float32)}


@pytest.mark.parametrize(
    ("told", "version", "kept"),
    [(None, 5, []), (0, 5, [5]), (3, 5, [3, 5]), (2, 5, [2, 5]), (4, 5, [3, 5]), (4, 4, [3]), (1, 1, [])],
)
def test_what_is_kept_is_what_may_still_be_the_result(told: int | None, version: int, kept: list[int]) -> None:
    before = NetworkState(round=5, own=arrays(5), earlier={2: arrays(2), 3: arrays(3)})
    found = before.for_later(payload_pb2.ModelState(version=version, selected=told))
    assert list(found) == kept
    assert all(np.array_equal(each["bn.weight"], arrays(number)["bn.weight"]) for number, each in found.items())


def test_earlier_states_live_in_the_same_file_and_a_damaged_one_is_reported(tmp_path: Path) -> None:
    NetworkState(round=5, own=arrays(5), earlier={3: arrays(3), 12: arrays(12)}).save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    found = NetworkState.load(tmp_path)
    assert (found.own_of(4)[0], found.own_of(5)[0], found.own_of(2)[0], found.own_of(11)[0]) == (3, 5, 3, 5)
    assert found.own_of(3)[1]["bn.weight"][0] == 3
    assert NetworkState().own_of(3) == (0, {})
    data = (tmp_path / FILE).read_bytes().replace(b"earlier:12:", b"earlier:xx:")
    (tmp_path / FILE).write_bytes(data)
    with pytest.raises(SiteError, match="cannot be read"):
        NetworkState.load(tmp_path)


def test_a_node_whose_arrays_are_everybodys_is_not_said_to_have_its_own(tmp_path: Path) -> None:
    job = image_job("fedavg", rounds=1)
    nodes = domains(2)
    Harness("fedavg", nodes, job, tmp_path / "work").run()
    assert load_model("small_cnn", job.method_config["model"]).roles()["bn1.num_batches_tracked"].value == "personal"
    Image.fromarray(nodes["node-0"].images.images[0]).save(tmp_path / "a.png")
    assert (
        "averaged"
        in predict(state(tmp_path, "node-0"), tmp_path / "a.png", own=state(tmp_path, "node-0")).columns["read"][0]
    )
