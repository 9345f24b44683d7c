"""Files of columns: Parquet, CSV (also gzipped) and npz, read column by column.

A source lists its columns without reading them where the format allows it, and reads the asked ones as NumPy
arrays: numbers as they are stored (missing ones as NaN), text as objects. Nothing is ever unpickled.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

from hanse.errors import SiteError
from hanse_agent.datasets.arrow_sources import CsvSource, ParquetSource
from hanse_agent.datasets.columns import Source, unreadable
from hanse_agent.datasets.npz_source import NpzNames, NpzSource


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


def _guarded(path: Path, make: Callable[[], Source]) -> Source:
    import pyarrow

    try:
        return make()
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise unreadable(path, error) from error
