"""A node's rows in the columns of a job, checked once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hanse.errors import SiteError
from hanse.learning.binning import check_values
from hanse.learning.objectives import Objective, check_labels
from hanse.payload.boosting import BoostingInstruction
from hanse.tables import Table
from hanse_agent.learners.boosting_margins import fingerprint


@dataclass(frozen=True, eq=False)
class Rows:
    """A node's rows in the job's columns: features float32 [n, F], labels float32 [n], weights or none.

    `training` and `held_out` are row numbers.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.float32]
    weights: NDArray[np.float32] | None
    training: NDArray[np.int64]
    held_out: NDArray[np.int64]
    data: str


def select_rows(table: Table, instruction: BoostingInstruction, objective: Objective) -> Rows:
    """The rows of a table for a job.

    Raises:
        SiteError: columns that differ from the job's, an infinite value, a label or weight out of range; the sentence
            names column or row.
    """
    features = table.features[:, _columns(table, instruction)]
    check_values(features, instruction.schema.features or table.feature_names)
    labels = table.target.astype(np.float32)
    weights = None if np.all(table.weight == 1) else table.weight.astype(np.float32)
    check_labels(objective, labels, weights)
    ones = np.zeros(0, dtype=np.float32) if weights is None else weights
    return Rows(
        features=np.ascontiguousarray(features),
        labels=labels,
        weights=weights,
        training=np.flatnonzero(~table.held_out),
        held_out=np.flatnonzero(table.held_out),
        data=fingerprint(features, labels, ones, table.held_out),
    )


def _columns(table: Table, instruction: BoostingInstruction) -> NDArray[np.int64]:
    """Places of the job's columns in the table, after a check that the node has them."""
    schema = instruction.schema
    if schema.classes and table.class_names and schema.classes != table.class_names:
        raise SiteError(
            f"This node numbers the classes {list(table.class_names)[:20]}, and the job {list(schema.classes)[:20]}.",
            code="SCHEMA_MISMATCH",
            remedy="List the same 'classes' in the same order in agent.yaml of every node.",
        )
    if not schema.features:
        return np.arange(len(table.feature_names))
    place = {name: i for i, name in enumerate(table.feature_names)}
    missing = [name for name in schema.features if name not in place]
    if missing:
        raise _mismatch(f"The job's column '{missing[0]}' is not in this dataset ({len(missing)} missing in all).")
    if not instruction.select:
        extra = [name for name in table.feature_names if name not in set(schema.features)]
        if extra:
            raise _mismatch(f"The column '{extra[0]}' is not one of the job's ({len(extra)} too many in all).")
        for i, (own, wanted) in enumerate(zip(table.feature_names, schema.features, strict=True), start=1):
            if own != wanted:
                raise _mismatch(f"Column {i} of this dataset is '{own}', and that of the job is '{wanted}'.")
    return np.array([place[name] for name in schema.features], dtype=np.int64)


def _mismatch(sentence: str) -> SiteError:
    return SiteError(
        sentence,
        code="SCHEMA_MISMATCH",
        remedy="Offer the same columns in the same order as the other nodes ('features' in agent.yaml), or have the "
        "job name its columns under 'features'.",
    )
