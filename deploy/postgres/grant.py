"""Run a file of SQL as the tables' owner: `python grant.py grants.sql`. The Job that migrates does, after it.

The connection is the entry `hanse` of the file that PGSERVICEFILE names.
"""

from __future__ import annotations

import sys
from pathlib import Path

import psycopg


def main(path: Path) -> None:
    """All of the file or nothing, in one transaction."""
    with psycopg.connect("service=hanse connect_timeout=10") as connection:
        connection.execute(path.read_text(encoding="utf-8").encode())
    print(f"{path.name} is applied")  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
