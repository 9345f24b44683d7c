"""Which round of a gPerXAN job is the result, and how that model comes to the nodes.

A node reads a model with its own arrays of that model's round. So every instruction says which round is ahead, for the
node to keep its arrays of it; and when the job ends with another round's model than the last, one more phase
(`deliver`) brings that model to all nodes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.errors import MethodError
from hanse.method import MetricValue, Phase, Scope
from hanse.models import Role
from hanse.payload import Payload
from hanse.payload.models import model_state_payload, read_roles
from hanse.payload.safetensors import read_safetensors
from hanse_aggregator.plugins.averaging import aggregation_metric
from hanse_aggregator.plugins.averaging_round import MODEL_FILE, Carried, model_payload
from hanse_aggregator.plugins.delivering import delivery
from hanse_aggregator.plugins.validated import FITTED, Figures, Steered, weighted_mean

NO_ROWS_REMEDY = "Set 'holdout' in agent.yaml of the nodes, or select to last."
SELECTED = "selected_"
"""Begins the names of figures of the model that is the result so far."""


def selected_round(notes: Any) -> int:
    """The round that is ahead by a state's notes; 0 before the first evaluation."""
    return int(notes["best"]["round"]) if "best" in notes else 0


def judge(
    phase: Phase,
    by: str,
    figures: Figures,
    whole: tuple[MetricValue, ...],
    carried: Carried,
    about: dict[str, str],
    *,
    ensemble: bool,
) -> Steered:
    """What an evaluation makes of the job's result: its round's model is it, if it is ahead; of equals the earlier.

    A round that no node with held-out rows has judged is passed over, but for the first.

    Args:
        phase: the evaluation.
        by: the figure that decides, of the nodes that train, by examples.
        figures: of the nodes that train, by metric and node.
        whole: the metrics over all nodes that train, and over all unseen ones.
        carried: the state before the evaluation.
        about: lines of the model's card.
        ensemble: whether unseen nodes received more than averages.

    Raises:
        MethodError: nothing has been judged so far: no node that trains holds rows out.
    """
    notes = dict(carried.notes)
    score = weighted_mean(figures.get(by, {}), notes.get("examples", {}))
    best: dict[str, Any] | None = notes.get("best")
    if score is None and best is None:
        raise MethodError(
            f"the round of the best {by} is to be the result, which needs held-out rows at the nodes that train, and "
            "none of those that answered has any.",
            remedy=NO_ROWS_REMEDY,
            code="NO_HELD_OUT_ROWS",
        )
    model: Payload | None = None
    stored: tuple[Payload, ...] = ()
    if best is None or (score is not None and score > best["score"]):
        roles = {**read_roles(phase.instruction), **dict.fromkeys(carried.absolute, Role.EVALUATION_ONLY)}
        arrays = {**phase.instruction.arrays, **carried.absolute}
        about = {**about, "selected by": f"{by} of round {phase.round}: {score:.4f}"}
        model = model_payload(phase.job, phase.round, arrays, roles, about)
        stored = (model,)
        best = {"round": phase.round, "score": score, "model": model.digest.hex(), "figures": _plain(whole)}
        unseen = [phase.personal[node] for node in phase.job.evaluation.unseen if node in phase.personal]
        if ensemble and unseen:
            stored, best["ensemble"] = (model, unseen[0]), unseen[0].digest.hex()
    metrics = [
        *([] if score is None else [aggregation_metric("selection_score", score)]),
        aggregation_metric("selected_round", float(best["round"])),
        *(
            MetricValue(name=SELECTED + name, value=value, scope=Scope(scope), weight=weight)
            for name, scope, value, weight in best["figures"]
        ),
    ]
    last = phase.round >= phase.job.rounds and best["round"] != phase.round
    return Steered(
        notes={**notes, "best": best},
        model=model,
        metrics=tuple(metrics),
        stored=stored,
        ending=_delivery(phase, best) if last else None,
    )


def _delivery(phase: Phase, best: dict[str, Any]) -> Phase:
    """The phase that brings an earlier round's model to all nodes, to unseen ones with what they read it by."""
    job = phase.job
    arrays = read_safetensors(job.fetch(bytes.fromhex(best["model"])).arrays[MODEL_FILE], "the selected model")
    roles = read_roles(phase.instruction)
    shared: dict[str, NDArray[Any]] = {name: np.asarray(arrays[name]) for name in roles}
    instruction = model_state_payload(job.model, best["round"], shared, roles, selected=best["round"])
    averages = {name: np.asarray(array) for name, array in arrays.items() if name not in roles}
    personal: dict[str, Payload] = {}
    if averages:
        unseen_roles = dict.fromkeys(averages, Role.EVALUATION_ONLY)
        payload = model_state_payload(job.model, best["round"], averages, unseen_roles)
        if "ensemble" in best:
            with suppress(KeyError):  # a long job: it was let go, and the averages are read in its place
                payload = job.fetch(bytes.fromhex(best["ensemble"]))
        personal = dict.fromkeys(job.evaluation.unseen, payload)
    return delivery(phase, instruction, personal)


def _plain(metrics: tuple[MetricValue, ...]) -> list[list[Any]]:
    return [[m.name, m.scope.value, m.value, m.weight] for m in metrics if not m.name.startswith(FITTED)]
