"""Numbers in rows and columns as shades; and one column as bars."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from hanse_dashboard.pictures.svg import el, line, picture, rect, shorten, text, title
from hanse_dashboard.words import number

__all__ = ["draw_bars", "draw_matrix"]

_MOST_ROWS, _MOST_COLUMNS, _MOST_BARS = 60, 96, 30
_MOST_TOLD = 12
"""With so few columns, each cell says its number as well."""


def draw_matrix(
    values: NDArray[np.float64], rows: Sequence[str], columns: Sequence[str], column_title: str
) -> tuple[Markup, str]:
    """The darker, the farther from zero (by the square root, so that one large value does not drown the others)."""
    shown = values[:_MOST_ROWS, :_MOST_COLUMNS]
    label = 12.0 + 6.6 * min(24, max((len(row) for row in rows[:_MOST_ROWS]), default=4))
    width = min(46.0, max(9.0, 820.0 / max(shown.shape[1], 1)))
    height = 20.0
    told = shown.shape[1] <= _MOST_TOLD
    if told:
        width, height = 62.0, 26.0
    upright = width < 40 or max((len(c) for c in columns[:_MOST_COLUMNS]), default=0) * 7 > width
    longest = max((len(c) for c in columns[:_MOST_COLUMNS]), default=0)
    top = 24.0 + (min(longest, 18) * 6.2 if upright and longest > 3 else 10.0)
    finite = shown[np.isfinite(shown)]
    most = float(np.abs(finite).max()) if finite.size else 0.0
    shapes = [text(label, 13, column_title, class_="axis")] if column_title else []
    every = max(1, math.ceil(14 / width))
    for place, name in enumerate(columns[: shown.shape[1]]):
        if place % every == 0:
            x = label + place * width + width / 2
            turn = f"rotate(-90 {x + 4:.1f} {top - 8:.1f})" if upright and longest > 3 else None
            anchor = "start" if turn else "middle"
            shift = 4.0 if turn else 0.0
            words = shorten(name, 18)
            shapes.append(text(x + shift, top - 8, words, class_="axis", text_anchor=anchor, transform=turn))
    for place, name in enumerate(rows[: shown.shape[0]]):
        y = top + place * height
        shapes.append(
            el(
                "text",
                [title(name), shorten(name, 24)],
                x=label - 8,
                y=y + height / 2 + 4,
                class_="label",
                text_anchor="end",
            )
        )
        for column, value in enumerate(shown[place]):
            if not math.isfinite(value):
                continue
            share = math.sqrt(abs(float(value)) / most) if most else 0.0
            tip = title(f"{name}, {columns[column]}: {number(float(value))}")
            shade = "heat-negative" if value < 0 else "heat"
            cell = rect(
                label + column * width,
                y,
                width - 1,
                height - 1,
                tip,
                class_=shade,
                fill_opacity=round(0.04 + 0.96 * share, 3),
            )
            shapes.append(cell)
            if told:
                place_x, place_y = label + column * width + (width - 1) / 2, y + height / 2 + 3.5
                on = "heat-text-on" if share > 0.55 else "heat-text"
                shapes.append(text(place_x, place_y, number(float(value)), class_=on, text_anchor="middle"))
    total = (label + shown.shape[1] * width + 6, top + shown.shape[0] * height + 6)
    note = ""
    if shown.shape != values.shape:
        note = (
            f"Drawn are {shown.shape[0]} of {values.shape[0]} rows and {shown.shape[1]} of {values.shape[1]} columns."
        )
    scale = f"Full shade is {number(most)}; shades grow with the square root."
    return picture(*total, shapes, label="Heat map", kind="matrix"), f"{note} {scale}".strip()


def draw_bars(labels: Sequence[str], values: NDArray[np.float64], name: str) -> tuple[Markup, str]:
    """One bar a row, in the order of the table."""
    shown = [float(value) if math.isfinite(value) else 0.0 for value in values[:_MOST_BARS]]
    label = 14.0 + 6.8 * min(28, max((len(text_) for text_ in labels[:_MOST_BARS]), default=4))
    low, high = min([0.0, *shown]), max([0.0, *shown])
    span = (high - low) or 1.0
    room = 860.0 - label - 80
    zero = label + (0.0 - low) / span * room
    shapes = [line(zero, 4, zero, 10 + len(shown) * 22, class_="boundary")]
    for place, value in enumerate(shown):
        y = 8.0 + place * 22
        length = value / span * room
        words = labels[place]
        shapes.append(
            el("text", [title(words), shorten(words, 28)], x=label - 10, y=y + 13, class_="label", text_anchor="end")
        )
        shapes.append(
            rect(min(zero, zero + length), y, abs(length), 16, title(f"{words}: {number(value)}"), class_="bar", rx=2)
        )
        shapes.append(text(max(zero, zero + length) + 7, y + 13, number(value), class_="axis"))
    note = f"Drawn are the first {_MOST_BARS} of {len(values)} rows." if len(values) > _MOST_BARS else ""
    return picture(860.0, 16.0 + len(shown) * 22, shapes, label=f"Bars of {name}", kind="bars"), note
