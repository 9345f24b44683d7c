"""Handwritten digits as rotated domains: the protocol of RotatedMNIST on the digits that come with scikit-learn.

1,797 images of 8 x 8 grey levels (0 to 16; Alpaydin & Kaynak, UCI, CC BY 4.0) are dealt out to six domains by a fixed
draw, so that no image is in two; each domain turns its own by one angle (0, 15, 30, 45, 60, 75 degrees, as in
DomainBed). They are enlarged to 16 x 16 first, so that turning them loses little.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["ANGLES", "SIZE", "domain_name", "read_digits", "rotated_domains", "write_domain"]

ANGLES = (0, 15, 30, 45, 60, 75)
SIZE = 16
HELD_OUT = 0.2
"""Share of a domain's images that is kept for evaluation, as in DomainBed."""

Domain = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]
"""Images uint8 [n, 16, 16], classes int64 [n], and which are held out, bool [n]."""


def domain_name(angle: int) -> str:
    """What a domain's node is called."""
    return f"angle-{angle:02d}"


def read_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The digits of scikit-learn: uint8 [1797, 8, 8] in 0 to 255, and their classes int64 [1797]."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(np.asarray(digits.images) * (255 / 16)).astype(np.uint8)
    return images, np.asarray(digits.target, dtype=np.int64)


def rotated_domains(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> dict[int, Domain]:
    """The images of each angle."""
    order = np.random.default_rng(0).permutation(len(labels))
    domains: dict[int, Domain] = {}
    for angle, rows in zip(ANGLES, np.array_split(order, len(ANGLES)), strict=True):
        turned = np.stack([_turned(image, angle) for image in images[rows]])
        held_out = np.arange(len(rows)) >= round(len(rows) * (1 - HELD_OUT))
        domains[angle] = turned, labels[rows], held_out
    return domains


def write_domain(domain: Domain, path: Path) -> None:
    """One .npz file with the arrays `x`, `y` and `test`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    x, y, test = domain
    np.savez_compressed(path, x=x, y=y, test=test)


def _turned(image: NDArray[np.uint8], angle: int) -> NDArray[np.uint8]:
    """An image of 8 x 8 as one of 16 x 16, turned anticlockwise."""
    large = Image.fromarray(image).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    return np.asarray(large.rotate(angle, Image.Resampling.BILINEAR), dtype=np.uint8)
