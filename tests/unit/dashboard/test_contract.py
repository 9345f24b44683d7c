"""Whatever is asked of the API, the answer is one that its document describes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

from .conftest import HOSTILE, World, csrf

WORDS = [
    "",
    "x",
    "0",
    "-1",
    "99999999999999999999",
    "1e999",
    "node-1",
    HOSTILE,
    "\u0000",
    "\U0001f600" * 30,
    "a" * 300,
    "csv",
    "nan~x",
]
BODIES: list[Any] = [
    {},
    [],
    None,
    "x",
    {"why": 3},
    {"why": "x" * 2000},
    {"fingerprint": ""},
    {"name": HOSTILE},
    {"labels": []},
]


@pytest.fixture(scope="module")
def document(client: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/api/v1/openapi.json").json()
    return found


def check(document: dict[str, Any], operation: dict[str, Any], answer: Any, where: str) -> None:
    described = operation["responses"].get(str(answer.status_code))
    assert described, (where, answer.status_code, answer.text[:300])
    kind = answer.headers["content-type"].split(";")[0]
    content = described.get("content", {})
    assert kind in content, (where, kind)
    if kind == "application/json":
        schema = {"$ref": "#/x", "x": content[kind]["schema"], "components": document["components"]}
        faults = [fault.message for fault in Draft202012Validator(schema).iter_errors(answer.json())]
        assert faults == [], where


def test_reading_with_odd_parameters(world: World, client: TestClient, document: dict[str, Any]) -> None:
    seen = set()
    for path, methods in document["paths"].items():
        if "get" not in methods:
            continue
        operation = methods["get"]
        names = [item["name"] for item in operation.get("parameters", []) if item["in"] == "query"]
        for word in [world.good, "node-1", "1", str(world.pictures["tree"]), *WORDS]:
            where = re.sub(r"\{number\}|\{sequence\}", "1", path)
            where = re.sub(r"\{job\}", world.good, re.sub(r"\{name\}", "node-1", where))
            requests = [(re.sub(r"\{[a-z]+\}", _quoted(word), path), {})] if "{" in path and word else []
            requests += [(where, {name: word}) for name in names]
            for address, query in [*requests, (where, {})]:
                answer = client.get(address, params=query)
                check(document, operation, answer, f"{address} {query}")
                seen.add(answer.status_code)
    assert {200, 400, 404, 422} <= seen


def _quoted(word: str) -> str:
    from urllib.parse import quote

    return quote(word, safe="")


def test_changing_with_odd_bodies(world: World, client: TestClient, document: dict[str, Any]) -> None:
    headers = {"X-CSRF-Token": csrf(client)}
    for path, methods in document["paths"].items():
        if "post" not in methods:
            continue
        for word in ("nothing", HOSTILE.replace("/", "")):
            where = re.sub(r"\{[a-z]+\}", _quoted(word), path)
            for body in BODIES:
                answer = client.post(where, json=body, headers=headers)
                check(document, methods["post"], answer, f"{where} {body}")
                assert answer.status_code in (200, 400, 404, 409, 422, 503)
