"""Regression trees as arrays, and their predictions from raw values.

A tree is a struct of arrays with one entry per node, root first, as in XGBoost's model format. Rows go left
when their float32 value is below the threshold; a missing value follows the node's default direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hanse.errors import InvalidPayload
from hanse.learning.arrays import Bool, Float32, Int32, Int64

LEAF = -1
_COLUMNS: dict[str, np.dtype[Any]] = {
    "left": np.dtype(np.int32),
    "right": np.dtype(np.int32),
    "feature": np.dtype(np.int32),
    "threshold": np.dtype(np.float32),
    "default_left": np.dtype(np.bool_),
    "value": np.dtype(np.float32),
    "gain": np.dtype(np.float32),
}
_FOREST: dict[str, np.dtype[Any]] = {
    "offsets": np.dtype(np.int64),
    "outputs": np.dtype(np.int32),
    **_COLUMNS,
}


@dataclass(frozen=True, eq=False)
class Tree:
    """One tree of `m` nodes; every array has shape [m].

    `left`, `right` int32: children, or -1 for a leaf; a child's number is larger than its parent's.
    `feature` int32, `threshold` float32, `default_left` bool: the split, zeros for a leaf. `value` float32:
    the leaf value including eta, zero elsewhere. `gain` float32: the loss reduction of the split.
    """

    left: Int32
    right: Int32
    feature: Int32
    threshold: Float32
    default_left: Bool
    value: Float32
    gain: Float32

    def __len__(self) -> int:
        return len(self.left)

    @classmethod
    def leaf(cls, value: float) -> Tree:
        """A tree that is one leaf."""
        columns = {name: np.zeros(1, dtype=dtype) for name, dtype in _COLUMNS.items()}
        columns["left"][:] = columns["right"][:] = LEAF
        columns["value"][:] = value
        return cls(**columns)

    def check(self, features: int) -> None:
        """Raise `InvalidPayload` unless this is a finite tree over so many features: right types and lengths,
        every node but the root reached exactly once, children after parents, numbers finite."""
        size = len(self.left)
        for name, dtype in _COLUMNS.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.shape != (size,) or size == 0:
                raise InvalidPayload(f"The tree array {name!r} is {array.dtype} of shape {array.shape}.")
        split = self.left != LEAF
        nodes = np.arange(size)
        if np.any(split != (self.right != LEAF)):
            raise InvalidPayload("A tree node has one child only.")
        children = np.concatenate([self.left[split], self.right[split]])
        if np.any(children <= np.concatenate([nodes[split]] * 2)) or np.any(children >= size):
            raise InvalidPayload("A tree node has a child that is not behind it.")
        if np.any(np.bincount(children, minlength=size)[1:] != 1):
            raise InvalidPayload("A tree node is reached twice or never.")
        if np.any(self.feature < 0) or np.any(self.feature >= features):
            raise InvalidPayload(f"A tree splits a feature outside 0..{features - 1}.")
        for name in ("threshold", "value", "gain"):
            if not np.all(np.isfinite(getattr(self, name))):
                raise InvalidPayload(f"The tree array {name!r} holds a number that is not finite.")

    def step(self, values: Float32, node: Int32) -> Int32:
        """Lead rows from their nodes `node` int32 [n] one split further; rows in leaves stay.

        `values` float32 [n, F].
        """
        return self.step_of(values, np.arange(len(values), dtype=np.int64), node)

    def step_of(self, values: Float32, rows: Int64, node: Int32) -> Int32:
        """The same for the chosen `rows` int64 [m] of `values` float32 [n, F] alone, whose nodes are int32 [m]."""
        flat = np.ascontiguousarray(values).ravel()
        value = flat[rows * values.shape[1] + self.feature[node]]
        go_left = np.where(np.isnan(value), self.default_left[node], value < self.threshold[node])
        child = np.where(go_left, self.left[node], self.right[node])
        result: Int32 = np.where(child == LEAF, node, child)
        return result

    def leaves(self, values: Float32) -> Int32:
        """The leaf that each row of `values` float32 [n, F] reaches, int32 [n]."""
        contiguous = np.ascontiguousarray(values)
        node = np.zeros(len(values), dtype=np.int32)
        while True:
            rows = np.flatnonzero(self.left[node] != LEAF)
            if not len(rows):
                return node
            node[rows] = self.step_of(contiguous, rows, node[rows])

    def predict(self, values: Float32) -> Float32:
        """The leaf value of each row of `values` float32 [n, F], float32 [n]."""
        result: Float32 = self.value[self.leaves(values)]
        return result


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees in the order in which they were grown; `outputs` int32 [T] says to which output each adds."""

    trees: tuple[Tree, ...]
    outputs: Int32

    @classmethod
    def of_rounds(cls, rounds: Iterable[Sequence[Tree]]) -> Forest:
        """Rounds of K trees each, in class order."""
        trees = [list(trees) for trees in rounds]
        outputs = [k for grown in trees for k in range(len(grown))]
        return cls(tuple(tree for grown in trees for tree in grown), np.array(outputs, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.trees)

    def __add__(self, other: Forest) -> Forest:
        return Forest(self.trees + other.trees, np.concatenate([self.outputs, other.outputs]))

    def margins(self, values: Float32, start: Float32) -> Float32:
        """Margins float32 [n, K] of rows `values` float32 [n, F].

        `start` float32 [K] (base margins) or [n, K] (margins so far). Trees are added one by one in float32, as
        XGBoost does, so that adding rounds one at a time gives the same bits.
        """
        margins = np.array(np.broadcast_to(start, (len(values), start.shape[-1])), dtype=np.float32)
        for tree, output in zip(self.trees, self.outputs, strict=True):
            margins[:, output] += tree.predict(values)
        return margins

    def arrays(self) -> dict[str, np.ndarray]:
        """The forest as named arrays, for a payload: the arrays of all trees one after the other, `offsets`
        int64 [T + 1] and `outputs`."""
        sizes = [len(tree) for tree in self.trees]
        arrays: dict[str, np.ndarray] = {
            name: np.concatenate([getattr(tree, name) for tree in self.trees] or [np.zeros(0)]).astype(dtype)
            for name, dtype in _COLUMNS.items()
        }
        offsets: Int64 = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return {"offsets": offsets, "outputs": self.outputs, **arrays}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], *, features: int, outputs: int) -> Forest:
        """The inverse of `arrays`. Raises `InvalidPayload` unless every tree is sound (see `Tree.check`)."""
        for name, dtype in _FOREST.items():
            if name not in arrays or arrays[name].dtype != dtype or arrays[name].ndim != 1:
                raise InvalidPayload(f"A forest needs the array {name!r} of type {dtype}.")
        offsets, columns = arrays["offsets"], [arrays[name] for name in _COLUMNS]
        if (
            len(offsets) != len(arrays["outputs"]) + 1
            or offsets[0] != 0
            or np.any(np.diff(offsets) < 1)
            or any(len(column) != offsets[-1] for column in columns)
        ):
            raise InvalidPayload("The offsets of a forest do not enclose its nodes.")
        if np.any(arrays["outputs"] < 0) or np.any(arrays["outputs"] >= outputs):
            raise InvalidPayload(f"A tree adds to an output outside 0..{outputs - 1}.")
        trees = []
        for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            tree = Tree(*(column[begin:end] for column in columns))
            tree.check(features)
            trees.append(tree)
        return cls(tuple(trees), arrays["outputs"])
