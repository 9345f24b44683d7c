"""What an agent tells Prometheus: how it does, and no name of a node, job or dataset."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from hanse.security import Authority
from hanse.v1 import node_pb2
from hanse_agent import metrics
from tests.unit.agent.living import a_coordinator, an_agent
from tests.unit.agent.probe import assign, eventually, job, receipt

pytestmark = pytest.mark.usefixtures("probe")


def value(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


async def test_a_days_work_is_counted(authority: Authority, tmp_path: Path) -> None:
    before = {name: value("hanse_agent_assignments_total", outcome=name) for name in ("delivered", "failed")}
    left = value("hanse_agent_left_bytes_total", event="left")
    refusals = value("hanse_agent_policy_refusals_total", rule="methods")
    async with a_coordinator(authority, tmp_path) as coordinator, an_agent(coordinator, tmp_path) as living:
        stop = metrics.watch(lambda: [living.agent.identity.peer.not_after])
        try:
            session = await coordinator.session()
            await eventually(lambda: value("hanse_agent_nodes_connected") == 1)
            assert value("hanse_agent_nodes") == 1
            expiry = living.agent.identity.peer.not_after.timestamp()
            assert value("hanse_agent_certificate_expiry_timestamp_seconds") == expiry
            assert value("hanse_agent_last_heartbeat_timestamp_seconds") > 0
            session.send(offer=node_pb2.Offer(job=job("job-2", method="other")))
            await coordinator.event("offer_reply")
            session.send(assign=assign("a-1"))
            contribution = await coordinator.event("contribution")
            session.send(receipt=receipt(contribution))
            await eventually(
                lambda: value("hanse_agent_assignments_total", outcome="delivered") == before["delivered"] + 1
            )
            assert value("hanse_agent_left_bytes_total", event="left") == left + len(contribution.image)
            assert value("hanse_agent_policy_refusals_total", rule="methods") == refusals + 1
            shown = generate_latest(metrics.REGISTRY).decode()
            assert not re.search("job-2|a-1|records|" + re.escape(living.agent.node) + '"', shown)
        finally:
            stop()
    await eventually(lambda: not metrics._live)


def test_nothing_listens_unless_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    from hanse_agent.main import run_command

    assert run_command(["run", "--help"]) == 0
    assert "--metrics" in capsys.readouterr().out
