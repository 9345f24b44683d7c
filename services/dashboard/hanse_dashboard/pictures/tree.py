"""A decision tree from left to right: yes goes up, no goes down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from markupsafe import Markup
from numpy.typing import NDArray

from hanse_dashboard.pictures.svg import el, group, picture, rect, shorten, text, title
from hanse_dashboard.words import number

__all__ = ["draw_tree"]

_MOST, _STEP, _ROW, _BOX = 511, 200.0, 30.0, 158.0


def draw_tree(
    left: NDArray[Any],
    right: NDArray[Any],
    name: Callable[[int], str],
    threshold: NDArray[Any],
    value: NDArray[Any],
    gain: NDArray[Any] | None,
) -> tuple[Markup, str]:
    """Splits with their question, leaves with their value."""
    places: dict[int, tuple[float, float]] = {}
    order: list[int] = []
    leaves = 0
    depth = 0
    # Children before parents, without recursion: a damaged tree must not exhaust the stack.
    stack: list[tuple[int, int, bool]] = [(0, 0, False)]
    seen: set[int] = set()
    while stack and len(order) < _MOST:
        node, level, done = stack.pop()
        low, high = int(left[node]), int(right[node])
        if low < 0 or high < 0:
            places[node] = (level * _STEP + 8, leaves * _ROW + 8)
            leaves += 1
            order.append(node)
        elif done:
            ys = [places[child][1] for child in (low, high) if child in places]
            places[node] = (level * _STEP + 8, sum(ys) / len(ys) if ys else leaves * _ROW)
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack += [(node, level, True), (high, level + 1, False), (low, level + 1, False)]
        depth = max(depth, level)
    shapes = [_branches(node, places, int(left[node]), int(right[node])) for node in order if int(left[node]) >= 0]
    for node in order:
        x, y = places[node]
        if int(left[node]) < 0:
            shapes.append(_leaf(x, y, float(value[node])))
        else:
            saved = f", saved {number(float(gain[node]))}" if gain is not None and len(gain) > node else ""
            shapes.append(_split(x, y, name(node), float(threshold[node]), saved))
    note = f"Drawn are {len(order)} of {len(left)} places." if len(order) < len(left) else ""
    size = ((depth + 1) * _STEP + 10, max(leaves, 1) * _ROW + 16)
    return picture(*size, shapes, label="Decision tree", kind="tree"), note


def _branches(node: int, places: dict[int, tuple[float, float]], low: int, high: int) -> Markup:
    x, y = places[node]
    lines = []
    for child in (low, high):
        if child in places:
            cx, cy = places[child]
            start, middle = x + _BOX, (x + _BOX + cx) / 2
            d = f"M{start:.1f} {y + 11:.1f}C{middle:.1f} {y + 11:.1f} {middle:.1f} {cy + 11:.1f} {cx:.1f} {cy + 11:.1f}"
            lines.append(el("path", [title("yes" if child == low else "no")], d=d, class_="branch"))
    return group(lines)


def _split(x: float, y: float, name: str, threshold: float, saved: str) -> Markup:
    words = f"{name} < {number(threshold)}"
    return group(
        [
            rect(x, y, _BOX, 22, title(f"{words}{saved}"), class_="vertex", rx=5),
            text(x + _BOX / 2, y + 15, shorten(words, 23), class_="label", text_anchor="middle"),
        ]
    )


def _leaf(x: float, y: float, value: float) -> Markup:
    return group(
        [
            rect(x, y, 78, 22, title(f"leaf: {value:.6g}"), class_="leaf", rx=11),
            text(x + 39, y + 15, number(value), class_="label", text_anchor="middle"),
        ]
    )
