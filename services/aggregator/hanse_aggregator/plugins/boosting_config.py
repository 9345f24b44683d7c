"""What a job of FedSCS-XGB may say under `method_config`."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field, field_validator

from hanse.learning.parameters import BoostingParameters
from hanse.method import JobContext
from hanse.settings import validate


class FedScsConfig(BoostingParameters):
    """The job file's `method_config`: XGBoost's parameters under XGBoost's names, and those of the federation."""

    statistics: Literal["atoms", "histograms"] = "histograms"
    """What nodes send in each round. `histograms` (ours): sums per tree node, feature and bin, one exchange a level
    of the trees. `atoms` (as published): sums per combination of bins, one exchange a round; over many columns atoms
    are nearly records. Both give the same trees."""
    features: tuple[str, ...] = ()
    """The columns to learn from, picked by name at every node; all columns of the dataset when left out."""
    centring: bool = True
    """Sketch values by their distance from the feature's mean: accuracy is relative to zero otherwise."""
    checkpoint_every: Annotated[int, Field(ge=0)] = 0
    """Give the model as it stands after every so many rounds; 0: at the end alone."""
    early_stopping_rounds: Annotated[int, Field(ge=0)] = 0
    """End the job when the loss on the nodes' held-out rows (pooled over the nodes that train) has not fallen for so
    many rounds, and cut the model to its best round; 0: never. Judged at each evaluation: set `evaluation.every`."""
    deliver_model: bool = True
    """Hand the finished model to every node, for `hanse-agent predict`."""

    @field_validator("features")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("features lists a column twice")
        return value

    def parameters(self, job: JobContext) -> BoostingParameters:
        """The parameters of the trees; the seed is the job's unless given here."""
        known = self.model_dump(by_alias=True, include=set(BoostingParameters.model_fields))
        return BoostingParameters.model_validate(
            known if "seed" in self.model_fields_set else known | {"seed": job.seed}
        )


def config_of(job: JobContext) -> FedScsConfig:
    """The job's configuration.

    Raises:
        OperatorError: a wrong or unknown key; the sentence names it.
    """
    return _validated(json.dumps(dict(job.config), sort_keys=True))


@lru_cache(maxsize=64)
def _validated(config: str) -> FedScsConfig:
    """The configuration of a job is the same in every phase."""
    return validate(FedScsConfig, json.loads(config), source="method_config")
