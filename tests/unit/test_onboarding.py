"""The commands that a site is told: they fit the programs, the images and the manifests that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from hanse import __version__
from hanse.onboarding import IMAGE, WHEEL, agent_file, ways_to_join
from hanse_agent.main import app as agent
from hanse_agent.settings import AgentConfig

ROOT = Path(__file__).parents[2]
WAYS = {way.key: way.text for way in ways_to_join()}


def words(text: str) -> list[list[str]]:
    """The words of each command, joined lines joined."""
    return [shlex.split(line) for line in text.replace("\\\n", " ").splitlines()]


def parsed(command: list[str]) -> None:
    """The agent's command line takes these words."""
    import typer

    assert command[0] == "hanse-agent"
    group = typer.main.get_command(agent)
    name, *rest = command[1:]
    group.commands[name].make_context(name, rest, resilient_parsing=False)


def test_the_agent_understands_what_pip_users_type():
    commands = [line for line in words(WAYS["pip"]) if line[0] == "hanse-agent"]
    assert [line[1] for line in commands] == ["doctor", "join", "run"]
    for line in commands:
        parsed(line)


def test_what_is_installed_is_the_operators_wheel_and_no_name_on_a_public_index():
    assert re.fullmatch(rf"pip install '\./{re.escape(WHEEL)}\[agent\]'", WAYS["pip"].splitlines()[1])
    assert f"hanse-{__version__}-py3-none-any.whl" == WHEEL


def test_containers_run_the_image_of_deploy_with_commands_that_the_agent_understands():
    containerfile = (ROOT / "deploy" / "images" / "Containerfile").read_text()
    assert "AS agent\n" in containerfile
    assert "ENTRYPOINT" not in containerfile  # so that the program is named in each command
    for line, name in zip(words(WAYS["container"]), ("join", "run"), strict=True):
        command = line[line.index(IMAGE) + 1 :]
        assert command[:2] == ["hanse-agent", name]
        parsed([word for word in command if word not in ("<", "invitation")])
        assert "hanse-state:/var/lib/hanse" in line
    assert "--token - < invitation" in WAYS["container"]  # whatever user the container has


def test_another_image_is_named_as_it_was_given():
    assert (
        "registry.example.org/hanse-agent-torch:1.2"
        in ways_to_join("registry.example.org/hanse-agent-torch:1.2")[1].text
    )


def test_kubernetes_commands_fit_the_overlay():
    overlay = ROOT / "deploy" / "k8s" / "overlays" / "edge"
    assert (overlay / "agent.yaml").exists()  # the file that is replaced
    assert "agent.yaml" in (overlay / "kustomization.yaml").read_text()
    documents = list(yaml.safe_load_all((ROOT / "deploy" / "k8s" / "rendered" / "edge.yaml").read_text()))
    (pods,) = [document["spec"]["template"]["spec"] for document in documents if document["kind"] == "StatefulSet"]
    (namespace,) = {document["metadata"]["namespace"] for document in documents if document["kind"] == "StatefulSet"}
    secrets = {volume["secret"]["secretName"] for volume in pods["volumes"] if "secret" in volume}
    last = words(WAYS["kubernetes"])[-1]
    assert last[:3] == ["kubectl", "-n", namespace]
    assert {last[6]} == secrets
    assert last[-1] == "--from-file=invitation=invitation"
    join = next(container["command"] for container in pods["initContainers"] if "join" in container["command"])
    assert any(word.endswith("/invitation") for word in join)


@pytest.mark.parametrize("way", WAYS)
def test_no_secret_stands_on_a_command_line(way):
    assert "HNS1" not in WAYS[way]
    assert "HANSE_INVITATION" not in WAYS[way]


def test_a_file_with_an_odd_name_is_quoted():
    texts = [way.text for way in ways_to_join("", "my invitation")]
    assert all("'my invitation'" in text or "'file:my invitation'" in text for text in texts)


def test_the_file_to_begin_with_is_one_that_the_agent_reads(tmp_path):
    path = tmp_path / "agent.yaml"
    path.write_text(agent_file("federation.example.org:7443"))
    assert AgentConfig.load(path).policy.approve == "by_hand"
