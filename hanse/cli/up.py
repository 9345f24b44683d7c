"""`hanse up`: a whole federation on this machine, supervised."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hanse.cli.command import Run, command
from hanse.cli.output import Answer, fields

_PORT = "0: any free one. Kept for the next start."


def up(
    run: Run,
    node_port: Annotated[
        int | None, typer.Option(show_default="7443", min=0, max=65535, help=f"For nodes; {_PORT}")
    ] = None,
    control_port: Annotated[
        int | None, typer.Option(show_default="7444", min=0, max=65535, help=f"For operators; {_PORT}")
    ] = None,
    nodes_address: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            show_default=False,
            help="Name or address at which nodes on other machines reach this one. Without it, only this machine does.",
        ),
    ] = "",
    dashboard_port: Annotated[
        int | None, typer.Option(show_default="7480", min=0, max=65535, help=f"For browsers; {_PORT}")
    ] = None,
    no_dashboard: Annotated[bool, typer.Option("--no-dashboard", help="Serve no pages.")] = False,
    foreground_logs: Annotated[
        bool, typer.Option("--foreground-logs", help="Logs of the programs to standard error instead of files.")
    ] = False,
) -> Answer | None:
    """Start coordinator, aggregator and dashboard here, and keep them running until Ctrl-C or SIGTERM.

    The first start makes authority, certificates and an admin token in the state folder; later starts use them.
    """
    import os
    import signal
    import threading

    from hanse.embedded import EmbeddedFederation, EmbeddedOptions, dashboard_is_installed

    folder = run.state or Path(os.environ.get("HANSE_STATE") or "hanse-state")
    options = EmbeddedOptions(
        node_port=node_port,
        control_port=control_port,
        nodes_address=nodes_address,
        foreground_logs=foreground_logs,
        dashboard=dashboard_is_installed() and not no_dashboard,
        dashboard_port=dashboard_port,
    )
    asked = threading.Event()
    federation = EmbeddedFederation(folder, options, say=run.note)

    def stop(signum: int, _frame: object) -> None:
        if asked.is_set():
            federation.hurry()
        asked.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    run.note(f"starting a federation in {folder} …")
    with federation.running(unless=asked):
        if not asked.is_set():
            run.give(_answer(federation))
            asked.wait()
        run.note("stopping …")
    run.note("stopped.")
    return None


def _answer(federation: object) -> Answer:
    from hanse.embedded import EmbeddedFederation

    assert isinstance(federation, EmbeddedFederation)
    data = {
        "state": str(federation.state),
        "nodes": federation.nodes_address,
        "control": federation.control_address,
        "client": str(federation.client_file),
        "token": str(federation.token_file),
        "ledger": str(federation.ledger_file),
        "logs": str(federation.logs) if federation.logs else None,
        "dashboard": federation.dashboard.address if federation.dashboard else None,
        "login_link": federation.dashboard.login_link if federation.dashboard else None,
    }
    text = fields(
        [
            ("nodes", f"{data['nodes']}  (mutual TLS; agents dial in here)"),
            ("control", f"{data['control']}  (TLS and a token; the command line and dashboards)"),
            ("dashboard", f"{data['login_link']}  (logs in once)" if data["login_link"] else ""),
            ("client file", str(data["client"])),
            ("admin token", f"{data['token']}  (keep it secret)"),
            ("ledger", str(data["ledger"])),
            ("logs", str(data["logs"] or "")),
        ]
    )
    return Answer(data=data, text=f"{text}\n\nNext: hanse node invite NAME --state {federation.state}\nCtrl-C stops.")


def add_to(app: typer.Typer) -> None:
    """Register `hanse up`."""
    command(app, "up", state="Where everything lies. Else HANSE_STATE, else ./hanse-state.")(up)
