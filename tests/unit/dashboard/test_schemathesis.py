"""Schemathesis against the API's own document: no server error, and no answer that the document does not describe."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import schemathesis
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from hanse.security import Role
from hanse.v1 import control_pb2
from hanse_dashboard.app import create_app
from hanse_dashboard.coordinator import Coordinator

from .conftest import World, settings_for

EXAMPLES = int(os.environ.get("HANSE_SCHEMATHESIS_EXAMPLES", "8"))
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
]


_METHODS = control_pb2.DESCRIPTOR.services_by_name["ControlService"].methods_by_name


def _agree(method: str, _: Any) -> Any:
    """The coordinator's answer of the right kind, with nothing in it."""
    return GetMessageClass(_METHODS[method].output_type)()


@contextmanager
def _agreeing(_: Coordinator, token: Any) -> Iterator[Any]:
    """A coordinator that does whatever it is asked for."""
    yield SimpleNamespace(call=_agree)


@pytest.fixture
def schema(world: World, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Coordinator, "acting_as", _agreeing)
    return schemathesis.openapi.from_asgi("/api/v1/openapi.json", create_app(settings_for(world)))


def test_the_document_holds(world: World, schema: Any) -> None:
    headers = {"Authorization": f"Bearer {world.tokens[Role.ADMIN].text()}"}
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        tried += 1

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def holds(case: Any) -> None:
            case.call_and_validate(headers=headers, checks=CHECKS)

        holds()
    assert tried > 20
