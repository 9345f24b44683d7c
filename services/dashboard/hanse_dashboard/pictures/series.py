"""Lines over a common x."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from hanse_dashboard.pictures.svg import line, nice_ticks, path, picture, shorten, text, title
from hanse_dashboard.words import number

__all__ = ["draw_series"]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 860.0, 320.0, 64.0, 40.0
_CLASSES = ("curve-pooled", "curve-unseen", "curve-aggregation", "curve-node")


def draw_series(x: NDArray[np.float64], lines: Mapping[str, NDArray[np.float64]], x_title: str) -> Markup:
    """Gaps where a line has no number."""
    values = np.concatenate([values[np.isfinite(values)] for values in lines.values()])
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    begin, end = (float(x.min()), float(x.max())) if x.size else (0.0, 1.0)
    end = end if end > begin else begin + 1.0

    def place(at: float, value: float) -> tuple[float, float]:
        across = _LEFT + (at - begin) / (end - begin) * (_WIDTH - _LEFT - 140)
        return across, _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _BOTTOM - 14)

    shapes = []
    for tick in nice_ticks(low, high, 5):
        _, y = place(begin, tick)
        shapes.append(line(_LEFT, y, _WIDTH - 140, y, class_="gridline"))
        shapes.append(text(_LEFT - 8, y + 4, number(tick), class_="axis", text_anchor="end"))
    shapes += [
        text(place(tick, low)[0], _HEIGHT - 22, number(tick), class_="axis", text_anchor="middle")
        for tick in nice_ticks(begin, end, 8)
    ]
    shapes.append(text((_LEFT + _WIDTH - 140) / 2, _HEIGHT - 4, x_title, class_="axis", text_anchor="middle"))
    ends: list[tuple[float, float, str]] = []
    for order, (name, numbers) in enumerate(lines.items()):
        points = [place(float(at), float(value)) for at, value in zip(x, numbers, strict=True) if np.isfinite(value)]
        if not points:
            continue
        kind = _CLASSES[order % len(_CLASSES)]
        shapes.append(path(points, class_=f"curve {kind}"))
        ends.append((points[-1][1], points[-1][0] + 8, shorten(name, 20)))
        if len(points) == 1:
            shapes.append(line(*points[0], *points[0], title(name), class_=f"dot {kind}"))
    below = float("-inf")
    for y, end_x, name in sorted(ends):  # names of lines that end together stand under each other
        below = max(y + 4, below + 14)
        shapes.append(text(end_x, below, name, class_="label"))
    return picture(_WIDTH, max(_HEIGHT, below + 8), shapes, label=f"Lines over {x_title}", kind="series")
