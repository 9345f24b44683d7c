"""Who learns from whom: nodes on a circle, and a line for each weight."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from hanse_dashboard.pictures.svg import el, picture, shorten, text, title
from hanse_dashboard.words import number

__all__ = ["draw_graph"]

_MOST_EDGES, _MOST_NODES, _SIZE = 400, 60, 560.0


def draw_graph(weights: NDArray[np.float64], names: Sequence[str]) -> tuple[Markup, str]:
    """The heavier, the thicker. A node's weight for itself is not drawn as a line."""
    count = min(len(names), _MOST_NODES)
    centre, radius = _SIZE / 2, _SIZE / 2 - 90
    places = [
        (
            centre + radius * math.sin(2 * math.pi * place / max(count, 1)),
            centre - radius * math.cos(2 * math.pi * place / max(count, 1)),
        )
        for place in range(count)
    ]
    part = np.where(np.isfinite(weights[:count, :count]), weights[:count, :count], 0.0).copy()
    np.fill_diagonal(part, 0.0)
    order = np.argsort(-np.abs(part), axis=None, kind="stable")[:_MOST_EDGES]
    most = float(np.abs(part).max()) or 1.0
    shapes = []
    drawn = 0
    for flat in order[::-1]:
        i, j = divmod(int(flat), count)
        weight = float(part[i, j])
        if weight == 0.0:
            continue
        drawn += 1
        (x1, y1), (x2, y2) = places[i], places[j]
        share = abs(weight) / most
        bend_x, bend_y = (
            (x1 + x2) / 2 + (centre - (x1 + x2) / 2) * 0.35,
            (y1 + y2) / 2 + (centre - (y1 + y2) / 2) * 0.35,
        )
        shapes.append(
            el(
                "path",
                [title(f"{names[i]} to {names[j]}: {number(weight)}")],
                d=f"M{x1:.1f} {y1:.1f}Q{bend_x:.1f} {bend_y:.1f} {x2:.1f} {y2:.1f}",
                class_="edge",
                stroke_width=round(0.6 + 4.4 * share, 2),
                stroke_opacity=round(0.12 + 0.78 * share, 2),
            )
        )
    for place, (x, y) in enumerate(places):
        right = x >= centre - 1
        shapes.append(el("circle", [title(names[place])], cx=x, cy=y, r=7, class_="vertex"))
        shift = 12.0 if right else -12.0
        anchor = "start" if right else "end"
        shapes.append(text(x + shift, y + 4, shorten(names[place], 14), class_="label", text_anchor=anchor))
    total = int(np.count_nonzero(part))
    note = f"Drawn are the {drawn} heaviest of {total} lines." if drawn < total else ""
    if count < len(names):
        note = f"Drawn are {count} of {len(names)} nodes. {note}".strip()
    return picture(_SIZE, _SIZE, shapes, label="Graph", kind="graph"), note
