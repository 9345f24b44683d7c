"""Labelled images as learners get them from a dataset of kind `images`: pixels when asked for, labels at once."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Images", "fitted"]


class Images(Protocol):
    """`n` images with labels. Pixels may be decoded from files at every call.

    `labels` int64 [n], class numbers from 0; `held_out` bool [n], the images that are kept for evaluation;
    `class_names` in order of number, empty when unknown; `names` [n] for messages (a file, or a row).
    """

    labels: NDArray[np.int64]
    held_out: NDArray[np.bool_]
    class_names: tuple[str, ...]

    def pixels(self, rows: NDArray[np.int64], *, size: int, channels: int) -> NDArray[np.uint8]:
        """The asked images, uint8 [rows, channels, size, size].

        Raises:
            SiteError: an image cannot be read; the sentence names the file.
        """

    def name(self, row: int) -> str:
        """What to call an image in a message."""


def fitted(image: NDArray[np.uint8], *, size: int, channels: int) -> NDArray[np.uint8]:
    """An image uint8 [H, W] or [H, W, 3] as uint8 [channels, size, size]: scaled (bilinear), grey or colour as asked.

    Grey from colour is ITU-R 601 luma, as Pillow computes it.
    """
    wanted = "L" if channels == 1 else "RGB"
    if image.shape[:2] != (size, size) or (image.ndim == 3) != (channels == 3):
        from PIL import Image

        picture = Image.fromarray(np.ascontiguousarray(image))
        if picture.mode != wanted:
            picture = picture.convert(wanted)
        if picture.size != (size, size):
            picture = picture.resize((size, size), Image.Resampling.BILINEAR)
        image = np.asarray(picture, dtype=np.uint8)
    return image[None] if channels == 1 else image.transpose(2, 0, 1)
