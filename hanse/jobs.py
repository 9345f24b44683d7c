"""The job file: what a researcher writes and submits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import Field

from hanse.settings import Duration, Settings


class Selection(Settings):
    """Who takes part in a round, and how long a round may wait."""

    minimum_nodes: int = Field(1, ge=1)
    """The job waits until so many nodes have accepted it; a training phase is not opened with fewer than the quorum
    of them."""
    fraction: float = Field(1.0, gt=0, le=1)
    """Share of the accepted nodes that is drawn for each round (by a seed, so that a run can be repeated)."""
    over_selection: float = Field(0.0, ge=0, le=1)
    """Draw so many more (a share of the drawn) to make up for nodes that drop out."""
    quorum: float = Field(0.8, gt=0, le=1)
    """Share of the assigned nodes whose contributions a phase needs."""
    deadline: Duration = Field(timedelta(minutes=10))
    """How long a phase may wait for the slowest node."""
    tries: int = Field(3, ge=1)
    """How often a phase below quorum is tried before the job pauses."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Only nodes that carry all these labels are asked."""


class EvaluationSettings(Settings):
    """When the model is evaluated, and by whom."""

    every: int = Field(0, ge=0)
    """After every so many rounds (and after the last); 0: never."""
    unseen: tuple[str, ...] = ()
    """Nodes that never train: they take part in evaluation alone."""


class JobSpecification(Settings):
    """One training run of a method over a dataset."""

    name: str = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$")
    method: str = Field(min_length=1, max_length=100)
    dataset: str = Field(min_length=1, max_length=100)
    """The name under which the nodes offer their records."""
    model: str = ""
    """A registered model, for methods that train one."""
    rounds: int = Field(ge=1, le=1_000_000)
    seed: int = Field(0, ge=0, lt=2**63)
    selection: Selection = Selection()
    evaluation: EvaluationSettings = EvaluationSettings()
    method_config: dict[str, Any] = Field(default_factory=dict)
    """The method's own settings; checked against the schema that its plug-in publishes."""
