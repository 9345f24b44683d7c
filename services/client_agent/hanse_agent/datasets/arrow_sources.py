"""Parquet and CSV files (also gzipped), read through Arrow, which is imported when a file is opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse_agent.datasets.columns import INSTANT, NUMERIC, OTHER, TEXT, unreadable


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
            raise unreadable(self.path, error) from error


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
