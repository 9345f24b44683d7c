"""A cell of the table twice: through the harness, and as a real federation. The bytes are the same."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from federations import Running, federation
from fedscs_data import MemoryDataset, folds, load, with_columns
from fedscs_methods import Setting, job_of

from hanse.harness import Harness, HarnessResult

SETTING = Setting(classes=19, bins=64, rounds=3, depth=4, eta=0.3)


def compare(data: Path, statistics: tuple[str, ...] = ("atoms", "histograms")) -> list[dict[str, Any]]:
    """dsads_har by its 45 columns of means, time split, 64 bins, 3 rounds: are contributions and model the same?"""
    fold = next(folds(with_columns(load("dsads_har", data), "mean"), "time"))
    datasets: Mapping[str, Any] = {name: MemoryDataset(table) for name, table in fold.tables.items()}
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="hanse-") as folder,
        federation(Path(folder), fold.tables) as running,
    ):
        for kind in statistics:
            job = job_of(fold, SETTING, kind)
            harness = Harness("fedscs_xgb", datasets, job).run()
            detail = running.run(job)
            rows.append(
                {
                    "statistics": kind,
                    "contributions": len(harness.contributions),
                    "same_contributions": _contributions(running, detail.job.id) == _expected(harness),
                    "same_model": detail.model_digest == harness.model_digest.hex(),
                    "model": harness.model_digest.hex()[:16],
                }
            )
    return rows


def _contributions(running: Running, job: str) -> list[tuple[str, int, str, str]]:
    return running.ask(
        "SELECT phase.name, phase.round, contribution.node, contribution.digest FROM contribution "
        "JOIN phase ON phase.id = contribution.phase WHERE contribution.job = ? "
        "ORDER BY phase.ordinal, contribution.node",
        job,
    )


def _expected(harness: HarnessResult) -> list[tuple[str, int, str, str]]:
    return [(phase, number, node, digest.hex()) for phase, number, node, digest in harness.contributions]
