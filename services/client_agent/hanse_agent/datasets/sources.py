"""Files of columns: Parquet, CSV (also gzipped) and npz, read column by column.

A source lists its columns without reading them where the format allows it, and reads the asked ones as NumPy
arrays: numbers as they are stored (missing ones as NaN), text as objects. Nothing is ever unpickled.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hanse.errors import SiteError

NUMERIC = frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split())
TEXT = "text"
OTHER = "other"
INSTANT = "instant"
"""A point in time whose offset from UTC is known."""


class Source(Protocol):
    """A file of columns of equal length."""

    @property
    def rows(self) -> int:
        """Number of rows in the file."""

    @property
    def columns(self) -> Mapping[str, str]:
        """Name and type of each column: a NumPy number type, `text`, `instant`, or `other`."""

    def read(self, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """The asked columns, each of shape [rows]: numbers, or objects for text (None where missing)."""

    def numbers(self, names: tuple[str, ...]) -> NDArray[np.float32]:
        """The asked numeric columns side by side, float32 [rows, names]; NaN where missing."""


@dataclass(frozen=True, kw_only=True)
class NpzNames:
    """What the arrays of an npz file are called; see `TableDataset.Options`."""

    features: str
    feature_names: str


def open_source(path: Path, npz: NpzNames) -> Source:
    """Open a table by its suffix.

    Raises:
        SiteError: no such file, no right to read it, an unknown suffix, or a file that is not what it says.
    """
    name = path.name.lower()
    if not path.exists():
        raise SiteError(f"The file {path} does not exist.", code="DATA_MISSING", remedy="Check 'path' in agent.yaml.")
    if not path.is_file():
        raise SiteError(f"{path} is not a file.", code="DATA_MISSING", remedy="Check 'path' in agent.yaml.")
    if not os.access(path, os.R_OK):
        raise SiteError(
            f"The file {path} may not be read by the user that the agent runs as.",
            code="DATA_UNREADABLE",
            remedy="Give that user the right to read it.",
        )
    if name.endswith(".npz"):
        return _guarded(path, lambda: NpzSource(path, npz))
    if name.endswith((".parquet", ".pq")):
        return _guarded(path, lambda: ParquetSource(path))
    if name.endswith((".csv", ".csv.gz")):
        return _guarded(path, lambda: CsvSource(path))
    raise SiteError(
        f"The file {path} has a suffix that is not known.",
        code="DATA_FORMAT",
        remedy="Use .csv, .csv.gz, .parquet or .npz.",
    )


def require_columns(path: Path, source: Source, names: Iterable[str], *, numeric: Iterable[str] = ()) -> None:
    """Check that a source has columns, and that some of them hold numbers.

    Raises:
        SiteError: as `no_column` and `not_a_number` say.
    """
    numbers = tuple(numeric)
    for name in (*names, *numbers):
        if name not in source.columns:
            raise no_column(path, source, name)
    for name in numbers:
        if source.columns[name] not in NUMERIC:
            raise not_a_number(path, source, name)


def no_column(path: Path, source: Source, name: str) -> SiteError:
    """The error that a column is not there; it tells which are."""
    known = ", ".join(list(source.columns)[:20]) + (" …" if len(source.columns) > 20 else "")
    return SiteError(
        f"{path} has no column '{name}' (it has: {known}).",
        code="COLUMN_MISSING",
        remedy="Check the dataset's columns in agent.yaml.",
    )


def not_a_number(path: Path, source: Source, name: str) -> SiteError:
    """The error that a column holds something else than numbers; it tells the first row that does."""
    where = ""
    if source.columns[name] == TEXT:
        for row, value in enumerate(source.read([name])[name], start=1):
            if value is not None and not _is_number(value):
                where = f": row {row} holds {value[:40]!r}"
                break
    return SiteError(
        f"The column '{name}' of {path} is not numeric{where}.",
        code="COLUMN_NOT_NUMERIC",
        remedy="Correct the file, or leave the column out of the dataset's block in agent.yaml.",
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _guarded(path: Path, make: Callable[[], Source]) -> Source:
    import pyarrow

    try:
        return make()
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> SiteError:
    return SiteError(
        f"The file {path} cannot be read: {' '.join(str(error).split())[:300]}",
        code="DATA_UNREADABLE",
        remedy="Check that it is whole and of the format that its suffix says.",
    )


class _ArrowSource:
    """What Parquet and CSV share once they are Arrow columns."""

    path: Path
    rows: int
    columns: Mapping[str, str]

    def _table(self, names: list[str]) -> Any:
        raise NotImplementedError

    def read(self, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """See `Source`."""
        wanted = list(dict.fromkeys(names))
        table = self._table(wanted)
        return {name: _to_numpy(table.column(name), self.columns[name]) for name in wanted}

    def numbers(self, names: tuple[str, ...]) -> NDArray[np.float32]:
        """See `Source`."""
        table = self._table(list(names))
        values = np.empty((self.rows, len(names)), dtype=np.float32)
        with np.errstate(over="ignore"):
            for i, name in enumerate(names):
                values[:, i] = _to_numpy(table.column(name), self.columns[name])
        return values


class ParquetSource(_ArrowSource):
    """A Parquet file; names, types and row count come from its footer."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as parquet

        self.path = path
        with parquet.ParquetFile(path) as file:
            self.rows = int(file.metadata.num_rows)
            self.columns = {field.name: _type_name(field.type) for field in file.schema_arrow}

    def _table(self, names: list[str]) -> Any:
        import pyarrow
        import pyarrow.parquet as parquet

        try:
            return parquet.read_table(self.path, columns=names, use_threads=False)
        except (pyarrow.ArrowException, OSError) as error:
            raise _unreadable(self.path, error) from error


class CsvSource(_ArrowSource):
    """A CSV file with a header line. Types are found in the data, so that it is read whole at once."""

    def __init__(self, path: Path) -> None:
        import pyarrow
        from pyarrow import csv

        self.path = path
        read = csv.ReadOptions(use_threads=False)
        try:
            table = csv.read_csv(path, read_options=read, convert_options=csv.ConvertOptions(strings_can_be_null=True))
        except pyarrow.ArrowInvalid:
            # The type was guessed from the first block and a later row is of another: decide over all rows.
            with csv.open_csv(path, read_options=read) as reader:
                names = reader.schema.names
            convert = csv.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=True)
            table = _numbers_where_possible(csv.read_csv(path, read_options=read, convert_options=convert))
        if len(set(table.column_names)) != len(table.column_names):
            raise ValueError("two columns of the header line have the same name")
        self._whole = table
        self.rows = int(table.num_rows)
        self.columns = {field.name: _type_name(field.type) for field in table.schema}

    def _table(self, names: list[str]) -> Any:
        return self._whole.select(names)


def _numbers_where_possible(table: Any) -> Any:
    import pyarrow

    for i, name in enumerate(table.column_names):
        try:
            table = table.set_column(i, name, table.column(i).cast(pyarrow.float64()))
        except pyarrow.ArrowInvalid:
            continue
    return table


def _type_name(arrow: Any) -> str:
    import pyarrow

    if pyarrow.types.is_null(arrow):
        return "float32"  # an empty column: missing in every row
    if pyarrow.types.is_dictionary(arrow):
        arrow = arrow.value_type
    if pyarrow.types.is_string(arrow) or pyarrow.types.is_large_string(arrow):
        return TEXT
    if pyarrow.types.is_decimal(arrow):
        return "float64"
    if pyarrow.types.is_timestamp(arrow) and arrow.tz is not None:
        return INSTANT
    name = {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(arrow), str(arrow))
    return name if name in NUMERIC else OTHER


def _to_numpy(column: Any, kind: str) -> NDArray[Any]:
    import pyarrow

    if kind == TEXT:
        return np.array(column.cast(pyarrow.string()).to_pylist(), dtype=object)
    if kind == "bool" or (column.null_count and kind in NUMERIC):
        column = column.cast(pyarrow.float64(), safe=False) if kind != "bool" else _bool_as_number(column)
    elif pyarrow.types.is_decimal(column.type) or pyarrow.types.is_null(column.type):
        column = column.cast(pyarrow.float64())
    array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return array.astype(np.float64) if array.dtype == object else array


def _bool_as_number(column: Any) -> Any:
    import pyarrow

    return column.cast(pyarrow.int8()).cast(pyarrow.float64())


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
            raise _unreadable(self.path, error) from error
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
