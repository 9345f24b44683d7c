"""`hanse demo activity`: exercises recognised from smart-watch recordings that never leave their person.

A real federation on this machine: coordinator and aggregator as processes, mutual TLS on loopback, a ledger in
SQLite, one agent process a person. FedSCS-XGB trains over them, and the model that comes out is compared with
XGBoost on all rows in one place and with XGBoost at each person alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanse.cli.connection import Control
from hanse.cli.output import Answer, fields, table
from hanse.cli.views import amount
from hanse.demos import activity_data, comparison
from hanse.demos.comparison import Score
from hanse.demos.federation import federation, keep_what_counts, metric, run_job
from hanse.demos.people import Person
from hanse.errors import PlatformError
from hanse.jobs import EvaluationSettings, JobSpecification, Selection
from hanse.v1 import control_pb2

METHOD = "fedscs_xgb"
DATASET = "activity"
PARAMETERS: Mapping[str, Any] = {
    "objective": "multi:softprob",
    "num_class": len(activity_data.EXERCISES),
    "eta": 0.3,
    "max_depth": 6,
    "lambda": 1.0,
    "min_child_weight": 1.0,
    "bins": 256,
}
MODEL_FILE = "model.ubj"

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Training:
    """What the federation did."""

    job: str
    federated: Score
    bytes_sent: Mapping[str, int]
    seconds_per_round: float
    single_row_atoms: float
    events: int
    model: Path


def run_demo(*, nodes: int, rounds: int, state: Path | None, keep: bool, say: Say) -> Answer:
    """Run it and say how it went.

    Raises:
        HanseError: whatever stood in the way; processes are stopped in any case.
    """
    folder = state.absolute() if state else Path(tempfile.mkdtemp(prefix="hanse-demo-"))
    say(f"reading the recordings of {nodes} people …")
    people, tables = _people(folder, nodes)
    blocks = {
        person: {
            "kind": "table",
            "path": str(path),
            "target": activity_data.TARGET,
            "holdout_column": activity_data.HOLDOUT_COLUMN,
        }
        for person, path in zip(people, _write_data(folder, tables), strict=True)
    }
    with federation(blocks, folder=folder, dataset=DATASET, method=METHOD, say=say) as control:
        say("training …")
        training = _train(control, people, tables, folder, rounds, say)
    say("training XGBoost on all rows in one place, and at each person alone, to compare …")
    central = comparison.central_score(PARAMETERS, rounds, tables)
    local = comparison.local_score(PARAMETERS, rounds, tables)
    if not keep and state is None:
        keep_what_counts(folder, "*.parquet")
    return _answer(training, central, local, nodes=nodes, rounds=rounds, folder=folder)


def _people(folder: Path, nodes: int) -> tuple[list[Person], dict[str, activity_data.SubjectTable]]:
    chosen = activity_data.subject_tables(activity_data.read_recordings())[:nodes]
    tables = {f"person-{each.subject:02d}": each for each in chosen}
    return [Person(name=name, folder=folder / "people" / name) for name in tables], tables


def _write_data(folder: Path, tables: Mapping[str, activity_data.SubjectTable]) -> list[Path]:
    """Each person's file in that person's own folder."""
    return [activity_data.write_tables([each], folder / "people" / name)[each.subject] for name, each in tables.items()]


def job_specification(nodes: int, rounds: int) -> JobSpecification:
    """The demo's job: everybody takes part in every round."""
    return JobSpecification(
        name="activity",
        method=METHOD,
        dataset=DATASET,
        rounds=rounds,
        selection=Selection(minimum_nodes=nodes, quorum=1.0, labels={"kind": "wearable"}),
        evaluation=EvaluationSettings(every=max(1, rounds // 6)),
        method_config={**PARAMETERS, "statistics": "atoms"},
    )


def _train(
    control: Control,
    people: Sequence[Person],
    tables: Mapping[str, activity_data.SubjectTable],
    folder: Path,
    rounds: int,
    say: Say,
) -> Training:
    done = run_job(control, people, job_specification(len(people), rounds), folder=folder, say=say)
    path = done.files.get(MODEL_FILE) or next(iter(done.files.values()))
    return Training(
        job=done.job,
        federated=_checked_score(path, done.detail, tables),
        bytes_sent={person.name: person.bytes_sent(done.job) for person in people},
        seconds_per_round=done.seconds / rounds,
        single_row_atoms=metric(done.detail, "single_row_atoms", "aggregation"),
        events=done.events,
        model=path,
    )


def _checked_score(
    path: Path, detail: control_pb2.JobDetail, tables: Mapping[str, activity_data.SubjectTable]
) -> Score:
    """The federation's own figures, after XGBoost alone has found the same with the pulled file.

    Raises:
        PlatformError: they differ.
    """
    booster = comparison.load_booster(path)
    found = comparison.score({name: comparison.predict(booster, each) for name, each in tables.items()}, tables)
    pairs = [(metric(detail, "accuracy", "pooled"), found.pooled.accuracy)]
    pairs.append((metric(detail, "macro_f1", "pooled"), found.pooled.macro_f1))
    pairs += [(metric(detail, "accuracy", "node", name), each.accuracy) for name, each in found.per_node.items()]
    for reported, own in pairs:
        if abs(reported - own) > 1e-9:
            raise PlatformError(
                f"The federation reports {reported:.6f}, but XGBoost finds {own:.6f} with the model in {path}.",
                code="DEMO_FAILED",
            )
    return found


def _answer(training: Training, central: Score, local: Score, *, nodes: int, rounds: int, folder: Path) -> Answer:
    ledger = {"verified": True, "events": training.events, "path": str(folder / "ledger.sqlite")}
    extra = {
        "method": METHOD,
        "nodes": nodes,
        "rounds": rounds,
        "federated": training.federated.as_json(),
        "central": central.as_json(),
        "local": local.as_json(),
        "bytes_sent_per_node": dict(training.bytes_sent),
        "seconds_per_round": round(training.seconds_per_round, 4),
        "single_row_atoms": training.single_row_atoms,
        "ledger": ledger,
        "model_path": str(training.model),
    }
    data = {"job": training.job, "state": str(folder)}
    return Answer(data=data, text=_text(training, central, local, nodes, rounds, folder), extra=extra)


def _text(training: Training, central: Score, local: Score, nodes: int, rounds: int, folder: Path) -> str:
    federated = training.federated
    rows = [
        (
            name,
            _percent(federated.per_node[name].accuracy),
            _percent(federated.per_node[name].macro_f1),
            _percent(central.per_node[name].accuracy),
            _percent(local.per_node[name].accuracy),
            amount(training.bytes_sent[name]),
        )
        for name in federated.per_node
    ]
    rows.append(
        (
            "all rows",
            _percent(federated.pooled.accuracy),
            _percent(federated.pooled.macro_f1),
            _percent(central.pooled.accuracy),
            _percent(local.pooled.accuracy),
            amount(sum(training.bytes_sent.values())),
        )
    )
    headings = ("NODE", "FEDERATED", "MACRO-F1", "CENTRAL", "LOCAL ONLY", "SENT")
    facts = fields(
        [
            ("time a round", f"{training.seconds_per_round:.2f} s"),
            ("macro-F1", f"federated {_percent(federated.pooled.macro_f1)}, central "
             f"{_percent(central.pooled.macro_f1)}, local only {_percent(local.pooled.macro_f1)}"),
            ("ledger", f"{training.events} events, whole; checked against what the agents had been shown"),
            ("model", f"{training.model}  (xgboost.Booster().load_model(…) reads it)"),
            ("ledger file", str(folder / "ledger.sqlite")),
            ("journals", str(folder / "people" / "*" / "state" / "egress.jsonl")),
        ]
    )  # fmt: skip
    warning = (
        f"warning: {_percent(training.single_row_atoms)} of the atoms that left the nodes stand for a single row. "
        "Such an atom is nearly a record. It is right for a demo on public data; for anything else set "
        "policy.minimum_rows_per_atom at the nodes, or use a method that sends sums over many rows."
    )
    title = f"{METHOD}: {nodes} nodes, {rounds} rounds; accuracy on each person's held-out windows"
    return f"{title}\n\n{table(headings, rows, empty='')}\n\n{facts}\n\n{warning}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
