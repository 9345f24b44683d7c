"""FedSCS-XGB at the node: sums over its own rows leave it, margins and gradients never do."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hanse.errors import MethodError, PlatformError, SiteError
from hanse.learning.binning import BucketedValues
from hanse.learning.drawing import chosen_rows
from hanse.learning.objectives import Objective, make_objective, rounded_gradients
from hanse.learning.sketch import BucketMapping
from hanse.method import Assignment, Dataset, Predictions
from hanse.payload import Payload
from hanse.payload.boosting import DELIVERED, BoostingInstruction, Setup, read_delivery
from hanse.payload.kinds import document_payload, read_trees
from hanse.tables import Table
from hanse_agent.learners.boosting_margins import Margins, carry_over, fingerprint, load_margins
from hanse_agent.learners.boosting_model import keep_model, predict_table
from hanse_agent.learners.boosting_replies import (
    RoundRows,
    atoms_reply,
    evaluation_reply,
    histograms_reply,
    setup_reply,
    sketches_reply,
)
from hanse_agent.learners.boosting_rows import Rows, select_rows


class BoostingLearner:
    """The learner of the method `fedscs_xgb`.

    Warm, it keeps in memory the rows, their bucket numbers, the margins, and where rows stand in the trees of the
    round. All of them follow from the dataset and the instruction; its state folder holds the margins, and at the end
    the finished model.
    """

    version: ClassVar[str] = "1"
    dataset_kinds: ClassVar[tuple[str, ...]] = ("table",)

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._table: Table | None = None
        self._rows: tuple[tuple[object, ...], Rows] | None = None
        self._buckets: tuple[tuple[object, ...], BucketedValues] | None = None
        self._margins: Margins | None = None
        self._round: tuple[tuple[object, ...], RoundRows] | None = None

    def perform(self, assignment: Assignment) -> Payload:
        """Do one phase: `prepare`, `sketch`, `atoms`, `histogram`, `evaluate` or `deliver`.

        Raises:
            SiteError: columns, labels or values that do not fit the job; the sentence names them.
            PolicyRefusal: too many atoms hold fewer rows than the site allows.
            InvalidPayload: an instruction that cannot be used.
        """
        if assignment.phase == "deliver":
            return self._take_model(assignment)
        instruction = BoostingInstruction.from_payload(assignment.instruction)
        objective = make_objective(instruction.parameters)
        assignment.progress(0.0, "reading the dataset")
        table = self._load()
        rows = self._select(assignment.node, table, instruction, objective)
        if assignment.phase == "prepare":
            if assignment.state is not None:
                carry_over(assignment.state, assignment.next_state)
            return setup_reply(table, rows, instruction, objective)
        if instruction.setup is None:
            raise MethodError(f"The phase '{assignment.phase}' came before the preparation.")
        margins = self._catch_up(assignment, instruction, instruction.setup, rows)
        if assignment.phase == "evaluate":
            chosen = np.arange(len(rows.labels)) if assignment.unseen else rows.held_out
            return evaluation_reply(objective, margins.values[chosen], rows.labels[chosen], instruction.setup)
        if assignment.unseen:
            raise MethodError(f"The unseen node '{assignment.node}' was asked to train.")
        of = self._of_round(assignment, instruction, instruction.setup, objective, rows, margins)
        assignment.progress(0.5, "counting")
        if assignment.phase == "sketch":
            return sketches_reply(of, instruction)
        if assignment.phase == "histogram":
            return histograms_reply(of, instruction)
        if assignment.phase == "atoms":
            return atoms_reply(of, instruction, assignment.limits)
        raise MethodError(f"The method 'fedscs_xgb' has no phase '{assignment.phase}'.")

    def predict(self, state: Path, data: Path) -> Predictions:
        """The finished model's answers for the rows of a file; see `hanse.method.Predictor`."""
        return predict_table(state, data)

    def _take_model(self, assignment: Assignment) -> Payload:
        digest = read_delivery(assignment.instruction)
        try:
            model = assignment.fetch(digest)
        except KeyError as error:
            raise PlatformError(f"The finished model ({digest.hex()[:12]}…) cannot be fetched.") from error
        keep_model(model, assignment.next_state)
        return document_payload(DELIVERED, {})

    def _load(self) -> Table:
        if self._table is None:
            table = self._dataset.load()
            if not isinstance(table, Table):
                raise SiteError("The dataset is not a table.", code="DATA_FORMAT", remedy="Name one of kind 'table'.")
            self._table = table
        return self._table

    def _select(self, node: str, table: Table, instruction: BoostingInstruction, objective: Objective) -> Rows:
        """The rows in the job's columns, checked once; what does not fit is refused in the node's name."""
        key = (instruction.schema, instruction.select, instruction.parameters.objective, objective.classes)
        if self._rows is None or self._rows[0] != key:
            try:
                self._rows = key, select_rows(table, instruction, objective)
            except SiteError as error:
                about = (
                    f" (target column '{self._dataset.describe().target}')" if error.code.startswith("LABEL") else ""
                )
                raise SiteError(
                    f"Node '{node}'{about}: {error.sentence}", code=error.code, remedy=error.remedy
                ) from error
        return self._rows[1]

    def _catch_up(self, assignment: Assignment, instruction: BoostingInstruction, setup: Setup, rows: Rows) -> Margins:
        """Margins after all trees so far, from memory or the state folder, and into the next version of it."""
        grown, start = instruction.grown, fingerprint(setup.base_margins)
        shape = (len(rows.labels), instruction.parameters.outputs)
        margins = self._margins
        if margins is None or margins.data != rows.data or not margins.fits(grown, start):
            margins = load_margins(assignment.state, data=rows.data, shape=shape) if assignment.state else None
        if margins is None or not margins.fits(grown, start):
            base = np.broadcast_to(setup.base_margins, shape).copy()
            margins = Margins(values=base, applied=0, last=b"", start=start, data=rows.data)
        values = margins.values
        for place in range(margins.applied, len(grown)):
            assignment.progress(0.1, f"trees of round {place + 1} of {len(grown)}")
            if place == len(grown) - 1 and instruction.newest is not None:
                forest = instruction.newest
            else:
                try:
                    trees = assignment.fetch(grown[place])
                except KeyError as error:
                    name = grown[place].hex()[:12]
                    raise PlatformError(f"The trees of round {place + 1} ({name}…) cannot be fetched.") from error
                forest = read_trees(trees, features=rows.features.shape[1], outputs=shape[1])
            values = forest.margins(rows.features, values)
        last = grown[-1] if grown else b""
        margins = Margins(values=values, applied=len(grown), last=last, start=start, data=rows.data)
        if assignment.state is not None and margins.same_in(assignment.state):
            carry_over(assignment.state, assignment.next_state)
        else:
            margins.save(assignment.next_state)
        self._margins = margins
        return margins

    def _of_round(
        self,
        assignment: Assignment,
        instruction: BoostingInstruction,
        setup: Setup,
        objective: Objective,
        rows: Rows,
        margins: Margins,
    ) -> RoundRows:
        """The rows of the round with their gradients: made by its first phase, and kept for the others."""
        number = instruction.boosting_round(assignment.round)
        key = (number, margins.applied, margins.last, margins.start, rows.data, fingerprint(setup.centres))
        if self._round is None or self._round[0] != (*key, assignment.node, setup.grid, instruction.parameters):
            drawn = _draw(assignment, instruction, rows, number)
            chosen = rows.training[drawn]
            weights = None if rows.weights is None else rows.weights[chosen]
            gradient, hessian = rounded_gradients(
                objective, margins.values[chosen], rows.labels[chosen], weights, setup.grid
            )
            of = RoundRows(
                rows=rows,
                buckets=self._bucketed(rows, instruction, setup),
                drawn=drawn,
                gradient=np.asfortranarray(gradient),
                hessian=np.asfortranarray(hessian),
                values=rows.features if len(chosen) == len(rows.features) else rows.features[chosen],
            )
            if self._round is not None and len(drawn) == len(rows.training) and self._round[1].rows is rows:
                before = self._round[1]
                if len(before.drawn) == len(drawn) and before.buckets is of.buckets:
                    of.values, of.bins, of.edges = before.values, before.bins, before.edges
            self._round = (*key, assignment.node, setup.grid, instruction.parameters), of
        return self._round[1]

    def _bucketed(self, rows: Rows, instruction: BoostingInstruction, setup: Setup) -> BucketedValues:
        parameters = instruction.parameters
        key = (rows.data, parameters.bin_source, parameters.sketch_accuracy, fingerprint(setup.centres))
        if self._buckets is None or self._buckets[0] != key:
            values = rows.features[rows.training]
            if parameters.bin_source == "exact":
                buckets = BucketedValues.exact(values)
            else:
                buckets = BucketedValues.of(values, setup.centres, BucketMapping(parameters.sketch_accuracy))
            self._buckets = key, buckets
        return self._buckets[1]


def _draw(assignment: Assignment, instruction: BoostingInstruction, rows: Rows, number: int) -> NDArray[np.int64]:
    """Places in `rows.training` of the rows that take part in the round `number`.

    The numbers that are drawn for depend on the node's name as well, so that nodes whose rows are in the same order do
    not leave out the same ones.
    """
    salt = np.frombuffer(hashlib.sha256(assignment.node.encode()).digest()[:8], dtype="<u8")
    numbers = np.arange(len(rows.training), dtype=np.uint64) ^ salt
    share, seed = instruction.parameters.subsample, instruction.parameters.seed
    return np.flatnonzero(chosen_rows(seed, number, numbers, share))
