"""Reading a file of settings: what is wrong with it is told in a sentence, never by a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from hanse.errors import OperatorError
from hanse.settings import Settings, load_yaml, read_yaml


class Example(Settings):
    rounds: int = 1


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("rounds: [1", "is not YAML"),
        ("rounds: 2024-13-45", "is not YAML: month must be in"),
        ("rounds: !!python/object:os.system {}", "is not YAML"),
        ("rounds: \x00", "is not YAML"),
        ("- rounds", "must hold a mapping of keys to values, not list"),
        ("", "must hold a mapping of keys to values, not NoneType"),
        ("runds: 2", "runds"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_name(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(OperatorError, match=match) as caught:
        load_yaml(Example, path)
    assert str(path) in caught.value.sentence


def test_the_tree_knows_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("# a job\nrounds: 3\n")
    document, tree = read_yaml(path)
    assert document == {"rounds": 3}
    assert tree is not None
    assert tree.value[0][0].start_mark.line == 1
