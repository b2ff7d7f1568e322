"""Rules, alerts and dashboard: what they name exists, every alert has a page and a test, and Prometheus accepts all of it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring import DASHBOARDS, ROOT, RULES, Programs, names_in
from tests.monitoring import programs as programs
from trainmaster.metrics.definitions import BOOK

RUNBOOKS = ROOT / "docs" / "how-to" / "runbooks"
_PAGES = "https://trainmaster.dev/docs/how-to/runbooks/"


def rules_of(file: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((RULES / file).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


RECORDED = rules_of("recording-rules.yaml")
ALERTS = rules_of("alerts.yaml")
BOARDS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in DASHBOARDS}
KNOWN = {name for definition in BOOK.definitions.values() for name in definition.series}
KNOWN |= {rule["record"] for rule in RECORDED}
KNOWN |= {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"}


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (panel for panel in board["panels"] if panel["type"] != "row")


def board_expressions(*boards: str) -> Iterator[str]:
    """Yield the expressions of these dashboards, or of all."""
    for board in [BOARDS[name] for name in boards or BOARDS]:
        yield from _expressions_of(board)


def _expressions_of(board: dict[str, Any]) -> Iterator[str]:
    for panel in panels(board):
        yield from (target["expr"] for target in panel["targets"])
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield re.sub(r"label_values\((.*), \w+\)", r"\1", variable["query"]["query"])


def page_of(alert: dict[str, Any]) -> Path:
    address = str(alert["annotations"]["runbook_url"])
    assert address.startswith(_PAGES)
    return RUNBOOKS / (address.removeprefix(_PAGES) + ".md")


EXPRESSIONS = [
    *(("rule " + rule["record"], rule["expr"]) for rule in RECORDED),
    *(("alert " + rule["alert"], rule["expr"]) for rule in ALERTS),
    *(("dashboard", expression) for expression in board_expressions()),
]


@pytest.mark.parametrize(("place", "expression"), EXPRESSIONS)
def test_expressions_name_only_metrics_that_exist(place: str, expression: str) -> None:
    named = names_in(expression)
    assert named or "up{" in expression, place
    assert named <= KNOWN, place


def test_a_metric_that_does_not_exist_would_be_found() -> None:
    assert names_in('rate(trainmaster_nothing_total{queue="trainmaster_jobs"}[5m]) / trainmaster:leaders') == {
        "trainmaster_nothing_total",
        "trainmaster:leaders",
    }


def test_every_metric_is_looked_at_by_the_dashboard_or_a_rule() -> None:
    looked_at = set().union(*(names_in(expression) for _, expression in EXPRESSIONS))
    unseen = [definition.name for definition in BOOK.definitions.values() if not definition.series & looked_at]
    assert unseen == []


def test_the_reference_tells_of_each_recorded_series() -> None:
    documented = set(
        re.findall(r"^\| `(trainmaster:[\w:]+)`", (ROOT / "docs/reference/metrics.md").read_text(), re.MULTILINE)
    )
    assert documented == {rule["record"] for rule in RECORDED}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_has_a_severity_sentences_and_a_page_that_explains_it(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}
    text = page_of(alert).read_text()
    assert f"`{alert['alert']}`" in text
    for heading in ("## What it means", "## What to look at", "## What to do"):
        assert heading in text


def test_there_is_no_page_without_an_alert() -> None:
    assert {page_of(alert) for alert in ALERTS} == set(RUNBOOKS.glob("*.md"))


def test_every_alert_is_tried_both_ways() -> None:
    cases = [
        (case["alertname"], bool(case.get("exp_alerts")))
        for test in yaml.safe_load((RULES / "alerts_test.yaml").read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    names = {alert["alert"] for alert in ALERTS}
    assert {name for name, fires in cases if fires} == names
    assert {name for name, fires in cases if not fires} == names


def test_there_are_dashboards_for_the_control_plane_users_and_admins() -> None:
    assert set(BOARDS) == {"trainmaster", "trainmaster-users", "trainmaster-admins"}


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_is_whole(name: str) -> None:
    board = BOARDS[name]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    assert board["uid"] == name
    assert board["schemaVersion"] >= 39
    for panel in panels(board):
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert all(
            target["datasource"] == {"type": "prometheus", "uid": "${datasource}"} for target in panel["targets"]
        )
        refs = [target["refId"] for target in panel["targets"]]
        assert refs
        assert len(refs) == len(set(refs))
    variables = {variable["name"] for variable in board["templating"]["list"]}
    used = {word for expression in board_expressions(name) for word in re.findall(r"\$(\w+)", expression)}
    assert used <= variables


@pytest.mark.parametrize("name", BOARDS)
def test_panels_do_not_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARDS[name]["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_jobs_that_rules_name_are_scraped() -> None:
    jobs = {job["job_name"] for job in yaml.safe_load((RULES / "prometheus.yml").read_text())["scrape_configs"]}
    named = {name for _, expression in EXPRESSIONS for name in re.findall(r'job="([\w-]+)"', expression)}
    assert named <= jobs
    assert jobs == {f"trainmaster-{kind}" for kind in ("api", "scheduler", "worker", "beat", "agent")}


@pytest.mark.prometheus
def test_prometheus_accepts_rules_and_configuration(programs: Programs) -> None:
    for words in (("check", "rules", "recording-rules.yaml", "alerts.yaml"), ("check", "config", "prometheus.yml")):
        done = programs.promtool(*words)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
def test_every_alert_fires_on_its_fault_and_on_no_other_day(programs: Programs) -> None:
    done = programs.promtool("test", "rules", "alerts_test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
def test_the_expressions_of_the_dashboard_parse(programs: Programs, tmp_path: Path) -> None:
    rules = [
        {"record": f"board:{number}", "expr": expression.replace("$queue", ".*").replace("$cluster", ".*")}
        for number, expression in enumerate(board_expressions())
    ]
    (tmp_path / "board.yaml").write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    done = programs.promtool("check", "rules", tmp_path / "board.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
