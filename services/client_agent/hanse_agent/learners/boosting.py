"""FedSCS-XGB at the node: sketches and atoms of its own rows, margins and gradients that never leave it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hanse.errors import MethodError, PlatformError, PolicyRefusal, SiteError
from hanse.learning.atoms import Atoms, aggregate, small_atom_share
from hanse.learning.binning import BucketedValues, check_values
from hanse.learning.drawing import chosen_rows
from hanse.learning.fixed_point import GRID_EXPONENT, encode
from hanse.learning.metrics import Confusion
from hanse.learning.objectives import Objective, check_labels, make_objective, rounded_gradients
from hanse.learning.setup_sums import SetupSums
from hanse.learning.sketch import BucketMapping
from hanse.method import Assignment, Dataset
from hanse.payload import Payload
from hanse.payload.boosting import SETUP, BoostingInstruction, Schema, Setup, distinct_payload
from hanse.payload.kinds import (
    ConfusionSum,
    RatioSum,
    atoms_payload,
    document_payload,
    metrics_payload,
    read_trees,
    sketches_payload,
    text_array,
)
from hanse.payload.metrics import RATIO_FRACTION_BITS
from hanse.tables import Table
from hanse_agent.learners.boosting_margins import Margins, carry_over, fingerprint, load_margins


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


class BoostingLearner:
    """The learner of the method `fedscs_xgb`.

    Warm, it keeps the rows, their bucket numbers and the margins in memory. All of them follow from the dataset and
    the instruction; its state folder holds the margins alone.
    """

    version: ClassVar[str] = "1"
    dataset_kinds: ClassVar[tuple[str, ...]] = ("table",)

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._table: Table | None = None
        self._rows: tuple[tuple[object, ...], Rows] | None = None
        self._buckets: tuple[tuple[object, ...], BucketedValues] | None = None
        self._margins: Margins | None = None

    def perform(self, assignment: Assignment) -> Payload:
        """Do one phase: `prepare`, `sketch`, `atoms` or `evaluate`.

        Raises:
            SiteError: columns, labels or values that do not fit the job; the sentence names them.
            PolicyRefusal: too many atoms hold fewer rows than the site allows.
            InvalidPayload: an instruction that cannot be used.
        """
        instruction = BoostingInstruction.from_payload(assignment.instruction)
        objective = make_objective(instruction.parameters)
        assignment.progress(0.0, "reading the dataset")
        table = self._load()
        rows = self._select(table, instruction, objective)
        if assignment.phase == "prepare":
            if assignment.state is not None:
                carry_over(assignment.state, assignment.next_state)
            return _setup(table, rows, instruction, objective)
        if instruction.setup is None:
            raise MethodError(f"The phase '{assignment.phase}' came before the preparation.")
        margins = self._catch_up(assignment, instruction, instruction.setup, rows)
        if assignment.phase == "evaluate":
            chosen = np.arange(len(rows.labels)) if assignment.unseen else rows.held_out
            return _evaluation(objective, margins.values[chosen], rows.labels[chosen], instruction.setup)
        if assignment.unseen:
            raise MethodError(f"The unseen node '{assignment.node}' was asked to train.")
        drawn = self._draw(assignment, instruction, rows)
        gradients = _gradients(objective, margins, rows, drawn, instruction.setup)
        assignment.progress(0.5, "counting")
        buckets = self._bucketed(rows, instruction, instruction.setup)
        if assignment.phase == "sketch":
            return _sketches(buckets, drawn, gradients[1], instruction)
        if assignment.phase == "atoms":
            return _atoms(buckets, rows, drawn, gradients, instruction, assignment)
        raise MethodError(f"The method 'fedscs_xgb' has no phase '{assignment.phase}'.")

    def _load(self) -> Table:
        if self._table is None:
            table = self._dataset.load()
            if not isinstance(table, Table):
                raise SiteError("The dataset is not a table.", code="DATA_FORMAT", remedy="Name one of kind 'table'.")
            self._table = table
        return self._table

    def _select(self, table: Table, instruction: BoostingInstruction, objective: Objective) -> Rows:
        """The rows in the job's columns, checked once."""
        key = (instruction.schema, instruction.select, instruction.parameters.objective, objective.classes)
        if self._rows is not None and self._rows[0] == key:
            return self._rows[1]
        features = table.features[:, _columns(table, instruction)]
        names = instruction.schema.features or table.feature_names
        check_values(features, names)
        labels = table.target.astype(np.float32)
        weights = None if np.all(table.weight == 1) else table.weight.astype(np.float32)
        check_labels(objective, labels, weights)
        ones = np.zeros(0, dtype=np.float32) if weights is None else weights
        rows = Rows(
            features=np.ascontiguousarray(features),
            labels=labels,
            weights=weights,
            training=np.flatnonzero(~table.held_out),
            held_out=np.flatnonzero(table.held_out),
            data=fingerprint(features, labels, ones, table.held_out),
        )
        self._rows = key, rows
        return rows

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

    def _draw(self, assignment: Assignment, instruction: BoostingInstruction, rows: Rows) -> NDArray[np.int64]:
        """Places in `rows.training` of the rows that take part in the round.

        The numbers that are drawn for depend on the node's name as well, so that nodes whose rows are in the same
        order do not leave out the same ones.
        """
        salt = np.frombuffer(hashlib.sha256(assignment.node.encode()).digest()[:8], dtype="<u8")
        numbers = np.arange(len(rows.training), dtype=np.uint64) ^ salt
        share, seed = instruction.parameters.subsample, instruction.parameters.seed
        return np.flatnonzero(chosen_rows(seed, assignment.round - 1, numbers, share))

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


def _setup(table: Table, rows: Rows, instruction: BoostingInstruction, objective: Objective) -> Payload:
    training = rows.training
    weights = None if rows.weights is None else rows.weights[training]
    sums = SetupSums.of(objective, rows.features[training], rows.labels[training], weights)
    schema = Schema(features=instruction.schema.features or table.feature_names, classes=table.class_names)
    texts = {"features": text_array(schema.features), "classes": text_array(schema.classes)}
    return document_payload(SETUP, {}, texts | sums.arrays())


def _gradients(
    objective: Objective, margins: Margins, rows: Rows, drawn: NDArray[np.int64], setup: Setup
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Integer gradients and hessians [drawn, K]."""
    chosen = rows.training[drawn]
    weights = None if rows.weights is None else rows.weights[chosen]
    return rounded_gradients(objective, margins.values[chosen], rows.labels[chosen], weights, setup.grid)


def _sketches(
    buckets: BucketedValues,
    drawn: NDArray[np.int64],
    hessian: NDArray[np.int64],
    instruction: BoostingInstruction,
) -> Payload:
    """Sketches weighted by the very hessian integers that the atoms will carry."""
    parameters = instruction.parameters
    if parameters.bin_source == "exact":
        return distinct_payload(buckets.lower)
    weights = hessian if parameters.edges == "per_class" else hessian.sum(axis=1, keepdims=True)
    full = np.zeros((buckets.codes.shape[1], weights.shape[1]), dtype=np.int64)
    full[drawn] = weights
    sketches = [buckets.sketches(full[:, k]) for k in range(full.shape[1])]
    return sketches_payload(sketches, BucketMapping(parameters.sketch_accuracy))


def _atoms(
    buckets: BucketedValues,
    rows: Rows,
    drawn: NDArray[np.int64],
    gradients: tuple[NDArray[np.int64], NDArray[np.int64]],
    instruction: BoostingInstruction,
    assignment: Assignment,
) -> Payload:
    if not instruction.edges or instruction.setup is None:
        raise MethodError("The atoms phase came without edges.")
    grid = instruction.setup.grid
    if rows.weights is None:
        units = np.ones(len(drawn), dtype=np.float32)
    else:
        units = rows.weights[rows.training[drawn]]
    weight = np.maximum(encode(units, grid.hessian, name="weight"), 1)
    gradient, hessian = gradients
    sets: list[Atoms] = []
    single = 0
    for k, edges in enumerate(instruction.edges):
        own = slice(None) if len(instruction.edges) == 1 else slice(k, k + 1)
        bins = buckets.bins(edges)[drawn]
        atoms, counts = aggregate(bins, edges, weight, gradient[:, own], hessian[:, own])
        _guard(counts, assignment.limits.minimum_rows_per_atom)
        single = max(single, int(np.count_nonzero(counts == 1)))
        sets.append(atoms)
        assignment.progress(0.6 + 0.4 * k / len(instruction.edges), "atoms")
    return atoms_payload(sets, rows=len(drawn), single_row_atoms=single, grid=grid)


def _guard(counts: NDArray[np.int64], minimum: int) -> None:
    share = small_atom_share(counts, minimum)
    if share > 0:
        small = int(np.count_nonzero(counts < minimum))
        raise PolicyRefusal(
            f"{small} of {len(counts)} atoms ({share:.1%}) hold fewer than {minimum} rows, which makes them all but "
            "records.",
            rule="minimum_rows_per_atom",
            remedy="Use fewer columns or bins in the job, or, where the site may send nearly single records, lower "
            "policy.minimum_rows_per_atom.",
        )


def _evaluation(
    objective: Objective, margins: NDArray[np.float32], labels: NDArray[np.float32], setup: Setup
) -> Payload:
    """Loss and confusion over these rows; units of a squared error follow the job's units of gradients."""
    losses = objective.losses(margins, labels)
    if not objective.classes:
        bits = RATIO_FRACTION_BITS - 2 * (setup.grid.gradient - GRID_EXPONENT)
        return metrics_payload({"mse": RatioSum.of(losses, bits)})
    predicted = objective.predictions(margins).argmax(axis=1)
    confusion = ConfusionSum(Confusion.of(labels, predicted, objective.classes).array)
    return metrics_payload({"log_loss": RatioSum.of(losses), "confusion": confusion})
