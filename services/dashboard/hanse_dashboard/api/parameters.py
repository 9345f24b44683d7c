"""What may be asked of the lists: parameters that several routes share."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from hanse_dashboard.api.tables import Format

__all__ = ["After", "As", "Limit", "Word"]

Limit = Annotated[int, Query(ge=1, le=1000, description="Rows of a page.")]
After = Annotated[str, Query(max_length=200, description="`next` of the page before.")]
Word = Annotated[str, Query(max_length=200)]
As = Annotated[Format, Query(alias="format", description="`csv`: the whole list as a file.")]
