"""A whole federation on one machine: authority, coordinator and aggregator as supervised processes.

`hanse up`, the demos and the tests start the same programs, with the same TLS and the same files.
"""

from hanse.embedded.child import Child, child_environment
from hanse.embedded.dashboard import Dashboard
from hanse.embedded.dashboard import is_installed as dashboard_is_installed
from hanse.embedded.federation import EmbeddedFederation, EmbeddedOptions
from hanse.embedded.folder import StateFolder

__all__ = [
    "Child",
    "Dashboard",
    "EmbeddedFederation",
    "EmbeddedOptions",
    "StateFolder",
    "child_environment",
    "dashboard_is_installed",
]
