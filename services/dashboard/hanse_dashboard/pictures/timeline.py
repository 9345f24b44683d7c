"""A round as it went: time at work apart from time waiting for others; quorum, median and deadline."""

from __future__ import annotations

from collections.abc import Callable

from markupsafe import Markup

from hanse_dashboard.pictures.svg import el, line, nice_ticks, picture, rect, shorten, text, title
from hanse_dashboard.queries.rounds import Bar, PhaseBlock, RoundDetail
from hanse_dashboard.words import amount, span, state

__all__ = ["draw_timeline"]

_WIDTH, _LABEL, _TOP, _ROW = 980.0, 150.0, 44.0, 24.0


def draw_timeline(detail: RoundDetail, now: float, node_link: Callable[[str], str]) -> Markup:
    """A row a node, the slowest on top, and one for the aggregation at the bottom."""
    begin = detail.opened_at
    end = max([detail.closed_at or now, *(block.closed_at or begin for block in detail.phases), begin + 0.001])
    scale = (_WIDTH - _LABEL - 16) / (end - begin)
    rows = {node: _TOP + index * _ROW for index, node in enumerate(detail.nodes)}
    bottom = _TOP + len(rows) * _ROW
    height = bottom + _ROW + 30

    def at(moment: float) -> float:
        return _LABEL + (min(max(moment, begin), end) - begin) * scale

    shapes = _axis(begin, end, at, height)
    for node, y in rows.items():
        label = text(_LABEL - 10, y + 16, shorten(node, 18), class_="label", text_anchor="end")
        shapes.append(el("a", [title(node), label], href=node_link(node)))
        shapes.append(line(_LABEL, y + _ROW - 1, _WIDTH - 16, y + _ROW - 1, class_="rule"))
    shapes.append(text(_LABEL - 10, bottom + 16, "aggregation", class_="label faint", text_anchor="end"))
    for place, block in enumerate(detail.phases):
        shapes += _phase(block, place, rows, bottom, at, end)
    return picture(_WIDTH, height, shapes, label=f"Timeline of round {detail.number}", kind="timeline")


def _axis(begin: float, end: float, at: Callable[[float], float], height: float) -> list[Markup]:
    shapes = []
    for tick in nice_ticks(0.0, end - begin, 6):
        x = at(begin + tick)
        shapes.append(line(x, _TOP - 4, x, height - 24, class_="gridline"))
        shapes.append(text(x, height - 8, span(tick) if tick else "0", class_="axis", text_anchor="middle"))
    return shapes


def _phase(
    block: PhaseBlock, place: int, rows: dict[str, float], bottom: float, at: Callable[[float], float], end: float
) -> list[Markup]:
    x, closed = at(block.opened_at), at(block.closed_at or end)
    word = block.name + (f" ({block.attempt}. try)" if block.attempt > 1 else "")
    most = max(3, int((closed - x) / 6.5))
    heading = text(x + 3, _TOP - 14 - (place % 2) * 14, shorten(word, max(most, 10)), class_="phase")
    shapes = [line(x, _TOP - 8, x, bottom + _ROW, class_="boundary"), heading]
    waits_until = block.last_answer_at or end
    for bar in block.bars:
        shapes += _bar(bar, block, rows[bar.node], at, end, waits_until)
    if block.last_answer_at and block.state in ("closed", "aggregating"):
        until = block.closed_at or end
        tip = title(f"{block.name}: combined in {span(until - block.last_answer_at)}")
        x1 = at(block.last_answer_at)
        shapes.append(rect(x1, bottom + 5, at(until) - x1, _ROW - 10, tip, rx=2, class_="aggregation"))
    if block.quorum_at:
        tip = title(f"{block.name}: quorum of {block.quorum} reached after {span(block.quorum_at - block.opened_at)}")
        q = at(block.quorum_at)
        shapes.append(line(q, _TOP - 2, q, bottom, tip, class_="quorum"))
    if block.median_seconds:
        m = at(block.opened_at + block.median_seconds)
        tip = title(f"{block.name}: the median node took {span(block.median_seconds)}")
        shapes.append(line(m, _TOP - 2, m, bottom, tip, class_="median"))
    if block.deadline_at and block.deadline_at <= end:
        d = at(block.deadline_at)
        shapes.append(line(d, _TOP - 8, d, bottom, title(f"{block.name}: deadline"), class_="deadline"))
    return shapes


def _bar(
    bar: Bar, block: PhaseBlock, y: float, at: Callable[[float], float], end: float, waits_until: float
) -> list[Markup]:
    shown = state(bar.state)
    start, stop = at(bar.offered_at), at(bar.ended_at or end)
    words = f"{bar.node}, {block.name}: {shown.word}"
    if bar.seconds is not None:
        words += f" after {span(bar.seconds)}"
    if bar.bytes is not None:
        words += f", {amount(bar.bytes)}"
    if bar.slow:
        words += ", more than twice the median"
    if bar.reason:
        words += f". {bar.reason.sentence}"
    tone = "warn" if bar.slow and shown.tone in ("good", "live") else shown.tone
    shapes = [rect(start, y + 5, stop - start, _ROW - 11, title(words), rx=2, class_=f"solid-{tone}")]
    if bar.ended_at and at(waits_until) - stop > 1:
        tip = title(f"{bar.node}: waits {span(waits_until - bar.ended_at)} for the others")
        shapes.append(rect(stop, y + 10, at(waits_until) - stop, 3, tip, class_="waiting"))
    return shapes
