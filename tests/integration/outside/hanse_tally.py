"""A method of somebody else's: counts. It lives in a package of its own and knows nothing but `hanse`."""

from __future__ import annotations

import json
from typing import ClassVar

import numpy as np
from pydantic import BaseModel

from hanse.errors import RejectedContribution
from hanse.method import Contribution, JobContext, MetricValue, Outcome, Phase, Picture, Scope
from hanse.payload import Payload
from hanse.v1 import payload_pb2


class TallyConfig(BaseModel, extra="forbid"):
    """How the tally is kept."""

    length: int = 4
    """Numbers in the state: makes it as large as a test wants."""
    wait_for: str = ""
    """A pipe that `finish` reads before it goes on."""
    fail: str = ""
    """What the plug-in raises in `finish`."""


def document(kind: str, values: dict, arrays: dict | None = None, references: tuple[bytes, ...] = ()) -> Payload:
    message = payload_pb2.Opaque(type=kind, document=json.dumps(values, sort_keys=True).encode())
    return Payload.build(message, arrays, references=references)


class Tally:
    """Adds up what nodes count."""

    version: ClassVar[str] = "7.1"
    Config: ClassVar[type[BaseModel]] = TallyConfig

    def first_phase(self, job: JobContext) -> Phase:
        return Phase(job=job, name="count", round=1, instruction=document("count", {"nodes": job.nodes}))

    def open(self, phase: Phase, state: Payload | None) -> TallyAggregation:
        return TallyAggregation(phase, state)


class TallyAggregation:
    def __init__(self, phase: Phase, state: Payload | None) -> None:
        self.phase = phase
        self.config = TallyConfig.model_validate(phase.job.config)
        self.total = state.arrays["total"].copy() if state else np.zeros(self.config.length, np.int64)
        # What an earlier round stored is only referred to; reading it needs the caller's store.
        self.history = state.references if state else ()
        self.depth = sum(int(phase.job.fetch(digest).arrays["one"][0]) for digest in self.history)

    def add(self, contribution: Contribution) -> None:
        counts = contribution.payload.arrays["counts"]
        if (counts < 0).any():
            raise RejectedContribution(f"{contribution.node} counts below zero.", code="BELOW_ZERO")
        self.total += int(counts.sum())

    def finish(self) -> Outcome:
        if self.config.wait_for:
            with open(self.config.wait_for) as pipe:
                pipe.read()
        if self.config.fail:
            raise ZeroDivisionError(self.config.fail)
        round_number = self.phase.round
        note = document("note", {"round": round_number}, {"one": np.ones(40_000, np.int64)})
        history = (*self.history, note.digest)
        state = document("tally", {"round": round_number}, {"total": self.total}, history)
        metrics = tuple(
            MetricValue(name=name, value=float(value), scope=Scope.AGGREGATION)
            for name, value in (("total", self.total[0]), ("depth", self.depth))
        )
        table = document("table", {}, {"total": self.total})
        following = None
        if round_number < self.phase.job.rounds:
            instruction = document("count", {"again": True}, {"total": self.total})
            personal = {node: document("hint", {"for": node}) for node in self.phase.job.nodes}
            following = self.phase.then("count", instruction, round=round_number + 1, personal=personal)
        return Outcome(
            next_phase=following,
            state=state,
            model=document("model", {}, {"model.bin": self.total.view(np.uint8)}),
            metrics=metrics,
            pictures=(Picture(name="totals", kind="table", title="Totals", payload=table),),
            stored=(note,),
        )
