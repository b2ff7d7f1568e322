"""The examples are what the documentation promises: valid, and the training gang learns."""

import os
import socket
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.bursting import BurstPolicySpec
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.tenants import ClusterSpec, PriorityClassSpec, QueueSpec
from trainmaster_agent.member_env import Seat, member_environment, seats
from trainmaster_dispatcher.services.workflow_parsing import read_workflow

EXAMPLES = Path(__file__).parents[2] / "examples"
JOB_FILES = sorted(
    path.relative_to(EXAMPLES).as_posix()
    for path in EXAMPLES.glob("*/*.yaml")
    if path.name not in ("tenants.yaml", "policy.yaml") and path.parent.name != "kubernetes"
)
KUBERNETES_JOB_FILES = sorted(
    path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.glob("kubernetes/*.yaml") if path.name != "queue.yaml"
)


def documents(file: str) -> list[dict[str, Any]]:
    text = (EXAMPLES / file).read_text().replace("@EXAMPLES@", str(EXAMPLES)).replace("@CHECKPOINTS@", "/tmp")
    return list(yaml.safe_load_all(text))


def jobs(file: str) -> list[dict[str, Any]]:
    """Return the jobs of an example, those of workflows as the dispatcher makes them."""
    found: list[dict[str, Any]] = []
    for document in documents(file):
        found += read_workflow(document).documents()["jobs"] if document["kind"] == "Workflow" else [document]
    return found


def tenants(kind: str) -> list[dict[str, Any]]:
    return [document for document in documents("tenants.yaml") if document["kind"] == kind]


@pytest.mark.parametrize("file", JOB_FILES)
def test_every_job_is_valid_and_goes_to_a_queue_of_the_examples(file: str) -> None:
    paths = {queue["path"] for queue in tenants("Queue")}
    leaves = {path for path in paths if not any(other.startswith(f"{path}/") for other in paths)}
    specs = [JobSpec.model_validate(document) for document in jobs(file)]
    assert specs
    assert {spec.queue for spec in specs} <= leaves


@pytest.mark.parametrize("file", JOB_FILES)
def test_every_script_that_a_job_runs_exists_and_no_placeholder_is_left(file: str) -> None:
    words = [
        word
        for document in jobs(file)
        for role in document["roles"]
        for word in (*role["template"].get("command", ()), *role["template"].get("env", {}).values())
    ]
    assert not [word for word in words if "@" in word]
    assert not [word for word in words if word.startswith(str(EXAMPLES)) and not Path(word).exists()]


@pytest.mark.parametrize("file", KUBERNETES_JOB_FILES)
def test_every_job_for_kubernetes_names_an_image_and_goes_to_the_first_queue(file: str) -> None:
    (queue,) = documents("kubernetes/queue.yaml")
    text = (EXAMPLES / file).read_text().replace("@IMAGE@", "registry.example.com/digits:1")
    for document in yaml.safe_load_all(text):
        spec = JobSpec.model_validate(document)
        assert spec.queue == QueueSpec.model_validate(queue).path
        for role in spec.roles:
            assert role.template is not None
            assert role.template.image


def test_the_image_of_the_training_has_what_its_job_runs_and_a_user_by_number() -> None:
    (document,) = yaml.safe_load_all((EXAMPLES / "kubernetes/training.yaml").read_text())
    instructions = [line.split() for line in (EXAMPLES / "kubernetes/Dockerfile").read_text().splitlines()]
    assert ["COPY", ".", "/examples"] in instructions
    ((_, user),) = [words for words in instructions if words[:1] == ["USER"]]
    assert int(user.split(":")[0]) > 0
    for role in document["roles"]:
        script = role["template"]["command"][-1]
        assert (EXAMPLES / Path(script).relative_to("/examples")).exists()


def test_the_image_of_the_ddp_training_has_what_its_job_runs_and_both_jobs_restart_as_a_gang() -> None:
    (document,) = documents("kubernetes/ddp.yaml")
    words = [line.split() for line in (EXAMPLES / "ddp/Dockerfile").read_text().splitlines()]
    assert ["COPY", "train.py", "/ddp/"] in words
    assert document["roles"][0]["template"]["command"][:2] == ["torchrun", "/ddp/train.py"]
    for job in (document, *documents("ddp/job.yaml")):
        assert JobSpec.model_validate(job).member_failure.action == "restartGang"


def test_the_tenants_are_valid_and_parents_come_before_their_children() -> None:
    queues = [QueueSpec.model_validate(document) for document in tenants("Queue")]
    for index, queue in enumerate(queues):
        assert queue.parent is None or queue.parent in {other.path for other in queues[:index]}
    assert len([PriorityClassSpec.model_validate(document) for document in tenants("PriorityClass")]) == 2
    assert len(documents("tenants.yaml")) == len(queues) + 2


def test_the_burst_policy_is_valid_and_names_queues_and_clusters_of_the_examples() -> None:
    book, cluster, policy = documents("burst/policy.yaml")
    spec = BurstPolicySpec.model_validate(policy)
    assert ClusterSpec.model_validate(cluster).price_book == PriceBookSpec.model_validate(book).name
    assert set(spec.queues) <= {queue["path"] for queue in tenants("Queue")}
    assert (spec.when.after, spec.at_most.jobs, spec.budget.day) == ("20s", 3, Decimal(5))


def test_the_sweep_has_four_jobs_for_each_of_three_queues() -> None:
    queues = [document["queue"] for document in documents("sweep/job.yaml")]
    assert {queue: queues.count(queue) for queue in queues} == {
        "research/vision": 4,
        "research/speech": 4,
        "platform/batch": 4,
    }


def start_run(job: dict[str, Any], attempt: int = 1) -> StartRun:
    """Return what an agent receives when ``job`` starts with all its members."""
    spec = JobSpec.model_validate(job)
    return StartRun(
        run=f"{spec.name}-7k2p9xq-r{attempt}",
        job=f"{spec.name}-7k2p9xq",
        queue=spec.queue,
        attempt=attempt,
        token=attempt,
        generation=1,
        spec=spec.to_wire(),
        sizes={role.name: role.replicas for role in spec.roles},
        placement_timeout_seconds=60,
    )


def free_addresses(count: int) -> list[tuple[str, int]]:
    """Return addresses that nobody listens on; all are held until the last is known, so that they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [server.getsockname()[:2] for server in held]
    for server in held:
        server.close()
    return addresses


class Gang:
    """The members of one run as processes of this machine, as the local runtime starts them."""

    def __init__(self, run: StartRun, folder: Path, *more_arguments: str) -> None:
        everyone = seats(run)
        addresses = dict(zip(everyone, free_addresses(len(everyone)), strict=True))
        templates = {role["name"]: role["template"] for role in run.spec["roles"]}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.processes: dict[Seat, subprocess.Popen[str]] = {}
        for seat in everyone:
            template = templates[seat.role]
            home = folder / f"{seat.role}-{seat.index}"
            home.mkdir()
            env = {
                "PATH": path,
                **template.get("env", {}),
                **member_environment(run, seat, everyone, addresses, processes={}),
            }
            self.processes[seat] = subprocess.Popen(
                [*template["command"], *more_arguments],
                env=env,
                cwd=home,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def finish(self, timeout: float) -> dict[str, tuple[int, str]]:
        """Wait for all members; return exit code and output of each, by role and index."""
        try:
            ends = {}
            for seat, process in self.processes.items():
                output, _ = process.communicate(timeout=timeout)
                ends[f"{seat.role}-{seat.index}"] = (process.returncode, output)
            return ends
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()


def test_the_training_gang_learns_to_read_digits(tmp_path: Path) -> None:
    (job,) = documents("training/job.yaml")
    ends = Gang(start_run(job), tmp_path, "--steps", "300").finish(timeout=60)
    assert {name: code for name, (code, _) in ends.items()} == dict.fromkeys(
        ("launcher-0", "worker-0", "worker-1", "worker-2"), 0
    ), ends
    words, _, accuracy = ends["launcher-0"][1].splitlines()[-1].partition(": ")
    assert words == "test accuracy"
    assert float(accuracy) > 0.9
    for index in range(3):
        assert f"accuracy on the shard of rank {index + 1}: 0.9" in ends[f"worker-{index}"][1]


def test_a_training_that_learns_too_little_fails(tmp_path: Path) -> None:
    (job,) = documents("training/job.yaml")
    code, output = Gang(start_run(job), tmp_path, "--steps", "1").finish(timeout=60)["launcher-0"]
    assert code == 1
    assert output.splitlines()[-1].startswith("test accuracy: 0.")


def test_the_launcher_names_its_trouble_when_a_worker_dies(tmp_path: Path) -> None:
    (job,) = documents("training/job.yaml")
    gang = Gang(start_run(job), tmp_path, "--steps", "1000000")
    launcher, victim, *_ = gang.processes.values()
    assert launcher.stdout is not None
    launcher.stdout.readline()
    victim.kill()
    ends = gang.finish(timeout=60)
    assert ends["launcher-0"][0] == 1
    assert "error: rank 1:" in ends["launcher-0"][1]
    assert "Traceback" not in "".join(output for _, output in ends.values())


@pytest.mark.parametrize(("attempt", "code"), [(1, 3), (2, 3), (3, 0)])
def test_the_flaky_job_fails_twice_and_then_succeeds(attempt: int, code: int, tmp_path: Path) -> None:
    (job,) = documents("flaky/job.yaml")
    assert job["retries"]["limit"] >= 2
    assert Gang(start_run(job, attempt), tmp_path).finish(timeout=30)["main-0"][0] == code


def test_a_trial_of_the_sweep_prints_its_score(tmp_path: Path) -> None:
    trial = documents("sweep/job.yaml")[0]
    code, output = Gang(start_run(trial), tmp_path, "--steps", "20").finish(timeout=60)["trial-0"]
    assert code == 0
    assert "test accuracy 0." in output.splitlines()[-1]


def test_the_page_of_the_examples_has_every_folder() -> None:
    page = (EXAMPLES / "README.md").read_text()
    folders = {
        path.name for path in EXAMPLES.iterdir() if path.is_dir() and any(path.glob("*.*")) and path.name[0] not in "._"
    }
    assert folders
    assert {name for name in folders if f"[{name}]({name})" not in page} == set()
