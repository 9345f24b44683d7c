"""A few functions that write SVG. Everything that is put in is escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

__all__ = ["el", "group", "line", "nice_ticks", "path", "picture", "rect", "text", "title"]

Attribute = str | float | int | None


def el(name: str, children: Iterable[Markup | str] = (), **attributes: Attribute) -> Markup:
    """An element; `class_` writes `class`, underscores become hyphens, None leaves an attribute out."""
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is not None:
            word = key.rstrip("_").replace("_", "-") if key != "viewBox" else key
            shown = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
            parts.append(f' {word}="{escape(shown)}"')
    inner = "".join(str(escape(child)) for child in children)
    parts.append(f">{inner}</{name}>" if inner else "/>")
    return Markup("".join(parts))  # noqa: S704 - every part was escaped above


def picture(width: float, height: float, children: Iterable[Markup], *, label: str, kind: str = "") -> Markup:
    """A whole drawing with a name for those who cannot see it."""
    return el(
        "svg",
        children,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=round(width),
        height=round(height),
        role="group",
        aria_label=label,
        class_=f"picture {kind}".strip(),
    )


def rect(x: float, y: float, width: float, height: float, *children: Markup, **attributes: Attribute) -> Markup:
    """A rectangle; of no width it would not be seen, so it gets at least half a pixel."""
    return el("rect", children, x=x, y=y, width=max(width, 0.5), height=max(height, 0.5), **attributes)


def line(x1: float, y1: float, x2: float, y2: float, *children: Markup, **attributes: Attribute) -> Markup:
    """A straight line."""
    return el("line", children, x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def text(x: float, y: float, words: str, **attributes: Attribute) -> Markup:
    """Words at a place."""
    return el("text", [words], x=x, y=y, **attributes)


def title(words: str) -> Markup:
    """What is shown when the pointer rests on an element."""
    return el("title", [words])


def group(children: Iterable[Markup], **attributes: Attribute) -> Markup:
    """Some elements together."""
    return el("g", children, **attributes)


def path(points: Sequence[tuple[float, float]], **attributes: Attribute) -> Markup:
    """A line through points."""
    steps = " ".join(f"{'L' if place else 'M'}{x:.1f} {y:.1f}" for place, (x, y) in enumerate(points))
    return el("path", (), d=steps, fill="none", **attributes)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers between two values, both ends inside."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    raw = (high - low) / max(count, 1)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def shorten(words: str, most: int) -> str:
    """Words that fit; the title has the whole."""
    return words if len(words) <= most else words[: most - 1] + "…"
