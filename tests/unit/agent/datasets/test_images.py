"""Images from folders and arrays: what is read, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hanse.errors import OperatorError, SiteError
from hanse.images import fitted
from hanse.settings import validate
from hanse_agent.datasets.images import ImagesDataset

CLASSES = ("cat", "dog", "owl")


def picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (6, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def domain(tmp_path: Path) -> Path:
    for i in range(4):
        picture(tmp_path / "photo" / "cat" / f"{i}.png", (10 * i, 0, 0))
    picture(tmp_path / "photo" / "owl" / "a.jpg", (200, 200, 200))
    (tmp_path / "photo" / "owl" / "notes.txt").write_text("no image")
    return tmp_path / "photo"


def dataset(path: Path, **options: Any) -> ImagesDataset:
    return ImagesDataset("d", validate(ImagesDataset.Options, {"path": path, **options}, source="datasets.d"))


def test_a_folder_of_classes_is_numbered_by_the_jobs_order_also_where_one_is_missing(domain: Path) -> None:
    found = dataset(domain, classes=CLASSES)
    images = found.load()
    assert images.labels.tolist() == [0, 0, 0, 0, 2]
    described = found.describe()
    assert (described.rows, described.kind) == (5, "images")
    assert described.facts == {"classes": '["cat", "dog", "owl"]', "held_out": "0"}
    assert dataset(domain, classes=CLASSES, holdout_path=domain).describe().facts["held_out"] == "5"
    pixels = images.pixels(np.array([3, 4]), size=5, channels=3)
    assert pixels.shape == (2, 3, 5, 5)
    assert pixels[0, :, 0, 0].tolist() == [30, 0, 0]
    grey = images.pixels(np.array([4]), size=5, channels=1)
    assert grey.shape == (1, 1, 5, 5)
    assert abs(int(grey[0, 0, 0, 0]) - 200) <= 2


def test_an_image_that_cannot_be_read_is_named(domain: Path) -> None:
    (domain / "cat" / "9.png").write_bytes((domain / "cat" / "0.png").read_bytes()[:40])
    images = dataset(domain, classes=CLASSES).load()
    with pytest.raises(SiteError, match=r"cat/9\.png cannot be read") as caught:
        images.pixels(np.arange(5), size=5, channels=3)
    assert caught.value.code == "DATA_UNREADABLE"


def test_folders_without_an_order_or_with_an_unknown_class_are_refused(domain: Path) -> None:
    with pytest.raises(SiteError, match="have no order") as caught:
        dataset(domain).load()
    assert "'cat', 'owl'" in caught.value.remedy
    with pytest.raises(SiteError, match="owl is none of 'classes'"):
        dataset(domain, classes=("cat", "dog")).load()
    with pytest.raises(SiteError, match="does not exist"):
        dataset(domain / "nowhere", classes=CLASSES).load()
    (domain.parent / "empty").mkdir()
    with pytest.raises(SiteError, match="no image"):
        dataset(domain.parent / "empty", classes=CLASSES).load()


def test_images_are_held_out_by_share_or_by_a_second_folder(domain: Path, tmp_path: Path) -> None:
    picture(tmp_path / "test" / "dog" / "0.png", (1, 2, 3))
    second = dataset(domain, classes=CLASSES, holdout_path=tmp_path / "test").load()
    assert second.held_out.tolist() == [False] * 5 + [True]
    assert second.labels.tolist()[-1] == 1
    x = np.zeros((1000, 3, 3), np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=np.zeros(1000, np.int64))
    share = dataset(tmp_path / "a.npz", holdout=0.2).load().held_out
    assert 150 < int(share.sum()) < 250
    assert share.tolist() == dataset(tmp_path / "a.npz", holdout=0.2).load().held_out.tolist()


def test_arrays_are_read_by_name_grey_or_colour(tmp_path: Path) -> None:
    x = np.arange(2 * 3 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3, 3)
    np.savez(tmp_path / "c.npz", pictures=x, y=np.array([1, 0]), test=np.array([0, 1]))
    images = dataset(tmp_path / "c.npz", npz_images="pictures", npz_holdout="test").load()
    assert images.held_out.tolist() == [False, True]
    assert np.array_equal(images.pixels(np.array([1]), size=3, channels=3)[0], x[1].transpose(2, 0, 1))
    np.savez(tmp_path / "g.npz", x=x[..., 0], y=np.array([1, 0]))
    grey = dataset(tmp_path / "g.npz").load()
    assert np.array_equal(grey.pixels(np.array([0]), size=3, channels=3)[0, 2], x[0, ..., 0])
    assert grey.pixels(np.array([0]), size=6, channels=1).shape == (1, 1, 6, 6)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": np.zeros((2, 3, 3), np.float32), "y": np.zeros(2, np.int64)}, "images float32"),
        ({"x": np.zeros((2, 3, 3), np.uint8), "y": np.zeros(3, np.int64)}, "labels int64"),
        ({"x": np.zeros((2, 3, 3), np.uint8)}, "no array 'y'"),
        ({"x": np.array([{}], dtype=object), "y": np.zeros(1, np.int64)}, "cannot be read"),
    ],
)
def test_arrays_that_are_no_labelled_images_are_refused(tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(SiteError, match=sentence):
        dataset(tmp_path / "bad.npz").load()


def test_contradicting_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="exclude each other"):
        dataset(tmp_path, holdout=0.2, npz_holdout="test")
    with pytest.raises(OperatorError, match="lists a name twice"):
        dataset(tmp_path, classes=("a", "a"))


def test_pictures_are_scaled_and_converted_as_pillow_does() -> None:
    image = np.random.default_rng(0).integers(0, 256, (9, 7, 3)).astype(np.uint8)
    expected = np.asarray(Image.fromarray(image).convert("L").resize((5, 5), Image.Resampling.BILINEAR))
    assert np.array_equal(fitted(image, size=5, channels=1)[0], expected)
