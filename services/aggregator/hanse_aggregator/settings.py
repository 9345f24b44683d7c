"""The aggregator's configuration: a YAML file, and `HANSE_AGGREGATOR_…` variables, which win over it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from hanse.errors import OperatorError
from hanse.settings import Duration, Settings, Size, validate

PREFIX = "HANSE_AGGREGATOR_"


class AggregatorSettings(Settings):
    """Every key of the aggregator's configuration."""

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
    artifacts: Path | None = None
    """Folder of the coordinator's artifact store, where this machine reaches it: then no bytes are streamed."""
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
    log_json: bool = False
    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")


def load(path: Path | None, environment: Mapping[str, str] = os.environ) -> AggregatorSettings:
    """Read the file, if there is one, and the environment.

    Variables of other names are ignored, since Kubernetes adds some for every Service.

    Raises:
        OperatorError: unreadable, or a wrong or unknown key; the sentence names it.
    """
    document: Any = {}
    if path is not None:
        try:
            document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise OperatorError(f"cannot read {path}: {' '.join(str(error).split())}") from error
        if not isinstance(document, dict):
            raise OperatorError(f"{path} must hold keys and values, not {type(document).__name__}.")
    given = {
        key: environment[PREFIX + key.upper()]
        for key in AggregatorSettings.model_fields
        if environment.get(PREFIX + key.upper())
    }
    return validate(AggregatorSettings, document | given, source=str(path or "the environment"))
