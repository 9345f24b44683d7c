"""Small datasets in memory, and jobs over them, for tests of FedSCS-XGB's two halves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel

from hanse.jobs import JobSpecification
from hanse.method import Assignment, Column, DatasetDescription, JobContext, LearnerLimits, Purpose
from hanse.payload import Payload
from hanse.tables import Table

NAMES = ("age", "weight", "pulse")


class MemoryDataset:
    """A table that lies in memory."""

    Options: ClassVar[type[BaseModel]] = BaseModel

    def __init__(self, table: Table) -> None:
        self.table = table
        self.loads = 0

    def describe(self) -> DatasetDescription:
        columns = [Column(name=name, dtype="float32") for name in self.table.feature_names]
        columns.append(Column(name="label", dtype="float64"))
        return DatasetDescription(
            name="d", kind="table", rows=len(self.table.target), columns=tuple(columns), target="label"
        )

    def load(self) -> Table:
        self.loads += 1
        return self.table


def make_table(features: Any, target: Any, **changes: Any) -> Table:
    """A table of these rows, none held out and all of weight one unless said otherwise."""
    values = np.asarray(features, dtype=np.float32)
    names = changes.pop("feature_names", NAMES[: values.shape[1]])
    rows = len(values)
    return Table(
        features=values,
        feature_names=names,
        target=np.asarray(target, dtype=np.float64),
        weight=np.asarray(changes.pop("weight", np.ones(rows)), dtype=np.float32),
        held_out=np.asarray(changes.pop("held_out", np.zeros(rows)), dtype=np.bool_),
        **changes,
    )


def random_table(rows: int, *, seed: int, classes: int = 3, features: int = 3, missing: float = 0.1) -> Table:
    """Rows whose class depends on the features; a share of values is missing and a quarter of rows held out."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, features)).astype(np.float32)
    score = values[:, 0] + 0.5 * np.sin(3 * values[:, 1]) + 0.3 * rng.normal(size=rows)
    target = np.digitize(score, np.linspace(-1, 1, classes - 1)) if classes else score * 10
    values[rng.random(values.shape) < missing] = np.nan
    names = tuple(f"f{i}" for i in range(features))
    return make_table(values, target, feature_names=names, held_out=rng.random(rows) < 0.25)


def split(table: Table, parts: Iterable[np.ndarray]) -> dict[str, MemoryDataset]:
    """The rows of a table by node; `parts` are row numbers."""
    return {
        f"node-{i:02d}": MemoryDataset(
            Table(
                features=table.features[rows],
                feature_names=table.feature_names,
                target=table.target[rows],
                weight=table.weight[rows],
                held_out=table.held_out[rows],
                class_names=table.class_names,
            )
        )
        for i, rows in enumerate(parts)
    }


def specification(*, rounds: int = 3, classes: int = 3, every: int = 0, **changes: Any) -> JobSpecification:
    """A job of trees of depth 3 over 16 bins; changes that are no keys of the job go to the method."""
    own = {key: changes.pop(key) for key in list(changes) if key in JobSpecification.model_fields}
    objective = {"objective": "multi:softprob", "num_class": classes} if classes else {"objective": "reg:squarederror"}
    config = {**objective, "max_depth": 3, "bins": 16, "statistics": "atoms", **changes}
    return JobSpecification.model_validate(
        {
            "name": "test",
            "method": "fedscs_xgb",
            "dataset": "d",
            "rounds": rounds,
            "evaluation": {"every": every},
            "method_config": config,
            **own,
        }
    )


@dataclass
class Desk:
    """Gives a learner assignments, keeps its state folders and the artifacts, and can lose either."""

    folder: Path
    job: JobContext
    node: str = "node-00"
    unseen: bool = False
    version: int = 0

    def __post_init__(self) -> None:
        self.artifacts: dict[bytes, Payload] = {}
        self.fetched: list[bytes] = []
        self.notes: list[str] = []

    def fetch(self, digest: bytes) -> Payload:
        self.fetched.append(digest)
        return self.artifacts[digest]

    def assignment(self, phase: str, round_number: int, instruction: Payload, **changes: Any) -> Assignment:
        """The next assignment; the state that it leaves counts only after `keep`."""
        next_state = self.folder / f"{self.version + 1}-{phase}-{round_number}-{len(list(self.folder.iterdir()))}"
        next_state.mkdir(parents=True)
        self.next_state = next_state
        return Assignment(
            **{
                "job": self.job,
                "node": self.node,
                "phase": phase,
                "round": round_number,
                "purpose": Purpose.EVALUATE if phase == "evaluate" else Purpose.TRAIN,
                "instruction": instruction,
                "unseen": self.unseen,
                "state": self.state,
                "next_state": next_state,
                "limits": LearnerLimits(minimum_rows_per_atom=1),
                "fetch": self.fetch,
                "progress": lambda fraction, note: self.notes.append(note),
                **changes,
            }
        )

    state: Path | None = None

    def keep(self) -> None:
        """The contribution is safely spooled: the new state holds."""
        self.state = self.next_state
        self.version += 1


Perform = Callable[[Assignment], Payload]
