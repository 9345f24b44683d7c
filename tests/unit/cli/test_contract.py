"""What every command promises: help, one envelope, exit codes, one error line. Commands are found by walking."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from hanse.cli.app import app

GOLDEN = Path(__file__).with_name("commands.txt")

# How each command is called so that it succeeds. A command without a line here fails the tests.
CALLS: dict[str, list[str]] = {
    "job submit": ["{job_file}"],
    "job list": [],
    "job show": ["j1"],
    "job watch": ["j1"],
    "job cancel": ["j1", "--why", "heat", "--yes"],
    "job pause": ["j1", "--why", "heat"],
    "job resume": ["j1"],
    "node invite": ["ward-3"],
    "node approve": ["ward-3", "--fingerprint", "babab-babad-babaf"],
    "node list": [],
    "node revoke": ["ward-3", "--why", "sold", "--yes"],
    "model pull": ["j1", "-o", "{tmp}/model"],
    "ledger verify": [],
    "ledger events": [],
    "token create": ["ada", "--role", "viewer"],
    "token list": [],
    "token revoke": ["t1", "--yes"],
    "authority init": ["--authority", "{tmp}/authority"],
    "authority show": ["--authority", "{authority}"],
    "authority issue": ["aggregator", "--authority", "{authority}", "-o", "{tmp}/service"],
    "plugin new": ["my_mean", "-o", "{tmp}/my-mean"],
}
# These start processes: tests/integration covers them.
HEAVY = {"up", "demo activity", "demo images", "demo charging"}
LOCAL = {"authority init", "authority show", "authority issue", "plugin new"}


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield " ".join(path), command
        return
    for name, child in children.items():
        yield from leaves(child, (*path, name))


COMMANDS = dict(leaves(typer.main.get_command(app)))
LIGHT = sorted(COMMANDS.keys() - HEAVY)


def test_every_command_is_known_to_these_tests():
    assert set(CALLS) | HEAVY == set(COMMANDS)


def described(name: str, command: Any) -> str:
    """What a person relies on, independent of how typer draws it."""
    lines = [f"hanse {name}", *(f"    {line}".rstrip() for line in (command.help or "").splitlines())]
    for parameter in sorted(command.params, key=lambda p: p.name):
        shown = "/".join(parameter.opts) if parameter.param_type_name == "option" else parameter.name.upper()
        required = " (required)" if parameter.required else ""
        lines.append(f"  {shown}{required}: {getattr(parameter, 'help', '') or ''}")
    return "\n".join(lines)


def test_commands_and_flags_are_those_of_the_golden_file():
    """A change here is a change for every script: look at the difference, then HANSE_UPDATE_GOLDEN=1."""
    now = "\n\n".join(described(name, COMMANDS[name]) for name in sorted(COMMANDS)) + "\n"
    if os.environ.get("HANSE_UPDATE_GOLDEN"):
        GOLDEN.write_text(now)
    assert now == GOLDEN.read_text()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_is_printed_and_explains_every_flag(cli, name):
    result = cli(*name.split(), "--help")
    assert result.code == 0
    text = " ".join(result.out.split())
    assert COMMANDS[name].help.splitlines()[0] in text
    assert "--json" in text
    assert all(parameter.help for parameter in COMMANDS[name].params)


def fill(arguments: list[str], served, job_file, tmp_path) -> list[str]:
    places = {"job_file": job_file, "tmp": tmp_path, "authority": served.state / "ca"}
    return [argument.format(**places) for argument in arguments]


@pytest.mark.parametrize("name", LIGHT)
def test_success_is_one_envelope(cli, served, job_file, tmp_path, name):
    cli("authority", "init", "--authority", served.state / "ca")
    served.control.watched = [served.control.detail("succeeded")]
    result = cli(*name.split(), *fill(CALLS[name], served, job_file, tmp_path), "--state", served.state, "--json")
    assert result.code == 0, result.err
    assert list(result.document) == ["ok", "command", "data", "error"]
    assert result.document["ok"] is True
    assert result.document["command"] == name
    assert result.document["data"] is not None
    assert result.document["error"] is None


@pytest.mark.parametrize("name", LIGHT)
def test_without_json_there_is_text_and_no_colour(cli, served, job_file, tmp_path, name):
    cli("authority", "init", "--authority", served.state / "ca")
    served.control.watched = [served.control.detail("succeeded")]
    result = cli(*name.split(), *fill(CALLS[name], served, job_file, tmp_path), "--state", served.state)
    assert result.code == 0, result.err
    assert result.out.strip()
    assert "\x1b" not in result.out + result.err


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_wrong_flag_is_a_usage_error(cli, name):
    result = cli(*name.split(), "--no-such-flag", "--json")
    assert result.code == 2
    assert result.document["ok"] is False
    assert result.document["command"] == name
    assert result.document["error"]["code"] == "USAGE"
    assert "--help" in result.document["error"]["remedy"]
    assert_one_line(result.err)


@pytest.mark.parametrize("name", sorted(set(LIGHT) - LOCAL))
def test_nobody_there_is_exit_7_with_the_cause(cli, served, job_file, tmp_path, name):
    served.stop()
    result = cli(*name.split(), *fill(CALLS[name], served, job_file, tmp_path), "--state", served.state, "--json")
    assert result.code == 7, result.err
    assert result.document["error"]["code"] == "CONNECTION"
    assert f"127.0.0.1:{served.port}" in result.document["error"]["sentence"]
    assert_one_line(result.err)


@pytest.mark.parametrize("name", sorted(set(LIGHT) - LOCAL))
def test_a_foreign_token_is_exit_4_and_never_quoted(cli, served, job_file, tmp_path, name):
    stolen = "hanse_" + "a" * 8 + "_" + "b" * 52
    (served.state / "admin.token").write_text(stolen)
    result = cli(*name.split(), *fill(CALLS[name], served, job_file, tmp_path), "--state", served.state, "--json")
    assert result.code == 4
    assert result.document["error"]["code"] == "TOKEN_UNKNOWN"
    assert "b" * 52 not in result.out + result.err


def assert_one_line(text: str) -> None:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    assert lines[0].startswith("hanse: ")
    assert "Traceback" not in text


def test_help_needs_nothing_heavy_and_a_fifth_of_a_second():
    """Best of five, in processor time: another program on the machine must not fail the test."""
    heavy = ("grpc", "numpy", "pydantic", "yaml", "cryptography", "sqlalchemy", "structlog")
    code = f"import sys; from hanse.cli.app import run; run(['--help']); print(set(sys.modules) & set({heavy}))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "set()"
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "hanse.cli", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.2


def test_help_of_a_group_without_a_command_is_shown_on_standard_error(cli):
    result = cli("job")
    assert result.code == 2
    assert "submit" in result.err
    assert result.out == ""


def test_the_version(cli):
    result = cli("--version")
    assert result.code == 0
    assert result.out.startswith("hanse ")
