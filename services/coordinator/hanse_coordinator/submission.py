"""Taking a job: what is checked before it is written, and what is written."""

from __future__ import annotations

from hanse.errors import Conflict, OperatorError
from hanse.jobs import JobSpecification
from hanse.ledger import Transaction, records
from hanse.ledger.chain import canonical_json
from hanse_coordinator.aggregators import AggregatorPool

__all__ = ["add_job", "base_model", "check_method"]


async def check_method(aggregators: AggregatorPool, spec: JobSpecification) -> None:
    """Check that an aggregator knows the method, and that its configuration fits. Raises OperatorError."""
    plugins = await aggregators.describe()
    if spec.method not in plugins:
        raise OperatorError(
            f"no aggregator of this federation knows the method '{spec.method}'.",
            remedy=f"Known are: {', '.join(sorted(plugins)) or 'none'}.",
            code="UNKNOWN_METHOD",
        )
    await aggregators.check_configuration(spec.method, spec.method_config)


def base_model(spec: JobSpecification, base: records.Job) -> str:
    """The id of a job with whose model a new one can begin.

    Raises:
        Conflict: it is of another method, not over, or has no model.
    """
    if base.method != spec.method:
        raise Conflict(f"job '{base.name}' is of method {base.method}, not {spec.method}.")
    if not base.state.ended:
        raise Conflict(
            f"job '{base.name}' is {base.state.value}: its model may still change.",
            remedy="Wait until it ends, or cancel it.",
        )
    if not base.model_digest:
        raise Conflict(f"job '{base.name}' has no model to continue from.")
    return base.id


def add_job(tx: Transaction, spec: JobSpecification, *, actor: str, base: str | None) -> records.Job:
    """Record a job, with the id of the one whose model it begins with.

    Raises:
        OperatorError: `unseen` names a node that does not exist.
    """
    for node in spec.evaluation.unseen:
        if tx.find_node(node) is None:
            raise OperatorError(
                f"evaluation.unseen names '{node}', which is not a node of this federation.",
                remedy="`hanse node list` shows the names.",
            )
    document = canonical_json(spec.model_dump(mode="json"))
    job = tx.add_job(
        name=spec.name,
        method=spec.method,
        dataset=spec.dataset,
        specification=document,
        submitted_by=actor,
        rounds=spec.rounds,
        seed=spec.seed,
        continue_from=base,
    )
    tx.event("job_submitted", job=job, actor=actor, body={"specification": document})
    return tx.job(job)
