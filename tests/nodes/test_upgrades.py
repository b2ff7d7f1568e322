"""Upgrades while members run on real nodes, as users see them: the agent's release by Helm, and the dispatcher's with its schema."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from bench.kube_stage import KubeCluster
from bench.stage import ADMIN_KEY, PROGRAM
from tests.cluster.chart import CHARTS, JOBS, NAMESPACE, RELEASE, helm
from tests.nodes.network import run
from tests.nodes.requirements import need_real_nodes
from tests.nodes.system import CONFIG, NodeSystem, open_system
from tests.nodes.ticks import TICKS, assert_all_lines, assert_whole, containers_of, end, until_ticks
from trainmaster.protocol.states import JobState
from trainmaster_dispatcher.cli.embedded import wait_for_port
from trainmaster_dispatcher.cli.up import Child
from trainmaster_dispatcher.store.schema import newest_revision

need_real_nodes()

AGENT = "agent-north"
ACTS = "this replica holds the lease and acts now"
VALUES = ("cluster=north", "url=http://127.0.0.1:1", f"joinToken=tmk_{'x' * 32}", "olderNamespaces=null")
RESEARCH = "trainmaster-jobs-research"
MIGRATION = """
from alembic import op

revision = "{revision}"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN next_note text NOT NULL DEFAULT 'none'")
    op.execute("ALTER TABLE runs ADD COLUMN next_note text")
    op.execute("CREATE TABLE next_notes (id int PRIMARY KEY, note text NOT NULL)")
"""
"""What the next release may do to tables that the processes of this one read and write meanwhile."""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeSystem]:
    """Provide a system of this module alone, as its releases change."""
    folder = tmp_path_factory.mktemp("upgrades")
    with open_system(folder, Path(os.environ["KUBE_BIN"]), queues=("default", "research")) as system:
        yield system


def upgrade_agent(system: NodeSystem, chart: Path, *options: str) -> None:
    """Upgrade the agent's release as its owner does, then replace the agent's process as its Deployment would."""
    program = helm()
    assert program is not None
    where = ("--kubeconfig", system.plane.kubeconfig, "--namespace", NAMESPACE)
    run(program, "upgrade", RELEASE, chart, *where, *options)
    stage = system.stage
    (cluster,) = stage.clusters
    config = {**agent_config(system), **CONFIG}
    began = agent_log(system).count(ACTS)
    old = stage.children.pop(AGENT)
    stage.add(AGENT, stage.agent_command(KubeCluster(cluster.name, cluster.kubeconfig, config)))
    old.stop()
    system.until(lambda: agent_log(system).count(ACTS) > began, lambda: agent_log(system)[-2000:], 60)
    stage.until_ready()


def agent_config(system: NodeSystem) -> dict[str, Any]:
    """Return the configuration that the release gives the agent."""
    listing = orjson.loads(system.kubectl("-n", NAMESPACE, "get", "configmaps", "-o", "json"))
    (text,) = [one["data"]["agent.yaml"] for one in listing["items"] if "agent.yaml" in (one.get("data") or {})]
    config: dict[str, Any] = yaml.safe_load(text)
    return config


def agent_log(system: NodeSystem) -> str:
    return system.stage.children[AGENT].log.read_text()


def chart_of_next_release(folder: Path) -> Path:
    """Write the agent's chart as its next release could be: another version, and one more permission of the agent."""
    chart = folder / "agent"
    shutil.copytree(CHARTS / "agent", chart)
    description = chart / "Chart.yaml"
    text, changed = re.subn(r"(?m)^(version|appVersion): .*$", r"\1: 0.2.0", description.read_text())
    assert changed == 2
    description.write_text(text)
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "trainmaster-agent-next"},
        "rules": [{"apiGroups": ["storage.k8s.io"], "resources": ["csinodes"], "verbs": ["list", "watch"]}],
    }
    (chart / "templates" / "next.yaml").write_text(yaml.safe_dump(role))
    return chart


@contextmanager
def following(system: NodeSystem, job: str, path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Follow a job's output as a user does, into a file."""
    user = {"TRAINMASTER_URL": system.stage.urls[0], "TRAINMASTER_API_KEY": ADMIN_KEY, "TERM": "dumb"}
    with path.open("wb") as out:
        follower = subprocess.Popen(
            [*PROGRAM, "logs", "-f", job], env={**os.environ, **user}, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        yield follower
    finally:
        follower.kill()
        follower.wait()


def assert_followed(path: Path, members: int) -> None:
    """Assert that a follower of a gang got each member's output whole."""
    lines = path.read_text().splitlines()
    for member in range(members):
        assert_all_lines("\n".join(line for line in lines if line.startswith(f"main-{member}")), member)


def assert_never_restarted(system: NodeSystem, job: str, containers: set[str], members: int) -> None:
    """Assert that the job goes on in the same containers, then let it end, and assert that nothing of its output is missing."""
    assert containers_of(system, job) == containers
    assert all(status["restartCount"] == 0 for pod in system.pods(job) for status in pod["status"]["containerStatuses"])
    end(system, job, members)
    ended = system.until_ended(job)
    assert (ended.state, len(ended.runs), ended.retries_used) == (JobState.SUCCEEDED, 1, 0)
    assert_whole(system, job, members)


def test_the_agents_release_is_upgraded_while_a_gang_runs(system: NodeSystem, tmp_path: Path) -> None:
    """The new one has another version, more permissions, another configuration and another namespace for jobs."""
    sets = [word for value in (*VALUES, "memberStreams.enabled=false") for word in ("--set", value)]
    upgrade_agent(system, CHARTS / "agent", "--install", "--take-ownership", *sets)
    job = system.submit_template("agent", {"command": ["sh", "-c", TICKS]}, replicas=2)
    system.until_state(job, "running")
    until_ticks(system, job, 2)
    containers = containers_of(system, job)
    code, printed = system.call("exec", f"{job}/main-0", "--", "true")
    assert code != 0
    assert "cluster north does not let users run commands in members" in printed
    research = system.submit_template("research", {"command": ["sh", "-c", "echo found"]}, queue="research")
    system.until_why(research, "an admin of the cluster adds it, as with `queues` of the agent's chart")
    system.until_state(research, "held")

    with following(system, job, tmp_path / "output") as follower:
        changes = ("--set", "memberStreams.enabled=true", "--set", "queues={default,research}")
        upgrade_agent(system, chart_of_next_release(tmp_path), "--reset-then-reuse-values", *changes)
        until_ticks(system, job, 6)
        assert_never_restarted(system, job, containers, 2)
        assert follower.wait(60) == 0
    assert_followed(tmp_path / "output", 2)
    assert "0.2.0" in system.kubectl("-n", NAMESPACE, "get", "deployments", "-o", "yaml")
    system.client.resume(research)
    assert system.until_ended(research).state is JobState.SUCCEEDED
    assert system.output(research).rstrip().endswith("found")
    assert RESEARCH in system.kubectl("get", "namespaces", "-o", "name")


def next_release(system: NodeSystem, folder: Path) -> tuple[str, dict[str, str]]:
    """Return the next release of the dispatcher: the revision of its schema, and the environment in which its programs are found."""
    package, before = folder / "trainmaster_migrations", newest_revision()
    revision = f"{int(before) + 1:04}"
    with as_file(files("trainmaster_migrations")) as installed:
        shutil.copytree(installed, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "versions" / f"{revision}_next.py").write_text(MIGRATION.format(revision=revision, before=before))
    paths = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))
    return revision, {**system.stage.env, "PYTHONPATH": paths}


def revision_of(system: NodeSystem) -> str:
    with system.stage.sql() as connection:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(row and row[0])


def test_the_dispatcher_with_its_schema_is_upgraded_process_by_process_while_a_gang_runs(
    system: NodeSystem, tmp_path: Path
) -> None:
    stage = system.stage
    job = system.submit_template("dispatcher", {"command": ["sh", "-c", TICKS]}, replicas=2)
    system.until_state(job, "running")
    until_ticks(system, job, 2)
    containers = containers_of(system, job)
    revision, environment = next_release(system, tmp_path)

    with following(system, job, tmp_path / "output") as follower:
        too_early = subprocess.run(
            [*PROGRAM, "scheduler"], env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert too_early.returncode == 2
        assert f"this version needs {revision}; run: trainmaster migrate" in too_early.stderr
        migrated = subprocess.run(
            [*PROGRAM, "migrate"], env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert migrated.returncode == 0, migrated.stdout + migrated.stderr
        assert revision_of(system) == revision
        between = system.submit("between", "echo between")
        assert system.until_ended(between).state is JobState.SUCCEEDED  # by processes of the release before

        log = stage.folder / "logs" / "next-scheduler.log"
        stage.children["next-scheduler"] = Child("next-scheduler", [*PROGRAM, "scheduler"], environment, log)
        stage.children["next-scheduler"].start()
        for name in ("api-agents-0", "api-users-0", "scheduler-0"):
            child = stage.children[name]
            child.env = environment
            child.stop()
            child.start()
            assert child.process is not None
            if name.startswith("api-"):
                wait_for_port(int(child.command[-1]), child.process, 120, name)
            during = system.submit(f"during-{name}", "echo during")
            assert system.until_ended(during).state is JobState.SUCCEEDED
        stage.until_ready()
        until_ticks(system, job, 6)
        assert_never_restarted(system, job, containers, 2)
        assert follower.wait(60) == 0
    assert_followed(tmp_path / "output", 2)
    for one in (between, during):
        assert system.client.job(one).state is JobState.SUCCEEDED
    assert not system.kubectl("-n", JOBS, "get", "pods", "-l", f"trainmaster.dev/run={job}-r1", "-o", "name")
