"""`hanse-agent`: the site operator's command. Heavy imports wait until a command runs, so that help is instant."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hanse.cli import command as commands
from hanse.cli.command import Run, command
from hanse.cli.output import Answer, UsageError, WaitTimeout, fields, printable, table
from hanse.cli.program import run_program
from hanse_agent.care import add_commands
from hanse_agent.environment import honour_capitals

if TYPE_CHECKING:
    from hanse.security import Invitation
    from hanse_agent.approvals import Approvals
    from hanse_agent.settings import AgentConfig

app = typer.Typer(
    name="hanse-agent",
    help="A node of a federation: trains on records that stay here.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
approvals = commands.group("approvals", "Jobs that wait for a person's word at this site.")
app.add_typer(approvals)

TOKEN_VARIABLE = "HANSE_INVITATION"  # noqa: S105 - the name of a variable, not a secret

CONFIG = Annotated[Path, typer.Argument(metavar="CONFIG", envvar="HANSE_AGENT_CONFIG", help="The node's agent.yaml.")]
CONFIG_OPTION = Annotated[
    Path,
    typer.Option("--config", "-c", metavar="CONFIG", envvar="HANSE_AGENT_CONFIG", help="The node's agent.yaml."),
]
DEFAULT_CONFIG = Path("agent.yaml")


def _show_version(wanted: bool) -> None:
    if wanted:
        from hanse import __version__

        typer.echo(f"hanse-agent {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@command(app, "join", state="")
def join(
    run: Run,
    config: CONFIG = DEFAULT_CONFIG,
    token: Annotated[
        str,
        typer.Option(
            "--token",
            metavar="file:PATH|-",
            show_default=False,
            help=f"The invitation: file:PATH, or - for standard input. Else the variable {TOKEN_VARIABLE}.",
        ),
    ] = "",
    wait: Annotated[
        str, typer.Option("--wait", metavar="DURATION", help="How long to wait for approval: 10m, 2h. Else for ever.")
    ] = "",
) -> Answer:
    """Join a federation with an invitation. Can be interrupted and run again."""
    import asyncio

    from hanse_agent.enrolment import join as enrol
    from hanse_agent.enrolment import joined_before
    from hanse_agent.folder import StateFolder

    timeout = _duration(wait)
    settings = _load(config)
    invitation = _invitation(token)
    if invitation is None:
        known = joined_before(StateFolder(settings.state), None)
        if known is None:
            raise UsageError(
                "No invitation was given.", remedy=f"Give --token file:PATH, --token -, or set {TOKEN_VARIABLE}."
            )
        return _joined(known.node, known.peer.not_after.isoformat(), already=True)
    settings.check_datasets()

    async def attempt() -> Answer:
        async with asyncio.timeout(timeout):
            done = await enrol(settings, invitation, lambda step: run.note(f"✓ {step}"))
        return _joined(done.identity.node, done.identity.peer.not_after.isoformat(), already=done.already)

    try:
        return asyncio.run(attempt())
    except TimeoutError:
        raise WaitTimeout(
            f"nobody has approved {invitation.node} within {wait}.",
            remedy="Run the same command again to go on waiting; the fingerprint stays the same.",
        ) from None


@command(app, "run", state="")
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
    settings = [_load(path) for path in configs]
    asyncio.run(run_agents(settings, metrics_listen=metrics, traces=traces))
    return Answer(data={"nodes": len(settings)}, text="")


@command(app, "status", state="")
def status(run: Run, config: CONFIG = DEFAULT_CONFIG) -> Answer:
    """Show who this node is, whether it is connected, what it does and what went wrong last."""
    from hanse_agent.status import read_status

    found = read_status(_load(config))
    return Answer(data=found, text=_status_text(found))


@command(approvals, "list", state="")
def list_approvals(run: Run, config: CONFIG_OPTION = DEFAULT_CONFIG) -> Answer:
    """List the jobs that have asked for approval here, those that wait first."""
    from dataclasses import asdict

    found = _approvals(config).list()
    rows = [[item.job, printable(item.name), item.method, item.dataset, item.state, item.since] for item in found]
    shown = table(["JOB", "NAME", "METHOD", "DATASET", "STATE", "SINCE"], rows, empty="No job has asked for approval.")
    return Answer(data=[asdict(item) for item in found], text=shown)


JOB = Annotated[str, typer.Argument(metavar="JOB", help="Id or name of the job.")]


@command(approvals, "approve", state="")
def approve(run: Run, job: JOB, config: CONFIG_OPTION = DEFAULT_CONFIG) -> Answer:
    """Let a job run here. A running agent tells the coordinator within a second or two."""
    from dataclasses import asdict

    said = _approvals(config).say(job, "approved")
    return Answer(data=asdict(said), text=f"{said.name} ({said.job}) is approved.")


@command(approvals, "refuse", state="")
def refuse(run: Run, job: JOB, why: commands.WHY_OPTION = "", config: CONFIG_OPTION = DEFAULT_CONFIG) -> Answer:
    """Refuse a job; also one that was approved before: its next assignment is refused."""
    from dataclasses import asdict

    said = _approvals(config).say(job, "refused", why)
    return Answer(data=asdict(said), text=f"{said.name} ({said.job}) is refused.")


@command(app, "egress", state="")
def egress(
    run: Run,
    config: CONFIG_OPTION = DEFAULT_CONFIG,
    job: Annotated[str, typer.Option("--job", metavar="JOB", help="Only of this job (id or name).")] = "",
    since: Annotated[
        str, typer.Option("--since", metavar="WHEN", help="Only since then: 24h, 7d, or 2026-01-31T08:00Z.")
    ] = "",
) -> Answer:
    """List everything that has left this site, from the journal that is written before it leaves."""
    from hanse_agent.egress import EgressJournal
    from hanse_agent.folder import StateFolder

    journal = EgressJournal(StateFolder(_load(config).state).egress)
    found = list(journal.entries(job=job, since=_moment(since)))
    rows = [
        [
            str(line["when"]),
            str(line["event"]),
            printable(str(line["job_name"])),
            str(line["round"]),
            str(line["phase"]),
            str(line["kind"]),
            f"{line['bytes']:,}",
            str(line["digest"])[:12],
        ]
        for line in found
    ]
    head = ["WHEN", "EVENT", "JOB", "ROUND", "PHASE", "KIND", "BYTES", "DIGEST"]
    return Answer(data=found, text=table(head, rows, empty="Nothing has left this site."))


@command(app, "forecast", state="")
def forecast(
    run: Run,
    job: Annotated[str, typer.Option("--job", metavar="JOB", help="Id of the job, or name of the newest one.")],
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write to a .csv or .parquet file; else print.")
    ] = None,
    config: CONFIG_OPTION = DEFAULT_CONFIG,
) -> Answer:
    """Forecast the next hours of this node's own series, with intervals: nothing leaves, no coordinator is asked."""
    from dataclasses import asdict

    from hanse_agent.forecasts import forecast as apply

    done = apply(_load(config), job, output)
    return Answer(data=asdict(done), text=done.as_text())


@command(app, "predict", state="")
def predict(
    run: Run,
    data: Annotated[
        Path,
        typer.Option("--input", metavar="PATH", help="New records, in the form of the job's dataset (a table: CSV)."),
    ],
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="Where the predictions go: .csv or .parquet.")
    ],
    job: Annotated[str, typer.Option("--job", metavar="JOB", help="Id of the job, or name of the newest one.")] = "",
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="FOLDER", help="Instead of a job: where a network was pulled to."),
    ] = None,
    config: CONFIG_OPTION = DEFAULT_CONFIG,
) -> Answer:
    """Apply a finished job's model to new records, here: nothing leaves, and no coordinator is asked."""
    from dataclasses import asdict

    from hanse_agent.predicting import predict as apply
    from hanse_agent.predicting import predict_by_file

    if bool(job) == (model is not None):
        raise UsageError(
            "A model is named either by --job or by --model.",
            remedy="Give --job at a node that took part in the job, else --model and a folder of `hanse model pull`.",
        )
    done = (
        apply(_load(config), job, data, output)
        if model is None
        else predict_by_file(_load(config), model, data, output)
    )
    of = f"{done.name} ({done.job})" if done.job else done.name
    return Answer(data=asdict(done), text=f"{done.rows:,} predictions of {of} are in {done.output}.")


def _configurations(paths: list[Path]) -> Answer:
    from dataclasses import asdict

    from hanse_agent.settings import TRANSPARENT, AgentConfig

    loaded = {str(path): AgentConfig.configuration(path) for path in paths}
    return Answer(
        data={path: [asdict(value) for value in one.values(transparent=TRANSPARENT)] for path, one in loaded.items()},
        text="\n\n".join(one.text(transparent=TRANSPARENT) for one in loaded.values()),
    )


add_commands(app)


def _load(path: Path) -> AgentConfig:
    from hanse_agent.settings import AgentConfig

    return AgentConfig.load(path)


def _approvals(config: Path) -> Approvals:
    from hanse_agent.approvals import Approvals
    from hanse_agent.folder import StateFolder

    return Approvals(StateFolder(_load(config).state).approvals)


def _invitation(source: str) -> Invitation | None:
    """Read it; whether it has expired, the coordinator's clock decides, since ours may be wrong."""
    import os

    from hanse.security import read_invitation

    source = source or os.environ.get(TOKEN_VARIABLE, "")
    return read_invitation(source) if source else None


def _duration(text: str) -> float | None:
    from hanse.settings import parse_duration

    try:
        return parse_duration(text).total_seconds() if text else None
    except ValueError as error:
        raise UsageError(f"{error}.") from None


def _moment(text: str) -> Any:
    from datetime import UTC, datetime

    from hanse.settings import parse_duration

    if not text:
        return None
    try:
        return datetime.now(UTC) - parse_duration(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"'{text}' is no moment.", remedy="Write 24h, 7d, or 2026-01-31T08:00Z.") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _joined(node: str, until: str, *, already: bool) -> Answer:
    text = f"{node} has joined already; its certificate is good until {until}." if already else f"{node} has joined."
    return Answer(data={"node": node, "certificate_until": until, "already": already}, text=text)


def _status_text(found: dict[str, Any]) -> str:
    connection, error, certificate = found["connection"], found["last_error"] or {}, found["certificate"]
    work = [
        f"{printable(item['job_name'])} round {item['round']}, {item['phase']}: {item['stage']}"
        + (f" {item['fraction']:.0%}" if item["fraction"] is not None else "")
        for item in found["work"]
    ]
    data = [
        f"{item['name']}: " + (item.get("unavailable") or f"{item['rows']:,} rows ({item['kind']})")
        for item in found["datasets"]
    ]
    connected = [str(connection[key]) for key in ("state", "coordinator", "since") if key in connection]
    joined = found["node"] or "has not joined; run hanse-agent join"
    until = f"until {certificate['until']}{' (EXPIRED)' if certificate['expired'] else ''}" if certificate else ""
    return fields(
        [
            ("node", joined),
            ("state", found["state"]),
            ("certificate", until),
            ("agent", f"running, process {found['pid']}" if found["running"] else "not running"),
            ("connection", " ".join(connected)),
            ("clock", _clock(found["clock_skew_s"])),
            ("datasets", "; ".join(data)),
            ("methods", ", ".join(found["methods"])),
            ("work", "; ".join(work) or ("none: waiting for the coordinator" if found["running"] else "")),
            ("approvals", ", ".join(found["waiting_for_approval"])),
            ("last error", f"{error['when']} {error['sentence']} {error['remedy']} [{error['code']}]" if error else ""),
        ]
    )


def _clock(skew: float | None) -> str:
    if skew is None or abs(skew) < 1:
        return ""
    return f"{abs(skew):.0f} s {'behind' if skew > 0 else 'ahead of'} the coordinator's"


def run_command(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code and shows no traceback."""
    honour_capitals()
    return run_program(app, arguments, program="hanse-agent")


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
