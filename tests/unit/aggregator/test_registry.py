"""Plug-ins found through entry points; a broken one stops no other."""

from __future__ import annotations

import json
import sys
import types
from importlib.metadata import EntryPoint

import pytest
from pydantic import BaseModel

from hanse.errors import MethodError, NotFound, OperatorError
from hanse_aggregator.registry import GROUP, Registry


class Config(BaseModel, extra="forbid"):
    depth: int = 6


class Good:
    """Does what it should.

    And more, which is not the summary.
    """

    version = "1.2"
    Config = Config

    def first_phase(self, job): ...

    def open(self, phase, state): ...


class Unversioned(Good):
    version = None


class Unconfigured(Good):
    Config = dict


class Unopened(Good):
    open = None


class Explosive(Good):
    def __init__(self) -> None:
        raise RuntimeError("boom")


@pytest.fixture(autouse=True)
def module(monkeypatch):
    """The classes above, under a name that entry points can give."""
    made = types.ModuleType("some_plugins")
    for cls in (Good, Unversioned, Unconfigured, Unopened, Explosive):
        setattr(made, cls.__name__, cls)
    made.Again = Good
    monkeypatch.setitem(sys.modules, "some_plugins", made)


def registry(**points: str) -> Registry:
    return Registry([EntryPoint(name, value, GROUP) for name, value in points.items()])


def test_what_can_be_used_is_described_and_what_cannot_has_a_reason():
    found = registry(
        good="some_plugins:Good",
        absent="nowhere_at_all:Plugin",
        misspelt="some_plugins:Goood",
        no_version="some_plugins:Unversioned",
        no_config="some_plugins:Unconfigured",
        no_open="some_plugins:Unopened",
        no_class="some_plugins",
    )
    (description,) = found.describe()
    assert (description.method, description.version, description.summary) == ("good", "1.2", "Does what it should.")
    assert json.loads(description.config_schema)["properties"]["depth"]["default"] == 6
    assert found.methods == ("good",)
    reasons = found.broken
    assert "No module named 'nowhere_at_all'" in reasons["absent"]
    assert "Goood" in reasons["misspelt"]
    assert "version" in reasons["no_version"]
    assert "Config" in reasons["no_config"]
    assert "`open`" in reasons["no_open"]
    assert "class" in reasons["no_class"]


def test_a_method_that_two_packages_offer_is_used_from_neither():
    points = [EntryPoint("m", "some_plugins:Good", GROUP), EntryPoint("m", "some_plugins:Explosive", GROUP)]
    found = Registry(points)
    assert found.methods == ()
    assert "some_plugins:Explosive and some_plugins:Good" in found.broken["m"]


def test_a_package_that_is_on_the_path_twice_is_one():
    assert Registry([EntryPoint("m", "some_plugins:Again", GROUP)] * 2).methods == ("m",)


def test_every_call_gets_a_plugin_of_its_own():
    found = registry(good="some_plugins:Good")
    assert found.make("good", {"depth": 3}) is not found.make("good", {})


def test_a_configuration_is_checked_by_the_plugins_own_model():
    found = registry(good="some_plugins:Good")
    with pytest.raises(OperatorError, match="unknown key 'dpeth' \\(known here: depth\\)") as error:
        found.make("good", {"dpeth": 3})
    assert error.value.code == "INVALID_CONFIGURATION"
    with pytest.raises(OperatorError, match="method_config: depth"):
        found.check("good", {"depth": "deep"})


def test_a_method_that_is_not_here_names_those_that_are():
    found = registry(good="some_plugins:Good", absent="nowhere_at_all:Plugin")
    with pytest.raises(NotFound, match="no plug-in for method 'other'") as error:
        found.check("other", {})
    assert "good" in error.value.remedy
    with pytest.raises(NotFound, match="nowhere_at_all"):
        found.check("absent", {})


def test_a_plugin_that_cannot_be_made_is_the_methods_fault():
    with pytest.raises(MethodError, match="RuntimeError: boom"):
        registry(bad="some_plugins:Explosive").make("bad", {})
