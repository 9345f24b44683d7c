"""Write the generated stubs in `hanse/v1`; with `--check`, say whether the committed ones are up to date.

The stubs are made with the oldest grpcio-tools that the project supports (pinned in the `dev` extra), so that
they run with every newer protobuf and gRPC.
"""

from __future__ import annotations

import filecmp
import shutil
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "hanse" / "v1"


def generate(into: Path) -> list[Path]:
    """Run protoc on every file of the contract; return the generated files."""
    protos = sorted((ROOT / "protos" / "hanse" / "v1").glob("*.proto"))
    tools = Path(sys.executable).parent
    arguments = [
        "protoc",
        f"--proto_path={ROOT / 'protos'}",
        f"--plugin=protoc-gen-mypy={tools / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={tools / 'protoc-gen-mypy_grpc'}",
        f"--python_out={into}",
        f"--grpc_python_out={into}",
        f"--mypy_out=quiet:{into}",
        f"--mypy_grpc_out=quiet:{into}",
        *map(str, protos),
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed: see the message above")
    return sorted(path for path in (into / "hanse" / "v1").iterdir() if path.is_file())


def main() -> None:
    """Generate, then copy or compare."""
    with tempfile.TemporaryDirectory() as folder:
        files = [path for path in generate(Path(folder)) if not _empty_service(path)]
        if "--check" in sys.argv[1:]:
            stale = [path.name for path in files if not _same(path, TARGET / path.name)]
            known = {path.name for path in files} | {"__init__.py"}
            stale += [path.name for path in TARGET.glob("*.py*") if path.is_file() and path.name not in known]
            if stale:
                raise SystemExit(f"hanse/v1 is not what protos/ says ({', '.join(stale)}); run `make protos`")
            print("hanse/v1 is up to date")
            return
        for old in TARGET.glob("*_pb2*"):
            old.unlink()
        for path in files:
            shutil.copy(path, TARGET / path.name)
        print(f"wrote {len(files)} files to hanse/v1")


def _same(one: Path, other: Path) -> bool:
    return other.exists() and filecmp.cmp(one, other, shallow=False)


def _empty_service(path: Path) -> bool:
    """payload.proto has no service: its gRPC stub would be an empty file."""
    return path.name.startswith("payload_pb2_grpc")


if __name__ == "__main__":
    main()
