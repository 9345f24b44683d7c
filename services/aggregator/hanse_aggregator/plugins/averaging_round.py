"""One round of a method that averages a model: what it starts from, what its outcome is made of, what is carried on.

The shared arrays are in the instruction, which an evaluation and the next round send unchanged. The state holds the
rest: the arrays that only unseen nodes receive, the moments of the server's optimiser, and what a method adds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.errors import InvalidPayload, MethodError, OperatorError
from hanse.learning.compression import CompressionOptions
from hanse.method import Audience, JobContext, MetricValue, Outcome, Phase, Purpose
from hanse.models import SHARED, Model, Role, load_model
from hanse.payload import Payload
from hanse.payload.documents import document_payload, read_document
from hanse.payload.models import Expected, model_state_payload, read_roles
from hanse.payload.safetensors import read_safetensors, safetensors_file

TRAIN, EVALUATE = "train", "evaluate"
STATE = "averaging.state"
MODEL = "model.safetensors"
MODEL_FILE, CARD_FILE = "model.safetensors", "card.md"
_ABSOLUTE, _ADDED = "e.", "x."

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Carried:
    """What the aggregation state holds.

    `absolute`: arrays of the role `evaluation_only`, as last averaged; `moments`: of the optimiser, by moment and
    array; `added` and `notes`: what a method keeps for itself, of constant size.
    """

    absolute: Arrays
    moments: Mapping[str, Arrays] = field(default_factory=dict)
    added: Arrays = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def to_payload(self) -> Payload:
        """The state as a payload."""
        arrays = {_ABSOLUTE + name: array for name, array in self.absolute.items()}
        for moment, of in self.moments.items():
            arrays |= {f"{moment}.{name}": array for name, array in of.items()}
        arrays |= {_ADDED + name: array for name, array in self.added.items()}
        return document_payload(STATE, {"moments": sorted(self.moments), "notes": dict(self.notes)}, arrays)

    @classmethod
    def from_payload(cls, payload: Payload) -> Carried:
        """The inverse of `to_payload`.

        Raises:
            InvalidPayload: a state of something else.
        """
        document = read_document(payload, STATE)
        moments, notes = document.get("moments"), document.get("notes")
        if not isinstance(moments, list) or not isinstance(notes, dict):
            raise InvalidPayload("the aggregation state says nothing of its moments.")

        def part(prefix: str) -> Arrays:
            return {name[len(prefix) :]: array for name, array in payload.arrays.items() if name.startswith(prefix)}

        return cls(
            absolute=part(_ABSOLUTE),
            moments={str(moment): part(f"{moment}.") for moment in moments},
            added=part(_ADDED),
            notes=notes,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelRound:
    """A phase of a job with the model as its instruction has it.

    `shared`: the instruction's arrays; `roles`: of these; `carried`: None in the first round.
    """

    phase: Phase
    shared: Arrays
    roles: Mapping[str, Role]
    carried: Carried

    @classmethod
    def of(cls, phase: Phase, state: Payload | None, model_config: Mapping[str, Any]) -> ModelRound:
        """The round that a phase belongs to.

        Raises:
            InvalidPayload: an instruction or a state of something else.
            OperatorError: the job's model is not installed here.
        """
        roles = read_roles(phase.instruction)
        if state is not None:
            carried = Carried.from_payload(state)
        else:
            carried = Carried(absolute=_of_role(job_model(phase.job, model_config), phase.job, Role.EVALUATION_ONLY))
        return cls(phase=phase, shared=phase.instruction.arrays, roles=roles, carried=carried)

    @property
    def trained(self) -> tuple[str, ...]:
        """The shared arrays that are averaged: those of floating-point numbers."""
        return tuple(name for name, array in self.shared.items() if is_averaged(array))

    def expected(self, compression: CompressionOptions) -> Expected:
        """What a node's difference must look like."""
        absolute = self.carried.absolute
        return Expected(
            base_digest=self.phase.instruction.digest,
            shared={name: self.shared[name].shape for name in self.trained},
            absolute={name: array.shape for name, array in absolute.items() if is_averaged(array)},
            counters=frozenset(name for name, array in {**self.shared, **absolute}.items() if not is_averaged(array)),
            compression=compression,
        )

    def outcome(
        self,
        trained: Arrays,
        carried: Carried,
        *,
        metrics: tuple[MetricValue, ...],
        checkpoint_every: int,
        personal: Mapping[str, Payload] | None = None,
        about: Mapping[str, str] | None = None,
        selected: int | None = None,
        **more: Any,
    ) -> Outcome:
        """The outcome of a training phase: the next phase, the state, and the model where it is due.

        `trained` replaces those of the shared arrays that it names; `personal` goes to single nodes in the next
        phases; `about` is said on the model's card; `selected` is the round whose model is the job's result so
        far, for methods that choose one (see `model_state_payload`); `more` are further fields of `Outcome`.
        """
        phase, job = self.phase, self.phase.job
        shared = {name: trained.get(name, array) for name, array in self.shared.items()}
        judge = job.evaluation.due(phase.round + 1, job.rounds)
        instruction = model_state_payload(job.model, phase.round, shared, self.roles, selected=selected, judge=judge)
        last = phase.round >= job.rounds
        due = last or (checkpoint_every > 0 and phase.round % checkpoint_every == 0)
        following: Phase | None
        if job.evaluation.due(phase.round, job.rounds):
            following = evaluation_phase(phase, instruction, carried.absolute, personal or {})
        else:
            following = next_round(phase, instruction, personal or {})
        model = None
        if due:
            roles = {**self.roles, **dict.fromkeys(carried.absolute, Role.EVALUATION_ONLY)}
            model = model_payload(job, phase.round, {**shared, **carried.absolute}, roles, about or {})
        return Outcome(next_phase=following, state=carried.to_payload(), model=model, metrics=metrics, **more)


def is_averaged(array: NDArray[Any]) -> bool:
    """Whether an array takes part in averaging: counters, which are integers, do not."""
    return bool(np.issubdtype(array.dtype, np.floating))


def job_model(job: JobContext, config: Mapping[str, Any]) -> Model:
    """The job's model.

    Raises:
        OperatorError: the job names none, or one that is not installed here.
    """
    if not job.model:
        raise OperatorError(
            f"The method '{job.method}' trains a named model, and the job names none.",
            remedy="Set `model:` in the job file.",
            code="NO_MODEL",
        )
    return load_model(job.model, config)


def first_instruction(job: JobContext, config: Mapping[str, Any]) -> Payload:
    """The shared arrays before the first round: from the seed, or from the model that the job continues.

    Raises:
        OperatorError: no such model, or one with other arrays than the model that is continued.
    """
    model = job_model(job, config)
    roles = model.roles()
    state = model.initial_state(job.seed)
    if set(roles) != set(state):
        odd = sorted(set(roles) ^ set(state))[0]
        raise MethodError(f"The roles of the model '{job.model}' do not partition its state: see '{odd}'.")
    shared: Arrays = {name: array for name, array in state.items() if roles[name] in SHARED}
    if job.continue_from is not None:
        shared = _continued(shared, job.continue_from)
    return model_state_payload(job.model, 0, shared, roles, judge=job.evaluation.due(1, job.rounds))


def evaluation_phase(phase: Phase, instruction: Payload, absolute: Arrays, personal: Mapping[str, Payload]) -> Phase:
    """The evaluation of the round: for all nodes; unseen ones also receive the averaged arrays meant for them."""
    job = phase.job
    extra: dict[str, Payload] = dict(personal)
    if absolute:
        roles = dict.fromkeys(absolute, Role.EVALUATION_ONLY)
        payload = model_state_payload(job.model, phase.round, absolute, roles)
        extra |= dict.fromkeys(job.evaluation.unseen, payload)
    return phase.then(EVALUATE, instruction, purpose=Purpose.EVALUATE, audience=Audience.ALL, personal=extra)


def next_round(phase: Phase, instruction: Payload, personal: Mapping[str, Payload]) -> Phase | None:
    """The training phase that follows; None after the last round."""
    if phase.round >= phase.job.rounds:
        return None
    return phase.then(TRAIN, instruction, round=phase.round + 1, personal=personal)


def model_payload(
    job: JobContext, rounds: int, arrays: Arrays, roles: Mapping[str, Role], about: Mapping[str, str]
) -> Payload:
    """The model as files: `model.safetensors` and a card that says what it is."""
    metadata = {
        "format": "pt",
        "model": job.model,
        "method": job.method,
        "rounds": str(rounds),
        "seed": str(job.seed),
        "config": json.dumps(dict(job.config), sort_keys=True),
    }
    card = _card(job, rounds, arrays, roles, about).encode()
    files = {
        MODEL_FILE: safetensors_file(arrays, metadata),
        CARD_FILE: np.frombuffer(card, dtype=np.uint8),
    }
    return document_payload(MODEL, {"model": job.model, "method": job.method, "rounds": rounds}, files)


def _of_role(model: Model, job: JobContext, role: Role) -> Arrays:
    roles = model.roles()
    if role not in roles.values():
        return {}
    return {name: array for name, array in model.initial_state(job.seed).items() if roles[name] is role}


def _continued(shared: Arrays, model: Payload) -> Arrays:
    file = model.arrays.get(MODEL_FILE)
    if file is None or file.dtype != np.uint8:
        raise OperatorError(f"The model to continue from has no file {MODEL_FILE}.", code="WRONG_MODEL")
    found = read_safetensors(file, "the model to continue from")
    for name, array in shared.items():
        other = found.get(name)
        if other is None or other.shape != array.shape or other.dtype != array.dtype:
            has = "no such array" if other is None else f"{other.dtype} of shape {other.shape}"
            raise OperatorError(
                f"The array '{name}' is {array.dtype} of shape {array.shape}; the model to continue from has {has}.",
                remedy="Continue with the same model and the same configuration of it.",
                code="WRONG_MODEL",
            )
    return {name: found[name] for name in shared}


def _card(job: JobContext, rounds: int, arrays: Arrays, roles: Mapping[str, Role], about: Mapping[str, str]) -> str:
    counts = {
        role: sum(array.size for name, array in arrays.items() if roles[name] is role)
        for role in Role
        if role in roles.values()
    }
    rows = {
        "job": job.name,
        "method": job.method,
        "model": job.model,
        "rounds of training": f"{rounds} of {job.rounds}",
        "nodes that trained": str(len([node for node in job.nodes if node not in job.evaluation.unseen])),
        "seed": str(job.seed),
        **{f"numbers, {role.value}": f"{count:,}" for role, count in counts.items()},
        **about,
    }
    lines = [f"# {job.model}, trained by a federation", ""]
    lines += [f"- {name}: {value}" for name, value in rows.items()]
    config = json.dumps(dict(job.config), indent=2, sort_keys=True)
    lines += ["", "Arrays that are personal to a node are not in this file.", "", "```json", config, "```", ""]
    return "\n".join(lines)
