from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

import hanse.models
from tests.unit.reference import reference


@pytest.fixture
def reference_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models of the reference package are installed."""
    module = reference()
    points = [
        EntryPoint(name="reference_mlp", value="hanse_reference:Mlp", group="hanse.models"),
        EntryPoint(name="reference_bulk", value="hanse_reference:Bulk", group="hanse.models"),
    ]
    assert module.Mlp
    monkeypatch.setattr(hanse.models, "entry_points", lambda group: points)
