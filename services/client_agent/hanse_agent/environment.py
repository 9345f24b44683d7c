"""Variables of the environment that are read before anything heavy is imported."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

_BOTH_CASES = ("grpc_proxy", "https_proxy", "no_grpc_proxy", "no_proxy")


def honour_capitals(environment: MutableMapping[str, str] = os.environ) -> None:
    """Give gRPC, which knows the lower-case names alone, the proxy that `HTTPS_PROXY` names. Before any channel."""
    for name in _BOTH_CASES:
        if not environment.get(name) and (given := environment.get(name.upper())):
            environment[name] = given
