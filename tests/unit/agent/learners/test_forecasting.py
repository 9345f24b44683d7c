"""The forecasting learner: where a round starts, what leaves, what stays, and which figures are of which model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from pydantic import BaseModel

torch = pytest.importorskip("torch")

from hanse.errors import InvalidPayload, MethodError, SiteError  # noqa: E402
from hanse.harness import Harness  # noqa: E402
from hanse.jobs import JobSpecification  # noqa: E402
from hanse.learning.forecast_options import MoreauOptions  # noqa: E402
from hanse.learning.forecaster_training import fit_epochs, train_moreau  # noqa: E402
from hanse.learning.series import Series  # noqa: E402
from hanse.learning.training_options import TrainingOptions  # noqa: E402
from hanse.method import Assignment, DatasetDescription, Evaluation, JobContext, Purpose, Scope  # noqa: E402
from hanse.models import load_model  # noqa: E402
from hanse.payload import Payload  # noqa: E402
from hanse.payload.metrics import read_metrics  # noqa: E402
from hanse.payload.models import delta_payload, model_state_payload  # noqa: E402
from hanse_agent.learners.averaged import AveragedLearner  # noqa: E402
from hanse_agent.learners.forecast_task import ForecastTask  # noqa: E402
from hanse_agent.learners.forecasting import ForecastLearner, GameLearner  # noqa: E402
from hanse_agent.learners.images import ImageLearner  # noqa: E402

MODEL: dict[str, Any] = {"hidden": 4, "layers": 1, "head_width": 4, "horizon": 3, "window": 6}
SELECTIVE = {"head.weight", "head.bias"}


def station(seed: int, *, hours: int = 24 * 25, scale: float = 1.0, **changes: Any) -> Series:
    rng = np.random.default_rng(seed)
    hour = np.arange(hours)
    values = scale * np.maximum(0, 5 + 4 * np.sin(2 * np.pi * (hour + seed) / 24) + rng.normal(0, 1, hours))
    given: dict[str, Any] = {
        "name": f"station-{seed}",
        "start": np.datetime64("2024-01-01T00:00", "m"),
        "step_minutes": 60,
        "values": values,
        "week_minute": hour * 60 % 10080,
        "training": round(0.8 * hours),
        "covariates": np.empty((hours, 0), dtype=np.float32),
    }
    return Series(**(given | changes))


class InMemory:
    """Series in memory."""

    Options: ClassVar[type[BaseModel]] = BaseModel
    kind = "series"

    def __init__(self, *series: Series) -> None:
        self.series = series

    def describe(self) -> DatasetDescription:
        return DatasetDescription(name="demand", kind="series", rows=len(self.series[0].values))

    def load(self) -> tuple[Series, ...]:
        return self.series


def job(training: Mapping[str, Any] | None = None, **changes: Any) -> JobContext:
    config = {"model": MODEL, "training": {"local_steps": 3, "weight_decay": 0.0, **(training or {})}}
    given: dict[str, Any] = {
        "id": "j",
        "name": "j",
        "method": "fedgame",
        "dataset": "demand",
        "rounds": 2,
        "model": "gru_forecaster",
        "config": config,
        "evaluation": Evaluation(every=1),
    }
    return JobContext(**(given | changes))


def instruction(seed: int = 0, version: int = 0) -> Payload:
    model = load_model("gru_forecaster", MODEL)
    return model_state_payload("gru_forecaster", version, model.initial_state(seed), model.roles())


class Node:
    """A learner and its state folder."""

    def __init__(self, folder: Path, learner: ForecastLearner, the_job: JobContext, *, unseen: bool = False) -> None:
        self.folder, self.learner, self.job, self.unseen = folder, learner, the_job, unseen
        self.version = 0

    def perform(self, phase: str, payload: Payload, round_number: int, personal: Payload | None = None) -> Payload:
        target = self.folder / str(self.version + 1)
        target.mkdir(parents=True)
        answer = self.learner.perform(
            Assignment(
                job=self.job,
                node="n",
                phase=phase,
                round=round_number,
                purpose={"train": Purpose.TRAIN, "adapt": Purpose.ADAPT}.get(phase, Purpose.EVALUATE),
                instruction=payload,
                personal=personal,
                unseen=self.unseen,
                state=self.folder / str(self.version) if self.version else None,
                next_state=target,
            )
        )
        self.version += 1
        return answer


def game_node(tmp_path: Path, training: Mapping[str, Any] | None = None, *, unseen: bool = False) -> Node:
    return Node(tmp_path, GameLearner(InMemory(station(1))), job(training), unseen=unseen)


def update(base: Payload, size: float = 0.5) -> Payload:
    return delta_payload(base.digest, 1, {name: np.full_like(base.arrays[name], size) for name in sorted(SELECTIVE)})


STILL = {"learning_rate": 1e-12, "momentum": 0.0}
"""Training that moves nothing: what is sent is where it started."""


def test_the_update_is_added_to_the_selective_arrays_of_its_own_version(tmp_path: Path) -> None:
    base = instruction()
    sent = game_node(tmp_path, STILL).perform("train", base, 1, update(base))
    for name, array in sent.arrays.items():
        wanted = 0.5 if name in SELECTIVE else 0.0
        assert np.allclose(array, wanted, atol=1e-6), name
    assert sent.header.weight_delta.base_digest == base.digest


def test_an_update_for_another_version_is_not_applied_and_that_is_told(tmp_path: Path) -> None:
    base, other = instruction(), instruction(version=7)
    node = game_node(tmp_path, STILL)
    sent = node.perform("train", base, 1, update(other))
    assert all(np.allclose(array, 0, atol=1e-6) for array in sent.arrays.values())
    assert read_metrics(node.perform("evaluate", base, 1))["personal_skipped"].mean == 1  # type: ignore[union-attr]
    node.perform("train", base, 2, update(base))
    assert read_metrics(node.perform("evaluate", base, 2))["personal_skipped"].mean == 0  # type: ignore[union-attr]


def test_an_update_of_other_arrays_is_refused(tmp_path: Path) -> None:
    base = instruction()
    wrong = delta_payload(base.digest, 1, {"head.bias": np.zeros(9, dtype=np.float32)})
    with pytest.raises(InvalidPayload, match=r"not the selective arrays \['head.bias', 'head.weight'\]"):
        game_node(tmp_path).perform("train", base, 1, wrong)


@pytest.mark.parametrize("rebase", [True, False])
def test_the_body_starts_from_the_common_model_or_from_the_nodes_own(tmp_path: Path, rebase: bool) -> None:
    training = {"learning_rate": 0.5, "personal": {"rebase_body": rebase}}
    node = game_node(tmp_path, training)
    base = instruction()
    first = node.perform("train", base, 1)
    node.learner._setup(node.job)
    node.job = job({**training, **STILL})
    second = node.perform("train", base, 2)
    for name, array in second.arrays.items():
        own = name not in SELECTIVE and not rebase
        assert np.allclose(array, first.arrays[name] if own else 0, atol=1e-5), name


def test_an_unseen_node_adapts_by_the_selective_arrays_alone(tmp_path: Path) -> None:
    node = game_node(tmp_path, {"learning_rate": 0.1}, unseen=True)
    base = instruction()
    sent = node.perform("adapt", base, 1)
    assert set(sent.arrays) == SELECTIVE
    assert any(np.abs(array).max() > 0 for array in sent.arrays.values())
    figures = read_metrics(node.perform("evaluate", base, 1, update(base, 0.01)))
    assert {"qs", "finetuned_qs", "adapted_qs"} <= set(figures)
    plain = ForecastTask([station(1)], load_model("gru_forecaster", MODEL), TrainingOptions(), torch.device("cpu"))  # type: ignore[arg-type]
    network = load_model("gru_forecaster", MODEL).build()  # type: ignore[attr-defined]
    network.load_state_dict({name: torch.tensor(array) for name, array in base.arrays.items()})
    known = plain.evaluate(network, plain.held_out, None, lambda *_: None)
    assert figures["qs"].array.tolist() == known["qs"].array.tolist()  # as received
    with pytest.raises(MethodError, match="asked to train"):
        node.perform("train", base, 2)


def test_without_further_training_adapted_is_the_model_with_its_update(tmp_path: Path) -> None:
    training = {"learning_rate": 0.1, "personal": {"adapt_finetune": False}}
    node = game_node(tmp_path, training, unseen=True)
    base = instruction()
    nothing = read_metrics(node.perform("evaluate", base, 1, update(base, 0.0)))
    assert nothing["adapted_qs"].array.tolist() == nothing["qs"].array.tolist()
    assert "finetuned_qs" not in nothing


def test_a_trained_node_serves_its_own_model_in_fedgame_and_the_common_one_else(tmp_path: Path) -> None:
    base = instruction()
    game = game_node(tmp_path / "game", {"learning_rate": 0.1})
    game.perform("train", base, 1)
    served = read_metrics(game.perform("evaluate", base, 1))
    plain = Node(tmp_path / "plain", ForecastLearner(InMemory(station(1))), job({"learning_rate": 0.1}))
    plain.perform("train", base, 1)
    common = read_metrics(plain.perform("evaluate", base, 1))
    assert served["qs"].array.tolist() == common["fitted_qs"].array.tolist()
    assert served["global_qs"].array.tolist() == common["qs"].array.tolist()
    assert served["qs"].array.tolist() != served["global_qs"].array.tolist()


def test_the_figures_are_in_both_units_and_cover_each_quantile(tmp_path: Path) -> None:
    model = load_model("gru_forecaster", MODEL)
    task = ForecastTask([station(1, scale=7.0)], model, TrainingOptions(), torch.device("cpu"))  # type: ignore[arg-type]
    figures = task.evaluate(model.build(), task.held_out, None, lambda *_: None)  # type: ignore[attr-defined]
    level = task.windows.scales[0].level
    assert figures["qs_original"].mean == pytest.approx(figures["qs"].mean * level, rel=1e-2)  # type: ignore[union-attr]
    names = {"qs", "icp", "icp_gap", "mil", "qs_original", "mil_original", "coverage_05", "coverage_50", "coverage_95"}
    assert set(figures) == names
    icp, gap = figures["icp"].mean, figures["icp_gap"].mean  # type: ignore[union-attr]
    assert gap == pytest.approx(abs(icp - 90), abs=0.01)
    assert figures["qs"].count == len(task.held_out)


def test_fine_tuning_is_never_worse_on_the_validation_windows() -> None:
    model = load_model("gru_forecaster", MODEL)
    options = TrainingOptions(learning_rate=5.0, local_steps=5, clip_norm=10.0)  # far too fast
    task = ForecastTask([station(1)], model, options, torch.device("cpu"))  # type: ignore[arg-type]
    network = model.build()  # type: ignore[attr-defined]
    before = task.loss_on(network, task.validation)
    body = network.state_dict()["hidden.weight"].clone()
    fit_epochs(network, task, options, rate=5.0, seed=0, epochs=3, patience=3, names=("head.weight", "head.bias"))
    assert task.loss_on(network, task.validation) <= before
    assert torch.equal(network.state_dict()["hidden.weight"], body)
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_pfedme_takes_the_steps_of_its_algorithm() -> None:
    class Parabola:
        """f(theta) = mean (theta - target)^2, whatever the batch."""

        def batch(self, rows: Any, generator: Any) -> Any:
            return torch.zeros(len(rows)), torch.full((len(rows),), 2.0)

        def objective(self, network: Any) -> Any:
            return lambda _, targets: ((network.weight.reshape(()) - targets) ** 2).mean()

    network = torch.nn.Linear(1, 1, bias=False)
    network.weight.data.fill_(1.0)
    moreau = MoreauOptions(strength=0.5, inner_steps=2, outer_rate=0.4)
    options = TrainingOptions(local_steps=2, batch_size=4)
    _, theta = train_moreau(network, Parabola(), np.arange(20), options, moreau, rate=0.1, seed=0)
    t = w = 1.0
    for _ in range(2):
        for _ in range(2):
            t -= 0.1 * (2 * (t - 2) + 0.5 * (t - w))
        w -= 0.4 * 0.5 * (w - t)
    assert float(theta["weight"]) == pytest.approx(t, rel=1e-5)
    assert float(network.weight.detach()) == pytest.approx(w, rel=1e-5)


def test_the_averaging_methods_pick_the_learner_by_the_kind_of_records() -> None:
    assert isinstance(AveragedLearner(InMemory(station(1))), ForecastLearner)
    assert not isinstance(AveragedLearner(InMemory(station(1))), GameLearner)
    images = InMemory(station(1))
    images.kind = "images"
    assert isinstance(AveragedLearner(images), ImageLearner)
    images.kind = "songs"
    with pytest.raises(MethodError, match="of kind 'songs'"):
        AveragedLearner(images)


def test_a_refined_model_is_the_received_one_after_one_more_training(tmp_path: Path) -> None:
    base = instruction()
    for name, training in (("received", {"learning_rate": 0.1}), ("refined", STILL)):
        node = game_node(tmp_path / name, {**training, "personal": {"served": name}})
        node.perform("train", base, 1)
        figures = read_metrics(node.perform("evaluate", base, 1, update(base, 0.2)))
        if name == "received":
            received = figures["qs"].array.tolist()
            assert figures["global_qs"].array.tolist() != received
            assert "refined_qs" not in figures
    assert figures["qs"].mean == pytest.approx(figures["received_qs"].mean, rel=1e-4)  # type: ignore[union-attr]
    assert figures["received_qs"].array.tolist() == received


@pytest.mark.parametrize("rate", [0.2, 50.0])
def test_the_served_model_may_be_the_one_that_validation_prefers(tmp_path: Path, rate: float) -> None:
    """Training that goes well is kept, and training that ruins the model is not."""
    base = instruction()
    training = {"learning_rate": rate, "local_steps": 20, "local_epochs": 9, "personal": {"served": "validated"}}
    node = game_node(tmp_path / "seen", training)
    node.perform("train", base, 1)
    figures = read_metrics(node.perform("evaluate", base, 1))
    other = "global_qs" if rate < 1 else "fitted_qs"
    assert ("global_qs" in figures, "fitted_qs" in figures) == (rate < 1, rate > 1)
    assert figures["qs"].mean < figures[other].mean  # type: ignore[union-attr]
    unseen = game_node(tmp_path / "unseen", training, unseen=True)
    unseen.perform("adapt", base, 1)
    found = read_metrics(unseen.perform("evaluate", base, 1))
    wanted = "finetuned_qs" if rate < 1 else "qs"
    assert found["chosen_qs"].array.tolist() == found[wanted].array.tolist()


@pytest.mark.parametrize(
    "training",
    [{"guide": 0.5}, {"augmentation": {"flip": 0.5}}, {"proximal": 0.1, "personal": {"early_stop": 2}}],
)
def test_options_that_mean_nothing_to_a_forecaster_are_refused(tmp_path: Path, training: dict[str, Any]) -> None:
    with pytest.raises(MethodError, match="means nothing to a forecaster"):
        game_node(tmp_path, training).perform("train", instruction(), 1)


def test_personal_training_is_refused_where_it_is_not_understood(tmp_path: Path) -> None:
    images = InMemory(station(1))
    images.kind = "images"
    node = Node(tmp_path, AveragedLearner(images), job({"personal": {"finetune": "head"}}))  # type: ignore[arg-type]
    with pytest.raises(MethodError, match=r"training\.personal is for forecasters"):
        node.perform("train", instruction(), 1)


def test_series_that_do_not_fit_the_job_are_refused(tmp_path: Path) -> None:
    fast = InMemory(station(1, step_minutes=15))
    with pytest.raises(SiteError, match="steps of 15 minutes; the job's have 60"):
        Node(tmp_path / "a", GameLearner(fast), job()).perform("train", instruction(), 1)
    asked = {"model": {**MODEL, "covariates": ["price"]}, "training": {}}
    model = load_model("gru_forecaster", asked["model"])
    base = model_state_payload("gru_forecaster", 0, model.initial_state(0), model.roles())
    with pytest.raises(SiteError, match="no covariate 'price'"):
        Node(tmp_path / "b", GameLearner(InMemory(station(1))), job(config=asked)).perform("train", base, 1)


@pytest.mark.parametrize("model", ["gru_forecaster", "conv_forecaster"])
def test_a_federation_of_stations_learns_their_days(model: str) -> None:
    """FedAvg over four stations, one of them unseen: better than its first model, and the same twice."""
    specification = JobSpecification.model_validate(
        {
            "name": "charging",
            "method": "fedavg",
            "dataset": "demand",
            "model": model,
            "rounds": 4,
            "evaluation": {"every": 1, "unseen": ["d"]},
            "method_config": {
                "model": MODEL,
                "training": {"learning_rate": 0.3, "local_steps": 10, "local_epochs": 9, "weight_decay": 0.0,
                             "personal": {"finetune": "head", "finetune_epochs": 2}},
            },
        }
    )  # fmt: skip
    nodes = {name: InMemory(station(seed)) for seed, name in enumerate("abcd")}
    results = [Harness("fedavg", nodes, specification).run() for _ in range(2)]
    assert results[0].model_digest == results[1].model_digest
    rows = [row for row in results[0].metrics if row.metric.name == "qs"]
    for scope in (Scope.POOLED, Scope.UNSEEN):
        course = [row.metric.value for row in rows if row.metric.scope is scope]
        assert course[-1] < course[0]
    assert set(results[0].by_node("finetuned_qs")) == set("abcd")
