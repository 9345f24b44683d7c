"""How a round ends: trees become an artifact, the model is given when it is due, and the next phase follows."""

from __future__ import annotations

import dataclasses

import numpy as np

from hanse.errors import MethodError, PlatformError
from hanse.learning.booster import to_json, to_ubjson
from hanse.learning.growth import plant
from hanse.learning.objectives import make_objective
from hanse.learning.trees import Forest
from hanse.method import Audience, JobContext, MetricValue, Outcome, Phase, Picture, Purpose, Scope
from hanse.payload import Payload
from hanse.payload.boosting import MODEL, BoostingInstruction, Frontier, delivery_payload
from hanse.payload.kinds import document_payload, read_trees, trees_payload
from hanse_aggregator.plugins import delivering
from hanse_aggregator.plugins.boosting_config import config_of
from hanse_aggregator.plugins.boosting_state import BoostingState

MODEL_FILES = {"model.ubj": to_ubjson, "model.json": to_json}


def close_round(
    phase: Phase,
    instruction: BoostingInstruction,
    state: BoostingState,
    forest: Forest,
    *,
    metrics: tuple[MetricValue, ...],
    pictures: tuple[Picture, ...],
) -> Outcome:
    """The outcome of the phase that finished the trees of a round; `state` counts them already."""
    job, config = phase.job, config_of(phase.job)
    artifact = trees_payload(forest, round_number=phase.round)
    following = dataclasses.replace(
        instruction, grown=(*instruction.grown, artifact.digest), newest=forest, edges=(), frontier=None
    )
    last = phase.round >= job.rounds
    evaluating = job.evaluation.due(phase.round, job.rounds)
    checkpoint = config.checkpoint_every > 0 and phase.round % config.checkpoint_every == 0
    # Where the model may yet be cut, the evaluation gives the last one.
    ends = last and not (config.early_stopping_rounds and evaluating)
    model = model_of(job, following) if ends or checkpoint else None
    if evaluating:
        next_phase: Phase | None = phase.then(
            "evaluate", following.to_payload(), purpose=Purpose.EVALUATE, audience=Audience.ALL
        )
    elif last and model is not None:
        next_phase = delivery(phase, model.digest)
    else:
        next_phase, state = next_round(phase, following, state)
    finished = (model,) if ends and model is not None else ()
    if finished:
        state = dataclasses.replace(state, model=finished[0].digest)
    return Outcome(
        next_phase=next_phase,
        state=state.to_payload(),
        model=model,
        metrics=(
            *metrics,
            aggregation_metric("trees", float(len(forest) * following.rounds)),
            aggregation_metric("leaves", float(sum(np.count_nonzero(tree.left < 0) for tree in forest.trees))),
        ),
        pictures=pictures,
        stored=(artifact, *finished),
    )


def next_round(
    phase: Phase, instruction: BoostingInstruction, state: BoostingState
) -> tuple[Phase | None, BoostingState]:
    """The first phase of the round that follows, and the state for it; no phase after the last."""
    following = phase.round + 1
    if following > phase.job.rounds:
        return None, state
    if instruction.parameters.sketches_in(following - 1) or not state.edges:
        told = dataclasses.replace(instruction, edges=(), frontier=None)
        return phase.then("sketch", told.to_payload(), round=following), state
    return first_statistics(phase, instruction, state, round_number=following)


def first_statistics(
    phase: Phase, instruction: BoostingInstruction, state: BoostingState, *, round_number: int
) -> tuple[Phase, BoostingState]:
    """The phase that asks for the statistics of a round, over the state's edges: atoms, or the trees' roots."""
    told = dataclasses.replace(instruction, edges=state.edges, frontier=None)
    if config_of(phase.job).statistics == "atoms":
        return phase.then("atoms", told.to_payload(), round=round_number), state
    parameters = instruction.parameters
    growths = tuple(
        plant(
            state.edges[k if len(state.edges) > 1 else 0],
            parameters,
            round_number=instruction.boosting_round(round_number),
            output=k,
        )
        for k in range(parameters.outputs)
    )
    state = dataclasses.replace(state, growths=growths, cohort=())
    return next_level(phase, told, state, round_number=round_number), state


def next_level(phase: Phase, instruction: BoostingInstruction, state: BoostingState, *, round_number: int) -> Phase:
    """The phase that asks for the histograms of the next level of all trees at once."""
    frontier = Frontier(
        trees=Forest.of_rounds([[growth.tree for growth in state.growths]]),
        wanted=tuple(growth.wanted for growth in state.growths),
    )
    # The first level brings the newest trees; who has answered it has them.
    newest = instruction.newest if state.growths[0].depth == 0 else None
    told = dataclasses.replace(instruction, frontier=frontier, newest=newest)
    return phase.then("histogram", told.to_payload(), round=round_number)


def delivery(phase: Phase, model: bytes) -> Phase | None:
    """The phase that hands the finished model, an artifact, to every node; None where the job does not want it."""
    if not config_of(phase.job).deliver_model:
        return None
    return delivering.delivery(phase, delivery_payload(model))


def model_of(job: JobContext, instruction: BoostingInstruction, *, rounds: int | None = None) -> Payload:
    """The model as a real `xgboost.Booster`, in both of XGBoost's formats; of the first `rounds` rounds alone if given.

    Raises:
        PlatformError: trees of an earlier round cannot be fetched.
    """
    if instruction.newest is None or instruction.setup is None:
        raise MethodError("There are no trees to make a model of.")
    names, parameters = instruction.schema.features, instruction.parameters
    outputs = parameters.outputs
    kept = instruction.rounds if rounds is None else rounds
    forest = Forest.of_rounds([])
    for digest in instruction.grown[:-1]:
        if len(forest) >= kept * outputs:
            break
        try:
            trees = job.fetch(digest)
        except KeyError as error:
            number = len(forest) // outputs + 1
            raise PlatformError(f"The trees of round {number} ({digest.hex()[:12]}…) cannot be fetched.") from error
        forest += read_trees(trees, features=len(names), outputs=outputs)
    forest += instruction.newest
    forest = Forest(forest.trees[: kept * outputs], forest.outputs[: kept * outputs])
    model = forest, instruction.setup.base_margins, names, make_objective(parameters)
    files = {name: np.frombuffer(write(*model), dtype=np.uint8) for name, write in MODEL_FILES.items()}
    document = {
        "objective": parameters.objective,
        "classes": list(instruction.schema.classes),
        "trees": len(forest),
        "rounds": kept,
        "rounds_grown": instruction.rounds,
    }
    return document_payload(MODEL, document, files)


def aggregation_metric(name: str, value: float, weight: float = 0.0) -> MetricValue:
    """A number about the aggregation itself."""
    return MetricValue(name=name, value=value, scope=Scope.AGGREGATION, weight=weight)


def sent_bytes(sizes: dict[str, int], name: str) -> tuple[MetricValue, ...]:
    """The bytes that each node sent, and their sum."""
    nodes = [MetricValue(name=name, value=float(sizes[n]), scope=Scope.NODE, node=n) for n in sorted(sizes)]
    return (*nodes, aggregation_metric(name, float(sum(sizes.values()))))
