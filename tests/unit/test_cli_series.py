"""The command line: series over time, nodes in trouble, and what other quotas would have done."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.fake_api import Api, connected, run
from trainmaster.protocol.states import Exit

SERIES = "GET /v1/series"
WHAT_IF = "POST /v1/queues/research/vision/what-if"
QUEUES = "GET /v1/queues"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    return connected(monkeypatch, tmp_path)


def series(*values: float | None, **labels: str) -> dict[str, Any]:
    return {"labels": labels, "values": list(values)}


def answer(*found: dict[str, Any], unit: str = "cores", **fields: Any) -> dict[str, Any]:
    start = {"metric": "cluster.cpu.used", "unit": unit, "step": 60, "start": "2037-03-02T08:00:00.000Z"}
    return start | {"series": list(found), "leftOut": 0} | fields


def test_series_are_shown_with_bars(api: Api) -> None:
    api.on(SERIES, answer(series(1, 2, None, 8, cluster="west"), series(0.5, cluster="east"), leftOut=2))
    done = run("series", "cluster.cpu.used", "--by", "cluster", "--since", "6h")
    assert done.exit_code == 0, done.output
    head, west, east = done.stdout.splitlines()
    assert head.split() == ["CLUSTER", "LAST", "LEAST", "MOST", "FROM", "2037-03-02T08:00Z"]
    assert west.split() == ["west", "8", "1", "8", "▂▃", "█"]
    assert east.split() == ["east", "0.5", "0.5", "0.5", "█"]
    assert "2 more series" in done.stderr
    query = api.requests[-1].url.params
    assert (query["metric"], query["by"]) == ("cluster.cpu.used", "cluster")
    assert "since" in query


def test_questions_are_passed_on(api: Api) -> None:
    api.on(SERIES, answer(series(2**30, cluster="west"), unit="bytes"))
    words = ("--queue", "research", "--depth", "1", "--product", "all", "--until", "2037-01-02", "--step", "10m")
    done = run("series", "queue.gpu.used", "--by", "queue", "--by", "product", *words)
    assert done.stdout.splitlines()[1].split()[:2] == ["west", "1Gi"]
    query = api.requests[-1].url.params
    assert query.get_list("by") == ["queue", "product"]
    assert {name: query[name] for name in ("queue", "depth", "product", "step", "until")} == {
        "queue": "research",
        "depth": "1",
        "product": "all",
        "step": "600",
        "until": "2037-01-02T00:00:00+00:00",
    }


def test_series_are_data_for_spreadsheets_and_programs(api: Api) -> None:
    api.on(SERIES, answer(series(1, None, cluster="west")))
    done = run("series", "cluster.cpu.used", "-o", "csv")
    assert done.stdout.splitlines() == [
        "time,cluster,value",
        "2037-03-02T08:00:00+00:00,west,1.0",
        "2037-03-02T08:01:00+00:00,west,",
    ]
    done = run("series", "cluster.cpu.used", "-o", "json")
    assert json.loads(done.stdout)["series"] == [{"labels": {"cluster": "west"}, "values": [1.0, None]}]


def test_nothing_is_said_to_be_nothing(api: Api) -> None:
    api.on(SERIES, answer())
    done = run("series", "cluster.cpu.used")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "nothing is known of cluster.cpu.used in this time" in done.stderr


def test_without_a_metric_all_are_listed(api: Api) -> None:
    metric = {
        "name": "queue.jobs.queued",
        "unit": "jobs",
        "labels": ["queue"],
        "help": "Jobs that wait.",
        "rollup": "mean",
    }
    api.on("GET /v1/series/metrics", {"metrics": [metric | {"leastStep": 60}]})
    assert run("series").stdout.splitlines()[1].split("  ")[0] == "queue.jobs.queued"


@pytest.mark.parametrize("words", [("--step", "soon"), ("--step", "1.5s"), ("--since", "soon")])
def test_mistakes_are_said(api: Api, words: tuple[str, ...]) -> None:
    done = run("series", "cluster.cpu.used", *words)
    assert done.exit_code == Exit.USAGE, done.output
    assert api.requests == []


def cluster(**health: Any) -> dict[str, Any]:
    return {"name": "west", "clusterKind": "private", "state": "ready", "health": health}


def test_clusters_tell_of_nodes_in_trouble(api: Api) -> None:
    troubled = [{"node": "n7", "trouble": "not ready"}]
    api.on("GET /v1/clusters", {"clusters": [cluster(ready=5, notReady=2, deviceErrors=1, troubled=troubled)]})
    assert "west: nodes in trouble: 2 not ready, 1 with device errors; -o wide names nodes" in run("clusters").stderr
    assert "west: node n7: not ready" in run("clusters", "-o", "wide").stderr
    api.on("GET /v1/clusters", {"clusters": [cluster(ready=5)]})
    assert run("clusters").stderr == ""


def case(name: str, wait: float) -> dict[str, Any]:
    return {
        "name": name,
        "byQueue": {"research/vision": {"jobs": 10, "p50Seconds": wait, "p95Seconds": 2 * wait}},
        "queues": {"research/vision": {"started": 9, "unplaced": 1, "preempted": 2, "share": 0.25}},
    }


def simulation(state: str = "queued", **fields: Any) -> dict[str, Any]:
    return {"id": 12, "state": state, "createdAt": "2037-03-02T08:00:00.000Z", **fields}


def test_options_edit_the_queue_as_it_is_declared(api: Api) -> None:
    declared = {"path": "research/vision", "resources": {"cpu": {"guaranteed": "8", "limit": "16"}}, "weight": 2}
    api.on(QUEUES, {"queues": [{**declared, "isLeaf": True, "jobs": {"queued": 3}}]})
    api.on(WHAT_IF, simulation())
    words = ("--guarantee", "nvidia.com/gpu@product=H100=24", "--limit", "cpu=none", "--weight", "3")
    done = run("queues", "what-if", "research/vision", *words)
    assert (done.exit_code, done.stdout) == (0, "12\n"), done.output
    sent = api.sent(WHAT_IF)
    assert sent["queues"] == [
        {
            "path": "research/vision",
            "weight": 3.0,
            "resources": {"cpu": {"guaranteed": "8"}, "nvidia.com/gpu@product=H100": {"guaranteed": "24"}},
        }
    ]
    assert sent.keys() == {"queues", "since"}


def test_files_have_edited_queues(api: Api, tmp_path: Path) -> None:
    file = tmp_path / "edited.yaml"
    queue = {"kind": "Queue", "path": "research/vision", "resources": {"cpu": {"guaranteed": "4"}}}
    file.write_text(yaml.safe_dump_all([queue, {"kind": "Cluster", "name": "west"}]))
    api.on(WHAT_IF, simulation())
    done = run(
        "queues", "what-if", "research/vision", "-f", str(file), "--since", "2037-01-01", "--until", "2037-01-02"
    )
    assert done.exit_code == 0, done.output
    assert [one["path"] for one in api.sent(WHAT_IF)["queues"]] == ["research/vision"]


def test_the_result_compares_the_queues(api: Api, tmp_path: Path) -> None:
    file = tmp_path / "edited.yaml"
    file.write_text(yaml.safe_dump({"kind": "Queue", "path": "research/vision"}))
    api.on(WHAT_IF, simulation())
    api.on(
        "GET /v1/simulations/12",
        simulation(
            "succeeded",
            result={"workload": "history", "leftOut": 0, "cases": [case("present", 600), case("edited", 60)]},
        ),
    )
    done = run("queues", "what-if", "research/vision", "-f", str(file), "--wait")
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[1] == ["research/vision", "present", "10", "9", "1", "2", "10m", "20m", "25.0%"]
    assert lines[2] == ["research/vision", "edited", "10", "9", "1", "2", "1m", "2m", "25.0%"]
    api.on("GET /v1/simulations/12", simulation("failed", message="history has no job that ran and ended"))
    done = run("queues", "what-if", "research/vision", "-f", str(file), "--wait")
    assert done.exit_code == Exit.JOB_FAILED
    assert "history has no job that ran and ended" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "say what to change"),
        (("--guarantee", "cpu"), "is not FLAVOR=AMOUNT"),
        (("--limit", "cpu=1"), "there is no queue"),
    ],
)
def test_a_what_if_without_a_change_is_a_mistake(api: Api, words: tuple[str, ...], said: str) -> None:
    named = "research/vision" if said != "there is no queue" else "research/other"
    api.on(QUEUES, {"queues": [{"path": "research/vision", "isLeaf": True, "jobs": {}}]})
    done = run("queues", "what-if", named, *words)
    assert done.exit_code == Exit.USAGE, done.output
    assert said in done.stderr


def test_queues_are_still_listed(api: Api) -> None:
    api.on(QUEUES, {"queues": [{"path": "research", "isLeaf": True, "jobs": {"queued": 3}}]})
    assert run("queues").stdout.splitlines()[1].split()[0] == "research"
