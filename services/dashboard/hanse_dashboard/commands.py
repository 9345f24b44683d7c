"""What the onboarding pages tell a site to type: the same as `hanse node invite`."""

from __future__ import annotations

from hanse.onboarding import Way, agent_file, ways_to_join
from hanse_dashboard.settings import DashboardSettings

__all__ = ["commands"]


def commands(settings: DashboardSettings) -> list[Way]:
    """The agent's file, and each way to join and run."""
    file = Way(
        key="configuration",
        title="agent.yaml",
        hint="What the site offers and allows. Change the words in capitals.",
        text=agent_file(settings.nodes_address),
    )
    return [file, *ways_to_join(settings.agent_image)]
