"""The aggregator's configuration: a YAML file, and `HANSE_AGGREGATOR_…` variables, which win over it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from pydantic import Field

from hanse.artifacts import ArtifactSettings
from hanse.configuration import Loaded, load_configuration
from hanse.settings import Duration, Size

PREFIX = "HANSE_AGGREGATOR_"


class AggregatorSettings(ArtifactSettings):
    """Every key of the aggregator's configuration.

    With `artifacts`, the coordinator's artifact store where this machine reaches it, no bytes are streamed.
    """

    listen: str = "127.0.0.1:7445"
    """Where the coordinator calls (mutual TLS); port 0: any free one."""
    health_listen: str = ""
    """Plaintext health service; empty: none."""
    certificate: Path
    """The service's own certificate (PEM)."""
    key: Path | None = None
    """Its private key; default: in the certificate's file."""
    authority: Path
    """The federation's root certificate (PEM)."""
    scratch: Path | None = None
    """Folder for artifacts that are streamed; default: the system's folder for temporary files."""
    cache: Size = 256 * 10**6
    """Streamed states and instructions are kept up to so many bytes, to save sending them again."""
    threads: int = Field(4, ge=1, le=256)
    """How many calls may run plug-in code at the same time."""
    grace: Duration = timedelta(seconds=30)
    """How long running calls may go on after SIGTERM."""
    ports_file: Path | None = None
    """Where to write the bound ports (JSON), once the service answers."""
    traces: str = ""
    """OTLP endpoint (`http://collector:4317`) that is sent this service's part of traces; empty: none."""
    log_json: bool = False
    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")


def configuration(path: Path | None, environment: Mapping[str, str] = os.environ) -> Loaded[AggregatorSettings]:
    """Read the file, if there is one, and the environment.

    Raises:
        OperatorError: unreadable, or a wrong or unknown key; the sentence names it and where it stands.
    """
    variables = {"HANSE_TRACES": "traces"}
    return load_configuration(AggregatorSettings, path, environment=environment, prefix=PREFIX, variables=variables)


def load(path: Path | None, environment: Mapping[str, str] = os.environ) -> AggregatorSettings:
    """The settings alone.

    Raises:
        OperatorError: as `configuration`.
    """
    return configuration(path, environment).settings
