"""The aggregator's configuration: file, environment, and what is wrong with either."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from hanse.errors import OperatorError
from hanse_aggregator.settings import load

FILE = "certificate: a.crt\nauthority: authority.crt\ngrace: 5s\ncache: 1GB\n"


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(FILE)
    return path


def test_the_environment_wins_over_the_file_and_foreign_variables_do_not_count(file):
    environment = {
        "HANSE_AGGREGATOR_LISTEN": "0.0.0.0:7445",
        "HANSE_AGGREGATOR_GRACE": "1m",
        "HANSE_AGGREGATOR_THREADS": "9",
        "HANSE_AGGREGATOR_KEY": "",
        # Kubernetes sets these for a Service that is called hanse-aggregator.
        "HANSE_AGGREGATOR_PORT": "tcp://10.0.0.7:7445",
        "HANSE_AGGREGATOR_SERVICE_HOST": "10.0.0.7",
    }
    found = load(file, environment)
    assert (found.listen, found.threads, found.cache) == ("0.0.0.0:7445", 9, 10**9)
    assert found.grace == timedelta(minutes=1)
    assert found.key is None


def test_the_environment_alone_is_enough():
    environment = {"HANSE_AGGREGATOR_CERTIFICATE": "a.crt", "HANSE_AGGREGATOR_AUTHORITY": "b.crt"}
    found = load(None, environment)
    assert (found.certificate, found.authority, found.listen) == (Path("a.crt"), Path("b.crt"), "127.0.0.1:7445")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (FILE + "treads: 3\n", "unknown key 'treads'"),
        (FILE + "threads: 0\n", "threads"),
        (FILE + "scratch: 3\n", "scratch"),
        (FILE.replace("5s", "5"), "write it with a unit"),
        ("authority: b.crt\n", "key 'certificate' is missing"),
        ("- a\n", "must hold a mapping of keys to values"),
        ("a: [\n", "is not YAML"),
    ],
)
def test_a_wrong_file_names_key_and_value(file, text, words):
    file.write_text(text)
    with pytest.raises(OperatorError, match=words):
        load(file, {})


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(OperatorError, match=r"nothing\.yaml"):
        load(tmp_path / "nothing.yaml", {})
