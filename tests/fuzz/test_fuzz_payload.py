"""A short, bounded run of the coverage-guided fuzzer. Longer ones are run by hand: see `fuzz_payload.py`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris has no wheel for this Python")
def test_foreign_bytes_crash_no_decoder(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    program = Path(__file__).with_name("fuzz_payload.py")
    code = "import sys; sys.path.insert(0, sys.argv[1]); import fuzz_payload as f, pathlib\n"
    code += "[pathlib.Path(sys.argv[2], str(n)).write_bytes(s) for n, s in enumerate(f.seeds())]"
    subprocess.run([sys.executable, "-c", code, str(program.parent), str(corpus)], check=True, timeout=120)
    command = [
        sys.executable,
        str(program),
        "-runs=15000",
        "-max_len=4096",
        "-rss_limit_mb=1024",
        "-seed=1",
        str(corpus),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=250, env=os.environ, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Done 15000" in done.stderr
