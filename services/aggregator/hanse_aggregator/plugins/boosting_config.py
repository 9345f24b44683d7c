"""What a job of FedSCS-XGB may say under `method_config`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from hanse.learning.parameters import BoostingParameters
from hanse.method import JobContext
from hanse.settings import validate


class FedScsConfig(BoostingParameters):
    """The job file's `method_config`: XGBoost's parameters under XGBoost's names, and those of the federation."""

    statistics: Literal["atoms"] = "atoms"
    """What nodes send in each round: sums per atom, as published."""
    features: tuple[str, ...] = ()
    """The columns to learn from, picked by name at every node; all columns of the dataset when left out."""
    centring: bool = True
    """Sketch values by their distance from the feature's mean: accuracy is relative to zero otherwise."""
    checkpoint_every: Annotated[int, Field(ge=0)] = 0
    """Give the model as it stands after every so many rounds; 0: at the end alone."""

    @field_validator("statistics", mode="before")
    @classmethod
    def _only_atoms(cls, value: Any) -> Any:
        if value == "histograms":
            raise ValueError("histograms are not available in this version; use atoms")
        return value

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
    return validate(FedScsConfig, dict(job.config), source="method_config")
