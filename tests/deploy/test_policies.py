"""What every pod keeps: the restricted profile, limits, probes; and what budgets and autoscalers may do."""

from __future__ import annotations

import re

import pytest

from tests.deploy.manifests import OVERLAYS, Document, Workload, of_kind, rendered, selects, workloads

ALL = [
    pytest.param(overlay, workload, id=f"{overlay}-{workload.name}")
    for overlay in OVERLAYS
    for workload in workloads(rendered(overlay))
]
CONTAINERS = [
    pytest.param(workload, container, id=f"{overlay}-{workload.name}-{container['name']}")
    for overlay in OVERLAYS
    for workload in workloads(rendered(overlay))
    for container in workload.containers
]
PROGRAMS = {"coordinator", "aggregator", "dashboard", "agent"}


def test_there_is_a_pod_for_every_program() -> None:
    assert {workload.program for overlay in OVERLAYS for workload in workloads(rendered(overlay))} >= PROGRAMS


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_cluster_is_told_to_refuse_less_than_the_restricted_profile(overlay: str) -> None:
    (namespace,) = of_kind(rendered(overlay), "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize(("overlay", "workload"), ALL)
def test_a_pod_runs_as_nobody_in_particular_and_carries_no_token(overlay: str, workload: Workload) -> None:
    pod = workload.pod
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] > 0
    assert context["runAsGroup"] > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    kinds = {next(key for key in volume if key != "name") for volume in pod["volumes"]}
    assert kinds <= {"configMap", "secret", "emptyDir", "persistentVolumeClaim", "projected"}
    assert all("sizeLimit" in volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume)


@pytest.mark.parametrize(("workload", "container"), CONTAINERS)
def test_a_container_keeps_the_restricted_profile_and_writes_only_where_it_is_told(
    workload: Workload, container: Document
) -> None:
    context = container["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert not {"privileged", "runAsUser", "procMount"} & context.keys()
    assert all("hostPort" not in port for port in container.get("ports", ()))


@pytest.mark.parametrize(("workload", "container"), CONTAINERS)
def test_a_container_says_what_it_needs_at_least_and_at_most(workload: Workload, container: Document) -> None:
    for bound in ("requests", "limits"):
        assert container["resources"][bound].keys() == {"cpu", "memory", "ephemeral-storage"}


@pytest.mark.parametrize(("workload", "container"), CONTAINERS)
def test_images_are_named_by_a_tag_that_does_not_move(workload: Workload, container: Document) -> None:
    assert re.fullmatch(r"[^:@]+:[A-Za-z0-9_.-]+", container["image"])
    assert not container["image"].endswith((":latest", ":main"))
    assert container["imagePullPolicy"] == "IfNotPresent"


@pytest.mark.parametrize(("workload", "container"), CONTAINERS)
def test_secrets_are_files_and_never_variables(workload: Workload, container: Document) -> None:
    for variable in container.get("env", ()):
        assert "secretKeyRef" not in variable.get("valueFrom", {})
        assert not re.search(r"PASSWORD$|SECRET|TOKEN$|://[^/]*:[^/]*@", f"{variable['name']}{variable.get('value')}")
    assert "envFrom" not in container


@pytest.mark.parametrize(("overlay", "workload"), ALL)
def test_whatever_goes_on_is_probed_and_alive_does_not_mean_ready(overlay: str, workload: Workload) -> None:
    if workload.ends:
        return
    for container in workload.pod["containers"]:
        start, alive, ready = (container[name] for name in ("startupProbe", "livenessProbe", "readinessProbe"))
        if workload.program not in PROGRAMS:
            continue
        for probe, path in ((start, "/livez"), (alive, "/livez"), (ready, "/readyz")):
            if "exec" in probe:
                assert path in probe["exec"]["command"][-1]
            else:
                assert probe["httpGet"]["path"] == path
        # A program that was busy for half a minute is not killed.
        assert alive["periodSeconds"] * alive["failureThreshold"] >= 60
        assert start["periodSeconds"] * start["failureThreshold"] >= 120


@pytest.mark.parametrize(("overlay", "workload"), ALL)
def test_a_pod_has_the_time_to_drain(overlay: str, workload: Workload) -> None:
    if workload.program in PROGRAMS:
        hooks = [container["lifecycle"] for container in workload.pod["containers"] if "lifecycle" in container]
        pause = [hook["preStop"]["exec"]["command"][1] for hook in hooks]
        drain = {"coordinator": 60, "aggregator": 60, "dashboard": 15, "agent": 40}[workload.program]
        assert workload.pod["terminationGracePeriodSeconds"] >= drain + sum(map(int, pause))


def test_the_coordinator_is_replaced_although_the_new_one_is_not_ready_beside_the_old_one() -> None:
    deployments = {item["metadata"]["name"]: item for item in of_kind(rendered("production"), "Deployment")}
    deployment = deployments["coordinator"]
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": "100%", "maxUnavailable": "100%"}
    assert deployment["spec"]["replicas"] == 2


def test_budgets_never_forbid_to_drain_a_machine() -> None:
    documents = rendered("production")
    scalers = [item["spec"] for item in of_kind(documents, "HorizontalPodAutoscaler")]
    scaled = {spec["scaleTargetRef"]["name"]: spec for spec in scalers}
    budgets = of_kind(documents, "PodDisruptionBudget")
    assert budgets
    for budget in budgets:
        chosen = [w for w in workloads(documents) if selects(budget["spec"]["selector"], w.labels)]
        assert [workload.program for workload in chosen] != ["coordinator"]  # one of two is ever ready
        for workload in chosen:
            replicas = scaled[workload.name]["minReplicas"] if workload.name in scaled else workload.replicas
            assert replicas >= 2
            assert budget["spec"]["maxUnavailable"] == 1


def test_an_autoscaled_deployment_names_no_number_of_replicas() -> None:
    documents = rendered("production")
    for scaler in of_kind(documents, "HorizontalPodAutoscaler"):
        name = scaler["spec"]["scaleTargetRef"]["name"]
        (target,) = (item for item in of_kind(documents, "Deployment") if item["metadata"]["name"] == name)
        assert "replicas" not in target["spec"]
        assert name != "coordinator"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_find_their_own_pods(overlay: str) -> None:
    for document in of_kind(rendered(overlay), "Deployment", "StatefulSet"):
        assert selects(document["spec"]["selector"], document["spec"]["template"]["metadata"]["labels"])


@pytest.mark.parametrize(("overlay", "workload"), ALL)
def test_replicas_are_spread_over_machines(overlay: str, workload: Workload) -> None:
    if workload.program in PROGRAMS - {"agent"}:
        (constraint,) = workload.pod["topologySpreadConstraints"]
        assert constraint["topologyKey"] == "kubernetes.io/hostname"
        assert selects(constraint["labelSelector"], workload.labels)
        if workload.program == "coordinator" and workload.replicas > 1:
            assert constraint["whenUnsatisfiable"] == "DoNotSchedule"
