"""`hanse demo images`: a classifier that works on a domain that took no part in its training.

A real federation on this machine, one agent a domain: handwritten digits, each domain turned by an angle of its own.
All but one train by gPerXAN; the last only receives the model and evaluates it. FedAvg over the same images, in this
process, is what it is compared with.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hanse.cli.output import Answer, fields, table
from hanse.cli.views import amount
from hanse.demos import image_data
from hanse.demos.federation import FinishedJob, federation, keep_what_counts, metric, run_job
from hanse.demos.people import Person
from hanse.errors import PlatformError
from hanse.harness import Harness, HarnessResult, installed
from hanse.jobs import EvaluationSettings, JobSpecification, Selection
from hanse.method import Scope

METHOD = "gperxan"
DATASET = "digits"
MODEL = "small_cnn"
KIND = "camera"

Say = Callable[[str], None]


def job_specification(unseen: str, rounds: int, *, nodes: int, method: str = METHOD) -> JobSpecification:
    """The demo's job; `fedavg` is the same with batch normalisation averaged, and without the guide.

    Both give the model of the last round: gPerXAN's default chooses a round, FedAvg has no such choice, and some sixty
    held-out images a domain do not tell the late rounds apart (docs/gperxan.md has what it costs here).
    """
    xan = method == METHOD
    model = {"classes": 10, "size": image_data.SIZE, "width": 8, "norm": "xan" if xan else "batch"}
    training: dict[str, Any] = {"learning_rate": 0.05, "batch_size": 16, "schedule": "standard"}
    training["guide"] = 0.5 if xan else 0.0
    return JobSpecification(
        name="images",
        method=method,
        dataset=DATASET,
        model=MODEL,
        rounds=rounds,
        selection=Selection(minimum_nodes=nodes - 1, quorum=1.0, labels={"kind": KIND}),
        evaluation=EvaluationSettings(every=max(1, rounds // 5), unseen=(unseen,)),
        method_config={"model": model, "training": training, **({"select": "last"} if xan else {})},
    )


def run_demo(*, unseen: int, rounds: int, state: Path | None, keep: bool, say: Say) -> Answer:
    """Run it and say how it went.

    Raises:
        HanseError: whatever stood in the way; processes are stopped in any case.
    """
    folder = state.absolute() if state else Path(tempfile.mkdtemp(prefix="hanse-demo-"))
    say("turning the digits …")
    domains = image_data.rotated_domains(*image_data.read_digits())
    blocks: dict[Person, Mapping[str, Any]] = {}
    for angle, domain in domains.items():
        name = image_data.domain_name(angle)
        person = Person(name=name, folder=folder / "people" / name, kind=KIND)
        image_data.write_domain(domain, person.folder / "digits.npz")
        blocks[person] = {"kind": "images", "path": str(person.folder / "digits.npz"), "npz_holdout": "test"}
    left_out = image_data.domain_name(unseen)
    specification = job_specification(left_out, rounds, nodes=len(blocks))
    with federation(blocks, folder=folder, dataset=DATASET, method=METHOD, say=say) as control:
        say(f"training on all domains but {left_out} …")
        done = run_job(control, list(blocks), specification, folder=folder, say=say)
    say("the same job in this process, and FedAvg over the same images, to compare …")
    again = _harness(specification, blocks)
    if again.model_digest != done.digest:
        raise PlatformError("The federation's model is not that of the same job in one process.", code="DEMO_FAILED")
    plain = _harness(job_specification(left_out, rounds, nodes=len(blocks), method="fedavg"), blocks)
    sent = {person.name: person.bytes_sent(done.job) for person in blocks}
    if not keep and state is None:
        keep_what_counts(folder, "*.npz")
    return _answer(done, plain, sent, unseen=left_out, rounds=rounds, folder=folder)


def _harness(specification: JobSpecification, blocks: Mapping[Person, Mapping[str, Any]]) -> HarnessResult:
    import torch

    torch.set_num_threads(1)  # as the agents' workers do: the same bytes
    dataset = installed("hanse.datasets", "images")
    nodes = {
        person.name: dataset(DATASET, {key: value for key, value in block.items() if key != "kind"})
        for person, block in blocks.items()
    }
    return Harness(specification.method, nodes, specification).run()


def _answer(
    done: FinishedJob, plain: HarnessResult, sent: Mapping[str, int], *, unseen: str, rounds: int, folder: Path
) -> Answer:
    federated = {name: metric(done.detail, "accuracy", "node", name) for name in sent}
    rivals = plain.by_node("accuracy")
    rows = [
        (
            f"{name} (unseen)" if name == unseen else name,
            _percent(federated[name]),
            _percent(rivals[name]),
            amount(sent[name]),
        )
        for name in sorted(sent)
    ]
    model = done.files["model.safetensors"]
    facts = fields(
        [
            ("unseen", f"{unseen}: gPerXAN {_percent(federated[unseen])}, FedAvg "
             f"{_percent(plain.value('accuracy', scope=Scope.UNSEEN))}"),
            ("bytes", "the model is, byte for byte, that of the same job in one process"),
            ("time a round", f"{done.seconds / rounds:.2f} s"),
            ("ledger", f"{done.events} events, whole; checked against what the agents had been shown"),
            ("model", f"{model}  (card.md beside it says what it is)"),
            ("journals", str(folder / "people" / "*" / "state" / "egress.jsonl")),
        ]
    )  # fmt: skip
    note = (
        "note: one seed on small images. Trained nodes are judged on their held-out images, with their own batch "
        "normalisation; the unseen one on all of its own, with the average of the others'. Both models are those of "
        "the last round (select: last)."
    )
    headings = ("NODE", "GPERXAN", "FEDAVG", "SENT")
    title = f"{METHOD}: {len(sent) - 1} domains train, {unseen} only evaluates; {rounds} rounds"
    extra = {
        "method": METHOD,
        "rounds": rounds,
        "unseen": unseen,
        "accuracy": federated,
        "fedavg_accuracy": rivals,
        "bytes_sent_per_node": dict(sent),
        "seconds_per_round": round(done.seconds / rounds, 4),
        "same_bytes_in_one_process": True,
        "ledger": {"verified": True, "events": done.events, "path": str(folder / "ledger.sqlite")},
        "model_path": str(model),
    }
    text = f"{title}\n\n{table(headings, rows, empty='')}\n\n{facts}\n\n{note}"
    return Answer(data={"job": done.job, "state": str(folder)}, text=text, extra=extra)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
