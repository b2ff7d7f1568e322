"""Numbers that pages give of the demo, the local clusters, alerts, kinds and distributions are those of the code."""

import re
import runpy
import tomllib
from types import SimpleNamespace
from typing import Any

import yaml

from tests.docs.pages import ROOT
from trainmaster.protocol.resource_kinds import KINDS
from trainmaster_dispatcher.cli.up import CLUSTERS

WORDS = {3: "three", 4: "four", 7: "seven"}


def text_of(page: str) -> str:
    return " ".join((ROOT / page).read_text().split())


class _Counter:
    """Stands for a client that submits whatever the demo wants."""

    def submit(self, specs: list[dict[str, Any]]) -> list[str]:
        return [str(spec["name"]) for spec in specs]

    def submit_workflow(self, document: dict[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(id=str(document["name"]))

    def job(self, job: str) -> SimpleNamespace:
        return SimpleNamespace(state=SimpleNamespace(value="running"))


def test_the_demo_has_as_many_jobs_and_clusters_as_the_page_says() -> None:
    demo = runpy.run_path(str(ROOT / "scripts/demo.py"))
    jobs, _ = demo["submit_all"](_Counter())
    (found,) = re.findall(r"(\d+) jobs, (\d+) clusters", text_of("README.md"))
    assert found == (str(len(jobs) + demo["PIPELINE_JOBS"]), str(len(CLUSTERS)))


def test_the_local_clusters_are_those_that_the_quick_start_names() -> None:
    cpus = {
        name: sum(int(group["count"]) * int(group["allocatable"]["cpu"]) for group in cluster["nodes"])
        for name, cluster in CLUSTERS.items()
    }
    listed = ", ".join(f"{name} {cpu} CPU" for name, cpu in cpus.items())
    assert f"{WORDS[len(CLUSTERS)]} clusters of this machine ({listed})" in text_of("docs/tutorial/quick-start.md")


def test_the_page_about_monitoring_lists_every_alert_once() -> None:
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
    alerts = [(rule["alert"], rule["labels"]["severity"]) for group in rules["groups"] for rule in group["rules"]]
    page = (ROOT / "docs/how-to/monitor.md").read_text()
    assert sorted(re.findall(r"^\| \[`(\w+)`\]\([^)]*\) \| (\w+) \|", page, re.MULTILINE)) == sorted(alerts)


def test_the_distributions_are_as_many_as_the_pages_say() -> None:
    folders = [path for path in (ROOT, *sorted(ROOT.iterdir())) if (path / "pyproject.toml").is_file()]
    projects = [tomllib.loads((path / "pyproject.toml").read_text()) for path in folders]
    word = WORDS[sum("project" in project for project in projects)]
    assert f"a workspace of {word} distributions" in text_of("CONTRIBUTING.md")
    assert f"The code is {word} distributions" in text_of("docs/explanation/architecture.md")
    assert f"the {word} wheels" in text_of("docs/how-to/install-the-dispatcher.md")


def test_the_reference_of_apply_names_every_kind() -> None:
    (listed,) = re.findall(r"`apply` takes `kind: (\w+)`, (.*?) and `Job`", text_of("docs/reference/cli.md"))
    assert {listed[0], *re.findall(r"`(\w+)`", listed[1])} == set(KINDS)
