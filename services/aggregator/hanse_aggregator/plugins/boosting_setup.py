"""The preparation of FedSCS-XGB: one schema for all, and the sums that fix base margins, centres and units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hanse.errors import InvalidPayload, RejectedContribution
from hanse.learning.exact_sum import exact_total
from hanse.learning.objectives import make_objective
from hanse.learning.setup_sums import SetupSums
from hanse.method import Contribution, MetricValue, Outcome, Phase, Rejection, Scope
from hanse.payload import Payload
from hanse.payload.boosting import SETUP, BoostingInstruction, Schema, Setup
from hanse.payload.kinds import read_document, read_text_array, trees_payload
from hanse_aggregator.plugins.boosting_base import BaseModel
from hanse_aggregator.plugins.boosting_state import BoostingState

# Exact sums hold so many rows (`hanse.learning.exact_sum`); a limb of a row is below 2^33.
_MAX_ROWS = 2**30
_LIMB = 2.0**33

Then = Callable[[Phase, BoostingInstruction, BoostingState], tuple[Phase | None, BoostingState]]


class SetupAggregation:
    """Adds up the sums of the nodes that have one schema.

    The measure is the job's schema. Where none is known, it is that of the first contributing node in order of
    name, which is found out at the end: sums are kept by schema until then.
    """

    def __init__(
        self,
        phase: Phase,
        instruction: BoostingInstruction,
        *,
        centring: bool,
        then: Then,
        base: BaseModel | None = None,
    ) -> None:
        self._phase, self._instruction = phase, instruction
        self._centring, self._then, self._base = centring, then, base
        self._objective = make_objective(instruction.parameters)
        self._sums: dict[Schema, SetupSums] = {}
        self._rows: dict[Schema, dict[str, int]] = {}

    def add(self, contribution: Contribution) -> None:
        """Take a node's schema and sums.

        Raises:
            RejectedContribution: another schema than the job's, or sums that cannot be.
        """
        node, payload = contribution.node, contribution.payload
        try:
            read_document(payload, SETUP)
            schema = Schema(features=read_text_array(payload, "features"), classes=read_text_array(payload, "classes"))
            if self._instruction.schema.features:
                check_schema(node, schema, self._instruction.schema)
                schema = self._instruction.schema
            sums = SetupSums.from_arrays(payload.arrays, features=len(schema.features), objective=self._objective)
            _check_sums(sums)
        except (InvalidPayload, RejectedContribution) as error:
            remedy = error.remedy
            raise RejectedContribution(f"The contribution of node '{node}': {error.sentence}", remedy=remedy) from error
        self._sums[schema] = self._sums[schema] + sums if schema in self._sums else sums
        self._rows.setdefault(schema, {})[node] = int(sums.rows[0])

    def finish(self) -> Outcome:
        """Base margins, centres and units, in the instruction of the first round."""
        reference = min(self._rows, key=lambda schema: min(self._rows[schema]))
        first = min(self._rows[reference])
        rejections = []
        for schema, rows in self._rows.items():
            for node in rows if schema != reference else ():
                try:
                    check_schema(node, schema, reference, whose=f"node '{first}'")
                except RejectedContribution as error:
                    rejections.append(Rejection(node=node, reason=error.reason))
        sums = self._sums[reference]
        parameters = self._instruction.parameters
        centres = sums.centres() if self._centring else np.zeros(len(reference.features))
        base = self._base
        if base is not None:
            base.check_schema(reference)
        setup = Setup(
            base_margins=sums.base_margins(self._objective, parameters) if base is None else base.margins,
            centres=centres,
            grid=sums.grid(self._objective),
        )
        instruction = BoostingInstruction(
            parameters=parameters, schema=reference, select=self._instruction.select, setup=setup
        )
        state = BoostingState.fresh(len(reference.features))
        stored: tuple[Payload, ...] = ()
        if base is not None:
            # The trees of the earlier model are one artifact, the first of those that nodes add up.
            stored = (trees_payload(base.forest, round_number=0),)
            instruction = replace(instruction, grown=(stored[0].digest,), earlier=base.rounds)
            state = state.with_trees(base.forest)
        following, state = self._then(self._phase, instruction, state)
        metrics = [
            MetricValue(name="training_rows", value=float(rows), scope=Scope.NODE, node=node)
            for node, rows in sorted(self._rows[reference].items())
        ]
        total = MetricValue(name="training_rows", value=float(sums.rows[0]), scope=Scope.AGGREGATION)
        return Outcome(
            next_phase=following,
            state=state.to_payload(),
            metrics=(*metrics, total),
            stored=stored,
            rejected=tuple(sorted(rejections, key=lambda rejection: rejection.node)),
        )


def check_schema(node: str, schema: Schema, reference: Schema, *, whose: str = "the job") -> None:
    """Raise `RejectedContribution` that names node and column unless both list the same columns and classes."""
    remedy = "Offer the same columns in the same order at every node, or name them under 'features' in the job file."
    if len(schema.features) != len(reference.features):
        extra = sorted(set(schema.features) ^ set(reference.features))
        raise RejectedContribution(
            f"node '{node}' has {len(schema.features)} columns and {whose} has {len(reference.features)}"
            + (f"; they differ in '{extra[0]}'." if extra else "."),
            remedy=remedy,
        )
    for place, (own, wanted) in enumerate(zip(schema.features, reference.features, strict=True), start=1):
        if own != wanted:
            raise RejectedContribution(
                f"column {place} of node '{node}' is '{own}', and that of {whose} is '{wanted}'.", remedy=remedy
            )
    if schema.classes and reference.classes and schema.classes != reference.classes:
        raise RejectedContribution(
            f"node '{node}' numbers the classes {list(schema.classes)[:20]}, "
            f"and {whose} {list(reference.classes)[:20]}.",
            remedy="List the same 'classes' in the same order in agent.yaml of every node.",
        )


def _check_sums(sums: SetupSums) -> None:
    rows = int(sums.rows[0])
    if not 0 <= rows <= _MAX_ROWS or np.any(sums.feature_counts > rows):
        raise RejectedContribution(f"it counts {rows} rows, or more values than rows.")
    for name, limbs in sums.arrays().items():
        # Numeric targets are sums of three parts each.
        if name not in ("rows", "feature_counts") and np.any(np.abs(limbs.astype(np.float64)) > 3 * rows * _LIMB):
            raise RejectedContribution(f"the sum '{name}' is too large for {rows} rows.")
    if exact_total(sums.weight_sum) < 0:
        raise RejectedContribution("the sum of the weights is negative.")
