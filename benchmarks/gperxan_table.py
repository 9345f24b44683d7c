"""The image benchmark's rows as a table, and what XAN costs beside FedAvg."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

METHODS = "gperxan xan in_only bn_regularised fedavg fedprox fedbn feddg_ga local central".split()
READOUTS = "gperxan_readouts"
"""gPerXAN itself, read in all ways."""
ABLATION = (
    f"{READOUTS} gperxan_lambda_0.25 gperxan_lambda_1 gperxan_scores_4_0 gperxan_scores_0_4 gperxan_first_layer "
    "gperxan_two_layers gperxan_moments gperxan_global_scores gperxan_standard fedavg_guided"
).split()
NOT_RUN = {
    "copa": "every node receives every node's classifier and BN, O(C^2); its read-out alone is client_ensemble",
    "elcfs": "nodes exchange amplitude spectra of their images, which leave the site as data",
    "ccst": "nodes exchange styles of their images (statistics of feature maps), which leave the site as data",
}
"""Methods of the paper's comparison that are not here, and why."""

Rows = Sequence[dict[str, Any]]


def table(rows: Rows, *, absent: bool = True) -> str:
    """Mean and standard deviation over seeds, by method and domain; the last column is the mean over domains.

    `absent`: with a line for each method that is not run.
    """
    domains = sorted({row["unseen"] for row in rows})
    order = {name: place for place, name in enumerate([*METHODS, *ABLATION])}
    lines = ["method                  unseen_bn        " + "".join(f"{d:>16}" for d in domains) + f"{'mean':>16}"]
    keys = {(row["method"], row["unseen_bn"]) for row in rows}
    for method, reading in sorted(keys, key=lambda key: (order.get(key[0], 99), key[1])):
        own = [row for row in rows if (row["method"], row["unseen_bn"]) == (method, reading)]
        cells = [spread([row["accuracy"] for row in own if row["unseen"] == d]) for d in domains]
        by_seed = [
            statistics.fmean(values)
            for seed in sorted({row["seed"] for row in own})
            if len(values := [row["accuracy"] for row in own if row["seed"] == seed]) == len(domains)
        ]
        lines.append(f"{method:<24}{reading:<17}" + "".join(f"{c:>16}" for c in [*cells, spread(by_seed)]))
    if absent:
        lines += [f"{method:<24}not run: {why}" for method, why in NOT_RUN.items()]
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation; of a single value there is none."""
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean


def cost(rows: Rows) -> str:
    """The extra bytes and time of XAN against plain FedAvg: medians over the cells (domain, seed) that both have."""
    lines = []
    for method in ("gperxan", "xan"):
        mine, plain = _cells(rows, method), _cells(rows, "fedavg")
        both = sorted(mine.keys() & plain.keys())
        shares = []
        for key, word in TIMES_AND_BYTES.items():
            pairs = [(mine[cell][key], plain[cell][key]) for cell in both if key in mine[cell] and key in plain[cell]]
            if pairs and (base := statistics.median(pair[1] for pair in pairs)):
                share = 100 * (statistics.median(pair[0] for pair in pairs) / base - 1)
                shares.append(f"{share:+.1f} % {word}")
        if shares:
            lines.append(f"{method} against fedavg: {', '.join(shares)} (medians over {len(both)} cells)")
    return "\n".join(lines)


TIMES_AND_BYTES = {
    "bytes_per_round": "bytes a round",
    "processor_seconds_per_round": "processor time a round",
    "seconds_per_round": "wall time a round",
}


def _cells(rows: Rows, method: str) -> dict[tuple[str, str, int], dict[str, Any]]:
    """One row a cell: its ways of reading share training, bytes and time."""
    return {(row["dataset"], row["unseen"], row["seed"]): row for row in rows if row["method"] == method}
