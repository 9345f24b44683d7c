"""Histograms of open tree nodes as payloads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hanse.errors import InvalidPayload
from hanse.learning.bin_edges import BinEdges
from hanse.learning.fixed_point import Grid
from hanse.learning.histograms import Histograms
from hanse.payload.payload import Payload
from hanse.v1 import payload_pb2

# No number of a contribution may be larger, so that a thousand nodes stay within 64 bits.
MAX_TOTAL = 2**52


def histograms_payload(parts: Sequence[Histograms], edges: Sequence[BinEdges], grid: Grid) -> Payload:
    """One `Histograms` a tree (of no nodes, where the tree is finished) as a `HistogramStatistics` payload.

    `edges` is one set, or one a tree. Sums travel as int32 where all of them fit.
    """
    flat = [part.sums.reshape(-1) for part in parts]
    sums = np.concatenate(flat) if len(flat) > 1 else flat[0]
    return Payload.build(_kind(edges, len(parts), grid), {"sums": narrow(sums), "totals": _totals(parts)})


def read_histograms(
    payload: Payload, edges: Sequence[BinEdges], wanted: Sequence[int], grid: Grid
) -> tuple[Histograms, ...]:
    """The inverse of `histograms_payload`; `wanted` says of how many nodes of each tree.

    Raises:
        InvalidPayload: another kind, shape or grid, or sums too large.
        RejectedContribution: hessians that are negative, or above their node's total.
    """
    if payload.kind != "histogram_statistics":
        raise InvalidPayload(f"a payload of kind 'histogram_statistics' was expected, not '{payload.kind}'.")
    expected = _kind(edges, len(wanted), grid)
    if payload.header.histogram_statistics != expected:
        found = payload.header.histogram_statistics
        raise InvalidPayload(
            f"there are histograms of {found.features} features, {found.outputs} outputs and {found.bins} bins with "
            f"{found.fraction_bits} fraction bits, not of {expected.features}, {expected.outputs} and "
            f"{expected.bins} with {expected.fraction_bits}."
        )
    sums, totals = payload.arrays.get("sums"), payload.arrays.get("totals")
    widths = [len(_of_tree(edges, k).cuts) for k in range(len(wanted))]
    cells = [2 * nodes * width for nodes, width in zip(wanted, widths, strict=True)]
    if sums is None or sums.dtype not in (np.int32, np.int64) or sums.shape != (sum(cells),):
        raise InvalidPayload(f"the array 'sums' is missing, or not {sum(cells)} integers.")
    if totals is None or totals.dtype != np.int64 or totals.shape != (sum(wanted), 2):
        raise InvalidPayload(f"the array 'totals' is missing, or not int64 of shape {(sum(wanted), 2)}.")
    if _largest(totals) > MAX_TOTAL or _largest(sums) > MAX_TOTAL:
        raise InvalidPayload("the histograms hold a number above 2^52 units.")
    parts, cell, node = [], 0, 0
    for k, nodes in enumerate(wanted):
        arrays = {
            "sums": sums[cell : cell + cells[k]].reshape(nodes, 2, widths[k]),
            "totals": totals[node : node + nodes],
        }
        parts.append(Histograms.from_arrays(arrays, edges=_of_tree(edges, k), nodes=nodes))
        cell, node = cell + cells[k], node + nodes
    return tuple(parts)


def narrow(values: NDArray[np.int64]) -> NDArray[np.int32] | NDArray[np.int64]:
    """The same integers as int32 where all of them fit."""
    return values.astype(np.int32) if _largest(values) < 2**31 else values


def _kind(edges: Sequence[BinEdges], outputs: int, grid: Grid) -> payload_pb2.HistogramStatistics:
    return payload_pb2.HistogramStatistics(
        features=edges[0].features,
        outputs=outputs,
        bins=sum(len(each.cuts) for each in edges),
        fraction_bits=-grid.hessian,
    )


def _of_tree(edges: Sequence[BinEdges], k: int) -> BinEdges:
    return edges[k] if len(edges) > 1 else edges[0]


def _totals(parts: Sequence[Histograms]) -> NDArray[np.int64]:
    return np.concatenate([part.totals for part in parts])


def _largest(values: NDArray[np.integer]) -> int:
    return max(int(values.max(initial=0)), -int(values.min(initial=0)))
