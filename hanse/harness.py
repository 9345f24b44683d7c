"""A federation in one process, without sockets: the same plug-in, the same learners, the same bytes.

For experiments, property tests and benchmarks. What the services add (transport, ledger, leases) changes no byte of
what plug-in and learners see: contributions are encoded and decoded, taken in order of the nodes' names, and the
job's own identifier is in none of them.
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from hanse.errors import HanseError, NotFound, OperatorError, Reason
from hanse.harness_results import HarnessResult, MetricRow, PhaseRecord, QuorumNotMet
from hanse.jobs import JobSpecification
from hanse.method import (
    AggregatorPlugin,
    Assignment,
    Audience,
    Contribution,
    Dataset,
    Evaluation,
    JobContext,
    Learner,
    LearnerLimits,
    Outcome,
    Phase,
    Purpose,
)
from hanse.payload import Payload
from hanse.selection import draw_cohort, quorum

__all__ = ["Harness", "HarnessResult", "MetricRow", "PhaseRecord", "QuorumNotMet", "installed"]

logger = logging.getLogger(__name__)


def installed(group: str, name: str) -> Any:
    """The class that an entry point of `group` (`hanse.aggregators`, `hanse.learners`, …) names.

    Raises:
        NotFound: none of that name is installed.
    """
    points = entry_points(group=group)
    for point in points:
        if point.name == name:
            return point.load()
    known = ", ".join(sorted(point.name for point in points)) or "none"
    raise NotFound(f"No '{name}' is installed under {group} (installed: {known}).")


class Harness:
    """Runs a job over datasets by node.

    `method` names installed entry points, unless `plugin` and `learner` classes are given. State folders and
    artifacts lie in `workdir` (a temporary folder, gone afterwards, when left out). `limits` are the sites' policies
    by node. A node whose learner raises a `HanseError` has refused; the phase goes on if its quorum is met.
    """

    def __init__(
        self,
        method: str,
        datasets: Mapping[str, Dataset],
        specification: JobSpecification,
        workdir: Path | None = None,
        *,
        plugin: Callable[[], AggregatorPlugin] | None = None,
        learner: Callable[[Dataset], Learner] | None = None,
        limits: Mapping[str, LearnerLimits] | None = None,
        continue_from: Payload | None = None,
        on_phase: Callable[[PhaseRecord], None] | None = None,
    ) -> None:
        if specification.method != method:
            raise OperatorError(f"The job is of the method '{specification.method}', not '{method}'.")
        unknown = sorted(set(specification.evaluation.unseen) - set(datasets))
        if unknown:
            raise OperatorError(f"The unseen node '{unknown[0]}' has no dataset.")
        self.specification = specification
        self.datasets = dict(sorted(datasets.items()))
        self._plugin = plugin or installed("hanse.aggregators", method)
        self._learner = learner or installed("hanse.learners", method)
        self._workdir = workdir
        self._limits = limits or {}
        self._continue_from = continue_from
        self._on_phase = on_phase

    def run(self) -> HarnessResult:
        """Run the job to its end.

        Raises:
            QuorumNotMet: too few nodes contributed to a phase.
            HanseError: the plug-in cannot go on.
        """
        with self._folder() as folder:
            return _Run(self, folder).run()

    def job(self, fetch: Callable[[bytes], Payload]) -> JobContext:
        """The job as plug-in and learners see it."""
        specification = self.specification
        return JobContext(
            id="harness",
            name=specification.name,
            method=specification.method,
            dataset=specification.dataset,
            rounds=specification.rounds,
            seed=specification.seed,
            model=specification.model,
            config=specification.method_config,
            evaluation=Evaluation(
                every=specification.evaluation.every, unseen=tuple(sorted(specification.evaluation.unseen))
            ),
            nodes=tuple(self.datasets),
            datasets={node: dataset.describe() for node, dataset in self.datasets.items()},
            continue_from=self._continue_from,
            fetch=fetch,
        )

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        if self._workdir is not None:
            self._workdir.mkdir(parents=True, exist_ok=True)
            yield self._workdir
        else:
            with tempfile.TemporaryDirectory(prefix="hanse-") as folder:
                yield Path(folder)


class _Run:
    """One run: artifacts, learners and their state folders."""

    def __init__(self, harness: Harness, folder: Path) -> None:
        self._harness = harness
        self._folder = folder
        self._artifacts: dict[bytes, Path] = {}
        self._learners: dict[str, Learner] = {}
        self._versions: dict[str, int] = {}
        self._unseen = frozenset(harness.specification.evaluation.unseen)
        self._result = HarnessResult()
        (folder / "artifacts").mkdir(exist_ok=True)

    def run(self) -> HarnessResult:
        job = self._harness.job(self._fetch)
        phase: Phase | None = self._harness._plugin().first_phase(job)
        state: Payload | None = None
        while phase is not None:
            outcome = self._phase(phase, state)
            state = outcome.state
            if outcome.model is not None:
                self._result.model = outcome.model
            phase = outcome.next_phase
        self._result.state = state
        return self._result

    def _phase(self, phase: Phase, state: Payload | None) -> Outcome:
        assigned = self._audience(phase)
        aggregation = self._harness._plugin().open(phase, _decoded(state))
        contributions: dict[str, bytes] = {}
        sent: dict[str, int] = {}
        refusals: dict[str, Reason] = {}
        for node in assigned:
            try:
                payload = self._perform(phase, node)
                aggregation.add(Contribution(node=node, payload=payload, unseen=node in self._unseen))
            except HanseError as error:
                logger.info("%s refused %s of round %d: %s", node, phase.name, phase.round, error)
                refusals[node] = error.reason
                continue
            contributions[node] = payload.digest
            sent[node] = payload.size
            self._result.bytes_sent[node] = self._result.bytes_sent.get(node, 0) + payload.size
        self._judge(phase, assigned, contributions, refusals)
        outcome = aggregation.finish()
        refusals |= {rejection.node: rejection.reason for rejection in outcome.rejected}
        left = {node: digest for node, digest in contributions.items() if node not in refusals}
        self._judge(phase, assigned, left, refusals)
        for artifact in outcome.stored:
            self._store(artifact)
        record = PhaseRecord(
            name=phase.name,
            round=phase.round,
            purpose=phase.purpose,
            instruction=phase.instruction.digest,
            contributions=contributions,
            sent=sent,
            refusals=refusals,
            outcome=outcome,
        )
        self._result.phases.append(record)
        self._result.metrics += [
            MetricRow(phase=phase.name, round=phase.round, metric=metric) for metric in outcome.metrics
        ]
        if self._harness._on_phase is not None:
            self._harness._on_phase(record)
        return outcome

    def _audience(self, phase: Phase) -> tuple[str, ...]:
        specification = self._harness.specification
        training = tuple(node for node in self._harness.datasets if node not in self._unseen)
        cohort = draw_cohort(training, specification.selection, seed=specification.seed, round_number=phase.round)
        chosen: set[str] = set()
        if phase.audience in (Audience.SELECTED, Audience.ALL):
            chosen |= set(cohort if phase.purpose is Purpose.TRAIN else training)
        if phase.audience in (Audience.UNSEEN, Audience.ALL):
            chosen |= self._unseen
        return tuple(sorted(chosen))

    def _judge(
        self, phase: Phase, assigned: tuple[str, ...], contributed: Mapping[str, bytes], refusals: Mapping[str, Reason]
    ) -> None:
        needed = quorum(self._harness.specification.selection, assigned, phase.purpose)
        if len(contributed) < needed:
            raise QuorumNotMet(
                f"{len(contributed)} of {len(assigned)} nodes contributed to the phase '{phase.name}' of round "
                f"{phase.round}; {needed} are needed.",
                refusals,
            )

    def _perform(self, phase: Phase, node: str) -> Payload:
        """One assignment, with the learner's state swapped only when it has succeeded."""
        home = self._folder / "nodes" / node
        version = self._versions.get(node, 0)
        next_state = home / str(version + 1)
        shutil.rmtree(next_state, ignore_errors=True)
        next_state.mkdir(parents=True)
        if node not in self._learners:
            self._learners[node] = self._harness._learner(self._harness.datasets[node])
        personal = phase.personal.get(node)
        unseen = node in self._unseen
        assignment = Assignment(
            job=_at_node(phase.job),
            node=node,
            phase=phase.name,
            round=phase.round,
            purpose=phase.purpose,
            instruction=_required(phase.instruction),
            personal=_decoded(personal),
            unseen=unseen,
            state=home / str(version) if version else None,
            next_state=next_state,
            limits=self._harness._limits.get(node, LearnerLimits(minimum_rows_per_atom=1)),
            fetch=self._fetch,
        )
        received = phase.instruction.size + (personal.size if personal is not None else 0)
        self._result.bytes_received[node] = self._result.bytes_received.get(node, 0) + received
        contribution = _required(self._learners[node].perform(assignment))
        if version:
            shutil.rmtree(home / str(version), ignore_errors=True)
        self._versions[node] = version + 1
        return contribution

    def _store(self, payload: Payload) -> None:
        path = self._folder / "artifacts" / payload.digest.hex()
        if payload.digest not in self._artifacts:
            payload.write(path)
            self._artifacts[payload.digest] = path

    def _fetch(self, digest: bytes) -> Payload:
        return Payload.open(self._artifacts[digest], digest=digest)


def _at_node(job: JobContext) -> JobContext:
    """The job as a node is told of it: nothing of other nodes, and not when it is evaluated."""
    return dataclasses.replace(job, evaluation=Evaluation(), nodes=(), datasets={}, continue_from=None)


def _decoded(payload: Payload | None) -> Payload | None:
    """The payload as it comes out of the wire: encoded and decoded again."""
    return None if payload is None else Payload.from_image(payload.image())


def _required(payload: Payload) -> Payload:
    return Payload.from_image(payload.image())
