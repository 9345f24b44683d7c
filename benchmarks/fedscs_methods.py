"""FedSCS-XGB and what it is compared with, on the same rows with the same parameters of the trees.

    central   XGBoost `hist` on all rows in one place
    fedscs    FedSCS-XGB through `hanse.harness`
    pax_like  our own reconstruction of the idea of PAX (Ong et al., arXiv 2012.06670), whose code is not public: each
              party bins by edges of its own and sends representative values with gradient sums; the server runs
              `hist` on them. Each party has all `bins` bins, which is generous to it
    bagging   each node trains alone, and the nodes' probabilities are averaged, weighted by their rows
    local     each node trains alone and judges its own rows (an unseen node: the others' models, one after another)

Each method returns, for every node with rows to judge, the probabilities of those rows, and the bytes that all nodes
together send a round (central and local: 0; central moves every record once, outside of any round).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xgboost
from fedscs_data import Fold, MemoryDataset

from hanse.harness import Harness, HarnessResult
from hanse.jobs import EvaluationSettings, JobSpecification, Selection
from hanse.learning.bin_edges import sketched_edges
from hanse.learning.binning import BucketedValues
from hanse.learning.fixed_point import Grid
from hanse.learning.objectives import Objective, make_objective, rounded_gradients
from hanse.learning.parameters import BoostingParameters
from hanse.learning.sketch import BucketMapping
from hanse.tables import Table

BYTES_OF_A_SUM = 4


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What every method is given alike."""

    classes: int
    bins: int
    rounds: int
    depth: int
    eta: float

    @property
    def parameters(self) -> dict[str, Any]:
        """As FedSCS-XGB's `method_config`."""
        several = {"objective": "multi:softprob", "num_class": self.classes}
        objective = several if self.classes > 2 else {"objective": "binary:logistic"}
        return {**objective, "max_depth": self.depth, "eta": self.eta, "bins": self.bins}

    @property
    def xgboost(self) -> dict[str, Any]:
        """As XGBoost's parameters."""
        own = {key: value for key, value in self.parameters.items() if key != "bins"}
        return {**own, "max_bin": self.bins, "tree_method": "hist", "nthread": 1, "verbosity": 0}


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Probabilities float32 [rows, classes] of each node's held-out rows, by node; several where several models judge
    the same rows. `bytes_per_round`: what all nodes together send."""

    probabilities: Mapping[str, list[np.ndarray]]
    bytes_per_round: float = 0.0
    run: HarnessResult | None = None


def central(fold: Fold, setting: Setting) -> Judged:
    booster = _train(list(fold.training.values()), setting)
    return Judged(probabilities=_judge(fold, lambda rows, _: [_predict(booster, rows)]))


def local(fold: Fold, setting: Setting) -> Judged:
    boosters = {name: _train([table], setting) for name, table in fold.training.items() if _trains(table)}

    def judge(rows: np.ndarray, node: str) -> list[np.ndarray]:
        own = [boosters[node]] if node in boosters else list(boosters.values())
        return [_predict(booster, rows) for booster in own]

    return Judged(probabilities=_judge(fold, judge))


def bagging(fold: Fold, setting: Setting) -> Judged:
    trained = {name: table for name, table in fold.training.items() if _trains(table)}
    boosters = [_train([table], setting) for table in trained.values()]
    weights = np.array([np.count_nonzero(~table.held_out) for table in trained.values()], dtype=np.float64)
    weights /= weights.sum()
    sent = sum(len(booster.save_raw("ubj")) for booster in boosters)

    def judge(rows: np.ndarray, _: str) -> list[np.ndarray]:
        return [sum(w * _predict(booster, rows) for w, booster in zip(weights, boosters, strict=True))]

    return Judged(probabilities=_judge(fold, judge), bytes_per_round=sent / setting.rounds)


def job_of(fold: Fold, setting: Setting, statistics: str) -> JobSpecification:
    """The federation's job: everybody in every round, judged once at the end."""
    return JobSpecification(
        name="benchmark",
        method="fedscs_xgb",
        dataset="rows",
        rounds=setting.rounds,
        selection=Selection(minimum_nodes=len(fold.training), quorum=1.0),
        evaluation=EvaluationSettings(every=setting.rounds, unseen=fold.unseen),
        method_config={**setting.parameters, "statistics": statistics},
    )


def fedscs(fold: Fold, setting: Setting, statistics: str) -> Judged:
    datasets: dict[str, Any] = {name: MemoryDataset(table) for name, table in fold.tables.items()}
    run = Harness("fedscs_xgb", datasets, job_of(fold, setting, statistics)).run()
    assert run.model is not None
    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(run.model.arrays["model.ubj"].tobytes()))
    booster.feature_names = None
    rounds = [phase for phase in run.phases if phase.name in ("sketch", "atoms", "histogram")]
    sent = sum(sum(phase.sent.values()) for phase in rounds)
    return Judged(
        probabilities=_judge(fold, lambda rows, _: [_predict(booster, rows)]),
        bytes_per_round=sent / setting.rounds,
        run=run,
    )


class _Party:
    """A party of the PAX-like method: bins of its own, and margins of its rows."""

    def __init__(self, table: Table, objective: Objective, base: np.ndarray, bins: int) -> None:
        self.values = np.ascontiguousarray(table.features[~table.held_out])
        self.labels = table.target[~table.held_out].astype(np.float32)
        self.objective, self.bins = objective, bins
        self.rows = xgboost.DMatrix(self.values, nthread=1)
        self.margins = np.broadcast_to(base, (len(self.labels), len(base))).copy()
        self.mapping = BucketMapping(0.01)
        self.centres = np.zeros(self.values.shape[1])
        self.buckets = BucketedValues.of(self.values, self.centres, self.mapping)

    def surrogate(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """Representative values [n, F] with gradients and hessians, and the bytes of sending them."""
        gradient, hessian = self.objective.gradients(self.margins, self.labels, None)
        weights = np.maximum(
            rounded_gradients(self.objective, self.margins, self.labels, None, Grid())[1].sum(axis=1), 1
        )
        edges = sketched_edges(self.buckets.sketches(weights), self.centres, self.mapping, self.bins)
        ids = self.buckets.bins(edges)
        values = np.full(self.values.shape, np.nan, dtype=np.float32)
        for f in range(edges.features):
            present = ids[:, f] >= 0
            own, mass = ids[present, f], weights[present].astype(np.float64)
            count = int(edges.bins[f])
            sums = np.bincount(own, mass * self.values[present, f], count)
            with np.errstate(invalid="ignore"):
                means = sums / np.bincount(own, mass, count)
            values[present, f] = means[own]
        width = (1 if edges.widest <= 255 else 2) * edges.features
        atoms = len(np.unique(ids, axis=0))
        sent = atoms * (width + BYTES_OF_A_SUM * (1 + 2 * gradient.shape[1])) + 4 * len(edges.cuts)
        return values, gradient, hessian, sent


def pax_like(fold: Fold, setting: Setting) -> Judged:
    parameters = BoostingParameters(**setting.parameters)
    objective = make_objective(parameters)
    tables = {name: table for name, table in fold.training.items() if np.any(~table.held_out)}
    labels = np.concatenate([table.target[~table.held_out] for table in tables.values()]).astype(np.int64)
    base = objective.base_margins(np.bincount(labels, minlength=setting.classes) / len(labels), 0.0)
    parties = [_Party(table, objective, base, setting.bins) for table in tables.values()]
    judged = {name: table.features[table.held_out] for name, table in fold.tables.items() if table.held_out.any()}
    matrices = {name: xgboost.DMatrix(rows, nthread=1) for name, rows in judged.items()}
    margins = {name: np.broadcast_to(base, (len(rows), len(base))).copy() for name, rows in judged.items()}
    sent = 0
    for _ in range(setting.rounds):
        parts = [party.surrogate() for party in parties]
        values, gradient, hessian = (np.concatenate([part[i] for part in parts]) for i in range(3))
        sent += sum(part[3] for part in parts)
        booster = _boosted(values, gradient, hessian, setting)
        for party in parties:
            party.margins += _margins(booster, party.rows, party.margins.shape)
        for name, matrix in matrices.items():
            margins[name] += _margins(booster, matrix, margins[name].shape)
    return Judged(
        probabilities={name: [objective.predictions(each)] for name, each in margins.items()},
        bytes_per_round=sent / setting.rounds,
    )


def _boosted(values: np.ndarray, gradient: np.ndarray, hessian: np.ndarray, setting: Setting) -> xgboost.Booster:
    data = xgboost.DMatrix(values, nthread=1)
    booster = xgboost.Booster({**setting.xgboost, "base_score": 0.5 if setting.classes == 2 else 0.0}, [data])
    booster.boost(data, 0, grad=gradient, hess=hessian)
    return booster


def _margins(booster: xgboost.Booster, rows: xgboost.DMatrix, shape: tuple[int, ...]) -> np.ndarray:
    return booster.predict(rows, output_margin=True).reshape(shape)


def _trains(table: Table) -> bool:
    return bool(np.any(~table.held_out))


def _train(tables: list[Table], setting: Setting) -> xgboost.Booster:
    rows = np.concatenate([table.features[~table.held_out] for table in tables])
    labels = np.concatenate([table.target[~table.held_out] for table in tables])
    data = xgboost.QuantileDMatrix(rows, label=labels, max_bin=setting.bins, nthread=1)
    return xgboost.train(setting.xgboost, data, setting.rounds)


def _predict(booster: xgboost.Booster, rows: np.ndarray) -> np.ndarray:
    found = booster.predict(xgboost.DMatrix(rows, nthread=1))
    return found if found.ndim == 2 else np.stack([1 - found, found], axis=1)


def _judge(fold: Fold, judge: Callable[[np.ndarray, str], list[np.ndarray]]) -> dict[str, list[np.ndarray]]:
    return {
        name: judge(table.features[table.held_out], name) for name, table in fold.tables.items() if table.held_out.any()
    }


METHODS: dict[str, Callable[[Fold, Setting], Judged]] = {
    "central": central,
    "pax_like": pax_like,
    "bagging": bagging,
    "local": local,
}
