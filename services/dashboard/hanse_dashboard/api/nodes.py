"""Nodes, and one node with what left it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from hanse_dashboard.api.parameters import After, As, Limit, Word
from hanse_dashboard.api.tables import AS_FILE, Format, whole_list
from hanse_dashboard.pages.nodes import online_of, trust_of
from hanse_dashboard.queries import nodes
from hanse_dashboard.queries.egress import EgressRow, egress_rows
from hanse_dashboard.queries.overview import slow_nodes
from hanse_dashboard.queries.paging import Page
from hanse_dashboard.state import Desk, Viewer

router = APIRouter()

NodeName = Annotated[str, Path(max_length=200)]


@dataclass(frozen=True, kw_only=True)
class NodeDocument:
    """A node, what it offers and what left it."""

    node: nodes.NodeRow
    offers: Sequence[nodes.DatasetOffer]
    jobs: int
    contributions: int
    bytes: int
    policy_digest: str | None
    ledger_sequence: int


@router.get("/nodes", response_model=Page[nodes.NodeRow], responses=AS_FILE)
def list_nodes(
    desk: Desk,
    caller: Viewer,
    trust: Word = "",
    health: Word = "",
    q: Word = "",
    after: After = "",
    limit: Limit = 100,
    format: As = Format.JSON,  # noqa: A002
) -> Any:
    """Nodes in order of name, on two axes: trust and health."""
    wanted, online, answers = trust_of(trust), online_of(health), desk.coordinator.presence().answers

    def read(place: str, size: int = 500) -> Page[nodes.NodeRow]:
        now = time.time()
        with desk.read() as view:
            return nodes.node_rows(
                view,
                now=now,
                coordinator_answers=answers,
                slow=slow_nodes(view, now),
                trust=wanted,
                online=online,
                text=q,
                after=place,
                limit=size,
            )

    if format is Format.CSV:
        return whole_list(read, "nodes", caller, most=desk.settings.largest_export)
    return read(after, limit)


@router.get("/nodes/{name}")
def get_node(desk: Desk, caller: Viewer, name: NodeName) -> NodeDocument:
    """One node."""
    now = time.time()
    with desk.read() as view:
        found = nodes.node_detail(
            view,
            name,
            now=now,
            coordinator_answers=desk.coordinator.presence().answers,
            slow=name in slow_nodes(view, now),
        )
    return NodeDocument(
        node=found.node,
        offers=found.offers,
        jobs=found.jobs,
        contributions=found.contributions,
        bytes=found.bytes,
        policy_digest=found.record.policy_digest,
        ledger_sequence=found.sequence,
    )


@router.get("/nodes/{name}/egress", response_model=Page[EgressRow], responses=AS_FILE)
def node_egress(
    desk: Desk,
    caller: Viewer,
    name: NodeName,
    job: Word = "",
    since: Annotated[float, Query(ge=0, description="Seconds since 1970.")] = 0.0,
    after: After = "",
    limit: Limit = 100,
    format: As = Format.JSON,  # noqa: A002
) -> Any:
    """What left a node: when, to which job, round and phase, how large, and its SHA-256."""
    with desk.read() as view:
        view.node(name)

    def read(place: str, size: int = 500) -> Page[EgressRow]:
        with desk.read() as view:
            return egress_rows(view, name, job=job, since=since, after=place, limit=size)

    if format is Format.CSV:
        return whole_list(read, f"egress-{_file_word(name)}", caller, most=desk.settings.largest_export)
    return read(after, limit)


def _file_word(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)
