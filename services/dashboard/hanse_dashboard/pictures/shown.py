"""A picture artifact as a drawing and as its numbers. Kinds are drawn, not methods; nothing is ever made up.

`kind` says what the arrays are (see `hanse.method.Picture`); labels are in the payload's document. A picture whose
arrays do not fit its kind is refused with a sentence, since a wrong drawing is worse than none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from hanse.errors import InvalidPayload
from hanse.payload import Payload
from hanse.payload.documents import read_document
from hanse_dashboard.pictures.graph import draw_graph
from hanse_dashboard.pictures.matrix import draw_bars, draw_matrix
from hanse_dashboard.pictures.series import draw_series
from hanse_dashboard.pictures.tree import draw_tree

__all__ = ["Numbers", "Shown", "show"]

DOCUMENT = "picture"
_MOST_NUMBERS = 2_000_000


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """A picture's numbers as a table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A picture, drawn."""

    drawings: Sequence[tuple[str, Markup]]
    """(what it shows, the drawing)"""
    numbers: Numbers
    note: str
    """What the drawing leaves out; the numbers are complete."""


def show(payload: Payload, kind: str) -> Shown:
    """Draw a picture.

    Raises:
        InvalidPayload: the payload is no picture of that kind.
    """
    document = read_document(payload, DOCUMENT)
    if sum(int(array.size) for array in payload.arrays.values()) > _MOST_NUMBERS:
        raise InvalidPayload(f"The picture has more than {_MOST_NUMBERS} numbers.", code="PICTURE_TOO_LARGE")
    reader = _KINDS.get(kind)
    if reader is None:
        raise InvalidPayload(
            f"This dashboard cannot draw pictures of the kind “{kind[:40]}”.",
            remedy=f"It draws {', '.join(_KINDS)}; a newer one may draw more.",
            code="PICTURE_KIND",
        )
    return reader(document, payload.arrays)


def _array(arrays: Any, name: str, dimensions: int) -> NDArray[Any]:
    array = arrays.get(name)
    if array is None or array.ndim != dimensions:
        raise InvalidPayload(f"The picture has no array “{name}” of {dimensions} dimensions.", code="PICTURE_ARRAYS")
    return np.asarray(array)


def _labels(document: dict[str, Any], keys: Sequence[str], count: int, word: str) -> list[str]:
    for key in keys:
        found = document.get(key)
        if isinstance(found, list) and len(found) == count:
            return [str(label) for label in found]
    return [f"{word} {number}" for number in range(count)]


def plain(value: Any) -> Any:
    """A number as JSON has it; None for what is none."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _matrix(document: dict[str, Any], arrays: Any) -> Shown:
    values = _array(arrays, "values", 2).astype(np.float64)
    rows = _labels(document, ("rows",), values.shape[0], "row")
    columns = _labels(document, ("columns",), values.shape[1], "column")
    extra = {name: array for name, array in arrays.items() if name != "values" and array.shape == (len(rows),)}
    corner = str(document.get("row_title", "")) or "row"
    drawing, note = draw_matrix(values, rows, columns, str(document.get("column_title", "")))
    table = [
        [label, *map(plain, values[place]), *(plain(array[place]) for array in extra.values())]
        for place, label in enumerate(rows)
    ]
    return Shown(drawings=[("", drawing)], numbers=Numbers(columns=[corner, *columns, *extra], rows=table), note=note)


def _table(document: dict[str, Any], arrays: Any) -> Shown:
    lengths = {array.shape[0] for array in arrays.values() if array.ndim == 1}
    if len(lengths) != 1 or any(array.ndim != 1 for array in arrays.values()):
        raise InvalidPayload("The columns of the table are not of one length.", code="PICTURE_ARRAYS")
    count = lengths.pop()
    labels = _labels(document, ("labels", "rows"), count, "row")
    head = str(document.get("label_column", "")) or "row"
    first = next(iter(arrays))
    drawing, note = draw_bars(labels, np.asarray(arrays[first], dtype=np.float64), first)
    rows = [[label, *(plain(array[place]) for array in arrays.values())] for place, label in enumerate(labels)]
    return Shown(
        drawings=[(first.replace("_", " "), drawing)], numbers=Numbers(columns=[head, *arrays], rows=rows), note=note
    )


def _series(document: dict[str, Any], arrays: Any) -> Shown:
    x = _array(arrays, "x", 1).astype(np.float64)
    lines = {name: np.asarray(array, dtype=np.float64) for name, array in arrays.items() if name != "x"}
    if not lines or any(line.shape != x.shape for line in lines.values()):
        raise InvalidPayload("The lines of the series are not as long as its x.", code="PICTURE_ARRAYS")
    head = str(document.get("x_title", "x"))
    rows = [[plain(value), *(plain(line[place]) for line in lines.values())] for place, value in enumerate(x)]
    return Shown(
        drawings=[("", draw_series(x, lines, head))], numbers=Numbers(columns=[head, *lines], rows=rows), note=""
    )


def _graph(document: dict[str, Any], arrays: Any) -> Shown:
    weights = _array(arrays, "weights", 2).astype(np.float64)
    if weights.shape[0] != weights.shape[1]:
        raise InvalidPayload("The weights of the graph are not square.", code="PICTURE_ARRAYS")
    names = _labels(document, ("labels", "nodes", "rows"), weights.shape[0], "node")
    links, linked = draw_graph(weights, names)
    heat, heated = draw_matrix(weights, names, names, "to")
    rows = [
        [names[i], names[j], plain(weights[i, j])]
        for i in range(len(names))
        for j in range(len(names))
        if weights[i, j] != 0
    ]
    return Shown(
        drawings=[("Who learns from whom", links), ("Weights, from each row to each column", heat)],
        numbers=Numbers(columns=["from", "to", "weight"], rows=rows),
        note=" ".join(filter(None, (linked, heated))),
    )


def _tree(document: dict[str, Any], arrays: Any) -> Shown:
    left, right = _array(arrays, "left", 1), _array(arrays, "right", 1)
    feature, threshold = _array(arrays, "feature", 1), _array(arrays, "threshold", 1)
    value = _array(arrays, "value", 1)
    if len({len(part) for part in (left, right, feature, threshold, value)}) != 1:
        raise InvalidPayload("The arrays of the tree are not of one length.", code="PICTURE_ARRAYS")
    names = [str(name) for name in document.get("features", [])]
    gain = arrays.get("gain")

    def name(place: int) -> str:
        index = int(feature[place])
        return names[index] if 0 <= index < len(names) else f"feature {index}"

    count = len(left)
    valid = all(-1 <= int(child) < count for child in (*left, *right))
    if not valid or count == 0:
        raise InvalidPayload("The tree's branches lead nowhere.", code="PICTURE_ARRAYS")
    drawing, note = draw_tree(left, right, name, threshold, value, gain)
    rows = [
        [
            place,
            name(place) if int(left[place]) >= 0 else "",
            plain(threshold[place]) if int(left[place]) >= 0 else None,
            int(left[place]) if int(left[place]) >= 0 else None,
            int(right[place]) if int(right[place]) >= 0 else None,
            plain(gain[place]) if gain is not None and len(gain) == count else None,
            plain(value[place]) if int(left[place]) < 0 else None,
        ]
        for place in range(count)
    ]
    columns = ["node", "feature", "less than", "then", "else", "gain", "leaf value"]
    return Shown(drawings=[("", drawing)], numbers=Numbers(columns=columns, rows=rows), note=note)


_KINDS: dict[str, Callable[[dict[str, Any], Any], Shown]] = {
    "matrix": _matrix,
    "table": _table,
    "series": _series,
    "graph": _graph,
    "tree": _tree,
}
