"""Images at a node: a folder with one folder a class, or arrays in an npz file."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator

from hanse.errors import SiteError
from hanse.images import fitted
from hanse.learning.drawing import chosen_rows
from hanse.method import HELD_OUT, Column, DatasetDescription
from hanse.settings import Settings

SUFFIXES = frozenset([".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"])


class ImagesDataset:
    """Labelled images; a dataset of kind `images` in `agent.yaml`."""

    kind: ClassVar[str] = "images"

    class Options(Settings):
        """The dataset's block in `agent.yaml`."""

        path: Path
        """A folder that holds one folder of images a class (`DOMAIN/CLASS/*.png`), or an .npz file."""
        classes: tuple[str, ...] = ()
        """The names of all classes of the job in the order of their numbers, the same at every node. Needed for
        folders, whose names they are; a class that this node lacks has no folder, or an empty one."""
        holdout: float = Field(0.0, ge=0, lt=1)
        """Share of the images that is drawn (always the same ones) for evaluation and never trained on."""
        holdout_path: Path | None = None
        """A second folder of the same layout, or a second .npz file, that is kept for evaluation."""
        npz_images: str = "x"
        """In an .npz file: the array of images, uint8 [n, height, width] or [n, height, width, 3]."""
        npz_labels: str = "y"
        """In an .npz file: the array of class numbers [n]."""
        npz_holdout: str = ""
        """In an .npz file: an array [n] that says which images are kept for evaluation (not zero)."""

        @model_validator(mode="after")
        def _one_way_to_hold_out(self) -> ImagesDataset.Options:
            ways = bool(self.holdout) + (self.holdout_path is not None) + bool(self.npz_holdout)
            if ways > 1:
                raise ValueError("holdout, holdout_path and npz_holdout exclude each other")
            if len(set(self.classes)) != len(self.classes):
                raise ValueError("classes lists a name twice")
            return self

    def __init__(self, name: str, options: BaseModel | dict[str, Any]) -> None:
        self.name = name
        self.options = options if isinstance(options, self.Options) else self.Options.model_validate(options)

    def describe(self) -> DatasetDescription:
        """Counts and class names. Raises SiteError when folder or file cannot be read."""
        images = self.load()
        facts = {HELD_OUT: str(int(images.held_out.sum()))}
        if self.options.classes:
            facts["classes"] = json.dumps(self.options.classes)
        columns = (Column(name="image", dtype="uint8"), Column(name="label", dtype="int64"))
        return DatasetDescription(
            name=self.name, kind=self.kind, rows=len(images.labels), columns=columns, target="label", facts=facts
        )

    def load(self) -> FolderImages | ArrayImages:
        """Labels, and images that are decoded when they are asked for.

        Raises:
            SiteError: no such folder or file, a class folder that is not in `classes`, or arrays that do not fit.
        """
        options = self.options
        parts = [self._open(options.path)]
        if options.holdout_path is not None:
            parts.append(self._open(options.holdout_path))
        if len({type(part) for part in parts}) > 1:
            raise SiteError("'path' and 'holdout_path' must both be folders, or both .npz files.", code="DATA_FORMAT")
        images = parts[0] if len(parts) == 1 else parts[0].and_held_out(parts[1])  # type: ignore[arg-type]
        if not len(images.labels):
            raise SiteError(f"There is no image in {options.path}.", code="NO_ROWS", remedy="Check 'path' and layout.")
        if options.holdout:
            rows = np.arange(len(images.labels), dtype=np.uint64)
            images.held_out = chosen_rows(0, 0, rows, options.holdout)
        return images

    def _open(self, path: Path) -> FolderImages | ArrayImages:
        if not path.exists():
            raise SiteError(f"{path} does not exist.", code="DATA_MISSING", remedy="Check 'path' in agent.yaml.")
        return self._folder(path) if path.is_dir() else self._arrays(path)

    def _folder(self, path: Path) -> FolderImages:
        try:
            found = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
            if not self.options.classes:
                raise SiteError(
                    f"The classes of {path} have no order.",
                    code="CLASSES_MISSING",
                    remedy=f"List all classes of the job under 'classes' in agent.yaml (folders here: {found[:20]}).",
                )
            unknown = [name for name in found if name not in self.options.classes]
            if unknown:
                raise SiteError(
                    f"The folder {path / unknown[0]} is none of 'classes'.",
                    code="CLASS_UNKNOWN",
                    remedy="Add it to 'classes' at every node, or move it away.",
                )
            files, labels = [], []
            for number, name in enumerate(self.options.classes):
                if name in found:
                    own = sorted(file for file in (path / name).iterdir() if file.suffix.lower() in SUFFIXES)
                    files += own
                    labels += [number] * len(own)
        except OSError as error:
            raise SiteError(
                f"The folder {path} cannot be read: {error.strerror or error}.", code="DATA_UNREADABLE"
            ) from error
        return FolderImages(tuple(files), np.array(labels, dtype=np.int64), self.options.classes)

    def _arrays(self, path: Path) -> ArrayImages:
        options = self.options
        wanted = [options.npz_images, options.npz_labels, *([options.npz_holdout] if options.npz_holdout else [])]
        try:
            with zipfile.ZipFile(path) as archive:
                names = {member.removesuffix(".npy") for member in archive.namelist()}
            missing = [name for name in wanted if name not in names]
            if missing:
                raise ValueError(f"it has no array '{missing[0]}' (it has {sorted(names)})")
            with np.load(path, allow_pickle=False) as file:
                images, labels, *held_out = (file[name] for name in wanted)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise SiteError(
                f"The file {path} cannot be read: {' '.join(str(error).split())[:300]}.",
                code="DATA_UNREADABLE",
                remedy="Check that it is a whole .npz file with the arrays that agent.yaml names.",
            ) from error
        rows = len(labels)
        fits = images.dtype == np.uint8 and images.ndim in (3, 4) and (images.ndim == 3 or images.shape[3] == 3)
        if not fits or len(images) != rows or labels.shape != (rows,) or not np.issubdtype(labels.dtype, np.integer):
            raise SiteError(
                f"{path}: images {images.dtype} {images.shape} with labels {labels.dtype} {labels.shape}.",
                code="DATA_FORMAT",
                remedy="Images must be uint8 [n, height, width] or [n, height, width, 3], and labels integers [n].",
            )
        held = held_out[0] != 0 if held_out else np.zeros(rows, dtype=np.bool_)
        if held.shape != (rows,):
            raise SiteError(f"{path}: '{options.npz_holdout}' is not one number an image.", code="DATA_FORMAT")
        return ArrayImages(path, images, labels.astype(np.int64), held, options.classes)


class FolderImages:
    """Images in files, decoded by Pillow at every call."""

    def __init__(self, files: tuple[Path, ...], labels: NDArray[np.int64], class_names: tuple[str, ...]) -> None:
        self.files, self.labels, self.class_names = files, labels, class_names
        self.held_out: NDArray[np.bool_] = np.zeros(len(labels), dtype=np.bool_)

    def and_held_out(self, other: FolderImages) -> FolderImages:
        """These images, and others that are kept for evaluation."""
        both = FolderImages(self.files + other.files, np.concatenate([self.labels, other.labels]), self.class_names)
        both.held_out[len(self.labels) :] = True
        return both

    def name(self, row: int) -> str:
        """The file."""
        return str(self.files[row])

    def pixels(self, rows: NDArray[np.int64], *, size: int, channels: int) -> NDArray[np.uint8]:
        """See `hanse.images.Images`."""
        pixels = np.empty((len(rows), channels, size, size), dtype=np.uint8)
        for place, row in enumerate(rows):
            pixels[place] = _decoded(self.files[row], size, channels)
        return pixels


class ArrayImages:
    """Images in memory, uint8 [n, H, W] or [n, H, W, 3]."""

    def __init__(
        self,
        path: Path,
        images: NDArray[np.uint8],
        labels: NDArray[np.int64],
        held_out: NDArray[np.bool_],
        class_names: tuple[str, ...] = (),
    ) -> None:
        self.path, self.images, self.labels = path, images, labels
        self.held_out: NDArray[np.bool_] = held_out
        self.class_names = class_names

    def and_held_out(self, other: ArrayImages) -> ArrayImages:
        """These images, and others that are kept for evaluation."""
        if self.images.shape[1:] != other.images.shape[1:]:
            raise SiteError(
                f"The images of {self.path} and {other.path} have different shapes.",
                code="DATA_FORMAT",
                remedy="Bring them to one size.",
            )
        held_out = np.arange(len(self.labels) + len(other.labels)) >= len(self.labels)
        images, labels = np.concatenate([self.images, other.images]), np.concatenate([self.labels, other.labels])
        return ArrayImages(self.path, images, labels, held_out, self.class_names)

    def name(self, row: int) -> str:
        """File and row."""
        return f"{self.path}, image {row + 1}"

    def pixels(self, rows: NDArray[np.int64], *, size: int, channels: int) -> NDArray[np.uint8]:
        """See `hanse.images.Images`."""
        if self.images.ndim == 3 and self.images.shape[1:] == (size, size):
            grey = self.images[rows][:, None]
            return grey if channels == 1 else np.repeat(grey, 3, axis=1)
        pixels = np.empty((len(rows), channels, size, size), dtype=np.uint8)
        for place, row in enumerate(rows):
            pixels[place] = fitted(self.images[row], size=size, channels=channels)
        return pixels


def _decoded(file: Path, size: int, channels: int) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(file) as picture:
            picture.draft("RGB" if channels == 3 else "L", (size, size))
            plain = picture.convert("RGB" if channels == 3 else "L")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise SiteError(
            f"The image {file} cannot be read: {' '.join(str(error).split())[:200]}.",
            code="DATA_UNREADABLE",
            remedy="Replace the file or move it away.",
        ) from error
    return fitted(np.asarray(plain, dtype=np.uint8), size=size, channels=channels)
