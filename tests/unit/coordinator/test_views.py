"""What the control service tells of a job's pictures."""

from __future__ import annotations

import json
from pathlib import Path

from hanse.ledger import Ledger
from hanse.ledger.states import PhaseState
from hanse.method import Audience, Purpose
from hanse_coordinator.views import job_detail


def test_of_each_picture_the_newest_is_told(tmp_path: Path) -> None:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}") as ledger:
        ledger.migrate()
        digests: dict[tuple[str, int], str] = {}
        with ledger.write(ledger.take_lease("test")) as tx:
            job = tx.add_job(
                name="x",
                method="fedgame",
                dataset="d",
                specification=json.dumps({}),
                submitted_by="ada",
                rounds=3,
            )
            for number in (1, 2):
                phase = tx.add_phase(
                    job=job,
                    round=number,
                    ordinal=number,
                    name="train",
                    purpose=Purpose.TRAIN,
                    audience=Audience.SELECTED,
                    quorum=1,
                )
                for name in ("graph", "attention") if number == 2 else ("gates", "attention"):
                    digest = f"{number}{len(name)}".ljust(64, "0")
                    tx.add_artifact(digest=digest, size=1, kind="picture", job=job)
                    tx.add_picture(
                        job=job, round=number, phase=phase, name=name, kind="matrix", title=f"T{number}", digest=digest
                    )
                    digests[name, number] = digest
                tx.update_phase(phase, state=PhaseState.CLOSED)
        with ledger.read() as view:
            shown = job_detail(view, job, None).pictures
    assert [(row.name, row.round, row.title, row.digest) for row in shown] == [
        ("attention", 2, "T2", digests["attention", 2]),
        ("gates", 1, "T1", digests["gates", 1]),
        ("graph", 2, "T2", digests["graph", 2]),
    ]
