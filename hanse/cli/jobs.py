"""`hanse job …`: submit training runs, look at them, steer them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hanse.cli import command as commands
from hanse.cli.command import Run, command
from hanse.cli.output import Answer, fields, printable, table, tone

if TYPE_CHECKING:
    from hanse.v1 import control_pb2

group = commands.group("job", "Jobs: training runs of a method over a dataset.")

JOB = Annotated[str, typer.Argument(metavar="JOB", help="Id, or name of the newest job of that name.")]
TIMEOUT = Annotated[
    str,
    typer.Option("--timeout", metavar="DURATION", show_default=False, help="Stop waiting after this long (exit 6)."),
]


@command(group, "submit")
def submit(
    run: Run,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The job file (YAML).")],
    continue_from: Annotated[
        str, typer.Option(metavar="JOB", show_default=False, help="Go on from the model of this job.")
    ] = "",
    watch: Annotated[bool, typer.Option("--watch", help="Watch it until it ends.")] = False,
    timeout: TIMEOUT = "",
) -> Answer:
    """Submit a job file. It is checked here, and by the method's own schema at the coordinator."""
    from hanse.cli.views import plain
    from hanse.jobs import JobSpecification
    from hanse.settings import load_yaml
    from hanse.v1 import control_pb2

    specification = load_yaml(JobSpecification, file)
    request = control_pb2.SubmitJobRequest(
        specification=specification.model_dump_json().encode(), continue_from=continue_from
    )
    with run.connect() as control:
        job = control.call("SubmitJob", request)
        if watch:
            from hanse.cli.watch import watch_job

            run.note(f"submitted {printable(job.name)} as {job.id}")
            return watch_job(run, control, job.id, timeout)
    return Answer(data=plain(job), text=f"{_line(job)}\nWatch it: hanse job watch {job.id}")


@command(group, "list")
def show_all(
    run: Run,
    only: Annotated[
        list[str] | None, typer.Option("--in", metavar="STATE", show_default=False, help="Only jobs in this state.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
) -> Answer:
    """List jobs, newest first."""
    from hanse.cli.views import because, moment, plain
    from hanse.v1 import control_pb2

    request = control_pb2.ListJobsRequest(states=only or [])
    with run.connect() as control:
        jobs = control.pages("ListJobs", request, lambda page: page.jobs, most=limit)
    rows = [
        (
            job.id,
            printable(job.name),
            job.method,
            tone(job.state),
            f"{job.round}/{job.rounds}",
            moment(job.submitted_at),
            because(job.reason),
        )
        for job in jobs
    ]
    headings = ("JOB", "NAME", "METHOD", "STATE", "ROUND", "SUBMITTED", "")
    text = table(headings, rows, empty="There is no such job. Submit one: hanse job submit FILE")
    return Answer(data=[plain(job) for job in jobs], text=text)


@command(group, "show")
def show(
    run: Run,
    job: JOB,
    graph: Annotated[
        bool, typer.Option("--graph", help="Show who learns from whom, as the job has learned it.")
    ] = False,
) -> Answer:
    """Show one job: state and reason, the open phase, who takes part, the newest metrics."""
    from hanse.cli.views import plain
    from hanse.v1 import control_pb2

    with run.connect() as control:
        detail = control.call("GetJob", control_pb2.GetJobRequest(job=job))
        if graph:
            from hanse.cli.graphs import describe_graph, fetch_graph

            found = fetch_graph(control, detail)
            return Answer(data=found.document(), text=describe_graph(found))
    return Answer(data=plain(detail), text=describe(detail))


@command(group, "watch")
def watch(run: Run, job: JOB, timeout: TIMEOUT = "") -> Answer:
    """Watch a job until it ends; the exit code says how (0 succeeded, 5 failed, 3 cancelled).

    Ctrl-C only stops watching: the job goes on.
    """
    from hanse.cli.watch import watch_job

    with run.connect() as control:
        return watch_job(run, control, job, timeout)


@command(group, "cancel")
def cancel(run: Run, job: JOB, why: commands.WHY_OPTION, yes: commands.YES_OPTION = False) -> Answer:
    """End a job for good; work in hand is withdrawn from the nodes."""
    run.confirm(f"Job {printable(job)} will end for good.", yes=yes)
    return _change(run, "CancelJob", job, why)


@command(group, "pause")
def pause(run: Run, job: JOB, why: commands.WHY_OPTION) -> Answer:
    """Hold a job; `hanse job resume` lets it go on."""
    return _change(run, "PauseJob", job, why)


@command(group, "resume")
def resume(run: Run, job: JOB, why: commands.WHY_OPTION = "") -> Answer:
    """Let a paused job go on."""
    return _change(run, "ResumeJob", job, why)


def _change(run: Run, method: str, job: str, why: str) -> Answer:
    from hanse.cli.views import plain
    from hanse.v1 import control_pb2

    with run.connect() as control:
        changed = control.call(method, control_pb2.ChangeJobRequest(job=job, why=why))
    return Answer(data=plain(changed), text=_line(changed))


def _line(job: control_pb2.Job) -> str:
    from hanse.cli.views import because

    text = f"{job.id}  {printable(job.name)}  {tone(job.state)}  round {job.round}/{job.rounds}"
    reason = because(job.reason)
    return f"{text}\n{reason}" if reason else text


def describe(detail: control_pb2.JobDetail) -> str:
    """One job for people: facts first, then who takes part, then the metrics."""
    from hanse.cli.views import amount, because, moment, span

    job = detail.job
    facts = fields(
        [
            ("job", f"{job.id}  {printable(job.name)}"),
            ("method", f"{job.method} over {printable(job.dataset)}"),
            ("state", f"{tone(job.state)} since {moment(job.since)}"),
            ("reason", because(job.reason)),
            ("round", f"{job.round} of {job.rounds}"),
            ("phase", f"{detail.phase.name} ({detail.phase.state})" if detail.HasField("phase") else ""),
            ("time left", f"about {span(detail.seconds_left)}" if detail.seconds_left > 0 else ""),
            ("submitted", f"{moment(job.submitted_at)} by {printable(job.submitted_by)}"),
            ("ended", moment(job.ended_at)),
            ("model", detail.model_digest),
        ]
    )
    nodes = [
        (
            printable(part.node),
            "unseen" if part.unseen else part.decision,
            amount(part.bytes),
            because(part.reason),
        )
        for part in detail.participation
    ]
    metrics = [
        (row.name, row.scope, printable(row.node), f"{row.value:.4g}", str(row.round))
        for row in sorted(detail.metrics, key=lambda row: (row.name, row.scope, row.node))
    ]
    parts = [facts]
    if nodes:
        parts.append(table(("NODE", "DECISION", "SENT", ""), nodes, empty=""))
    if metrics:
        parts.append(table(("METRIC", "SCOPE", "NODE", "VALUE", "ROUND"), metrics, empty=""))
    return "\n\n".join(parts)
