"""`hanse-agent run`: taking part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hanse.cli.command import Run, command
from hanse.cli.output import Answer, UsageError
from hanse_agent.cli.arguments import load


def add_to(app: typer.Typer) -> None:
    """Register `hanse-agent run`."""
    command(app, "run", state="")(run_)


def run_(
    run: Run,
    configs: Annotated[
        list[Path], typer.Argument(metavar="CONFIG...", help="One agent.yaml for each node identity of this process.")
    ],
    log_json: Annotated[
        bool, typer.Option("--log-json", envvar="HANSE_LOG_JSON", help="Log as JSON lines, on standard error.")
    ] = False,
    log_level: Annotated[
        str, typer.Option("--log-level", envvar="HANSE_LOG_LEVEL", help="debug, info, warning or error.")
    ] = "info",
    metrics: Annotated[
        str,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            envvar="HANSE_AGENT_METRICS",
            help="Show metrics and health there, without TLS: 127.0.0.1:9464, for instance. Else nowhere.",
        ),
    ] = "",
    traces: Annotated[
        str,
        typer.Option(
            "--traces",
            metavar="URL",
            envvar="HANSE_TRACES",
            help="Send traces of assignments to this OTLP endpoint: http://collector:4317. Else nowhere.",
        ),
    ] = "",
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print every value and where it comes from, and end.")
    ] = False,
) -> Answer:
    """Take part: stay connected, perform assignments, until SIGTERM or Ctrl-C."""
    import asyncio

    from hanse import logs
    from hanse_agent.runner import run_agents

    if log_level.lower() not in {"debug", "info", "warning", "error"}:
        raise UsageError(f"'{log_level}' is no log level.", remedy="Use debug, info, warning or error.")
    if print_config:
        return _configurations(configs)
    logs.configure(json=log_json, level=log_level)
    settings = [load(path) for path in configs]
    asyncio.run(run_agents(settings, metrics_listen=metrics, traces=traces))
    return Answer(data={"nodes": len(settings)}, text="")


def _configurations(paths: list[Path]) -> Answer:
    from dataclasses import asdict

    from hanse_agent.settings import TRANSPARENT, AgentConfig

    loaded = {str(path): AgentConfig.configuration(path) for path in paths}
    return Answer(
        data={path: [asdict(value) for value in one.values(transparent=TRANSPARENT)] for path, one in loaded.items()},
        text="\n\n".join(one.text(transparent=TRANSPARENT) for one in loaded.values()),
    )
