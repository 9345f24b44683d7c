"""What a researcher may set for boosted trees, and what is refused and why.

Names and defaults are XGBoost's wherever XGBoost has the parameter.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

ObjectiveName = Literal["binary:logistic", "multi:softprob", "reg:squarederror"]

# Parameters that XGBoost has and a federation cannot honour, each with the reason.
UNSUPPORTED: dict[str, str] = {
    "colsample_bylevel": "XGBoost draws these columns from its own random numbers; use colsample_bytree",
    "colsample_bynode": "XGBoost draws these columns from its own random numbers; use colsample_bytree",
    "sampling_method": "rows are drawn by each node itself, uniformly; use subsample",
    "booster": "only gbtree exists; dart and gblinear need state of the rows at the server",
    "tree_method": "trees are always grown on histograms",
    "learning_rate": "the learning rate is called eta",
    "max_bin": "the number of bins is called bins",
    "grow_policy": "trees grow level by level, so that both kinds of statistics give the same trees",
    "num_parallel_tree": "one tree per class and round is grown",
    "multi_strategy": "one tree per class is grown",
    "monotone_constraints": "constraints are not available",
    "interaction_constraints": "constraints are not available",
    "scale_pos_weight": "use instance weights",
    "nthread": "the server grows trees with one thread, so that results do not depend on the machine",
    "n_jobs": "the server grows trees with one thread, so that results do not depend on the machine",
    "device": "the server grows trees on the processor, so that results do not depend on the machine",
    "num_boost_round": "the number of rounds is a key of the job: rounds",
    "n_estimators": "the number of rounds is a key of the job: rounds",
    "eval_metric": "every evaluation reports all metrics of the objective",
    "enable_categorical": "categorical columns must be encoded as numbers",
}


class BoostingParameters(BaseModel):
    """Parameters of federated gradient boosting (Chen & Guestrin 2016), frozen; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)

    objective: ObjectiveName = "multi:softprob"
    """What is learned: two classes, several classes, or a number."""
    num_class: Annotated[int, Field(ge=0, le=1000)] = 0
    """Number of classes K for `multi:softprob`, at least 2; 0 for the other objectives."""
    eta: Annotated[float, Field(gt=0, le=1)] = 0.3
    """Learning rate: leaf values are multiplied by it."""
    max_depth: Annotated[int, Field(ge=1, le=16)] = 6
    """Largest number of splits between root and leaf."""
    max_leaves: Annotated[int, Field(ge=0)] = 0
    """Largest number of leaves of a tree; 0 for no limit."""
    reg_lambda: Annotated[float, Field(ge=0, alias="lambda")] = 1.0
    """L2 penalty on leaf values, added to the hessian sum."""
    reg_alpha: Annotated[float, Field(ge=0, alias="alpha")] = 0.0
    """L1 penalty on leaf values, a soft threshold of the gradient sum."""
    gamma: Annotated[float, Field(ge=0)] = 0.0
    """Least gain of a split."""
    min_child_weight: Annotated[float, Field(ge=0)] = 1.0
    """Least hessian sum of a child."""
    max_delta_step: Annotated[float, Field(ge=0)] = 0.0
    """Largest magnitude of a leaf value before eta; 0 for no limit."""
    subsample: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of rows that take part in a round; each node draws its own from the shared seed."""
    colsample_bytree: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of columns offered to a tree, at least one; drawn from the seed, the round and the class."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the row and column draws."""
    base_score: Literal["prior", "0.5"] = "prior"
    """Where margins start: at the class frequencies or the mean target (as XGBoost 3.1 and later do), or at
    0.5 for all (as XGBoost before 2.0 did)."""
    bins: Annotated[int, Field(ge=2, le=4096)] = 256
    """Largest number of bins per feature."""
    bin_source: Literal["sketch", "exact"] = "sketch"
    """Where bin edges come from: merged sketches, or all distinct values. `exact` reveals every value that
    occurs; it is for tests and tiny public data."""
    edges: Literal["shared", "per_class"] = "shared"
    """One set of edges per round, weighted by the hessian summed over classes; or one per class, as XGBoost's
    `approx` makes."""
    sketch_accuracy: Annotated[float, Field(ge=1e-3, le=0.1)] = 0.01
    """Relative accuracy alpha of the sketches (Masson, Rim & Lee 2019)."""
    sketch_every: Annotated[int, Field(ge=0)] = 1
    """Sketch every so many rounds; 0 for once, before the first round, as XGBoost's `hist` does."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key in UNSUPPORTED:
                    raise ValueError(f"The parameter {key!r} is not supported: {UNSUPPORTED[key]}.")
        return data

    @model_validator(mode="after")
    def _check_classes(self) -> BoostingParameters:
        if self.objective == "multi:softprob" and self.num_class < 2:
            raise ValueError("The objective 'multi:softprob' needs num_class, the number of classes, at least 2.")
        if self.objective != "multi:softprob" and self.num_class != 0:
            raise ValueError(f"The objective {self.objective!r} has no num_class; leave the key out.")
        return self

    @property
    def outputs(self) -> int:
        """Number K of trees per round."""
        return self.num_class if self.objective == "multi:softprob" else 1

    def sketches_in(self, round_number: int) -> bool:
        """Whether new edges are made in the round `round_number`, counted from 0."""
        if self.bin_source == "exact" or self.sketch_every == 0:
            return round_number == 0
        return round_number % self.sketch_every == 0
