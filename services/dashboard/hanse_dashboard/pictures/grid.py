"""Rounds and nodes: one look tells a node that is always late from a round that broke."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup, escape

from hanse_dashboard.pictures.svg import el, picture, shorten, text, title
from hanse_dashboard.queries.rounds import Cell, Grid
from hanse_dashboard.words import span, state

__all__ = ["draw_grid"]

_LABEL, _TOP, _ROW, _WIDEST = 150.0, 26.0, 22.0, 34.0
_MARKS = {"bad": "×", "warn": "!", "idle": "–", "wait": "·"}


def draw_grid(grid: Grid, link: Callable[[int], str], node_link: Callable[[str], str]) -> Markup:
    """A column a round, a row a node; a bar in each cell tells how long the node worked."""
    columns = max(len(grid.rounds), 1)
    width = min(_WIDEST, max(16.0, 780.0 / columns))
    place = {number: _LABEL + index * width for index, number in enumerate(grid.rounds)}
    row = {node: _TOP + index * _ROW for index, node in enumerate(grid.nodes)}
    every = max(1, round(40 / width))
    shapes = [
        el(
            "a",
            [text(x + width / 2, _TOP - 9, str(number), class_="axis", text_anchor="middle")],
            href=link(number),
            aria_label=f"Round {number}",
        )
        for number, x in place.items()
        if number in _named(grid.rounds, every)
    ]
    for node, y in row.items():
        words = shorten(node, 18) + (" ○" if node in grid.unseen else "")
        tip = f"{node} (unseen: never trains)" if node in grid.unseen else node
        label = text(_LABEL - 10, y + 15, words, class_="label", text_anchor="end")
        shapes.append(el("a", [title(tip), label], href=node_link(node), tabindex=-1))
    columns_of: dict[int, list[str]] = {}
    for cell in grid.cells:
        columns_of.setdefault(cell.round, []).append(_cell(cell, place[cell.round], row[cell.node], width))
    shapes += [
        el("a", [Markup("".join(drawn))], href=link(number), tabindex=-1, aria_label=f"Round {number}")  # noqa: S704 - escaped in `_cell`
        for number, drawn in columns_of.items()
    ]
    total = _LABEL + columns * width + 4
    return picture(
        total,
        _TOP + len(grid.nodes) * _ROW + 6,
        shapes,
        label=f"{len(grid.nodes)} nodes in rounds {grid.rounds[0]} to {grid.rounds[-1]}"
        if grid.rounds
        else "No rounds yet",
        kind="grid",
    )


def _named(rounds: Sequence[int], every: int) -> set[int]:
    """Which rounds get their number: every so many, and the ends where they have room."""
    named = [number for number in rounds if number % every == 0]
    ends = [end for end in (rounds[0], rounds[-1]) if all(abs(end - number) >= every for number in named)]
    return {*named, *ends}


def _cell(cell: Cell, x: float, y: float, width: float) -> str:
    """Written by hand: there are thousands of them on a page."""
    shown = state(cell.state)
    inner, height = width - 3, _ROW - 3
    bar = max(2.0, cell.share * height)
    words = f", {span(cell.seconds)} at work" if cell.seconds else ""
    tip = escape(f"{cell.node}, round {cell.round}: {shown.word}{words}")
    mark = _MARKS.get(shown.tone, "")
    if mark:
        place = f'x="{x + inner / 2:.1f}" y="{y + height / 2 + 4.5:.1f}"'
        mark = f'<text {place} class="mark" text-anchor="middle">{mark}</text>'
    return (
        f'<g><title>{tip}</title><rect x="{x:.1f}" y="{y:.0f}" width="{inner:.1f}" height="{height:.0f}"'
        f' class="soft-{shown.tone}"/><rect x="{x:.1f}" y="{y + height - bar:.1f}" width="{inner:.1f}"'
        f' height="{bar:.1f}" class="solid-{shown.tone}"/>{mark}</g>'
    )
