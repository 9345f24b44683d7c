"""Fed-GAME with its own learner: both halves in one process, on small series."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from hanse.harness import Harness, HarnessResult
from hanse.jobs import EvaluationSettings, JobSpecification, Selection
from hanse.learning.series import Series
from hanse.method import Assignment, DatasetDescription, Scope
from hanse.payload import Payload
from hanse_agent.learners.forecasting import ForecastLearner, GameLearner
from hanse_aggregator.plugins.averaging import Averaging
from hanse_aggregator.plugins.game import Game

MODEL = {"hidden": 6, "layers": 1, "head_width": 4, "window": 6, "horizon": 3, "lags": [24]}
STATIONS = ("a", "b", "c", "d")


class Station:
    """Three weeks of hourly demand with a day's rhythm."""

    kind = "series"

    def __init__(self, name: str) -> None:
        self.name = name

    def describe(self) -> DatasetDescription:
        return DatasetDescription(name="s", kind="series", rows=504)

    def load(self) -> tuple[Series, ...]:
        rng = np.random.default_rng(ord(self.name))
        hours = np.arange(504)
        peak = 8 if ord(self.name) % 2 else 18
        demand = 5 + 4 * np.cos((hours % 24 - peak) / 24 * 2 * np.pi) + 0.3 * rng.standard_normal(504)
        return (
            Series(
                name=self.name,
                start=np.datetime64("2024-01-01T00:00"),
                step_minutes=60,
                values=np.maximum(demand, 0),
                week_minute=(hours * 60) % (7 * 24 * 60),
                training=400,
                covariates=np.empty((504, 0), dtype=np.float32),
            ),
        )


class Deaf(GameLearner):
    """Personalisation is off: what was sent to the node alone is not there."""

    def perform(self, assignment: Assignment) -> Payload:
        object.__setattr__(assignment, "personal", None)
        return super().perform(assignment)


class Listening(GameLearner):
    """Remembers what came."""

    log: ClassVar[list[Assignment]] = []

    def perform(self, assignment: Assignment) -> Payload:
        Listening.log.append(assignment)
        return super().perform(assignment)


def run(
    plugin: Any, learner: Any, *, method: str, rounds: int = 3, unseen: tuple[str, ...] = (), **config: Any
) -> HarnessResult:
    training = {"optimiser": "sgd", "learning_rate": 0.05, "momentum": 0.0, "batch_size": 64, "keep_optimiser": False}
    job = JobSpecification(
        name="x",
        method=method,
        dataset="s",
        model="gru_forecaster",
        rounds=rounds,
        seed=1,
        selection=Selection(minimum_nodes=3),
        evaluation=EvaluationSettings(every=rounds, unseen=unseen),
        method_config={"model": MODEL, "training": {**training, **config.pop("training", {})}, **config},
    )
    nodes = {name: Station(name) for name in STATIONS}
    return Harness(method, nodes, job, plugin=plugin, learner=learner).run()


@pytest.mark.parametrize("server", [{}, {"optimiser": "adam", "learning_rate": 0.01}])
def test_with_personalisation_off_every_round_is_that_of_fedavg_bit_for_bit(server: dict[str, Any]) -> None:
    game = run(Game, Deaf, method="fedgame", server=server)
    plain = run(Averaging, ForecastLearner, method="fedavg", server=server, weighting="uniform")
    assert [record.instruction for record in game.phases] == [record.instruction for record in plain.phases]
    # What is trained is the same; what is judged is each method's own.
    trained = [[row for row in result.contributions if row[0] == "train"] for result in (game, plain)]
    assert trained[0] == trained[1]


def test_unseen_stations_are_judged_as_received_fine_tuned_and_adapted() -> None:
    Listening.log.clear()
    result = run(Game, Listening, method="fedgame", unseen=("d",))
    assert [record.name for record in result.phases] == ["train"] * 3 + ["adapt", "evaluate"]
    assert not any(record.refusals for record in result.phases)
    (picture,) = result.phases[-1].outcome.pictures
    assert {"pooled", "pooled_global", "unseen", "unseen_finetuned", "unseen_adapted"} <= set(picture.payload.arrays)
    for figure in ("qs", "finetuned_qs", "adapted_qs"):
        assert result.value(figure, scope=Scope.UNSEEN) > 0
    assert result.value("qs") > 0
    assert result.value("global_qs") > 0
    # Every update was for the very model that it came with.
    assert result.value("personal_skipped", scope=Scope.UNSEEN) == 0
    assert result.value("personal_skipped") == 0
    sent = {
        (assignment.phase, assignment.round, assignment.node) for assignment in Listening.log if assignment.personal
    }
    trained = {("train", number, node) for number in (2, 3) for node in "abc"}
    assert sent == trained | {("evaluate", 3, "d")}
    # The server weighs the peers of an unseen station without its data ever entering the training.
    assert "d" not in {node for phase, _, node, _ in result.contributions if phase == "train"}


def test_the_extra_exchange_is_below_a_quarter_of_a_percent_with_the_methods_own_forecaster() -> None:
    """Published: 0.115 to 0.235 %. The formula and the bytes, headers included, at each horizon."""
    from hanse.method import Contribution, JobContext
    from hanse.payload.models import delta_payload

    for horizon, formula in ((3, 0.0005), (6, 0.0010), (12, 0.0020)):
        job = JobContext(
            id="j",
            name="x",
            method="fedgame",
            dataset="s",
            rounds=2,
            model="gru_forecaster",
            nodes=("a", "b"),
            config={"model": {"horizon": horizon}},
        )
        phase = Game().first_phase(job)
        aggregation = Game().open(phase, None)
        for number, node in enumerate("ab", start=1):
            arrays = {name: np.full_like(array, 1e-3 * number) for name, array in phase.instruction.arrays.items()}
            payload = delta_payload(phase.instruction.digest, 9, arrays)
            aggregation.add(Contribution(node=node, payload=payload))
        values = {row.name: row.value for row in aggregation.finish().metrics if row.scope is Scope.AGGREGATION}
        assert values["overhead_formula"] == pytest.approx(formula, rel=0.02)
        assert values["overhead_formula"] < values["overhead_measured"] < 0.0025
        header = values["personal_bytes"] - 4 * values["selective_numbers"]
        assert 0 < header < 300
        assert values["overhead_measured"] * values["selective_numbers"] * 4 / values[
            "personal_bytes"
        ] == pytest.approx(values["overhead_formula"], rel=0.01)
