"""Arguments that several commands share, and the agent.yaml that they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hanse_agent.settings import AgentConfig

DEFAULT_CONFIG = Path("agent.yaml")
CONFIG = Annotated[Path, typer.Argument(metavar="CONFIG", envvar="HANSE_AGENT_CONFIG", help="The node's agent.yaml.")]
CONFIG_OPTION = Annotated[
    Path,
    typer.Option("--config", "-c", metavar="CONFIG", envvar="HANSE_AGENT_CONFIG", help="The node's agent.yaml."),
]


def load(path: Path) -> AgentConfig:
    """Read an agent.yaml; see `AgentConfig.load`."""
    from hanse_agent.settings import AgentConfig

    return AgentConfig.load(path)
