"""Real processes seen from outside: what Prometheus makes of their pages, and what they write into their logs."""

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.conftest import job
from tests.integration.processes import PROGRAM, Processes, api_alone, start_agent, start_scheduler
from tests.monitoring import RULES, Programs
from tests.monitoring import programs as programs
from tests.waiting import eventually_sync
from trainmaster.protocol.states import Exit
from trainmaster_dispatcher.cli.embedded import free_port
from trainmaster_dispatcher.worker.tasks import RELAY


@pytest.fixture
def processes(database_url: str, redis_url: str, tmp_path: Path) -> Iterator[Processes]:
    """An api with a queue, a job that fits nowhere, a cluster and its agent; a scheduler."""
    with api_alone(database_url, redis_url, tmp_path) as made:
        with made.http() as http:
            assert http.post("/v1/jobs", json=job(cpu="64")).status_code == 201
        start_agent(made)
        start_scheduler(made)
        yield made


def configure(folder: Path, ports: dict[str, int]) -> Path:
    """Return the files of ``deploy/prometheus`` for these two processes, with seconds where they have minutes."""
    for file in ("recording-rules.yaml", "alerts.yaml"):
        rules = yaml.safe_load((RULES / file).read_text())
        for group in rules["groups"]:
            group["interval"] = "1s"
            for rule in group["rules"]:
                if "for" in rule:
                    rule["for"] = "2s"
        (folder / file).write_text(yaml.safe_dump(rules))
    config = yaml.safe_load((RULES / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"] = [
        {name: value for name, value in scrape.items() if name != "dns_sd_configs"}
        | {"static_configs": [{"targets": [f"127.0.0.1:{ports[scrape['job_name'].removeprefix('trainmaster-')]}"]}]}
        for scrape in config["scrape_configs"]
        if scrape["job_name"].removeprefix("trainmaster-") in ports
    ]
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.prometheus
def test_prometheus_sees_a_well_installation_and_then_the_loss_of_its_leader(
    processes: Processes, programs: Programs, tmp_path: Path
) -> None:
    config, port = configure(tmp_path, processes.ports), free_port()
    processes.start(
        "prometheus",
        programs.folder / "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        port=port,
    )
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=60) as prometheus:

        def data(path: str, **parameters: str) -> Any:
            answer = prometheus.get(path, params=parameters)
            return answer.json()["data"] if answer.status_code == 200 else None

        def value(expression: str) -> float | None:
            found = (data("/query", query=expression) or {"result": []})["result"]
            return float(found[0]["value"][1]) if found else None

        def alerts() -> dict[str, str]:
            groups = (data("/rules", type="alert") or {"groups": []})["groups"]
            return {rule["name"]: rule["state"] for group in groups for rule in group["rules"]}

        eventually_sync(lambda: value('sum(up{job=~"trainmaster-.+"})') == 3, 20)
        eventually_sync(lambda: value("trainmaster:leaders") == 1, 20)
        eventually_sync(lambda: value('trainmaster:jobs:by_state{state="queued"}') == 1, 20)
        eventually_sync(lambda: (value("trainmaster_agent_lease_margin_seconds") or 0) > 0, 20)
        eventually_sync(lambda: (value('trainmaster_cluster_lease_left_seconds{cluster="private"}') or 0) > 0, 20)
        eventually_sync(lambda: value("trainmaster:cycle_seconds:p99_5m") is not None, 20)
        eventually_sync(lambda: value("trainmaster:http_errors:ratio5m") == 0, 20)
        eventually_sync(lambda: set(alerts().values()) == {"inactive"}, 20)
        groups = data("/rules")["groups"]
        assert all(rule["health"] == "ok" for group in groups for rule in group["rules"]), groups

        processes.kill("scheduler")
        eventually_sync(lambda: alerts()["TrainmasterNoLeader"] == "firing", 20)
        eventually_sync(lambda: alerts()["TrainmasterProcessDown"] == "firing", 20)
        assert alerts()["TrainmasterApiAbsent"] == "inactive"


def test_lines_of_the_log_say_which_request_job_and_cluster_they_are_about(processes: Processes) -> None:
    with processes.http() as http:
        answer = http.post("/v1/jobs", json=job("mine"))
        job_id = answer.json()["id"]
        http.get(f"/v1/jobs/{job_id}", headers={"X-Request-Id": "my-request"})
    with processes.http("tmk_private") as http:
        session = {"session": "none", "wait": "0"}
        call = partial(http.get, "/agent/v1/desired", params=session, headers={"X-Request-Id": "agents"})
        eventually_sync(lambda: call().status_code == 409, 30)  # from the agent's first sync on
    lines: list[dict[str, Any]] = []

    def written() -> bool:
        lines[:] = processes.log("api")
        return any(line.get("request_id") == "agents" for line in lines)

    eventually_sync(written)
    by_request = {line["request_id"]: line for line in lines if "request_id" in line}
    assert answer.headers["x-request-id"] in by_request
    assert by_request["my-request"]["job_id"] == job_id
    assert by_request["my-request"]["status"] == 200
    assert by_request["agents"]["cluster"] == "private"
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)

    def leads() -> bool:
        return any(line["message"].startswith("leading with token") for line in processes.log("scheduler"))

    eventually_sync(leads, 30)  # its lines are JSON, too


def test_the_worker_counts_the_side_jobs_that_beat_has_it_do(processes: Processes) -> None:
    for name in ("worker", "beat"):
        port = free_port()
        processes.start(name, *PROGRAM, name, "--metrics-port", str(port), port=port)

    def page(name: str) -> str:
        return httpx.get(f"http://127.0.0.1:{processes.ports[name]}/metrics", timeout=60).text

    eventually_sync(lambda: f'trainmaster_tasks_total{{outcome="success",task="{RELAY}"}}' in page("worker"), 20)
    assert f'trainmaster_task_seconds_count{{task="{RELAY}"}}' in page("worker")
    assert 'trainmaster_build_info{process="beat"' in page("beat")
    assert "trainmaster_tasks" not in page("beat")


def test_a_port_that_is_taken_is_said_in_one_line(processes: Processes) -> None:
    taken = str(processes.ports["scheduler"])
    ended = subprocess.run(
        [*PROGRAM, "scheduler", "--metrics-port", taken],
        env=processes.env,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert ended.returncode == Exit.USAGE
    assert ended.stderr.startswith(f"error: cannot serve metrics at 127.0.0.1, port {taken}: ")
    assert "Traceback" not in ended.stderr
