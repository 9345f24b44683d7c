"""`hanse plugin …`: a method of one's own."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from hanse.cli import command as commands
from hanse.cli.command import Run, command
from hanse.cli.output import Answer
from hanse.errors import Conflict, OperatorError

group = commands.group("plugin", "Methods of your own.")

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# Template -> place in the package; @name@ is replaced in both.
_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "__init__.py": "hanse_@name@/__init__.py",
    "plugin.py": "hanse_@name@/plugin.py",
    "learner.py": "hanse_@name@/learner.py",
    "test.py": "tests/test_@name@.py",
    "job.yaml": "federation/job.yaml",
    "site-1.csv": "federation/site-1.csv",
    "site-2.csv": "federation/site-2.csv",
}
_SITES = ("site-1", "site-2")


@group.callback()
def _plugin() -> None:
    pass


@command(group, "new")
def new(
    run: Run,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The method's name: small letters, digits, underscores.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", show_default="hanse-NAME", help="A folder that is not there."),
    ] = None,
) -> Answer:
    """Write a package with a small method that works: both halves, a test, two sites and a job."""
    target = output or Path(f"hanse-{name.replace('_', '-')}")
    written = write_package(name, target)
    lines = [str(path) for path in written]
    text = "\n".join((*lines, f"Next: cd {target}, pip install -e '.[test]', pytest"))
    return Answer(data={"method": name, "files": lines}, text=text)


def write_package(name: str, target: Path) -> list[Path]:
    """Write the package of a method into a new folder.

    Raises:
        OperatorError: no name for a method.
        Conflict: the folder exists.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise OperatorError(f"'{name}' is no name for a method.", remedy="Use small letters, digits and underscores.")
    if target.exists():
        raise Conflict(f"{target} exists already.", remedy="Choose another folder with -o.", code="FILE_EXISTS")
    words = {
        "@name@": name,
        "@Name@": "".join(part.capitalize() for part in name.split("_")),
        "@dashed@": name.replace("_", "-"),
        "@title@": name.replace("_", " ").capitalize(),
    }
    contents = {place: _template(template) for template, place in _FILES.items()}
    contents |= {f"federation/{site}.yaml": _template("site.yaml").replace("@site@", site) for site in _SITES}
    written = []
    for place, text in sorted(contents.items()):
        for mark, word in words.items():
            place, text = place.replace(mark, word), text.replace(mark, word)
        path = target / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _template(name: str) -> str:
    return (files("hanse.cli") / "plugin_template" / f"{name}.txt").read_text(encoding="utf-8")
