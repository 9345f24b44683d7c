"""What the operator's guide names is there: alerts with runbooks, files, commands and their flags, keys."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hanse_coordinator.settings import CoordinatorSettings
from tests.deploy.manifests import KUBERNETES, ROOT

GUIDE = (ROOT / "docs" / "operators-guide.md").read_text()
PAGES = {"operators-guide": GUIDE, "k8s": (KUBERNETES / "README.md").read_text()}


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as they are made from their words."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.M)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_alert_has_its_line_and_its_runbook() -> None:
    spec = yaml.safe_load((KUBERNETES / "components" / "monitoring" / "alerts.yaml").read_text())["spec"]
    alerts = {rule["alert"]: rule for group in spec["groups"] for rule in group["rules"]}
    lines = dict(re.findall(r"^\| `(Hanse\w+)` \| .*\]\(([^)]+)\) \|$", GUIDE, flags=re.M))
    assert lines.keys() == alerts.keys()
    for name, link in lines.items():
        page, _, anchor = link.partition("#")
        assert anchor in anchors(ROOT / "docs" / page), link
        assert f"| `{name}` | {alerts[name]['labels']['severity']} |" in GUIDE


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_file_that_is_named_is_there(page: str) -> None:
    named = set(re.findall(r"\b(?:deploy|docs)/[\w./-]+\w", PAGES[page]))
    assert named
    made = {"docs/operators-guide.md"}
    assert {name for name in named - made if not (ROOT / name).exists()} == set()
    for link in re.findall(r"\]\(([\w.-]+\.md)", PAGES[page]):
        assert (ROOT / "docs" / link).exists(), link


def commands() -> set[tuple[str, ...]]:
    """Every command of ours in the pages: program, words, flags."""
    found = set()
    for text in PAGES.values():
        for code in re.findall(r"`{1,3}([^`]+)`{1,3}", text):
            lines = code.replace("\n  ", " ")
            for line in re.findall(r"(?<!-n )(?<!namespace )\b(hanse(?:-agent)? [a-z][^\n|]*)", lines):
                words = line.split()
                taken = [words[0]]
                for word in words[1:]:
                    if not re.fullmatch(r"[a-z]+", word):
                        break
                    taken.append(word)
                flags = [word.partition("=")[0] for word in words if word.startswith("--")]
                found.add((*taken, *sorted(set(flags))))
    return found


def shown(words: list[str]) -> str:
    """The help of the longest beginning of the words that is a command."""
    module = {"hanse": "hanse.cli", "hanse-agent": "hanse_agent.main"}[words[0]]
    environment = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"}
    for end in range(len(words), 1, -1):
        command = [sys.executable, "-m", module, *words[1:end], "--help"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
        if done.returncode == 0:
            return done.stdout
    raise AssertionError(f"there is no command {words}")


def test_every_command_and_flag_is_one_that_there_is() -> None:
    seen = commands()
    assert len(seen) > 8
    for words in seen:
        text = shown([word for word in words if not word.startswith("--")])
        assert all(flag in text for flag in words if flag.startswith("--")), words


def test_keys_of_the_coordinator_have_the_defaults_that_the_guide_says() -> None:
    said = dict(re.findall(r"\(`(\w+)`, (\d+) s\)", GUIDE))
    assert said.pop("preStop") == "10"
    assert said.keys() == {"grace", "leader_lease", "lease"}
    for key, seconds in said.items():
        assert CoordinatorSettings.model_fields[key].default.total_seconds() == float(seconds), key
    assert "7 days (`certificate_lifetime`)" in GUIDE
    assert CoordinatorSettings.model_fields["certificate_lifetime"].default.days == 7
