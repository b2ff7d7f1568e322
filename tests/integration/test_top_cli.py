"""``trainmaster top`` as a real process, on agents of real members, and of simulated ones with GPUs."""

import csv
import io
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import yaml

from tests.conftest import ADMIN_KEY, Service
from tests.integration.rows import execute
from tests.integration.running_agents import running_agent
from tests.integration.test_cli_commands import Shell
from tests.waiting import eventually
from trainmaster.fake_cluster.fleet import FleetCluster
from trainmaster_agent.runtime.local.config import LocalCluster
from trainmaster_agent.runtime.local.runtime import LocalRuntime
from trainmaster_agent.runtime.simulated.runtime import SimulatedRuntime

LOCAL = LocalCluster.model_validate({"nodes": [{"name": "box", "allocatable": {"cpu": "4", "memory": "8Gi"}}]})
SIMULATED = FleetCluster.model_validate(
    {
        "name": "public",
        "kind": "public",
        "groups": [{"name": "gpu", "count": 2, "resources": {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"}}],
    }
)


def agent_of(
    service: Service, runtime: LocalRuntime | SimulatedRuntime, cluster: str
) -> AbstractAsyncContextManager[None]:
    """Run the agent of a cluster, which reports what members use every second, while the block runs."""
    return running_agent(service, runtime, cluster, use_seconds=1)


async def sampled(service: Service, job: str) -> None:
    """Wait until something is known of what a job uses."""

    async def is_known() -> bool:
        return "used" in (await service.job(job)).get("use", {}).get("cpu", {})

    await eventually(is_known)


async def test_what_members_use_is_shown_in_tables_and_as_data(service: Service, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    await shell.run("login", service.url, "--name", "here", says=f"{ADMIN_KEY}\n")
    nothing = await shell.run("top")
    assert (nothing.code, nothing.output) == (0, "")
    assert "no job runs that matches" in nothing.errors
    async with agent_of(service, LocalRuntime(tmp_path / "agent", LOCAL), "private"):
        template = {"command": [sys.executable, "-c", "while True: pass"], "resources": {"cpu": "2", "memory": "1Gi"}}
        job = await service.submit("burn", roles=[{"name": "main", "template": template}])
        await service.until(job, "running")
        await sampled(service, job)
        table = (await shell.run("top")).output.splitlines()
        assert table[0].split() == ["NAME", "QUEUE", "CLUSTER", "MEMBERS", "CPU", "MEMORY", "GPU", "SAMPLED"]
        assert table[1].split()[:4] == [job, "default", "private", "1"]
        assert "/2 (" in table[1]
        assert "/1Gi (" in table[1]
        members = (await shell.run("top", job)).output
        assert "main-0" in members
        assert "box" in members
        assert "use " in (await shell.run("job", job)).output
        found = (await shell.run("top", "-o", "json")).data["jobs"][0]["use"]
        assert 0 < found["cpu"]["used"] < 2
        assert yaml.safe_load((await shell.run("top", job, "-o", "yaml")).output)["job"] == job
        rows = list(csv.DictReader(io.StringIO((await shell.run("top", "-o", "csv")).output)))
        assert (rows[0]["job"], rows[0]["cpu_requested"], rows[0]["gpu_used"]) == (job, "2.0", "")
        groups = (await shell.run("top", "--by", "cluster", "-c", "private")).output.splitlines()
        assert groups[1].split()[:4] == ["private", "1", "1", "1"]
        wrong = await shell.run("top", job, "--by", "queue")
        assert wrong.code == 2
        await service.http.post(f"/v1/jobs/{job}/cancel", json={"grace": "0s"})
        await service.until(job, "cancelled")
        ended = (await shell.run("job", job)).output
        assert "peak of a member" in ended


async def test_simulated_members_have_use_of_gpus(service: Service, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    await shell.run("login", service.url, "--name", "here", says=f"{ADMIN_KEY}\n")
    async with agent_of(service, SimulatedRuntime(SIMULATED), "public"):
        resources = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "4"}
        template = {"command": ["train"], "resources": resources, "env": {"SIM_RUN_TIME": "1h"}}
        job = await service.submit("train", roles=[{"name": "main", "replicas": 3, "template": template}])
        await service.until(job, "running")
        await sampled(service, job)
        found = (await shell.run("top", "--sort", "gpu", "-o", "json")).data["jobs"][0]["use"]
        assert found["gpu"]["requested"] == 12
        assert 0 < found["gpu"]["used"] < 12
        assert 0 < found["cpu"]["percent"] < 100
        assert "% of 12" in (await shell.run("top")).output
        nothing = await shell.run("top", "--gpus-idle")
        assert (nothing.code, nothing.output) == (0, "")
        assert "does not say when they are idle" in nothing.errors
        await execute(service.stores, "UPDATE run_use SET gpus_idle_since = now() - interval '2 hours'")
        heading, row = (await shell.run("top", "--gpus-idle")).output.splitlines()
        assert heading.endswith("GPUS IDLE")
        assert (row.split()[0], row.split()[-1].startswith("2h")) == (job, True)
        assert (await shell.run("top", job, "--gpus-idle")).code == 2
        assert (await shell.run("top", job)).output.count("%") >= 3
