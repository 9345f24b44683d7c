"""Alert rules, runbooks and the Grafana dashboard speak of metrics and labels that the programs expose."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from tests.deploy.exposed import coordinator, labels_of_everything

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/k8s/components/monitoring/alerts.yaml"
BOARD = ROOT / "deploy/grafana/hanse.json"
SPEC = yaml.safe_load(RULES.read_text())["spec"]
ALERTS = {rule["alert"]: rule for group in SPEC["groups"] for rule in group["rules"]}


def panels() -> Iterator[tuple[str, str, str]]:
    """(panel's title, query, legend) of each query of the dashboard."""
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


QUERIES = [(title, expression) for title, expression, _ in panels()]
QUERIES += [(name, rule["expr"]) for name, rule in ALERTS.items()]


@pytest.fixture(scope="module")
def exposed() -> dict[str, set[str]]:
    return labels_of_everything()


def parse(expression: str) -> promql_parser.Expr:
    return promql_parser.parse(expression.replace("$__rate_interval", "5m"))


def faults(expression: str, exposed: dict[str, set[str]]) -> list[str]:
    """Every metric or label in a query that no program exposes."""
    found: list[str] = []
    inside: list[Any] = []

    def enter(node: Any) -> None:
        if isinstance(node, promql_parser.AggregateExpr):
            inside.append(node)
        if isinstance(node, promql_parser.VectorSelector):
            if node.name not in exposed:
                found.append(f"no program exposes {node.name}")
                return
            used = {matcher.name for matcher in node.matchers.matchers}
            for around in inside:
                used |= set(around.modifier.labels) if around.modifier else set()
            found.extend(f"{node.name} has no label {name}" for name in sorted(used - exposed[node.name]))

    def leave(node: Any) -> None:
        if isinstance(node, promql_parser.AggregateExpr):
            inside.pop()

    promql_parser.walk(parse(expression), enter, leave)
    return found


@pytest.mark.parametrize(("where", "expression"), QUERIES, ids=[f"{place}" for place in range(len(QUERIES))])
def test_a_query_names_what_is_exposed(where: str, expression: str, exposed: dict[str, set[str]]) -> None:
    assert faults(expression, exposed) == [], where


def test_a_wrong_name_and_a_wrong_label_would_be_seen(exposed: dict[str, set[str]]) -> None:
    assert faults("sum(rate(hanse_coordinator_no_such_total[5m]))", exposed) == [
        "no program exposes hanse_coordinator_no_such_total"
    ]
    wrong = 'sum by (node) (hanse_coordinator_jobs{stat="paused"})'
    assert faults(wrong, exposed) == [
        "hanse_coordinator_jobs has no label node",
        "hanse_coordinator_jobs has no label stat",
    ]


@pytest.mark.parametrize(("where", "expression", "legend"), list(panels()))
def test_a_legend_names_labels_that_its_query_leaves(
    where: str, expression: str, legend: str, exposed: dict[str, set[str]]
) -> None:
    named = set(re.findall(r"{{(\w+)}}", legend))
    outer = parse(expression)
    while hasattr(outer, "lhs"):
        outer = outer.lhs
    while isinstance(outer, promql_parser.Call):
        outer = next((part for part in outer.args if not isinstance(part, promql_parser.NumberLiteral)), None)
    if isinstance(outer, promql_parser.AggregateExpr):
        assert named <= set(outer.modifier.labels if outer.modifier else ()), where
    elif isinstance(outer, promql_parser.VectorSelector):
        assert named <= exposed[outer.name] | {"program"}, where  # joined from hanse_build_info
    else:
        assert not named, where


def test_no_label_holds_a_name_that_grows_with_the_federation(exposed: dict[str, set[str]]) -> None:
    for name, labels in exposed.items():
        assert not labels & {"node", "dataset", "job_id", "assignment", "phase", "path"}, name


def test_names_follow_the_conventions(exposed: dict[str, set[str]]) -> None:
    ours = [name for name in exposed if not name.startswith(("process_", "python_"))]
    assert all(name.startswith("hanse_") for name in ours)
    endings = ("_total", "_seconds", "_bytes", "_bucket", "_sum", "_count", "_created", "_info")
    gauges = ("_up", "_leader", "_epoch", "_sequence", "_jobs", "_nodes", "_connected", "_sessions", "_in_flight")
    assert [name for name in ours if not name.endswith((*endings, *gauges, "_live_pages"))] == []


def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: it comes with the package prometheus)")
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump(SPEC))
    done = subprocess.run([promtool, "check", "rules", str(rules)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", list(ALERTS))
def test_an_alert_has_a_severity_words_and_a_runbook(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"]
    page, anchor = rule["annotations"]["runbook_url"].split("#")
    assert page.startswith("docs/")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert anchor in slugs, f"{page} has no heading for #{anchor}"


# ---- What the counts mean
def sample(name: str, **labels: str) -> float | None:
    return coordinator().get_sample_value(name, labels)


def test_stages_of_a_phase_are_told_apart() -> None:
    for stage, seconds in (("collect", 3.0), ("aggregate", 4.0)):
        labels = {"stage": stage, "purpose": "train"}
        assert sample("hanse_coordinator_phase_seconds_count", **labels) == 2
        assert sample("hanse_coordinator_phase_seconds_sum", **labels) == 2 * seconds


def test_assignments_rounds_and_bytes_are_counted_once() -> None:
    outcome = {name: sample("hanse_coordinator_assignments_total", outcome=name) for name in ("delivered", "failed")}
    assert outcome == {"delivered": 2, "failed": 2}
    assert sample("hanse_coordinator_assignments_total", outcome="rejected") == 2
    assert sample("hanse_coordinator_assignments_total", outcome="withdrawn") == 1
    assert sample("hanse_coordinator_contribution_bytes_total") == 20
    assert sample("hanse_coordinator_rounds_total") == 1  # the second has not given way to a third yet
    assert sample("hanse_coordinator_last_phase_timestamp_seconds") == 17


def test_jobs_are_told_by_state_and_reason() -> None:
    assert sample("hanse_coordinator_jobs", state="paused", reason="QUORUM_NOT_MET") == 1
    assert sample("hanse_coordinator_jobs_entered_total", state="failed", reason="PLUGIN_FAILED") == 1
    assert sample("hanse_coordinator_nodes", trust="approved", health="away") == 1
    assert sample("hanse_coordinator_ledger_up") == 1  # the last write was good
