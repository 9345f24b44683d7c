"""Nothing may talk to anything but for the flows of the design, and each of those is let through on both sides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from tests.deploy.manifests import KUBERNETES, NAME, Document, of_kind, rendered, selects, workloads

DNS = {("UDP", 53), ("TCP", 53)}
# The design: who calls whom at which port. "outside" is whatever is no pod of the federation.
INSIDE = {
    ("outside", "coordinator", 7443),
    ("dashboard", "coordinator", 7444),
    ("coordinator", "coordinator", 7444),
    ("coordinator", "coordinator", 7446),
    ("coordinator", "aggregator", 7445),
    ("outside", "dashboard", 7480),
}
STORES = {
    "dev": {
        *((program, "postgres", 5432) for program in ("coordinator", "dashboard", "migrate")),
        *((program, "store", 9000) for program in ("coordinator", "aggregator", "dashboard")),
    },
    "production": {
        *((program, "outside", 5432) for program in ("coordinator", "dashboard", "migrate")),
        *((program, "outside", 443) for program in ("coordinator", "aggregator", "dashboard")),
    },
}
DESIGN = {overlay: INSIDE | flows for overlay, flows in STORES.items()} | {"edge": {("agent", "outside", 7443)}}
# Nobody but pods of these programs may be reached from outside: who that is, the policy says for one of them.
Flow = tuple[str, str, int]


def programs(documents: list[Document]) -> dict[str, dict[str, str]]:
    return {workload.program: workload.labels for workload in workloads(documents)}


def peers(rule: Document, key: str, known: dict[str, dict[str, str]]) -> set[str]:
    """The programs that a rule names; other namespaces and addresses are "outside"."""
    if key not in rule:
        return {*known, "outside"}
    found: set[str] = set()
    for peer in rule[key]:
        assert peer, "an empty peer is everybody"
        if "ipBlock" in peer or "namespaceSelector" in peer:
            found.add("outside")
        else:
            found |= {name for name, labels in known.items() if selects(peer["podSelector"], labels)}
    return found


def allowed(documents: list[Document], direction: str) -> Iterator[Flow]:
    """Every flow that the policies of one direction let through, names of DNS aside."""
    key = {"ingress": "from", "egress": "to"}[direction]
    known = programs(documents)
    for policy in of_kind(documents, "NetworkPolicy"):
        own = {name for name, labels in known.items() if selects(policy["spec"]["podSelector"], labels)}
        for rule in policy["spec"].get(direction, ()):
            ports = {(port["protocol"], port["port"]) for port in rule["ports"]}
            if ports == DNS:
                (peer,) = rule[key]
                assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "kube-system"}
                assert peer["podSelector"]["matchLabels"] == {"k8s-app": "kube-dns"}
                continue
            assert {protocol for protocol, _ in ports} == {"TCP"}
            for mine in own:
                for other in peers(rule, key, known):
                    for _, port in ports:
                        yield (other, mine, port) if direction == "ingress" else (mine, other, port)


@pytest.mark.parametrize("overlay", sorted(DESIGN))
def test_what_nobody_allows_is_denied_to_every_pod(overlay: str) -> None:
    policies = {item["metadata"]["name"]: item["spec"] for item in of_kind(rendered(overlay), "NetworkPolicy")}
    assert policies["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for spec in policies.values():  # a direction that a policy opens is one that it names
        assert {kind.lower() for kind in spec["policyTypes"]} >= {"ingress", "egress"} & spec.keys()


@pytest.mark.parametrize("overlay", sorted(DESIGN))
def test_the_flows_that_are_let_through_are_those_of_the_design(overlay: str) -> None:
    documents, design = rendered(overlay), DESIGN[overlay]
    inwards = set(allowed(documents, "ingress"))
    # From everywhere: what may come from outside may come from a pod of the federation as well.
    everywhere = {flow for flow in inwards if ("outside", *flow[1:]) in design and flow[1:] == ("coordinator", 7443)}
    assert (inwards - everywhere) | {("outside", "coordinator", 7443)} & design == {
        flow for flow in design if flow[1] != "outside"
    }
    outwards = set(allowed(documents, "egress"))
    assert outwards == {flow for flow in design if flow[0] != "outside"}


def test_a_flow_inside_the_federation_is_let_out_and_let_in() -> None:
    for overlay in ("dev", "production"):
        documents = rendered(overlay)
        inwards, outwards = set(allowed(documents, "ingress")), set(allowed(documents, "egress"))
        assert {flow for flow in outwards if flow[1] != "outside"} <= inwards


def test_nothing_comes_in_at_a_site() -> None:
    assert not set(allowed(rendered("edge"), "ingress"))


def test_who_ends_the_connections_of_browsers_must_be_named() -> None:
    (policy,) = (p for p in of_kind(rendered("production"), "NetworkPolicy") if p["metadata"]["name"] == "dashboard")
    (rule,) = policy["spec"]["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"hanse/dashboard": "allowed"}}}]


def test_the_credentials_of_a_clouds_machine_are_out_of_reach() -> None:
    for policy in of_kind(rendered("production"), "NetworkPolicy"):
        for rule in policy["spec"].get("egress", ()):
            for peer in rule["to"]:
                assert peer.get("ipBlock", {}).get("except", ["169.254.169.254/32"]) == ["169.254.169.254/32"]


def test_prometheus_reaches_the_ports_of_metrics_and_no_other() -> None:
    path = KUBERNETES / "components" / "monitoring"
    (policy,) = yaml.safe_load_all((path / "network-policy.yaml").read_text())
    (rule,) = policy["spec"]["ingress"]
    (monitor,) = yaml.safe_load_all((path / "pod-monitors.yaml").read_text())
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for workload in workloads(rendered("production")):
        if workload.ends:
            continue
        assert selects(monitor["spec"]["selector"], {NAME: workload.program})
        assert selects(policy["spec"]["podSelector"], {NAME: workload.program})
        (container,) = workload.containers
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert [port["port"] for port in rule["ports"]] == [ports[endpoint["port"]]]
