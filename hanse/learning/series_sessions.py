"""From charging sessions to a regular series: each session's energy, spread evenly over the time in which it charged.

Sessions may overlap (a station has several connectors): their energies add up. Nothing is lost or made: the series'
values sum to the sessions' energies, as far as they lie within its span.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hanse.learning.arrays import Float64

__all__ = ["overlapping", "spread_energy"]


def spread_energy(begin: Float64, end: Float64, energy: Float64, *, start: float, step: float, steps: int) -> Float64:
    """Energy by step, float64 [steps].

    Args:
        begin: when each session began to charge, in any unit of time from any origin [n].
        end: when it ended [n], not before `begin`; one that took no time counts in the step that holds it.
        energy: what it took [n].
        start: where the first step begins.
        step: the length of a step.
        steps: how many there are.
    """
    first, last = (begin - start) / step, (end - start) / step
    length = last - first
    moment = length <= 0
    # The energy taken until each edge of the grid is a sum of ramps: exact, and without a loop over sessions or steps.
    # A ramp changes the slope at two places; what remains of a partly covered step is put right by a level.
    slope = np.zeros(steps + 2)
    level = np.zeros(steps + 2)
    power = np.divide(energy, length, out=np.zeros_like(energy), where=~moment)
    for place, sign in ((first, 1.0), (last, -1.0)):
        kept = np.clip(place, 0.0, float(steps))
        edge = np.ceil(kept).astype(np.int64)
        np.add.at(slope, edge, sign * power)
        np.add.at(level, edge, sign * power * (edge - kept))
    until = np.concatenate([[0.0], np.cumsum(np.cumsum(slope))])[: steps + 2]
    at_edges = until[: steps + 1] + np.cumsum(level)[: steps + 1]
    series = np.diff(at_edges)
    inside = moment & (first >= 0) & (first < steps)
    np.add.at(series, np.floor(first[inside]).astype(np.int64), energy[inside])
    return np.where(np.abs(series) < 1e-9 * max(1.0, float(np.abs(energy).max(initial=0.0))), 0.0, series)


def overlapping(begin: Float64, end: Float64) -> tuple[int, NDArray[np.bool_]]:
    """The most sessions that charge at once, and which sessions begin while another one charges [n]."""
    if not len(begin):
        return 0, np.zeros(0, dtype=np.bool_)
    order = np.argsort(begin, kind="stable")
    ended = np.sort(end)
    # At the moment when a session begins, those that began before and have not ended are at work.
    running = np.arange(1, len(begin) + 1) - np.searchsorted(ended, begin[order], side="right")
    busy = np.zeros(len(begin), dtype=np.bool_)
    busy[order] = running > 1
    return int(running.max()), busy
