"""What a site types to join, for each way to run an agent: the same words on the command line and on the pages.

The secret is read from a file or from standard input, never from a command line. What is installed is what the
operator hands over (a wheel, an image): a name on a public index could be somebody else's.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import yaml

from hanse import __version__

__all__ = ["IMAGE", "Way", "agent_file", "join_command", "ways_to_join"]

IMAGE = f"hanse-agent:{__version__}"
"""The image of `deploy/images`, where the operator names no other."""
WHEEL = f"hanse-{__version__}-py3-none-any.whl"
CONFIG = "agent.yaml"
INVITATION = "invitation"
"""The file in which a site saves the invitation, where nobody says another; and the key of the Kubernetes secret."""
SECRET = "agent-invitation"  # noqa: S105 - the name of a Kubernetes secret
NAMESPACE = "hanse"
OVERLAY = "deploy/k8s/overlays/edge"


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to run the agent."""

    key: str
    """For programs: `pip`, `container`, `kubernetes`."""
    title: str
    hint: str
    text: str
    """What to type, a command a line."""


def join_command(source: str) -> str:
    """What an installed agent joins with; `source` is `file:PATH`, or `-` for standard input."""
    return f"hanse-agent join {CONFIG} --token {shlex.quote(source)}"


def agent_file(coordinator: str, state: str = "/var/lib/hanse") -> str:
    """An `agent.yaml` to begin with; what a site must fill in stands in capitals."""
    document = {
        "coordinator": coordinator or "FEDERATION:7443",
        "state": state,
        "datasets": {"DATASET": {"kind": "table", "path": "/data/FILE.parquet", "target": "COLUMN"}},
        "policy": {"methods": ["fedscs_xgb"], "approve": "by_hand"},
    }
    return str(yaml.safe_dump(document, sort_keys=False)).strip()


def ways_to_join(image: str = "", invitation: str = INVITATION) -> tuple[Way, ...]:
    """Each way to join and run, from a folder that holds `agent.yaml`; `invitation` is the file of the secret."""
    source, file = f"file:{invitation}", shlex.quote(invitation)
    mounts = f'-v hanse-state:/var/lib/hanse -v /data:/data:ro -v "$PWD/{CONFIG}:/etc/hanse/{CONFIG}:ro"'
    name = shlex.quote(image or IMAGE)
    return (
        Way(
            key="pip",
            title="pip",
            hint="Python 3.11 or newer, and the wheel that the operator hands over. Connections go out only.",
            text=(
                "python3 -m venv hanse && . hanse/bin/activate\n"
                f"pip install './{WHEEL}[agent]'\n"
                f"hanse-agent doctor {CONFIG} --token {shlex.quote(source)}\n"
                f"{join_command(source)}\n"
                f"hanse-agent run {CONFIG}"
            ),
        ),
        Way(
            key="container",
            title="Container",
            hint="Docker or Podman. State stays in the volume hanse-state; records in /data are only read.",
            text=(
                f"docker run --rm -i {mounts} \\\n"
                f"  {name} hanse-agent join /etc/hanse/{CONFIG} --token - < {file}\n"
                f"docker run -d --restart unless-stopped --name hanse-agent --read-only --tmpfs /tmp {mounts} \\\n"
                f"  {name} hanse-agent run /etc/hanse/{CONFIG}"
            ),
        ),
        Way(
            key="kubernetes",
            title="Kubernetes",
            hint="The overlay for a node, on k3s and others. The node joins when the secret is there.",
            text=(
                f"cp {CONFIG} {OVERLAY}/{CONFIG}\n"
                f"kubectl apply -k {OVERLAY}\n"
                f"kubectl -n {NAMESPACE} create secret generic {SECRET} --from-file={INVITATION}={file}"
            ),
        ),
    )
