"""Smart-watch recordings of shoulder exercises, by person, as tables of windows.

The recordings (Burns et al., arXiv 1802.01489; 10 people, 7 exercises, 50 Hz) come with the Python package
`seglearn`, which is never imported. Its file is a pickle, so its SHA-256 is checked first, and then an unpickler
reads it that knows the four names NumPy arrays are made of and no other.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from hanse.errors import OperatorError

PACKAGE = "seglearn"
FILE = "watch_dataset.npy"
SHA256 = "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537"

SAMPLES_PER_SECOND = 50
WINDOW = 4 * SAMPLES_PER_SECOND
STEP = SAMPLES_PER_SECOND
HELD_OUT_SHARE = 0.25

TARGET = "exercise"
HOLDOUT_COLUMN = "held_out"
EXERCISES = ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")
CHANNELS = ("ax", "ay", "az", "wx", "wy", "wz")
_MAGNITUDES = ("a", "w")
_STATISTICS = (
    "mean", "std", "min", "quarter", "median", "three_quarters", "max", "mean_step", "frequency", "peak_share",
)  # fmt: skip
_PAIRS = ((0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5))

FEATURES: tuple[str, ...] = (
    *(f"{channel}_{statistic}" for statistic in _STATISTICS for channel in (*CHANNELS, *_MAGNITUDES)),
    *(f"{CHANNELS[i]}_{CHANNELS[j]}_correlation" for i, j in _PAIRS),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """One set of one exercise: samples float64 [n, 6] (acceleration in g, rotation in rad/s)."""

    subject: int
    exercise: int
    samples: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class SubjectTable:
    """One person's windows: features float32 [n, F], exercise int64 [n], held_out bool [n]."""

    subject: int
    features: NDArray[np.float32]
    exercise: NDArray[np.int64]
    held_out: NDArray[np.bool_]


def find_file() -> Path:
    """Where the installed package keeps its recordings; nothing of the package is run.

    Raises:
        OperatorError: the package is not installed, or has no such file.
    """
    remedy = "Install the demo's extra: pip install 'hanse[demo]'."
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise OperatorError(f"The package '{PACKAGE}' is not installed.", remedy=remedy, code="NOT_INSTALLED") from None
    for file in files:
        if file.name == FILE:
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    raise OperatorError(f"The package '{PACKAGE}' has no file '{FILE}'.", remedy=remedy, code="NOT_INSTALLED")


def read_recordings(path: Path | None = None) -> list[Recording]:
    """The recordings, in the file's order, after a check of its SHA-256.

    Raises:
        OperatorError: the file is not the known one.
    """
    path = path or find_file()
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise OperatorError(
            f"{path} is not the known recording: its SHA-256 is {found}, not {SHA256}.",
            remedy="Reinstall the package: pip install --force-reinstall seglearn==1.2.5.",
            code="UNKNOWN_DATA",
        )
    return _recordings(unpickle_array(data))


def unpickle_array(data: bytes) -> Any:
    """The object in an .npy file of dtype object and shape (), made of NumPy arrays, lists and text alone.

    Raises:
        OperatorError: another kind of file, or a pickle that names anything but the parts of a NumPy array.
    """
    stream = io.BytesIO(data)
    try:
        if npy.read_magic(stream) != (1, 0):
            raise ValueError("an unknown version")
        shape, _, dtype = npy.read_array_header_1_0(stream)
        if shape != () or dtype != np.dtype(object):
            raise ValueError(f"an array of {dtype} and shape {shape}")
        array = _ArrayUnpickler(stream).load()
    except (ValueError, TypeError, EOFError, pickle.UnpicklingError, IndexError, AttributeError, KeyError) as error:
        raise OperatorError(f"The recordings cannot be read: {error}.", code="UNKNOWN_DATA") from error
    return array.item() if isinstance(array, np.ndarray) and array.shape == () else array


class _ArrayUnpickler(pickle.Unpickler):
    """Knows how NumPy arrays are put together, and refuses every other name."""

    def find_class(self, module: str, name: str, /) -> Any:
        known = _ALLOWED.get((module, name))
        if known is None:
            raise pickle.UnpicklingError(f"the name {module}.{name} is not allowed")
        return known


def _latin1(text: str, encoding: str) -> bytes:
    """How protocol 2 spells bytes; no other encoding is looked up."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the encoding {encoding} is not allowed")
    return text.encode("latin1")


def _empty_array(kind: Any, shape: Any, code: Any) -> NDArray[Any]:
    """How an array begins before its state is set."""
    if kind is not np.ndarray or tuple(shape) != (0,):
        raise pickle.UnpicklingError("an array begins in an unknown way")
    return np.ndarray((0,), dtype=np.int8)


_ALLOWED: Mapping[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
}


def _recordings(content: Any) -> list[Recording]:
    labels = tuple(str(label) for label in content["y_labels"])
    number = [EXERCISES.index(label) for label in labels]
    return [
        Recording(subject=int(subject), exercise=number[int(y)], samples=np.asarray(samples, dtype=np.float64))
        for samples, y, subject in zip(content["X"], content["y"], content["subject"], strict=True)
    ]


def subject_tables(recordings: Sequence[Recording]) -> list[SubjectTable]:
    """Windows of 4 s, one every second, by person in order of number.

    The last quarter of each recording is held out; no window reaches across, so that no sample is on both sides.
    """
    tables = []
    for subject in sorted({recording.subject for recording in recordings}):
        parts: list[tuple[NDArray[np.float32], int, bool]] = []
        for recording in (each for each in recordings if each.subject == subject):
            cut = int(len(recording.samples) * (1 - HELD_OUT_SHARE))
            parts.append((window_features(recording.samples[:cut]), recording.exercise, False))
            parts.append((window_features(recording.samples[cut:]), recording.exercise, True))
        counts = [len(features) for features, _, _ in parts]
        tables.append(
            SubjectTable(
                subject=subject,
                features=np.concatenate([features for features, _, _ in parts]),
                exercise=np.repeat(np.array([exercise for _, exercise, _ in parts], dtype=np.int64), counts),
                held_out=np.repeat(np.array([held_out for _, _, held_out in parts]), counts),
            )
        )
    return tables


def window_features(samples: NDArray[np.float64]) -> NDArray[np.float32]:
    """The `FEATURES` of each whole window of `samples` [n, 6], float32 [windows, F]."""
    if len(samples) < WINDOW:
        return np.zeros((0, len(FEATURES)), dtype=np.float32)
    acceleration = np.linalg.norm(samples[:, :3], axis=1, keepdims=True)
    rotation = np.linalg.norm(samples[:, 3:], axis=1, keepdims=True)
    channels = np.concatenate([samples, acceleration, rotation], axis=1)
    windows = sliding_window_view(channels, WINDOW, axis=0)[::STEP]  # [windows, channels, WINDOW]
    mean, std = windows.mean(axis=2), windows.std(axis=2)
    centred = windows - mean[:, :, None]
    spectrum = np.square(np.abs(np.fft.rfft(centred, axis=2)))[:, :, 1:]
    peak = spectrum.argmax(axis=2)
    power = spectrum.sum(axis=2)
    share = np.take_along_axis(spectrum, peak[:, :, None], axis=2)[:, :, 0] / np.where(power > 0, power, 1)
    quartiles = np.quantile(windows, [0.25, 0.5, 0.75], axis=2)
    columns = [
        mean, std, windows.min(axis=2), *quartiles, windows.max(axis=2),
        np.abs(np.diff(windows, axis=2)).mean(axis=2),
        (peak + 1) * (SAMPLES_PER_SECOND / WINDOW), share,
    ]  # fmt: skip
    products = [
        (centred[:, i] * centred[:, j]).mean(axis=1) / np.where(std[:, i] * std[:, j] > 0, std[:, i] * std[:, j], 1)
        for i, j in _PAIRS
    ]
    return np.concatenate([*columns, np.stack(products, axis=1)], axis=1).astype(np.float32)


def write_tables(tables: Sequence[SubjectTable], folder: Path) -> dict[int, Path]:
    """One Parquet file a person: the features, `exercise` (a number, see `EXERCISES`) and `held_out`."""
    import pyarrow
    from pyarrow import parquet

    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[int, Path] = {}
    for table in tables:
        columns = {name: table.features[:, i] for i, name in enumerate(FEATURES)}
        rows = pyarrow.table(columns | {TARGET: table.exercise, HOLDOUT_COLUMN: table.held_out})
        paths[table.subject] = folder / f"person-{table.subject:02d}.parquet"
        parquet.write_table(rows, paths[table.subject])
    return paths
