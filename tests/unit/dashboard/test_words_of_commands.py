"""Every command that the pages tell somebody to type exists, with its options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

import hanse_dashboard
from hanse.cli.app import app as hanse_app
from hanse.onboarding import agent_file, ways_to_join
from hanse_agent.main import app as agent_app

HERE = Path(hanse_dashboard.__file__).parent
DOCS = Path(__file__).parents[3] / "docs"
SOURCES = [*HERE.rglob("*.py"), *HERE.rglob("*.html"), *HERE.rglob("*.js"), DOCS / "observability.md"]
PROGRAMS = {"hanse": typer.main.get_command(hanse_app), "hanse-agent": typer.main.get_command(agent_app)}
SAID = re.compile(r"(?<!-n )\b(hanse-agent|hanse) ([a-z]+)(?: ([a-z]+))?((?: [^`\n<\"]*)?)")
PROSE = {"dashboard", "is", "on", "may", "cannot", "log"}
"""Words that follow the product's name in a sentence."""


def said_in(text: str) -> list[tuple[str, list[str], list[str]]]:
    """(program, words, options) of each command in a text; only what stands as code is a command."""
    marked = re.findall(r"`([^`]+)`|<code[^>]*>(.*?)</code>", text, re.DOTALL)
    spans = [one or other for one, other in marked] or [text]
    found = []
    for span in spans:
        for program, first, second, rest in SAID.findall(re.sub(r"\s+", " ", span)):
            if first not in PROSE:
                found.append((program, [first, *filter(None, [second])], re.findall(r"--[a-z-]+", rest)))
    return found


def fault(program: str, words: list[str], options: list[str]) -> str:
    """What is wrong with a command; empty: nothing."""
    command: Any = PROGRAMS[program]
    for word in words:
        if not hasattr(command, "commands"):
            break  # an argument
        if word not in command.commands:
            return f"{program} has no command {' '.join(words)}"
        command = command.commands[word]
    known = {option for parameter in command.params for option in parameter.opts}
    return next((f"{program} {' '.join(words)} has no {option}" for option in options if option not in known), "")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_a_command_on_a_page_exists(path: Path) -> None:
    assert [fault(*said) for said in said_in(path.read_text()) if fault(*said)] == []


def test_the_ways_to_join_exist() -> None:
    for way in ways_to_join():
        commands = [said for line in way.text.splitlines() for said in said_in(line)]
        assert [fault(*said) for said in commands if fault(*said)] == []
    assert "coordinator" in agent_file("federation.example.org:7443")


def test_a_command_that_is_not_there_would_be_seen() -> None:
    assert fault("hanse", ["node", "welcome"], []) == "hanse has no command node welcome"
    assert fault("hanse", ["token", "create"], ["--rolle"]) == "hanse token create has no --rolle"
