"""How the next phase opens: whom it reaches, how many it needs, and why somebody is missing."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hanse import selection
from hanse.errors import MethodError, Owner, Reason
from hanse.jobs import JobSpecification
from hanse.ledger import records
from hanse.method import Audience, Purpose
from hanse.settings import format_duration
from hanse.v1 import aggregator_pb2
from hanse_coordinator.offers import Offers
from hanse_coordinator.sessions import Sessions
from hanse_coordinator.writes import Opening, StoredOutcome

if TYPE_CHECKING:
    from hanse_coordinator.collecting import Surroundings

__all__ = ["absence", "again", "fill", "first", "too_few"]


def first(phase: aggregator_pb2.PhaseDescription, stored: StoredOutcome, ordinal: int, deadline_s: float) -> Opening:
    """The phase that an outcome asks for.

    Raises:
        MethodError: the aggregator named a purpose or an audience that does not exist.
    """
    try:
        purpose, audience = Purpose(phase.purpose), Audience(phase.audience)
    except ValueError as error:
        raise MethodError(f"the aggregator asked for phase '{phase.name}': {error}.", code="INVALID_PHASE") from error
    assert stored.instruction is not None
    return Opening(
        name=phase.name,
        round=phase.round,
        ordinal=ordinal,
        attempt=1,
        purpose=purpose,
        audience=audience,
        instruction=stored.instruction,
        personal=stored.personal,
        state_digest=stored.state,
        quorum=1,
        deadline_s=deadline_s,
    )


def again(phase: records.Phase, deadline_s: float, *, attempt: int | None = None) -> Opening:
    """The same phase once more."""
    return Opening(
        name=phase.name,
        round=phase.round,
        ordinal=phase.ordinal,
        attempt=attempt or phase.attempt + 1,
        purpose=phase.purpose,
        audience=phase.audience,
        instruction=phase.instruction_digest or "",
        personal=phase.personal,
        state_digest=phase.state_digest,
        quorum=phase.quorum,
        deadline_s=deadline_s,
    )


def fill(opening: Opening, spec: JobSpecification, offers: Offers, sessions: Sessions) -> Opening:
    """Choose the nodes of a phase among those that are present; none are assigned while there are too few."""
    chosen: list[tuple[str, bool]] = []
    absent: list[str] = []
    cohort: tuple[str, ...] | None = None
    if opening.audience in {Audience.SELECTED, Audience.ALL}:
        accepted = offers.accepted(unseen=False)
        here = [node for node in accepted if sessions.present(node)]
        absent += [node for node in accepted if not sessions.present(node)]
        cohort = selection.draw_cohort(here, spec.selection, seed=spec.seed, round_number=opening.round)
        chosen += [(node, False) for node in (cohort if opening.purpose is Purpose.TRAIN else here)]
    if opening.audience in {Audience.UNSEEN, Audience.ALL}:
        unseen = offers.accepted(unseen=True)
        chosen += [(node, True) for node in unseen if sessions.present(node)]
        absent += [node for node in unseen if not sessions.present(node)]
    nodes = [node for node, _ in chosen]
    enough = len(nodes) >= selection.needed_to_open(spec.selection, opening.purpose)
    assigned = tuple((node, unseen, sessions.get(node) is not None) for node, unseen in sorted(chosen))
    return dataclasses.replace(
        opening,
        assigned=assigned if enough else (),
        absent=tuple(sorted(absent)),
        quorum=selection.quorum(spec.selection, nodes, opening.purpose),
        cohort=cohort if opening.purpose is Purpose.TRAIN else None,
    )


def too_few(opening: Opening, spec: JobSpecification) -> Reason:
    """Why a phase could not even begin."""
    needed = selection.needed_to_open(spec.selection, opening.purpose)
    missing = f" Missing: {', '.join(opening.absent[:8])}." if opening.absent else ""
    return Reason(
        code="TOO_FEW_NODES",
        sentence=f"'{opening.name}' of round {opening.round} needs {needed} connected nodes.{missing}",
        owner=Owner.SITE,
        remedy="Bring the nodes back, or lower selection.minimum_nodes; then resume the job.",
    )


def absence(
    assignment: records.Assignment,
    phase: records.Phase,
    around: Surroundings,
    spec: JobSpecification,
    *,
    deadline: bool,
) -> Reason:
    """Why an assignment was given up."""
    node = assignment.node
    if deadline:
        limit = format_duration(spec.selection.deadline)
        return Reason(
            code="DEADLINE",
            sentence=f"node '{node}' did not finish '{phase.name}' within {limit}.",
            owner=Owner.SITE,
            remedy="If the site is merely slow, raise selection.deadline.",
        )
    lease = format_duration(around.settings.lease)
    if around.sessions.get(node) is None:
        return Reason(
            code="NODE_GONE",
            sentence=f"node '{node}' was disconnected for {lease} while it worked on '{phase.name}'.",
            owner=Owner.SITE,
            remedy="It takes part again as soon as it is back.",
        )
    return Reason(
        code="NO_PROGRESS",
        sentence=f"node '{node}' showed no progress on '{phase.name}' for {lease}.",
        owner=Owner.SITE,
        remedy="Look at the agent's log at the site.",
    )
