"""Our own split search on histograms: XGBoost's, in arrays, for all open nodes of a tree at once.

Candidates, gains, ties and default directions follow XGBoost 3.2's `hist` (Chen & Guestrin 2016, algorithm 3),
down to where it rounds to float32 (measured bit by bit, since ties depend on it).
Sums are integers, so nothing depends on the order in which bins or nodes were added.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from hanse.learning.arrays import FLOAT32_MAX, Bool, Float32, Float64, Int32, Int64
from hanse.learning.bin_edges import BinEdges
from hanse.learning.fixed_point import Grid
from hanse.learning.parameters import BoostingParameters

# Bins of all nodes that are searched together: bounds the memory to about 100 bytes times this.
_CELLS_AT_ONCE = 1_000_000


@dataclass(frozen=True, eq=False)
class Splits:
    """The best split of each of `R` nodes; `gain` is 0 where there is none.

    `gain` float32, `feature` int32, `threshold` float32, `default_left` bool, each [R]; `left` and `right`
    int64 [R, 2]: gradient and hessian sums of the children.
    """

    gain: Float32
    feature: Int32
    threshold: Float32
    default_left: Bool
    left: Int64
    right: Int64


@dataclass(frozen=True)
class Regulariser:
    """Leaf weights and gains, with parameters and units of a job."""

    parameters: BoostingParameters
    grid: Grid

    def weight(self, sums: Int64) -> Float32:
        """The leaf value before eta, float32 [...], of sums int64 [..., 2]: -T(G) / (H + lambda), limited."""
        g, h = self.decoded(sums[..., 0], sums[..., 1])
        return self._weight(g, h)

    def gain(self, g: Float64, h: Float64) -> Float32:
        """T(G)^2 / (H + lambda), float32 [...], of decoded sums float64 [...]; 0 without hessian.

        Numerator and denominator are rounded to float32 before the division. With a largest step it is the
        loss reduction at the limited weight, -(2 G w + (H + lambda) w^2), all in float32; XGBoost 3.2 leaves
        the L1 penalty out there, and so do we.
        """
        penalty = _float32(self.parameters.reg_lambda)
        if self.parameters.max_delta_step:
            w = self._weight(g, h)
            g32, h32 = g.astype(np.float32), h.astype(np.float32)
            gain: Float32 = -(np.float32(2) * g32 * w + (h32 + np.float32(penalty)) * (w * w))
        else:
            numerator: Float32 = np.square(self._shrunk(g)).astype(np.float32)
            denominator: Float32 = (h + penalty).astype(np.float32)
            with np.errstate(divide="ignore", invalid="ignore"):
                gain = np.divide(numerator, denominator, out=numerator)
        gain[h <= 0] = 0
        return gain

    def allowed(self, h: Float64) -> Bool:
        """Whether a child with the decoded hessian sum float64 [...] may exist."""
        result: Bool = h >= _float32(self.parameters.min_child_weight)
        return result & (h > 0) if self.parameters.min_child_weight <= 0 else result

    def decoded(self, gradient: Int64, hessian: Int64) -> tuple[Float64, Float64]:
        """Integer sums as float64; exact below 2^53, since units are powers of two."""
        return (
            np.multiply(gradient, 2.0**self.grid.gradient, dtype=np.float64),
            np.multiply(hessian, 2.0**self.grid.hessian, dtype=np.float64),
        )

    def _weight(self, g: Float64, h: Float64) -> Float32:
        p = self.parameters
        with np.errstate(divide="ignore", invalid="ignore"):
            weight = -self._shrunk(g) / (h + _float32(p.reg_lambda))
        if p.max_delta_step:
            weight = np.clip(weight, -_float32(p.max_delta_step), _float32(p.max_delta_step))
        alive = (h >= _float32(p.min_child_weight)) & (h > 0)
        return np.where(alive, weight, 0.0).astype(np.float32)

    def _shrunk(self, g: Float64) -> Float64:
        if not self.parameters.reg_alpha:
            return g
        result: Float64 = np.sign(g) * np.maximum(np.abs(g) - _float32(self.parameters.reg_alpha), 0.0)
        result += 0.0  # no negative zeros, as in XGBoost: a leaf's sign bit is part of the model's bytes
        return result


def find_splits(
    sums: Int64,
    totals: Int64,
    edges: BinEdges,
    occupied: Bool,
    columns: Bool,
    regulariser: Regulariser,
) -> Splits:
    """The best split of each node.

    `sums` int64 [R, 2, total bins] and `totals` int64 [R, 2] as in `Histograms`; `occupied` bool [total bins]:
    bins that hold rows at the root; `columns` bool [F]: features that may be split. A threshold is the lower
    edge of the next bin that is occupied at the root, as if the other bins did not exist.

    Bins are scanned from the left with missing values on the right; where a feature has missing values, also
    from the right with missing values on the left. The first of equal gains wins: lower feature, forward
    before backward, and within a scan the bin that comes first.
    """
    at_once = max(1, _CELLS_AT_ONCE // len(edges.cuts))
    blocks = [
        _find_splits(sums[i : i + at_once], totals[i : i + at_once], edges, occupied, columns, regulariser)
        for i in range(0, len(sums), at_once)
    ]
    return Splits(*(np.concatenate([getattr(block, f.name) for block in blocks]) for f in fields(Splits)))


def _find_splits(
    sums: Int64,
    totals: Int64,
    edges: BinEdges,
    occupied: Bool,
    columns: Bool,
    regulariser: Regulariser,
) -> Splits:
    gradient, hessian = sums[:, 0], sums[:, 1]
    starts, ends = edges.offsets[:-1], edges.offsets[1:]
    feature_of = np.repeat(np.arange(edges.features), edges.bins)
    up_to_g, up_to_h = _within(gradient, edges), _within(hessian, edges)
    parent_g, parent_h = totals[:, :1], totals[:, 1:]
    root_gain = regulariser.gain(*regulariser.decoded(parent_g, parent_h))
    usable = columns[feature_of]

    def scores(left_g: Int64, left_h: Int64, allowed: Bool) -> Float32:
        g, h = regulariser.decoded(left_g, left_h)
        other_g, other_h = regulariser.decoded(parent_g - left_g, parent_h - left_h)
        change = regulariser.gain(g, h)
        change += regulariser.gain(other_g, other_h)
        change -= root_gain
        change[~(regulariser.allowed(h) & regulariser.allowed(other_h) & allowed)] = 0
        return change

    forward = scores(up_to_g, up_to_h, usable)
    # Backward, the bin itself and all bins above it go right, everything else and what is missing goes left.
    missing = (up_to_g[:, ends - 1] != parent_g) | (up_to_h[:, ends - 1] != parent_h)
    first_bin = np.zeros(len(feature_of), dtype=np.bool_)
    first_bin[starts] = True
    if missing.any():
        above_g = up_to_g[:, ends - 1][:, feature_of] - (up_to_g - gradient)
        above_h = up_to_h[:, ends - 1][:, feature_of] - (up_to_h - hessian)
        offered = usable & missing[:, feature_of] & ~first_bin
        backward = scores(parent_g - above_g, parent_h - above_h, offered)
    else:
        above_g, above_h = up_to_g, up_to_h
        backward = np.zeros_like(forward)

    best = np.maximum(forward.max(axis=1), backward.max(axis=1))
    best = np.maximum(best, np.float32(0))
    node = np.arange(len(sums))
    hit_forward, hit_backward = forward == best[:, None], backward == best[:, None]
    forward_bin = _first(hit_forward)
    backward_feature = np.where(hit_backward.any(axis=1), feature_of[_first(hit_backward)], edges.features)
    forward_feature = np.where(hit_forward.any(axis=1), feature_of[forward_bin], edges.features)
    is_backward = backward_feature < forward_feature
    feature = np.minimum(np.minimum(forward_feature, backward_feature), edges.features - 1)
    in_feature = hit_backward & (feature_of == feature[:, None])
    backward_bin = in_feature.shape[1] - 1 - _first(in_feature[:, ::-1])

    following = _next_occupied(occupied, feature_of)[forward_bin]
    upper = np.where(following >= 0, edges.cuts[np.maximum(following, 1) - 1], FLOAT32_MAX)
    threshold = np.where(is_backward, edges.cuts[np.maximum(backward_bin, 1) - 1], upper)
    above = np.stack([above_g[node, backward_bin], above_h[node, backward_bin]], axis=1)
    up_to = np.stack([up_to_g[node, forward_bin], up_to_h[node, forward_bin]], axis=1)
    left = np.where(is_backward[:, None], totals - above, up_to)
    found = best > 0
    return Splits(
        gain=best,
        feature=np.where(found, feature, 0).astype(np.int32),
        threshold=np.where(found, threshold, 0).astype(np.float32),
        default_left=is_backward & found,
        left=left,
        right=totals - left,
    )


def _within(values: Int64, edges: BinEdges) -> Int64:
    """Running sums [R, total bins] that begin anew with every feature."""
    running = np.cumsum(values, axis=1)
    before = np.concatenate([np.zeros((len(values), 1), dtype=np.int64), running[:, edges.offsets[1:-1] - 1]], axis=1)
    running -= np.repeat(before, edges.bins, axis=1)
    return running


def _first(mask: Bool) -> Int64:
    first: Int64 = mask.argmax(axis=1)
    return first


def _next_occupied(occupied: Bool, feature_of: Int64) -> Int64:
    """For each bin the next occupied bin of the same feature, int64 [total bins]; -1 if there is none."""
    size = len(occupied)
    place = np.where(occupied, np.arange(size), size)
    at_or_after = np.minimum.accumulate(place[::-1])[::-1]
    after = np.append(at_or_after[1:], size)
    same = (after < size) & (np.append(feature_of, -1)[after] == feature_of)
    following: Int64 = np.where(same, after, -1)
    return following


def _float32(value: float) -> float:
    """A parameter as XGBoost stores it."""
    return float(np.float32(value))
