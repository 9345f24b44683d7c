"""Each overlay renders to what is committed, and Kubernetes knows every object."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from hanse.ledger.schema import newest_revision
from tests.deploy.manifests import COMPONENTS, KUBERNETES, OVERLAYS, ROOT, of_kind, rendered, tool, workloads

kubectl = tool("kubectl")
needs_kubectl = pytest.mark.skipif(kubectl is None, reason="needs kubectl: `make tools` lays one down")
# Objects of others' definitions, which no Kubernetes release knows.
FOREIGN = {"gateway.networking.k8s.io", "postgresql.cnpg.io", "monitoring.coreos.com"}


def kustomize(folder: Path) -> str:
    done = subprocess.run([str(kubectl), "kustomize", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_is_committed_is_what_the_overlay_renders_to(overlay: str) -> None:
    committed = (KUBERNETES / "rendered" / f"{overlay}.yaml").read_text()
    assert committed.split("\n", 1)[1] == kustomize(KUBERNETES / "overlays" / overlay), "run `make manifests`"


@needs_kubectl
@pytest.mark.parametrize("component", COMPONENTS)
def test_every_component_can_be_added_to_the_base(component: str, tmp_path: Path) -> None:
    """Also those that no overlay has: what a cluster may lack is a choice of the house."""
    import kubernetes_validate

    folder = tmp_path / "overlay"
    folder.mkdir()
    way = Path("../" * len(folder.resolve().parts))
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [str(way / str(KUBERNETES / "base").lstrip("/"))],
        "components": [str(way / str(KUBERNETES / "components" / component).lstrip("/"))],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    objects = list(yaml.safe_load_all(kustomize(folder)))
    assert all(item["kind"] and item["metadata"]["name"] for item in objects)
    for version in three_newest():
        for item in objects:
            if item["apiVersion"].partition("/")[0] not in FOREIGN:
                kubernetes_validate.validate(item, version, strict=True)


def three_newest() -> list[str]:
    validate = pytest.importorskip("kubernetes_validate", reason="needs the package kubernetes-validate")
    return list(validate.utils.all_versions()[-3:])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_is_valid_in_the_three_newest_releases_of_kubernetes(overlay: str) -> None:
    import kubernetes_validate

    for version in three_newest():
        for document in rendered(overlay):
            if document["apiVersion"].partition("/")[0] not in FOREIGN:
                kubernetes_validate.validate(document, version, strict=True)


def test_a_misspelt_field_would_be_found() -> None:
    import kubernetes_validate

    (document, *_) = of_kind(rendered("production"), "Deployment")
    document["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, three_newest()[-1], strict=True)


def test_images_carry_the_version_and_the_migration_carries_image_and_revision_in_its_name() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for overlay in OVERLAYS:
        for workload in workloads(rendered(overlay)):
            for container in workload.containers:
                name, _, tag = container["image"].rpartition(":")
                assert "hanse-" not in name or tag == version, f"{overlay}: {container['image']}"
    (job,) = of_kind(rendered("production"), "Job")
    assert job["metadata"]["name"] == f"migrate-{newest_revision()}-{version}"


@needs_kubectl
def test_another_tag_is_another_job(tmp_path: Path) -> None:
    """A Job cannot be changed: an upgrade must bring a new one."""
    import shutil

    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    overlay = tmp_path / "deploy" / "k8s" / "overlays" / "production"
    path = overlay / "kustomization.yaml"
    path.write_text(path.read_text().replace("newTag: 0.1.0", "newTag: 9.8.7"))
    (job,) = of_kind(list(yaml.safe_load_all(kustomize(overlay))), "Job")
    assert job["metadata"]["name"] == f"migrate-{newest_revision()}-9.8.7"
    assert job["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":9.8.7")
