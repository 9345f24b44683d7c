"""Metrics over rounds, as shapes for those without script and as columns for the chart that replaces them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from hanse_dashboard.pictures.svg import line, nice_ticks, path, picture, text, title
from hanse_dashboard.queries.metrics import Curve
from hanse_dashboard.words import number

__all__ = ["chart_data", "curve_name", "draw_curves"]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 640.0, 260.0, 56.0, 28.0, 14.0, 12.0
_MOST_NODES = 60


def curve_name(curve: Curve) -> str:
    """What a curve is of."""
    return {"pooled": "all training nodes", "unseen": "unseen nodes", "aggregation": "aggregation"}.get(
        curve.scope, curve.node
    )


def draw_curves(curves: Sequence[Curve], label: str) -> Markup:
    """Lines over rounds; nodes thin, the whole thick."""
    shown = [curve for curve in curves if curve.values][:_MOST_NODES]
    if not shown:
        return Markup("")
    low = min(min(curve.values) for curve in shown)
    high = max(max(curve.values) for curve in shown)
    if high - low < 1e-12 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    first = min(curve.rounds[0] for curve in shown)
    last = max(max(curve.rounds[-1] for curve in shown), first + 1)

    def x(value: float) -> float:
        return _LEFT + (value - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _BOTTOM - _TOP)

    shapes = []
    for tick in nice_ticks(low, high, 4):
        shapes.append(line(_LEFT, y(tick), _WIDTH - _RIGHT, y(tick), class_="gridline"))
        shapes.append(text(_LEFT - 8, y(tick) + 4, number(tick), class_="axis", text_anchor="end"))
    shapes += [
        text(x(tick), _HEIGHT - 8, str(int(tick)), class_="axis", text_anchor="middle")
        for tick in nice_ticks(first, last, 8)
        if tick == int(tick)
    ]
    for curve in sorted(shown, key=lambda curve: curve.scope != "node"):
        points = [(x(n), y(v)) for n, v in zip(curve.rounds, curve.values, strict=True)]
        shapes.append(path(points, class_=f"curve curve-{curve.scope}"))
        shapes += [
            line(
                px, py, px, py, title(f"{curve_name(curve)}, round {n}: {number(v)}"), class_=f"dot curve-{curve.scope}"
            )
            for (px, py), n, v in zip(points, curve.rounds, curve.values, strict=True)
            if curve.scope != "node"
        ]
    return picture(_WIDTH, _HEIGHT, shapes, label=label, kind="curves")


def chart_data(curves: Sequence[Curve]) -> dict[str, Any]:
    """Columns for the chart: rounds, then one list of values a curve, null where it has none."""
    shown = list(curves)[:_MOST_NODES]
    rounds = sorted({number for curve in shown for number in curve.rounds})
    lines = []
    for curve in shown:
        values = dict(zip(curve.rounds, curve.values, strict=True))
        lines.append(
            {
                "name": curve_name(curve),
                "scope": curve.scope,
                "values": [v if v is None or math.isfinite(v) else None for v in map(values.get, rounds)],
            }
        )
    return {"rounds": rounds, "lines": lines}
