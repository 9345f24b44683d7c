"""What manifests name exists: ports, Secrets, ConfigMaps, files, flags, variables, and each key of a configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hanse_agent.settings import AgentConfig
from hanse_aggregator import settings as aggregator_settings
from hanse_coordinator import settings as coordinator_settings
from hanse_dashboard import settings as dashboard_settings
from tests.deploy.manifests import (
    DEPLOY,
    KUBERNETES,
    OVERLAYS,
    Document,
    Workload,
    of_kind,
    rendered,
    selects,
    workloads,
)

ALL = [
    pytest.param(overlay, workload, id=f"{overlay}-{workload.name}")
    for overlay in OVERLAYS
    for workload in workloads(rendered(overlay))
]
CONTAINERS = [
    pytest.param(overlay, workload, container, id=f"{overlay}-{workload.name}-{container['name']}")
    for overlay in OVERLAYS
    for workload in workloads(rendered(overlay))
    for container in workload.containers
]
# Variables that are not Hanse's: libpq's, of PostgreSQL's image, and those that other variables are made of.
OTHERS = {"PGSERVICEFILE", "PGDATA", "POSTGRES_PASSWORD_FILE", "HANSE_PASSWORDS", "POD_IP"}
MODULES = {
    "hanse-coordinator": "hanse_coordinator.main",
    "hanse-aggregator": "hanse_aggregator.main",
    "hanse-dashboard": "hanse_dashboard.main",
    "hanse-agent": "hanse_agent.main",
}


def configurations(overlay: str) -> dict[str, str]:
    """File by file what the ConfigMaps of an overlay hold."""
    return {name: text for item in of_kind(rendered(overlay), "ConfigMap") for name, text in item["data"].items()}


@pytest.fixture(scope="module")
def made_secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Names and files of the Secrets that `make_secrets.py` makes, and of the one that an invitation becomes."""
    folder = tmp_path_factory.mktemp("secrets")
    subprocess.run([sys.executable, str(KUBERNETES / "make_secrets.py"), str(folder)], check=True, capture_output=True)
    documents = list(yaml.safe_load_all((folder / "secrets.yaml").read_text()))
    assert (folder / "secrets.yaml").stat().st_mode & 0o077 == 0
    return {item["metadata"]["name"]: set(item["data"]) for item in documents} | {"agent-invitation": {"invitation"}}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_port_of_a_service_is_open_in_the_pods_behind_it(overlay: str) -> None:
    documents = rendered(overlay)
    for service in of_kind(documents, "Service"):
        behind = [w for w in workloads(documents) if selects({"matchLabels": service["spec"]["selector"]}, w.labels)]
        assert behind, service["metadata"]["name"]
        for workload in behind:
            ports = [port for container in workload.containers for port in container.get("ports", ())]
            open_ports = {port["name"]: port["containerPort"] for port in ports}
            for port in service["spec"]["ports"]:
                assert open_ports[port["targetPort"]] == port["port"]


def test_where_nothing_translates_names_a_container_has_the_name_of_its_service() -> None:
    """podman knows no Services: there a container is found by its own name, at its own port."""
    documents = rendered("dev")
    for service in of_kind(documents, "Service"):
        (workload,) = (w for w in workloads(documents) if w.program == service["metadata"]["name"])
        (container,) = workload.containers
        assert container["name"] == service["metadata"]["name"]


def test_the_overlay_for_trying_out_has_nothing_that_only_a_cloud_has() -> None:
    plain = {"Namespace", "ServiceAccount", "ConfigMap", "Service", "Deployment", "Pod", "NetworkPolicy"}
    assert {item["kind"] for item in rendered("dev")} == plain
    assert all(item["spec"].get("type", "ClusterIP") == "ClusterIP" for item in of_kind(rendered("dev"), "Service"))
    for workload in workloads(rendered("dev")):
        assert not any("persistentVolumeClaim" in volume for volume in workload.pod["volumes"])
        for container in workload.containers:
            assert not any("fieldRef" in v.get("valueFrom", {}) for v in container.get("env", ()))
            # Only commands are run inside: the images have neither curl nor nc.
            probes = [container[name] for name in ("startupProbe", "livenessProbe") if name in container]
            assert all("exec" in probe for probe in probes)


@pytest.mark.parametrize(("overlay", "workload"), ALL)
def test_every_mounted_secret_and_configuration_is_there(
    overlay: str, workload: Workload, made_secrets: dict[str, set[str]]
) -> None:
    maps = {item["metadata"]["name"] for item in of_kind(rendered(overlay), "ConfigMap")}
    claims = {item["metadata"]["name"] for item in of_kind(rendered(overlay), "PersistentVolumeClaim")}
    for volume in workload.pod["volumes"]:
        if "secret" in volume:
            assert volume["secret"]["secretName"] in made_secrets
        elif "configMap" in volume:
            assert volume["configMap"]["name"] in maps
        elif "persistentVolumeClaim" in volume:
            assert volume["persistentVolumeClaim"]["claimName"] in claims


@pytest.mark.parametrize(("overlay", "workload", "container"), CONTAINERS)
def test_every_mount_has_its_volume_and_every_volume_its_mount(
    overlay: str, workload: Workload, container: Document
) -> None:
    templates = [d for d in of_kind(rendered(overlay), "StatefulSet") if d["metadata"]["name"] == workload.name]
    claimed = {claim["metadata"]["name"] for d in templates for claim in d["spec"].get("volumeClaimTemplates", ())}
    volumes = {volume["name"] for volume in workload.pod["volumes"]} | claimed
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == volumes


def files_in(overlay: str, workload: Workload, container: Document, secrets: dict[str, set[str]]) -> set[str]:
    """Every file that Kubernetes lays into a container."""
    maps = {item["metadata"]["name"]: set(item["data"]) for item in of_kind(rendered(overlay), "ConfigMap")}
    volumes = {volume["name"]: volume for volume in workload.pod["volumes"]}
    found = set()
    for mount in container["volumeMounts"]:
        volume = volumes.get(mount["name"], {})
        names = secrets[volume["secret"]["secretName"]] if "secret" in volume else set()
        if "configMap" in volume:
            items = volume["configMap"].get("items")
            names = {item["path"] for item in items} if items else maps[volume["configMap"]["name"]]
        found |= {f"{mount['mountPath']}/{name}" for name in names}
    return found


@pytest.mark.parametrize(("overlay", "workload", "container"), CONTAINERS)
def test_configurations_are_accepted_by_their_programs_and_name_files_that_are_there(
    overlay: str, workload: Workload, container: Document, made_secrets: dict[str, set[str]], tmp_path: Path
) -> None:
    there = files_in(overlay, workload, container, made_secrets)
    environment = {item["name"]: item.get("value", "") for item in container.get("env", ())}
    named = [environment["PGSERVICEFILE"]] if "PGSERVICEFILE" in environment else []
    named += [part.removeprefix("file:") for part in container["command"] if part.startswith(("/etc/", "file:"))]
    path = next((Path(file) for file in named if file.endswith(".yaml")), None)
    if path is not None:
        copy = tmp_path / path.name
        copy.write_text(configurations(overlay)[path.name])
        match path.name:
            case "coordinator.yaml":
                settings = coordinator_settings.configuration(copy, environment).settings
                named += [f"{settings.authority}/authority.crt", f"{settings.authority}/authority.key"]
                named += [str(settings.certificate), str(settings.key)]
                if workload.program == "migrate":  # looks at the database alone
                    named = [name for name in named if "/certificate/" not in name and "/authority/" not in name]
            case "aggregator.yaml":
                settings = aggregator_settings.configuration(copy, environment).settings
                named += [str(settings.certificate), str(settings.key), str(settings.authority)]
            case "dashboard.yaml":
                settings = dashboard_settings.configuration(copy, environment).settings
                named.append(str(settings.authority))
            case "agent.yaml":
                AgentConfig.configuration(copy, environment)
    assert {str(name) for name in named} <= there | {"/opt/hanse/dev_store.py"}


@pytest.mark.parametrize(("overlay", "workload", "container"), CONTAINERS)
def test_listening_addresses_are_those_of_the_ports(overlay: str, workload: Workload, container: Document) -> None:
    name = next((Path(part).name for part in container["command"] if part.endswith(".yaml")), "")
    if workload.ends or not name or name == "agent.yaml":
        return
    document = yaml.safe_load(configurations(overlay)[name])
    listens = {int(value.rpartition(":")[2]) for key, value in document.items() if key.endswith("listen")}
    # podman would publish every declared port on the one machine: `dev` declares each number once.
    undeclared = {7446} if overlay == "dev" else set()
    assert listens - undeclared == {port["containerPort"] for port in container["ports"]}


def test_what_is_tried_out_on_one_machine_has_each_port_once() -> None:
    pods = workloads(rendered("dev"))
    ports = [port["containerPort"] for pod in pods for item in pod.containers for port in item.get("ports", ())]
    assert len(ports) == len(set(ports))


def test_volumes_that_podman_tells_apart_by_their_names_alone_are_not_shared() -> None:
    volumes = [volume for pod in workloads(rendered("dev")) for volume in pod.pod["volumes"]]
    names = [volume["name"] for volume in volumes if "emptyDir" in volume]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("overlay", "workload", "container"), CONTAINERS)
def test_every_variable_is_one_that_a_program_reads(overlay: str, workload: Workload, container: Document) -> None:
    known = OTHERS | {"HANSE_COORDINATOR", "HANSE_AUTHORITY", "HANSE_TOKEN_FILE", *coordinator_settings.ENVIRONMENT}
    keys = coordinator_settings.CoordinatorSettings.model_fields
    known |= {coordinator_settings.PREFIX + key.upper() for key in keys}
    assert {variable["name"] for variable in container.get("env", ())} <= known


def flags(module: str, *words: str) -> str:
    command = [sys.executable, "-m", module, *words, "--help"]
    environment = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_flag_is_one_that_its_program_has(overlay: str) -> None:
    lines = [c["command"] for w in workloads(rendered(overlay)) for c in w.containers]
    lines += [line.split() for command in lines if command[0] == "sh" for line in command[-1].splitlines()]
    seen = set()
    for command in lines:
        program, *rest = command
        if program not in MODULES:
            continue
        words = [rest[0]] if program == "hanse-agent" else []
        given = frozenset(part for part in rest if part.startswith("--"))
        if (program, *words, given) not in seen:
            seen.add((program, *words, given))
            shown = flags(MODULES[program], *words)
            assert all(flag in shown for flag in given), (command, shown)
    assert seen


def test_no_secret_is_committed() -> None:
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.suffix in {".yaml", ".sql", ".sh", ".json"}:
            text = path.read_text()
            assert "kind: Secret" not in text, path
            assert "PRIVATE KEY" not in text, path


def test_the_migration_can_be_applied_before_everything_else() -> None:
    """By the labels that the operator's guide selects: the Job, and all that it mounts but for Secrets."""
    first = [
        item
        for item in rendered("production")
        if item["metadata"].get("labels", {}).get("app.kubernetes.io/name") in ("configuration", "migrate")
    ]
    assert {item["kind"] for item in first} == {"ConfigMap", "Job"}
    (job,) = of_kind(first, "Job")
    volumes = job["spec"]["template"]["spec"]["volumes"]
    mounted = {volume["configMap"]["name"] for volume in volumes if "configMap" in volume}
    assert mounted <= {item["metadata"]["name"] for item in of_kind(first, "ConfigMap")}
