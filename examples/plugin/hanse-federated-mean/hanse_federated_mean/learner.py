"""The node half of `federated_mean`: a sum and a count over the node's records, and nothing else, leave."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from hanse.errors import MethodError
from hanse.method import Assignment, Dataset
from hanse.payload import Payload
from hanse.payload.kinds import RatioSum, metrics_payload, read_document


class FederatedMeanLearner:
    """Measures on tables (datasets of kind `table`)."""

    version: ClassVar[str] = "1"
    dataset_kinds: ClassVar[tuple[str, ...]] = ("table",)

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def perform(self, assignment: Assignment) -> Payload:
        """Do one assignment.

        Whatever should be remembered goes into the empty folder `assignment.next_state`, and is in
        `assignment.state` the next time; both are swapped only when the reply is safe.
        """
        if assignment.phase != "measure":
            raise MethodError(f"The method 'federated_mean' has no phase '{assignment.phase}'.")
        bounds = read_document(assignment.instruction, "federated_mean.measure")
        assignment.progress(0.0, "reading the dataset")
        table = self.dataset.load()
        values = np.clip(table.target[~table.held_out], bounds["lower"], bounds["upper"])
        return metrics_payload({"target": RatioSum.of(values)})
