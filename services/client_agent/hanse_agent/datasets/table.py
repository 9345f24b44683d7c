"""Tables at a node: rows of numbers with a target, from CSV, Parquet or npz files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator

from hanse.errors import SiteError
from hanse.method import Column, DatasetDescription
from hanse.settings import Settings
from hanse.tables import Table
from hanse_agent.datasets.columns import NUMERIC, TEXT, Source, no_column, not_a_number
from hanse_agent.datasets.npz_source import NpzNames
from hanse_agent.datasets.sources import open_source

Scalar = bool | int | float | str
# Dtypes that a declared schema may name beside NumPy's: any number, or text.
_FAMILIES = {"number": NUMERIC, "text": frozenset([TEXT])}


class TableDataset:
    """A table in one file; a dataset of kind `table` in `agent.yaml`."""

    kind: ClassVar[str] = "table"

    class Options(Settings):
        """The dataset's block in `agent.yaml`."""

        path: Path
        """The file: .csv, .csv.gz, .parquet or .npz."""
        target: str = Field(min_length=1)
        """The column to be predicted."""
        features: tuple[str, ...] = ()
        """The columns to learn from, in this order; all other numeric columns of the file when left out."""
        weight: str = ""
        """A column of positive instance weights; all rows count alike when left out."""
        holdout: float = Field(0.0, ge=0, lt=1)
        """Share of the last rows of the file (after `where`) that is kept for evaluation and never trained on."""
        holdout_column: str = ""
        """A column that says which rows are kept for evaluation: true or not zero."""
        holdout_above: float | None = None
        """With `holdout_column`: keep the rows whose value there is above this number instead."""
        where: dict[str, Scalar | list[Scalar]] = Field(default_factory=dict)
        """Only rows in which each of these columns has this value, or one of these values."""
        classes: tuple[str, ...] = ()
        """The names of the classes in the order of their numbers, for a target of text. The same at every node."""
        columns: dict[str, str] = Field(default_factory=dict)
        """Declared schema: the type that a column must have in the file (float32, int64, `text`, `number` …)."""
        npz_features: str = "X"
        """The matrix of features in an npz file, rows by columns."""
        npz_feature_names: str = "feature_names"
        """The names of its columns in an npz file (f0, f1 … when there is no such array)."""

        @model_validator(mode="after")
        def _consistent(self) -> TableDataset.Options:
            if self.holdout and self.holdout_column:
                raise ValueError("give either holdout or holdout_column, not both")
            if self.holdout_above is not None and not self.holdout_column:
                raise ValueError("holdout_above needs holdout_column")
            if len(set(self.features)) != len(self.features):
                raise ValueError("features lists a column twice")
            if len(set(self.classes)) != len(self.classes):
                raise ValueError("classes lists a name twice")
            taken = {self.target, self.weight, self.holdout_column} & set(self.features)
            if taken:
                raise ValueError(f"the column {sorted(taken)[0]!r} cannot be a feature as well")
            unknown = sorted(kind for kind in self.columns.values() if kind not in NUMERIC and kind not in _FAMILIES)
            if unknown:
                raise ValueError(f"columns names the unknown type {unknown[0]!r}")
            return self

    def __init__(self, name: str, options: BaseModel | Mapping[str, Any]) -> None:
        self.name = name
        self.options = (
            options if isinstance(options, TableDataset.Options) else TableDataset.Options.model_validate(options)
        )

    @cached_property
    def _source(self) -> Source:
        options = self.options
        names = NpzNames(features=options.npz_features, feature_names=options.npz_feature_names)
        source = open_source(options.path, names)
        for name in (options.target, options.weight, options.holdout_column, *options.where, *options.columns):
            if name and name not in source.columns:
                raise no_column(options.path, source, name)
        for name, wanted in options.columns.items():
            found = source.columns[name]
            if found not in _FAMILIES.get(wanted, (wanted,)):
                raise SiteError(
                    f"{self._the(name)} is {found}, but the declared schema says {wanted}.",
                    code="SCHEMA_MISMATCH",
                    remedy="Correct the file, or 'columns' in agent.yaml.",
                )
        return source

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """The columns that are learned from, in order."""
        source, options = self._source, self.options
        others = {options.target, options.weight, options.holdout_column, *options.where}
        if not options.features:
            names = tuple(name for name, kind in source.columns.items() if kind in NUMERIC and name not in others)
            if not names:
                raise SiteError(f"{options.path} has no numeric column beside the target.", code="NO_FEATURES")
            return names
        for name in options.features:
            if name not in source.columns:
                raise no_column(options.path, source, name)
            if source.columns[name] not in NUMERIC:
                raise not_a_number(options.path, source, name)
        return options.features

    def describe(self) -> DatasetDescription:
        """Row count and schema. Features are described in the form that learners get them: float32."""
        columns = [Column(name=name, dtype="float32") for name in self.feature_names]
        columns.append(Column(name=self.options.target, dtype="float64"))
        facts = {"classes": json.dumps(self.options.classes)} if self.options.classes else {}
        rows = int(np.count_nonzero(self._chosen)) if self.options.where else self._source.rows
        self._forget()
        return DatasetDescription(
            name=self.name, kind=self.kind, rows=rows, columns=tuple(columns), target=self.options.target, facts=facts
        )

    def load(self) -> Table:
        """The rows that `where` chooses.

        Raises:
            SiteError: a column that is missing or not numeric, a target that is missing or no known class. The
                sentence names file, column and row (counted from 1, without the header line).
        """
        options, source = self.options, self._source
        names = self.feature_names
        features = source.numbers(names)
        chosen = self._chosen
        wanted = [name for name in (options.target, options.weight, options.holdout_column) if name]
        columns = source.read(wanted)
        weight = self._weights(columns[options.weight]) if options.weight else np.ones(source.rows, np.float32)
        target = self._numbered(columns[options.target], chosen)
        if options.holdout_column:
            held_out = self._held_out(columns[options.holdout_column])[chosen]
        else:
            kept = int(np.count_nonzero(chosen))
            held_out = np.arange(kept) >= kept - int(np.ceil(kept * options.holdout - 1e-9))
        self._forget()
        return Table(
            features=features if chosen.all() else features[chosen],
            feature_names=names,
            target=target[chosen],
            weight=weight[chosen],
            held_out=held_out,
            class_names=options.classes,
        )

    def _forget(self) -> None:
        """Let go of the file: a CSV is held whole while it is read, and the next call sees what has changed."""
        self.__dict__.pop("_source", None)
        self.__dict__.pop("feature_names", None)

    @property
    def _chosen(self) -> NDArray[np.bool_]:
        chosen = np.ones(self._source.rows, dtype=np.bool_)
        if not self.options.where:
            return chosen
        columns = self._source.read(self.options.where)
        for name, wanted in self.options.where.items():
            values = wanted if isinstance(wanted, list) else [wanted]
            column = columns[name]
            matches = np.zeros(len(column), dtype=np.bool_)
            for value in values:
                matches |= (column == value).astype(np.bool_)
            chosen &= matches
        if not chosen.any():
            raise SiteError(
                f"No row of {self.options.path} has {self.options.where}.",
                code="NO_ROWS",
                remedy="Check 'where' in agent.yaml.",
            )
        return chosen

    def _numbered(self, column: NDArray[Any], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
        name, classes = self.options.target, self.options.classes
        if not classes:
            if column.dtype == object:
                raise SiteError(
                    f"{self._the(name)} holds text; the order of its classes must be the same at every node.",
                    code="CLASSES_MISSING",
                    remedy="List the names of all classes of the job under 'classes' in agent.yaml.",
                )
            target = column.astype(np.float64)
            self._first_row(np.isnan(target) & chosen, name, "has no value", "TARGET_MISSING")
            return target
        number = {label: float(i) for i, label in enumerate(classes)}
        texts = [_as_text(value) for value in column]
        target = np.array([number.get(text, np.nan) for text in texts], dtype=np.float64)
        self._first_row(np.isnan(target) & chosen, name, "has a value that is none of 'classes'", "CLASS_UNKNOWN")
        return target

    def _weights(self, column: NDArray[Any]) -> NDArray[np.float32]:
        if column.dtype == object:
            raise not_a_number(self.options.path, self._source, self.options.weight)
        weight = column.astype(np.float32)
        bad = ~(np.isfinite(weight) & (weight > 0))
        self._first_row(bad, self.options.weight, "is not a positive finite number", "WEIGHT_OUT_OF_RANGE")
        return weight

    def _held_out(self, column: NDArray[Any]) -> NDArray[np.bool_]:
        name = self.options.holdout_column
        if column.dtype == object:
            raise not_a_number(self.options.path, self._source, name)
        numbers = column.astype(np.float64)
        self._first_row(np.isnan(numbers), name, "has no value", "HOLDOUT_MISSING")
        above = self.options.holdout_above
        held_out: NDArray[np.bool_] = numbers != 0 if above is None else numbers > above
        return held_out

    def _first_row(self, bad: NDArray[np.bool_], name: str, what: str, code: str) -> None:
        if bad.any():
            row = int(np.argmax(bad)) + 1
            raise SiteError(
                f"{self._the(name)} {what} in row {row} ({int(bad.sum())} such rows).",
                code=code,
                remedy="Correct these rows or leave them out of the file.",
            )

    def _the(self, name: str) -> str:
        return f"The column '{name}' of {self.options.path}"


def _as_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, (float, np.floating)) and float(value).is_integer() else str(value)
