"""Image jobs as real federations on this machine: coordinator, aggregator, one agent a node, mutual TLS, a ledger.

    python benchmarks/real_images.py        a ResNet-50 with XAN at 224 x 224, one step at each of two nodes

`compare` repeats a cell of `gperxan.py` and compares the bytes of the model.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import resource
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hanse.demos.federation import FinishedJob, federation, metric, run_job
from hanse.demos.people import Person
from hanse.harness import Harness, installed
from hanse.jobs import JobSpecification


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run_real(job: JobSpecification, paths: Mapping[str, Path], folder: Path) -> FinishedJob:
    """Run a job over one .npz file a node; `test` says what is held out."""
    blocks = {
        Person(name=name, folder=folder / "people" / name, kind="image"): {
            "kind": "images",
            "path": str(path),
            "npz_holdout": "test",
        }
        for name, path in paths.items()
    }
    for person in blocks:
        person.folder.mkdir(parents=True, exist_ok=True)
    with federation(blocks, folder=folder, dataset=job.dataset, method=job.method, say=say) as control:
        return run_job(control, list(blocks), job, folder=folder, say=say)


def in_one_process(job: JobSpecification, paths: Mapping[str, Path]) -> Any:
    import torch

    torch.set_num_threads(1)
    dataset = installed("hanse.datasets", "images")
    nodes = {name: dataset(job.dataset, {"path": path, "npz_holdout": "test"}) for name, path in paths.items()}
    return Harness(job.method, nodes, job).run()


def compare(job: JobSpecification, domains: Mapping[str, Any]) -> None:
    """A job over images in memory, as a real federation and in one process."""
    folder = Path(tempfile.mkdtemp(prefix="hanse-real-"))
    paths = {}
    for name, domain in domains.items():
        paths[name] = folder / f"{name}.npz"
        images = domain.images
        np.savez_compressed(paths[name], x=images.images, y=images.labels, test=images.held_out)
    job = job.model_copy(update={"selection": job.selection.model_copy(update={"minimum_nodes": len(domains) - 1})})
    done = run_real(job, paths, folder)
    alone = in_one_process(job, paths)
    found = metric(done.detail, "accuracy", "unseen")
    print(
        json.dumps(
            {
                "same_bytes": done.digest == alone.model_digest,
                "model": done.digest.hex(),
                "unseen_accuracy": found,
                "seconds_per_round": round(done.seconds / job.rounds, 3),
            }
        )
    )
    if done.digest != alone.model_digest:
        sys.exit("The models differ.")


def resnet50() -> None:
    """One step of a ResNet-50 with XAN at each of two nodes: shape, memory and transfer."""
    folder = Path(tempfile.mkdtemp(prefix="hanse-resnet50-"))
    rng = np.random.default_rng(0)
    paths = {}
    for name in ("site-1", "site-2"):
        paths[name] = folder / f"{name}.npz"
        x = rng.integers(0, 256, (4, 224, 224, 3), dtype=np.uint8)
        np.savez(paths[name], x=x, y=np.array([0, 1, 2, 3]), test=np.array([0, 0, 1, 1]))
    job = JobSpecification.model_validate(
        {
            "name": "resnet50",
            "method": "gperxan",
            "dataset": "images",
            "model": "resnet50",
            "rounds": 1,
            "selection": {"minimum_nodes": 2, "quorum": 1.0, "deadline": "30m"},
            "evaluation": {"every": 1},
            "method_config": {
                "model": {"classes": 7, "norm": "xan"},
                "training": {"batch_size": 2, "local_steps": 1, "schedule": "standard"},
            },
        }
    )
    began = time.perf_counter()
    done = run_real(job, paths, folder)
    file = done.files["model.safetensors"]
    sent = [
        json.loads(line)
        for name in paths
        for line in (folder / "people" / name / "state" / "egress.jsonl").read_text().splitlines()
    ]
    deltas = [line for line in sent if line["kind"] == "weight_delta"]
    print(
        json.dumps(
            {
                "seconds": round(time.perf_counter() - began, 1),
                "model_bytes": file.stat().st_size,
                "delta_bytes": sorted({line["bytes"] for line in deltas}),
                "arrays": sorted({len(line["arrays"]) for line in deltas if "arrays" in line}),
                "largest_child_rss_mb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000),
            }
        )
    )


if __name__ == "__main__":
    resnet50()
