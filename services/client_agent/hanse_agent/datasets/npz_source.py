"""npz files of arrays. Nothing is ever unpickled."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hanse_agent.datasets.columns import NUMERIC, OTHER, TEXT, unreadable


@dataclass(frozen=True, kw_only=True)
class NpzNames:
    """What the arrays of an npz file are called; see `TableDataset.Options`."""

    features: str
    feature_names: str


class NpzSource:
    """An npz file: one matrix of features, and arrays with one entry a row.

    Names and types come from the headers of the arrays; `numpy.load` without pickle reads the rest.
    """

    def __init__(self, path: Path, names: NpzNames) -> None:
        self.path = path
        self._names = names
        shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                with archive.open(member) as file:
                    shapes[member.removesuffix(".npy")] = _npy_header(file)
        if names.features not in shapes or len(shapes[names.features][0]) != 2:
            raise ValueError(f"it holds no array '{names.features}' of rows and columns (it has {sorted(shapes)})")
        (self.rows, width), dtype = shapes[names.features]
        titles = self._titles(width, shapes)
        self._place = {title: i for i, title in enumerate(titles)}
        columns = dict.fromkeys(titles, dtype.name if dtype.name in NUMERIC else OTHER)
        for key, (shape, kind) in shapes.items():
            if key not in (names.features, names.feature_names) and shape == (self.rows,):
                if key in columns:
                    raise ValueError(f"the name '{key}' is both a feature and an array")
                columns[key] = kind.name if kind.name in NUMERIC else TEXT if kind.kind in "US" else OTHER
        self.columns: Mapping[str, str] = columns

    def _titles(self, width: int, shapes: Mapping[str, Any]) -> list[str]:
        if self._names.feature_names not in shapes:
            return [f"f{i}" for i in range(width)]
        titles = [str(title) for title in self._load(self._names.feature_names).ravel()]
        if len(titles) != width or len(set(titles)) != width:
            raise ValueError(f"'{self._names.feature_names}' does not name each of the {width} columns once")
        return titles

    def _load(self, key: str) -> NDArray[Any]:
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                array: NDArray[Any] = archive[key]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise unreadable(self.path, error) from error
        return array

    def read(self, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """See `Source`."""
        wanted = list(dict.fromkeys(names))
        matrix = self._load(self._names.features) if any(name in self._place for name in wanted) else None
        columns: dict[str, NDArray[Any]] = {}
        for name in wanted:
            if matrix is not None and name in self._place:
                columns[name] = matrix[:, self._place[name]]
            else:
                array = self._load(name)
                columns[name] = array.astype(object) if self.columns[name] == TEXT else array
        return columns

    def numbers(self, names: tuple[str, ...]) -> NDArray[np.float32]:
        """See `Source`."""
        with np.errstate(over="ignore"):
            if all(name in self._place for name in names):
                matrix = self._load(self._names.features)
                return matrix[:, [self._place[name] for name in names]].astype(np.float32)
            columns = self.read(names)
            return np.stack([columns[name].astype(np.float32) for name in names], axis=1)


def _npy_header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never read")
    return shape, dtype
