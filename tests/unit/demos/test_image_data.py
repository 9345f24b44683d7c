"""Rotated digits: every image in one domain, turned by its angle, and the demo's job."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hanse.demos import image_data as data
from hanse.demos.images import job_specification
from hanse.learning.training_options import PublishedGperxan
from hanse_agent.datasets.images import ImagesDataset


def test_domains_share_no_image_and_are_turned_by_their_angle(tmp_path: Path) -> None:
    images, _ = data.read_digits()
    assert (images.shape, images.dtype, int(images.max())) == ((1797, 8, 8), np.uint8, 255)
    # A number in one corner tells images apart, and a bright top row shows the angle.
    bars = np.zeros((60, 8, 8), np.uint8)
    bars[:, :4] = 200
    domains = data.rotated_domains(bars, np.arange(60))
    assert sorted(np.concatenate([labels for _, labels, _ in domains.values()]).tolist()) == list(range(60))
    upright, steep = domains[0][0][0].astype(float), domains[75][0][0].astype(float)
    assert upright[2].mean() > 190
    assert upright[:, 2].mean() < 120
    assert steep[:, 3].mean() > steep[3].mean()  # anticlockwise: the top has gone to the left
    data.write_domain(domains[15], tmp_path / "x" / "d.npz")
    read = ImagesDataset("d", {"path": tmp_path / "x" / "d.npz", "npz_holdout": "test"}).load()
    assert np.array_equal(read.images, domains[15][0])
    assert int(read.held_out.sum()) == 2


def test_the_demos_job_leaves_one_domain_out() -> None:
    job = job_specification("angle-15", 10, nodes=6)
    assert job.evaluation.unseen == ("angle-15",)
    assert job.selection.minimum_nodes == 5
    assert PublishedGperxan.model_validate(job.method_config["training"]).guide == 0.5
    assert "select" not in job_specification("angle-15", 10, nodes=6, method="fedavg").method_config
