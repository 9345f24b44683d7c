"""The Fed-GAME benchmark's rows as a table, and the paired ratios that its targets are about."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from fedgame_methods import ABLATION, METHODS

PUBLISHED = "published (another data set, Shenzhen, unseen zones, 6 steps): QS 54 % better than no federation"
TARGETS = (
    ("fedgame", "fedavg", 0.95),
    ("fedgame", "fedavg_head", 1.06),
    ("fedgame", "local", 1.00),
    ("fedgame_fedadam", "fedadam", 1.03),
)

Rows = Sequence[dict[str, Any]]


def table(rows: Rows) -> str:
    """Means over seeds by cell and method; ± is the standard deviation over seeds."""
    order = {name: place for place, name in enumerate([*METHODS, *ABLATION])}
    lines = [
        "dataset        horizon weeks stations method                "
        "QS x 1000        ICP %   |ICP-90|  MIL      QS kWh   QS median x 1000  seeds"
    ]
    groups = sorted(
        {(*_place(row), row["method"]) for row in rows},
        key=lambda g: (g[0], g[1], g[2], not g[3], order.get(g[4], 99)),
    )
    before: tuple[Any, ...] = ()
    for *place, method in groups:
        own = [row for row in rows if _place(row) == tuple(place) and row["method"] == method]
        if before and before != tuple(place):
            lines.append("")
        before = tuple(place)
        dataset, horizon, weeks, seen = place
        qs = [1000 * row["qs"] for row in own]
        deviation = f" ± {statistics.stdev(qs):.2f}" if len(qs) > 1 else ""
        mean = {k: statistics.fmean(row[k] for row in own) for k in ("icp", "icp_gap", "mil", "qs_original")}
        median = 1000 * statistics.fmean(row["qs_median"] for row in own)
        lines.append(
            f"{dataset:<15}{horizon:>4}  {'all' if weeks > 900 else weeks:>5}  {'seen' if seen else 'unseen':<9}"
            f"{method:<22}{statistics.fmean(qs):>7.2f}{deviation:<9}{mean['icp']:>7.1f}{mean['icp_gap']:>9.1f}"
            f"{mean['mil']:>10.4f}{mean['qs_original']:>9.3f}{median:>12.2f}{len(own):>10}"
        )
    return "\n".join(lines)


def ratios(rows: Rows) -> str:
    """QS of one method over that of another in the same cell and seed: mean, least and greatest over seeds."""
    values = {(_place(row), row["method"], row["seed"]): row["qs"] for row in rows}
    lines = ["paired ratios of QS (mean, and least to greatest over seeds)"]
    for place in sorted({place for place, _, _ in values}, key=lambda p: (p[0], p[1], p[2], not p[3])):
        for method, rival, target in TARGETS:
            pairs = [
                value / values[(place, rival, seed)]
                for (at, name, seed), value in values.items()
                if at == place and name == method and (place, rival, seed) in values
            ]
            if not pairs:
                continue
            dataset, horizon, weeks, seen = place
            mean = statistics.fmean(pairs)
            lines.append(
                f"{dataset:<15}{horizon:>4}  {'all' if weeks > 900 else weeks:>5}  {'seen' if seen else 'unseen':<9}"
                f"{method + ' / ' + rival:<28}{mean:>7.3f}  ({min(pairs):.3f} to {max(pairs):.3f})   at most "
                f"{target:.2f}: {'yes' if mean <= target else 'NO'}"
            )
    return "\n".join([*lines, PUBLISHED])


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    weeks = row["history_weeks"]
    return row["dataset"], row["horizon"], 999 if weeks is None else weeks, row["seen"]
