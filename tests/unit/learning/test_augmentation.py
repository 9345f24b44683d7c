"""Random changes of images: what each may do, and that draws repeat."""

from __future__ import annotations

import torch

from hanse.learning.augmentation import augment
from hanse.learning.training_options import Augmentation


def images(count: int = 64, channels: int = 3) -> torch.Tensor:
    return torch.rand((count, channels, 6, 6), generator=torch.Generator().manual_seed(1))


def changed(x: torch.Tensor, **options: float) -> torch.Tensor:
    return augment(x, Augmentation.model_validate(options), torch.Generator().manual_seed(2))


def test_nothing_is_changed_unless_asked_for() -> None:
    x = images()
    assert changed(x) is x


def test_a_flip_mirrors_about_half_of_the_images_and_no_other_way() -> None:
    x = images()
    y = changed(x, flip=0.5)
    mirrored = [bool(torch.equal(b, a.flip(-1))) for a, b in zip(x, y, strict=True)]
    same = [bool(torch.equal(a, b)) for a, b in zip(x, y, strict=True)]
    assert all(m != s for m, s in zip(mirrored, same, strict=True))
    assert 16 < sum(mirrored) < 48
    assert torch.equal(changed(x, flip=1), x.flip(-1))


def test_a_crop_shifts_by_at_most_the_padding_and_repeats_the_edge() -> None:
    x = images(8, 1)
    y = changed(x, crop=2)
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2), mode="replicate")
    for i in range(8):
        cuts = [padded[i, :, r : r + 6, c : c + 6] for r in range(5) for c in range(5)]
        assert any(torch.equal(y[i], cut) for cut in cuts)


def test_jitter_keeps_images_in_range_and_grey_images_grey() -> None:
    x = images()
    y = changed(x, jitter=0.5, jitter_probability=1.0)
    assert 0 <= float(y.min()) <= float(y.max()) <= 1
    assert not torch.equal(x, y)
    grey = images(4, 1).expand(-1, 3, -1, -1)
    z = changed(grey, jitter=0.5, jitter_probability=1.0)
    torch.testing.assert_close(z[:, 0], z[:, 2])
    assert torch.equal(changed(x, jitter=0.5, jitter_probability=0.0), x)


def test_draws_repeat_by_seed() -> None:
    options = {"flip": 0.5, "crop": 1, "jitter": 0.3}
    assert torch.equal(changed(images(), **options), changed(images(), **options))
