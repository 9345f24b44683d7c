"""The command line against real programs: what the README tells a person to do, done."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml

from hanse.embedded import Child, EmbeddedFederation, EmbeddedOptions

NODES = ("ward-1", "ward-2", "ward-3")
ROUNDS = 4


@dataclass
class Done:
    """One run of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.out)

    @property
    def data(self) -> Any:
        return self.document["data"]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HANSE_")}


def program(module: str, *arguments: str | Path, cwd: Path) -> Done:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=cwd, timeout=120)
    assert "Traceback" not in done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


@contextmanager
def started(module: str, *arguments: str | Path, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A program that goes on running; a test that fails ends it."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    output = subprocess.PIPE
    with subprocess.Popen(command, cwd=cwd, env=environment(), stdout=output, stderr=output, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


class Place:
    """A running federation and the folder in which a person stands."""

    def __init__(self, federation: EmbeddedFederation, folder: Path) -> None:
        self.federation = federation
        self.folder = folder
        self.agents: dict[str, Child] = {}

    def hanse(self, *arguments: str | Path) -> Done:
        return program("hanse.cli", *arguments, "--state", self.federation.state, cwd=self.folder)

    def write_site(self, name: str) -> Path:
        """What a site has: a table and its agent.yaml."""
        site = self.folder / name
        site.mkdir()
        random = np.random.default_rng(int(name[-1]))
        rows = random.normal(size=(120, 3))
        kinds = (rows @ [1.0, -1.0, 0.5] > 0).astype(int) + (rows[:, 0] > 1)
        lines = [f"{a:.6f},{b:.6f},{c:.6f},{kind}" for (a, b, c), kind in zip(rows, kinds, strict=True)]
        (site / "table.csv").write_text("a,b,c,kind\n" + "\n".join(lines) + "\n")
        document = {
            "coordinator": self.federation.nodes_address,
            "state": "state",
            "labels": {"ward": "yes"},
            "datasets": {"ward": {"kind": "table", "path": str(site / "table.csv"), "target": "kind", "holdout": 0.25}},
            "policy": {"methods": ["fedscs_xgb"], "minimum_rows_per_atom": 1},
        }
        (site / "agent.yaml").write_text(yaml.safe_dump(document))
        return site

    def run_agent(self, name: str) -> None:
        site = self.folder / name
        agent = Child(
            name, ["hanse_agent.main", "run", str(site / "agent.yaml")], log=site / "agent.log", say=lambda _: None
        )
        agent.start()
        agent.assume_ready()
        self.agents[name] = agent

    def job_file(self, name: str, *, rounds: int = ROUNDS, minimum_nodes: int = len(NODES)) -> Path:
        path = self.folder / f"{name}.yaml"
        document = {
            "name": name,
            "method": "fedscs_xgb",
            "dataset": "ward",
            "rounds": rounds,
            "selection": {"minimum_nodes": minimum_nodes, "quorum": 1.0},
            "evaluation": {"every": 2},
            "method_config": {"num_class": 3, "max_depth": 3, "bins": 32, "statistics": "atoms"},
        }
        path.write_text(yaml.safe_dump(document))
        return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A federation with three nodes that joined as a site does: invited, joined, approved where need be."""
    folder = tmp_path_factory.mktemp("place")
    options = EmbeddedOptions(node_port=0, control_port=0)
    with EmbeddedFederation(folder / "hanse-state", options).running() as federation, ExitStack() as stack:
        place = Place(federation, folder)
        for name in NODES:
            site = place.write_site(name)
            invited = place.hanse("node", "invite", name, "--pre-approved", "-o", site / "invitation", "--json")
            assert invited.code == 0, invited.err
            joined = program(
                "hanse_agent.main", "join", "agent.yaml", "--token", f"file:{site / 'invitation'}", cwd=site
            )
            assert joined.code == 0, joined.err
            place.run_agent(name)
        stack.callback(lambda: [agent.stop() for agent in place.agents.values()])
        yield place


def until(condition: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)
    return found


@pytest.fixture(scope="module")
def trained(place: Place) -> dict[str, Any]:
    """A job that was submitted and watched to its end."""
    done = place.hanse("job", "submit", place.job_file("wards"), "--watch", "--timeout", "2m", "--json")
    assert done.code == 0, done.err
    return done.data


def test_a_job_is_watched_to_its_end(place, trained):
    assert trained["job"]["state"] == "succeeded"
    assert trained["job"]["round"] == ROUNDS
    pooled = {row["name"]: row["value"] for row in trained["metrics"] if row["scope"] == "pooled"}
    assert 0.5 < pooled["accuracy"] <= 1
    assert {part["node"] for part in trained["participation"]} == set(NODES)
    again = place.hanse("job", "watch", "wards")
    assert again.code == 0
    assert "succeeded" in again.out


def test_a_job_is_listed_and_shown(place, trained):
    assert "wards" in place.hanse("job", "list", "--in", "succeeded").out
    assert place.hanse("job", "list", "--in", "failed", "--json").data == []
    shown = place.hanse("job", "show", "wards").out
    assert "accuracy" in shown
    assert "ward-2" in shown


def test_the_model_is_pulled_and_is_an_xgboost_model(place, trained, tmp_path):
    import xgboost

    pulled = place.hanse("model", "pull", "wards", "-o", tmp_path / "model", "--json")
    assert pulled.code == 0, pulled.err
    assert pulled.data["sha256"] == trained["model_digest"]
    booster = xgboost.Booster()
    booster.load_model(tmp_path / "model" / "model.ubj")
    assert booster.num_features() == 3


def test_the_ledger_is_whole_and_the_sites_know_it(place, trained):
    heads = [place.folder / name / "state" / "ledger-heads.jsonl" for name in NODES]
    flags = [word for path in heads for word in ("--against", str(path))]
    verified = place.hanse("ledger", "verify", *flags, "--json")
    assert verified.code == 0, verified.err
    assert verified.data["against"] > 0
    offline = program("hanse.cli", "ledger", "verify", "--ledger", place.federation.ledger_file, cwd=place.folder)
    assert offline.code == 0, offline.err
    events = place.hanse("ledger", "events", "--job", "wards", "--json").data
    assert events
    assert {event["job"] for event in events} == {trained["job"]["id"]}


def test_nodes_are_trusted_and_there(place, trained):
    nodes = {node["name"]: node for node in place.hanse("node", "list", "--json").data}
    assert {(nodes[name]["trust"], nodes[name]["health"]) for name in NODES} == {("approved", "online")}
    assert nodes["ward-1"]["datasets"][0]["rows"] == 120
    assert nodes["ward-1"]["certificate_expires"] is not None


def test_a_job_waits_is_paused_goes_on_and_is_cancelled(place):
    submitted = place.hanse("job", "submit", place.job_file("crowd", minimum_nodes=99), "--json")
    assert submitted.code == 0, submitted.err
    job = submitted.data["id"]
    waiting = place.hanse("job", "watch", job, "--timeout", "1s", "--json")
    assert waiting.code == 6
    assert waiting.document["error"]["code"] == "WAIT_TIMEOUT"
    assert "99" in place.hanse("job", "show", job, "--json").data["job"]["reason"]["sentence"]
    assert place.hanse("job", "pause", job, "--why", "a look").code == 0
    assert place.hanse("job", "show", job, "--json").data["job"]["state"] == "paused"
    assert place.hanse("job", "resume", job).code == 0
    assert place.hanse("job", "cancel", job, "--why", "enough", "--yes").code == 0
    ended = place.hanse("job", "watch", job, "--json")
    assert ended.code == 3
    assert ended.data["job"]["state"] == "cancelled"


def test_a_method_that_nobody_hosts_and_a_wrong_setting_are_refused_at_submission(place):
    path = place.job_file("odd")
    document = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(document | {"method": "alchemy"}))
    assert "alchemy" in place.hanse("job", "submit", path).err
    path.write_text(yaml.safe_dump(document | {"method_config": {"num_class": 3, "max_depht": 3}}))
    refused = place.hanse("job", "submit", path)
    assert refused.code == 1
    assert "max_depht" in refused.err


def test_roles_decide_and_a_revoked_token_opens_nothing(place, trained, tmp_path):
    token = tmp_path / "viewer.token"
    made = place.hanse("token", "create", "ada", "--role", "viewer", "-o", token, "--json")
    assert made.code == 0, made.err
    client = yaml.safe_load(place.federation.client_file.read_text())
    variables = {
        "HANSE_COORDINATOR": client["coordinator"],
        "HANSE_AUTHORITY": str(place.federation.state / client["authority"]),
        "HANSE_TOKEN_FILE": str(token),
    }

    def as_ada(*words: str | Path) -> Done:
        command = [sys.executable, "-m", "hanse.cli", *map(str, words)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment() | variables, cwd=tmp_path, timeout=60
        )
        return Done(done.returncode, done.stdout, done.stderr)

    assert as_ada("job", "list").code == 0
    refused = as_ada("job", "submit", place.job_file("forbidden"))
    assert refused.code == 4
    assert "researcher" in refused.err
    assert place.hanse("token", "revoke", made.data["id"], "--yes").code == 0
    assert as_ada("job", "list", "--json").document["error"]["code"] == "TOKEN_REVOKED"


def test_a_node_that_was_not_pre_approved_waits_for_a_comparison(place):
    site = place.write_site("ward-9")
    assert place.hanse("node", "invite", "ward-9", "-o", site / "invitation").code == 0
    words = ("join", "agent.yaml", "--token", f"file:{site / 'invitation'}")
    with started("hanse_agent.main", *words, cwd=site) as joining:
        node = until(
            lambda: next(
                (
                    each
                    for each in place.hanse("node", "list", "--json").data
                    if each["name"] == "ward-9" and each["trust"] == "pending"
                ),
                None,
            )
        )
        wrong = place.hanse("node", "approve", "ward-9", "--fingerprint", "babab-babab-babab-babab-babab-babab")
        assert wrong.code == 1
        right = place.hanse("node", "approve", "ward-9", "--fingerprint", node["fingerprint"])
        assert right.code == 0, right.err
        assert joining.wait(30) == 0
    assert place.hanse("node", "revoke", "ward-9", "--why", "test", "--yes").code == 0
    nodes = {each["name"]: each for each in place.hanse("node", "list", "--json").data}
    assert nodes["ward-9"]["trust"] == "revoked"


def test_a_watch_survives_a_coordinator_that_is_killed(place, trained):
    submitted = place.hanse("job", "submit", place.job_file("again", rounds=150), "--json")
    words = ("job", "watch", submitted.data["id"], "--json", "--timeout", "100s", "--state", place.federation.state)
    with started("hanse.cli", *words, cwd=place.folder) as watching:
        assert watching.stderr is not None
        next(line for line in watching.stderr if "again running" in line)
        coordinator = place.federation.children["coordinator"]
        os.kill(coordinator.pid, signal.SIGKILL)
        out, err = watching.communicate(timeout=110)
    assert watching.returncode == 0, err
    assert json.loads(out)["data"]["job"]["state"] == "succeeded"
    assert "Trying again" in err


def test_ctrl_c_detaches_and_the_job_goes_on(place):
    job = place.hanse("job", "submit", place.job_file("long", minimum_nodes=99), "--json").data["id"]
    with started("hanse.cli", "job", "watch", job, "--state", place.federation.state, cwd=place.folder) as watching:
        assert watching.stderr is not None
        assert "long" in watching.stderr.readline()
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 3
        assert f"hanse job watch {job}" in watching.stderr.read()
    assert place.hanse("job", "show", job, "--json").data["job"]["state"] == "waiting"
    assert place.hanse("job", "cancel", job, "--why", "done", "--yes").code == 0


# ---- hanse up


def start_up(folder: Path, *flags: str) -> AbstractContextManager[subprocess.Popen[str]]:
    ports = ("--node-port", "0", "--control-port", "0", "--no-dashboard")
    return started("hanse.cli", "up", "--state", "fed", *ports, *flags, cwd=folder)


def read_object(stream: Any) -> dict[str, Any]:
    """The first JSON object of a program that goes on running."""
    text = ""
    for line in stream:
        text += line
        if line.rstrip() == "}":
            return json.loads(text)
    raise AssertionError(f"no object: {text}")


def test_up_says_where_things_are_and_drains_on_sigterm(tmp_path):
    with start_up(tmp_path, "--json") as up:
        data = read_object(up.stdout)["data"]
        assert program("hanse.cli", "node", "list", "--state", "fed", cwd=tmp_path).code == 0
        assert Path(data["token"]).stat().st_mode & 0o777 == 0o600
        second = program("hanse.cli", "up", "--state", "fed", "--json", cwd=tmp_path)
        assert second.code == 1
        assert second.document["error"]["code"] == "ALREADY_RUNNING"
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 0
    assert program("hanse.cli", "node", "list", "--state", "fed", cwd=tmp_path).code == 7
    with start_up(tmp_path, "--json") as up:  # everything is used again: ports, token, ledger
        assert read_object(up.stdout)["data"] == data
        assert program("hanse.cli", "token", "list", "--state", "fed", cwd=tmp_path).code == 0
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 0


def test_up_starts_a_program_again_that_dies(tmp_path):
    with start_up(tmp_path) as up:
        assert up.stdout is not None
        assert up.stderr is not None
        next(line for line in up.stdout if "control" in line)
        next(each for each in programs_under(up.pid) if "hanse_aggregator.main" in each.cmdline()).kill()
        assert any("aggregator was ended by SIGKILL; starting it again" in line for line in up.stderr)
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 0


def test_up_that_is_killed_leaves_no_program_behind(tmp_path):
    with start_up(tmp_path, "--json") as up:
        read_object(up.stdout)
        programs = programs_under(up.pid)
        assert len(programs) == 2
        up.kill()
    until(lambda: gone(programs))


# ---- The demo


def test_the_demo_prints_one_object_with_everything_that_was_promised(tmp_path):
    flags = ("--nodes", "3", "--rounds", "3", "--state", tmp_path / "demo", "--json")
    done = program("hanse.cli", "demo", "activity", *flags, cwd=tmp_path)
    assert done.code == 0, done.err
    document = done.document
    assert document["ok"] is True
    assert (document["method"], document["nodes"], document["rounds"]) == ("fedscs_xgb", 3, 3)
    for kind in ("federated", "central", "local"):
        assert 0.5 < document[kind]["accuracy"] <= 1
        assert 0.5 < document[kind]["macro_f1"] <= 1
        assert len(document[kind]["per_node"]) == 3
    assert set(document["bytes_sent_per_node"]) == set(document["federated"]["per_node"])
    assert all(size > 0 for size in document["bytes_sent_per_node"].values())
    assert document["seconds_per_round"] > 0
    assert 0 <= document["single_row_atoms"] <= 1
    assert document["ledger"]["verified"] is True
    assert document["ledger"]["events"] > 10
    assert Path(document["model_path"]).is_file()
    assert Path(document["ledger"]["path"]).is_file()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_stopped_leaves_no_program_behind(tmp_path, number):
    words = ("demo", "activity", "--nodes", "3", "--rounds", "500", "--state", tmp_path / "demo")
    with started("hanse.cli", *words, cwd=tmp_path) as demo:
        assert demo.stderr is not None
        next(line for line in demo.stderr if re.search(r"round [1-9]\d*/500", line))  # it works, and goes on
        programs = programs_under(demo.pid)
        assert len(programs) >= 5
        demo.send_signal(number)
        demo.communicate(timeout=60)
        if number != signal.SIGKILL:
            assert demo.returncode == 3
    until(lambda: gone(programs), 40)


def programs_under(pid: int) -> list[psutil.Process]:
    """Everything that a supervisor has started, and what that has started."""
    return psutil.Process(pid).children(recursive=True)


def gone(processes: list[psutil.Process]) -> bool:
    """Whether none of them runs; a zombie that nobody waits for here does not count."""

    def runs(process: psutil.Process) -> bool:
        try:
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    return not any(map(runs, processes))
