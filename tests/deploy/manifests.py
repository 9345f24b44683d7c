"""The rendered manifests as the tests look at them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "k8s"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
COMPONENTS = sorted(path.name for path in (KUBERNETES / "components").iterdir())
NAME = "app.kubernetes.io/name"

Document = dict[str, Any]


def tool(name: str) -> str | None:
    """A program that the variable in capitals names, that is on the path, or that `make tools` laid down."""
    beside = (ROOT / "build" / "tools" / name, ROOT / "build" / "tools" / "environment" / "bin" / name)
    found = os.environ.get(name.upper()) or shutil.which(name)
    return found or next((str(path) for path in beside if path.exists()), None)


def rendered(overlay: str) -> list[Document]:
    """All objects of an overlay, as committed."""
    return list(yaml.safe_load_all((KUBERNETES / "rendered" / f"{overlay}.yaml").read_text()))


def of_kind(documents: list[Document], *kinds: str) -> list[Document]:
    """The objects of some kinds."""
    return [document for document in documents if document["kind"] in kinds]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Whatever makes pods, and the pod that it makes."""

    kind: str
    name: str
    replicas: int
    labels: dict[str, str]
    pod: Document

    @property
    def program(self) -> str:
        """By which Services and policies select it."""
        return self.labels[NAME]

    @property
    def containers(self) -> list[Document]:
        """All containers, those that run first included."""
        return [*self.pod.get("initContainers", ()), *self.pod["containers"]]

    @property
    def ends(self) -> bool:
        """Whether it does a piece of work and is over."""
        return self.pod.get("restartPolicy", "Always") != "Always"


def workloads(documents: list[Document]) -> Iterator[Workload]:
    """Every pod that an overlay brings about."""
    for document in documents:
        spec = document.get("spec", {})
        template = document if document["kind"] == "Pod" else spec.get("template")
        if template is not None:
            yield Workload(
                kind=document["kind"],
                name=document["metadata"]["name"],
                replicas=spec.get("replicas", 1),
                labels=template["metadata"]["labels"],
                pod=template["spec"],
            )


def selects(selector: Document, labels: dict[str, str]) -> bool:
    """Whether a label selector picks a pod with these labels."""
    wanted = selector.get("matchLabels", {}).items()
    operators = {"In": lambda value, values: value in values, "Exists": lambda value, _: value is not None}
    return all(labels.get(key) == value for key, value in wanted) and all(
        operators[rule["operator"]](labels.get(rule["key"]), rule.get("values"))
        for rule in selector.get("matchExpressions", ())
    )
