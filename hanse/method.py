"""What a federated method is: an aggregator plug-in and a learner that exchange payloads in phases.

A method author writes two small classes. The plug-in is a pure state transition (no RPC, clock or disk): it
is given contributions and returns an `Outcome`, which says what the next phase is. The learner performs one
assignment on a node's data. `hanse.harness` runs both in one process; the services run them in a federation;
the bytes are the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import BaseModel

from hanse.errors import Reason, RejectedContribution

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hanse.payload import Payload

__all__ = [
    "HELD_OUT",
    "Aggregation",
    "AggregatorPlugin",
    "Assignment",
    "Audience",
    "Column",
    "Contribution",
    "Dataset",
    "DatasetDescription",
    "Evaluation",
    "JobContext",
    "Learner",
    "LearnerLimits",
    "MetricValue",
    "Outcome",
    "Phase",
    "Picture",
    "Predictions",
    "Predictor",
    "Purpose",
    "RejectedContribution",
    "Rejection",
    "Scope",
]


class Purpose(StrEnum):
    """What a phase is for. The engine never hands an unseen node's contribution to a training phase.

    `adapt` is for the nodes' own sake: what they make of the model at home, or that they have it at all. It needs no
    contribution and waits for nobody who is away.
    """

    TRAIN = "train"
    ADAPT = "adapt"
    EVALUATE = "evaluate"


class Audience(StrEnum):
    """Who is assigned: the nodes selected for the round, the job's unseen nodes, or both."""

    SELECTED = "selected"
    UNSEEN = "unseen"
    ALL = "all"


class Scope(StrEnum):
    """What a metric speaks of."""

    NODE = "node"
    POOLED = "pooled"  # over the nodes that train
    UNSEEN = "unseen"  # over the nodes that never train
    AGGREGATION = "aggregation"  # of the aggregation itself: trees, bins, clipped contributions


@dataclass(frozen=True, kw_only=True)
class Column:
    """A named column of a dataset."""

    name: str
    dtype: str


HELD_OUT = "held_out"
"""Among the facts of a dataset: how many of its rows are for evaluation alone. Left out: not told."""


@dataclass(frozen=True, kw_only=True)
class DatasetDescription:
    """What a node tells about a dataset: never records, only shape and schema."""

    name: str
    kind: str
    rows: int
    columns: tuple[Column, ...] = ()
    target: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How often a job evaluates (`every` rounds; 0: never) and which nodes never train."""

    every: int = 0
    unseen: tuple[str, ...] = ()

    def due(self, round_number: int, rounds: int) -> bool:
        """Whether an evaluation follows this round: every `every` rounds and after the last."""
        return self.every > 0 and (round_number % self.every == 0 or round_number == rounds)


def _no_artifacts(digest: bytes) -> Payload:
    raise KeyError(digest.hex())


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """What is fixed for a whole job. `config` is the job file's `method_config`, as written.

    `nodes` are the names of the nodes that accepted, sorted; `datasets` their descriptions. `fetch` resolves a
    digest that a payload refers to; it raises KeyError for one that is not there. A learner is told nothing of
    `evaluation`, `nodes`, `datasets` and `continue_from`: whatever it needs of them is the plug-in's to say.
    """

    id: str
    name: str
    method: str
    dataset: str
    rounds: int
    seed: int = 0
    model: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Evaluation = field(default_factory=Evaluation)
    nodes: tuple[str, ...] = ()
    datasets: Mapping[str, DatasetDescription] = field(default_factory=dict)
    continue_from: Payload | None = None
    fetch: Callable[[bytes], Payload] = field(default=_no_artifacts, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One request-and-reply exchange: what is sent, to whom, and what for.

    `instruction` goes to every node of the audience; `personal` adds a payload for single nodes, which no
    other node ever receives. Rounds count from 1; round 0 is preparation (schemas, priors).
    """

    job: JobContext
    name: str
    round: int
    instruction: Payload
    purpose: Purpose = Purpose.TRAIN
    audience: Audience = Audience.SELECTED
    personal: Mapping[str, Payload] = field(default_factory=dict)

    def then(self, name: str, instruction: Payload, **changes: Any) -> Phase:
        """The next phase of the same job: same round, for training, for the selected nodes, unless said otherwise."""
        defaults: dict[str, Any] = {
            "purpose": Purpose.TRAIN,
            "audience": Audience.SELECTED,
            "personal": {},
        }
        return dataclasses.replace(self, name=name, instruction=instruction, **(defaults | changes))


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """A node's reply to an assignment."""

    node: str
    payload: Payload
    unseen: bool = False


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """A contribution that the plug-in could not use after all, found out only at the end of the phase."""

    node: str
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class MetricValue:
    """One number. `weight` is the count behind it (rows, pairs); NaN is not a metric: leave it out."""

    name: str
    value: float
    scope: Scope
    node: str = ""
    weight: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Named data that a person will look at. The dashboard draws kinds, not methods.

    `kind` is one of `matrix` (array `values` [rows, columns]), `series` (arrays `x`, and one a line), `graph`
    (`weights` [nodes, nodes]), `tree` (arrays of one tree) and `table` (one array a column). Labels are
    part of the payload's document.
    """

    name: str
    kind: str
    title: str
    payload: Payload


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an aggregation makes of a phase.

    `state` travels to the next aggregation (it must not grow with the job: what accumulates goes to `stored`
    and is referred to by digest). `next_phase` None ends the job; `model` is the model as it stands, and the
    last one given is the job's result. A model payload is of kind `opaque`, and each of its uint8 arrays is a
    file of that name (`model.ubj`, `model.safetensors`, `card.md`).
    """

    next_phase: Phase | None
    state: Payload | None = None
    model: Payload | None = None
    metrics: tuple[MetricValue, ...] = ()
    pictures: tuple[Picture, ...] = ()
    stored: tuple[Payload, ...] = ()
    rejected: tuple[Rejection, ...] = ()


class Aggregation(Protocol):
    """One phase's aggregation. Whatever the order of `add`, the outcome has the same bytes."""

    def add(self, contribution: Contribution) -> None:
        """Take a contribution.

        Raises:
            RejectedContribution: it cannot be used; the others go on without it.
        """

    def finish(self) -> Outcome:
        """Close the phase over what was added: at least one contribution, but for a phase of purpose `adapt`."""


class AggregatorPlugin(Protocol):
    """The server half of a method. An entry point of the group `hanse.aggregators` names the class.

    `Config` is the pydantic model of the job file's `method_config`; its JSON Schema is published, and a job
    whose configuration does not fit is refused at submission. The plug-in is made anew for every call.
    """

    version: ClassVar[str]
    Config: ClassVar[type[BaseModel]]

    def first_phase(self, job: JobContext) -> Phase:
        """How the job begins."""

    def open(self, phase: Phase, state: Payload | None) -> Aggregation:
        """Begin the aggregation of a phase."""


@dataclass(frozen=True, kw_only=True)
class LearnerLimits:
    """The parts of the site's policy that only a learner can keep."""

    minimum_rows_per_atom: int = 5
    small_atoms: Literal["refuse", "coarsen"] = "refuse"
    """What becomes of atoms with fewer rows: the assignment is refused, or the node joins neighbouring bins."""


def _silent(fraction: float, note: str = "") -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """An instruction given to one node.

    `state` is the folder of the learner's state as the last delivered assignment left it (None at first);
    whatever the learner wants to keep goes into the empty folder `next_state`. The two are swapped only when
    the contribution is safely spooled, so that a learner that dies starts again from the same state.
    `progress(fraction, note)` renews the lease: call it at least every few seconds of work.
    """

    job: JobContext
    node: str
    phase: str
    round: int
    purpose: Purpose
    instruction: Payload
    personal: Payload | None = None
    unseen: bool = False
    state: Path | None = None
    next_state: Path
    limits: LearnerLimits = field(default_factory=LearnerLimits)
    fetch: Callable[[bytes], Payload] = field(default=_no_artifacts, compare=False, repr=False)
    progress: Callable[[float, str], None] = field(default=_silent, compare=False, repr=False)


@runtime_checkable
class Dataset(Protocol):
    """A named source of records at a node. An entry point of the group `hanse.datasets` names the class.

    `Options` is the pydantic model of the dataset's block in `agent.yaml` (without `kind`).
    """

    Options: ClassVar[type[BaseModel]]

    def describe(self) -> DatasetDescription:
        """Shape and schema. Raises SiteError when the data cannot be read."""

    def load(self) -> Any:
        """The records, in the form that learners of this kind expect (`hanse.tables.Table`, …)."""


class Learner(Protocol):
    """The node half of a method. An entry point of the group `hanse.learners` names the class.

    Made once per job and dataset in a worker process and kept warm; whatever it remembers must be derivable
    from its state folder.
    """

    version: ClassVar[str]
    dataset_kinds: ClassVar[tuple[str, ...]]

    def __init__(self, dataset: Dataset) -> None: ...

    def perform(self, assignment: Assignment) -> Payload:
        """Do the work of one assignment and return the contribution's payload.

        Raises:
            SiteError: the data does not allow it (the reason goes to the ledger).
            PolicyRefusal: the site's policy forbids it.
        """


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """A model's answers, one entry a row: named columns of numbers or text, of equal length."""

    columns: Mapping[str, NDArray[Any]]


@runtime_checkable
class Predictor(Protocol):
    """What a learner offers beside `perform` whose finished model can be used at the node (`hanse-agent predict`)."""

    def predict(self, state: Path, data: Path) -> Predictions:
        """Apply the model that the learner has kept in its state folder `state` to new records.

        `data` is a file or folder in whatever form the method's datasets have. Nothing is sent, and the coordinator is
        not asked.

        Raises:
            NotFound: the finished model has not come to this node.
            SiteError: the records do not fit the model; the sentence says where.
        """
