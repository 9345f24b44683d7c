"""The exact commands that a site runs to join, for each way to run an agent."""

from __future__ import annotations

from typing import NamedTuple

import yaml

from hanse import __version__
from hanse_dashboard.settings import DashboardSettings

__all__ = ["Command", "commands"]

IMAGE = "hanse-agent"


class Command(NamedTuple):
    """A way to run the agent, and what to type."""

    title: str
    hint: str
    text: str


def _configuration(settings: DashboardSettings, state: str) -> str:
    document = {
        "coordinator": settings.nodes_address or "FEDERATION:7443",
        "state": state,
        "datasets": {"DATASET": {"kind": "table", "path": "/data/FILE.parquet", "target": "COLUMN"}},
        "policy": {"methods": ["fedscs_xgb"], "approve": "by_hand"},
    }
    return yaml.safe_dump(document, sort_keys=False).strip()


def commands(settings: DashboardSettings, node: str) -> list[Command]:
    """What a site types. The invitation is read from a file, never from the command line."""
    quoted = "agent.yaml"
    return [
        Command(
            "agent.yaml",
            "What the site offers and allows. Change the words in capitals.",
            _configuration(settings, "/var/lib/hanse"),
        ),
        Command(
            "pip",
            "Python 3.11 or newer. Only outbound connections are made.",
            f"python3 -m venv hanse && . hanse/bin/activate\n"
            f"pip install 'hanse[agent]=={__version__}'\n"
            f"hanse-agent join {quoted} --token file:invitation\n"
            f"hanse-agent run {quoted}",
        ),
        Command(
            "Container",
            "State and data stay in the two folders that are mounted.",
            f"docker run --rm -it -v hanse-state:/var/lib/hanse -v /data:/data:ro \\\n"
            f"  -v ./agent.yaml:/etc/hanse/agent.yaml:ro -v ./invitation:/run/invitation:ro \\\n"
            f"  {IMAGE}:{__version__} join /etc/hanse/agent.yaml --token file:/run/invitation\n"
            f"docker run -d --restart unless-stopped --name hanse-agent \\\n"
            f"  -v hanse-state:/var/lib/hanse -v /data:/data:ro \\\n"
            f"  -v ./agent.yaml:/etc/hanse/agent.yaml:ro {IMAGE}:{__version__} run /etc/hanse/agent.yaml",
        ),
        Command(
            "Kubernetes",
            "The node's overlay for k3s and others; the invitation becomes a secret.",
            "kubectl create namespace hanse\n"
            "kubectl -n hanse create secret generic invitation --from-file=invitation\n"
            "kubectl -n hanse create configmap agent --from-file=agent.yaml\n"
            "kubectl -n hanse apply -k deploy/k8s/overlays/edge",
        ),
    ]
