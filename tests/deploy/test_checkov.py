"""checkov finds nothing in the rendered manifests but what is explained in `deploy/k8s/checkov.yaml`."""

from __future__ import annotations

import json
import subprocess

import pytest
import yaml

from tests.deploy.manifests import KUBERNETES, tool

checkov = tool("checkov")


@pytest.mark.skipif(checkov is None, reason="needs checkov, in an environment of its own: `make tools`")
def test_every_finding_is_explained_and_every_explanation_has_its_finding() -> None:
    command = [str(checkov), "--framework", "kubernetes", "--directory", str(KUBERNETES / "rendered")]
    done = subprocess.run(
        [*command, "--output", "json", "--quiet", "--skip-download"], capture_output=True, text=True, timeout=280
    )
    report = json.loads(done.stdout)
    assert report["summary"]["parsing_errors"] == 0
    assert report["summary"]["resource_count"] > 20
    findings = {finding["check_id"] for finding in report["results"]["failed_checks"]}
    explained = yaml.safe_load((KUBERNETES / "checkov.yaml").read_text())
    assert findings == set(explained)
