"""What compression of weight deltas saves, and what it costs in accuracy, on a real task.

    python benchmarks/compression.py --data FOLDER [--rounds 20] [--seeds 3] [--json]

Activities of daily living from wearables (Daily and Sports Activities, UCI, CC BY 4.0), one subject a node, segments 1
to 48 for training and 49 to 60 for testing; `FOLDER` holds `dsads_features.npz`. The model is a softmax classifier with
one hidden layer in plain NumPy, the method Hanse's own averaging; plug-in and learners run in one process on real
payloads. Bytes are those of the payloads that leave a node in a training phase.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))
from reference.install import install

from hanse.harness import Harness
from hanse.jobs import EvaluationSettings, JobSpecification, Selection
from hanse.method import DatasetDescription
from hanse.tables import Table

METHOD = "reference_averaging"
HIDDEN = 64
TRAINING = {"learning_rate": 0.1, "local_epochs": 2, "batch_size": 32}
SCHEMES: dict[str, dict[str, Any]] = {
    "none": {},
    "zstd": {"lossless": True},
    "bf16": {"scheme": "bf16"},
    "bf16, no feedback": {"scheme": "bf16", "error_feedback": False},
    "int8": {"scheme": "int8"},
    "int8, no feedback": {"scheme": "int8", "error_feedback": False},
    "top-k 5 %": {"scheme": "top_k", "keep": 0.05},
    "top-k 5 %, no feedback": {"scheme": "top_k", "keep": 0.05, "error_feedback": False},
    "top-k 1 %": {"scheme": "top_k", "keep": 0.01},
    "top-k 1 %, no feedback": {"scheme": "top_k", "keep": 0.01, "error_feedback": False},
}


class Subject:
    """One person's windows as a dataset."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def describe(self) -> DatasetDescription:
        return DatasetDescription(name="activity", kind="table", rows=len(self.table.target))

    def load(self) -> Table:
        return self.table


def subjects(folder: Path) -> dict[str, Subject]:
    """The eight nodes."""
    with np.load(folder / "dsads_features.npz", allow_pickle=False) as file:
        features, labels, subject, segment = (file[name] for name in ("X", "y", "subject", "segment"))
    found = {}
    for number in np.unique(subject):
        mine = subject == number
        found[f"subject-{number}"] = Subject(
            Table(
                features=features[mine].astype(np.float32),
                feature_names=tuple(f"f{column}" for column in range(features.shape[1])),
                target=labels[mine].astype(np.float64),
                weight=np.ones(int(mine.sum()), dtype=np.float32),
                held_out=segment[mine] > 48,
            )
        )
    return found


def cell(data: dict[str, Subject], compression: dict[str, Any], rounds: int, seed: int) -> tuple[float, float, float]:
    """Pooled accuracy after the last round, bytes a node sends in a round, seconds."""
    inputs = next(iter(data.values())).table.features.shape[1]
    specification = JobSpecification(
        name="compression",
        method=METHOD,
        dataset="activity",
        model="reference_mlp",
        rounds=rounds,
        seed=seed,
        selection=Selection(minimum_nodes=len(data), quorum=1.0),
        evaluation=EvaluationSettings(every=rounds),
        method_config={
            "model": {"inputs": inputs, "classes": 19, "hidden": HIDDEN},
            "training": TRAINING,
            "compression": compression,
        },
    )
    began = time.perf_counter()
    result = Harness(METHOD, data, specification).run()
    sent = [size for record in result.phases if record.name == "train" for size in record.sent.values()]
    return result.value("accuracy"), statistics.mean(sent), time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with dsads_features.npz")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON array on standard output")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="hanse-reference-") as folder:
        sys.path.insert(0, str(install(Path(folder))))
        data = subjects(options.data)
        for name, compression in SCHEMES.items():
            cells = [cell(data, compression, options.rounds, seed) for seed in range(options.seeds)]
            accuracies = [accuracy for accuracy, _, _ in cells]
            rows.append(
                {
                    "scheme": name,
                    "accuracy": round(statistics.mean(accuracies), 4),
                    "sd": round(statistics.pstdev(accuracies), 4),
                    "bytes_per_node_and_round": round(statistics.mean(size for _, size, _ in cells)),
                    "seconds": round(statistics.mean(seconds for _, _, seconds in cells), 2),
                }
            )
            if not options.json:
                row, whole = rows[-1], rows[0]["bytes_per_node_and_round"]
                share = row["bytes_per_node_and_round"] / whole
                print(
                    f"{name:24} {row['accuracy']:.4f} ± {row['sd']:.4f}  "
                    f"{row['bytes_per_node_and_round']:9,} bytes  {share:6.1%}  {row['seconds']:6.2f} s",
                    flush=True,
                )
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
