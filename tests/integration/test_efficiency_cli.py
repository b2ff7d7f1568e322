"""``trainmaster efficiency`` and ``top JOB --since`` as real processes: what they print for people and as data."""

import csv
import io
from pathlib import Path

import pytest
import yaml

from tests.conftest import ADMIN_KEY, FakeAgent, Service
from tests.integration.rows import execute
from tests.integration.test_cli_commands import Shell
from tests.integration.test_efficiency import ran
from tests.integration.test_top import GIB, earlier, job_of, report, running, use
from trainmaster.protocol.states import Exit


@pytest.fixture
async def agent(service: Service) -> FakeAgent:
    agent = service.agent()
    await agent.connect(cpu=64)
    return agent


@pytest.fixture
async def shell(service: Service, tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    assert (await made.run("login", service.url, "--name", "here", says=f"{ADMIN_KEY}\n")).code == 0
    return made


async def test_efficiency_prints_sums_and_suggestions(service: Service, agent: FakeAgent, shell: Shell) -> None:
    nothing = await shell.run("efficiency")
    assert (nothing.code, nothing.output) == (0, "")
    assert nothing.errors == "nothing is known of what runs used in this time\n"
    for book in (
        service.http.put("/v1/price-books/own", json={"name": "own", "onDemand": {"cpu": "0.10"}}),
        service.http.put("/v1/clusters/private", json={"name": "private", "priceBook": "own"}),
    ):
        assert (await book).is_success
    runs = [await ran(service, agent, f"nightly-{number}", 500, GIB) for number in range(3)]
    other = await ran(service, agent, "other", 1900, 3 * GIB, columns={"oomKills": [1]})

    shown = await shell.run("efficiency", "--since", "1h")
    assert shown.code == 0, shown.errors
    head, row = shown.output.splitlines()
    assert head.split("  ")[0] == "QUEUE"
    assert [part.strip() for part in head.split("  ") if part.strip()] == [
        *("QUEUE", "RUNS", "CORE HOURS", "GPU HOURS", "MEMORY P95", "MEMORY PEAK", "OOM"),
    ]
    # 3 x 0.5 and 1.9 of 4 x 2 cores for an hour each; the largest member used 3 of 4 GiB.
    assert row.split() == ["default", "4", "3.40/8.00", "(42%)", "-", "75%", "75%", "1"]
    cpu, memory, few = shown.errors.splitlines()
    assert cpu == (
        "default, nightly of admin: request cpu 0.6 instead of 2, from 3 runs: the members of a run used at most, on average, 0.5,"
        " and 20 % are added (would have saved 0.42 EUR)"
    )
    assert memory == (
        "default, nightly of admin: request memory 1.25Gi instead of 4Gi, from 3 runs: the peak of a member was 1Gi, and 25 % are"
        " added"
    )
    assert few == "1 recurring job has no suggestion: it needs 3 runs of which the use is known"

    by_job = (await shell.run("efficiency", "--by", "job")).output.splitlines()
    assert by_job[0].split()[0] == "JOB"
    assert {line.split()[0] for line in by_job[1:]} == {job_of(run) for run in (*runs, other)}
    assert len((await shell.run("efficiency", "--by", "job", "--limit", "1")).output.splitlines()) == 2

    (line,) = csv.DictReader(io.StringIO((await shell.run("efficiency", "-o", "csv")).output))
    assert line == {
        "queue": "default",
        "runs": "4",
        "core_hours_requested": "8.0",
        "core_hours_used": "3.4",
        "cpu_percent": "42.5",
        "gpu_hours_held": "0.0",
        "gpu_hours_busy": "0.0",
        "gpu_percent": "",
        "memory_p95_percent": "75.0",
        "memory_peak_percent": "75.0",
        "oom_kills": "1",
    }
    data = (await shell.run("efficiency", "-o", "json")).data
    assert {one["resource"]: one.get("saved") for one in data["suggestions"]} == {"cpu": "0.42", "memory": None}
    assert yaml.safe_load((await shell.run("efficiency", "-o", "yaml")).output)["tooFewRuns"] == 1


async def test_efficiency_of_another_time_or_queue_is_empty_and_of_none_refused(
    service: Service, agent: FakeAgent, shell: Shell
) -> None:
    await service.http.put("/v1/queues/other", json={"path": "other"})
    await ran(service, agent, "old", 500, GIB)
    await execute(service.stores, "UPDATE run_use SET sampled_at = sampled_at - interval '40 days'")
    assert (await shell.run("efficiency")).output == ""
    assert len((await shell.run("efficiency", "--since", "50d", "--until", "30d")).output.splitlines()) == 2
    assert (await shell.run("efficiency", "--since", "50d", "--queue", "other")).output == ""
    unknown = await shell.run("efficiency", "--queue", "othr")
    assert (unknown.code, "did you mean 'other'?" in unknown.errors) == (Exit.BAD_REQUEST, True)
    wrong = await shell.run("efficiency", "--since", "someday")
    assert (wrong.code, "--since" in wrong.errors) == (Exit.USAGE, True)
    turned = await shell.run("efficiency", "--since", "1d", "--until", "2d")
    assert (turned.code, turned.output) == (Exit.BAD_REQUEST, "")


async def test_the_history_of_a_job_is_a_line_for_each_step(service: Service, agent: FakeAgent, shell: Shell) -> None:
    run = await running(service, agent, replicas=2)
    job = job_of(run)
    before = await shell.run("top", job, "--since", "1h")
    assert before.code == 0, before.errors
    assert "no history is known of this time; it is kept for 7 days" in before.errors
    await report(agent, use(run, 500, GIB, members=2, gpu=[50, 100], gpuMemory=[GIB, GIB]))
    await execute(service.stores, "UPDATE run_use SET sampled_at = sampled_at - interval '30 seconds'")
    await earlier(service, 1200)
    await report(agent, use(run, 1500, 2 * GIB, members=2, gpu=[50, 100], gpuMemory=[GIB, GIB]))

    shown = await shell.run("top", job, "--since", "1h", "--step", "300")
    assert shown.code == 0, shown.errors
    lines = shown.output.splitlines()
    assert lines[0].split() == ["job", job]
    head = next(place for place, line in enumerate(lines) if line.startswith("TIME"))
    assert lines[head].split() == ["TIME", "CPU", "MEMORY", "GPU", "GPU", "MEMORY"]
    history = [line.split() for line in lines[head + 1 :]]
    # Sums over both members; GPUs are averages. Steps of which nothing is known have no line.
    assert [line[2:] for line in history] == [["1.00", "2Gi", "75%", "2Gi"], ["3.00", "4Gi", "75%", "2Gi"]]
    members = lines[next(place for place, line in enumerate(lines) if line.startswith("MEMBER")) + 1 : head]
    assert [line.split()[0] for line in members if line] == ["main-0", "main-1"]

    (only,) = [line.split() for line in (await shell.run("top", job, "--since", "5m")).output.splitlines()[-1:]]
    assert only[2:] == ["3.00", "4Gi", "75%", "2Gi"]
    series = (await shell.run("top", job, "--since", "1h", "--step", "300", "-o", "json")).data["series"]
    assert {(one["member"], one["metric"]) for one in series} == {
        (member, metric) for member in ("main-0", "main-1") for metric in ("cpu", "memory", "gpu", "gpuMemory")
    }
    as_csv = list(
        csv.DictReader(io.StringIO((await shell.run("top", job, "--since", "1h", "--step", "300", "-o", "csv")).output))
    )
    assert [(one["cpu_cores"], one["memory_bytes"]) for one in as_csv] == [("1.0", str(2 * GIB)), ("3.0", str(4 * GIB))]


async def test_a_history_of_no_job_or_of_a_wrong_time_is_refused(
    service: Service, agent: FakeAgent, shell: Shell
) -> None:
    run = await running(service, agent)
    for words, said in (
        (("top", "--since", "1h"), "name the JOB"),
        (("top", job_of(run), "--since", "someday"), "--since"),
        (("top", job_of(run), "--since", "1h", "--step", "5"), "--step"),
    ):
        refused = await shell.run(*words)
        assert (refused.code, said in refused.errors) == (Exit.USAGE, True), words
    older = await shell.run("top", job_of(run), "--since", "30d")
    assert (older.code, "since" in older.errors) == (Exit.BAD_REQUEST, True)
    assert (await shell.run("top", "none-7k2p9xq", "--since", "1h")).code == Exit.NOT_FOUND
