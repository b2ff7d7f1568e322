"""The Kubernetes API as kubectl uses it: by itself, over TLS, as kubectl sends its token over nothing else, and as an extension of a
real control plane's, where the cluster's own kinds have the short words.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.control_plane import ControlPlane
from tests.cluster.extension import extension_server
from tests.cluster.fixtures import plane
from tests.conftest import Service
from tests.integration.scheduled import pass_time, turn
from tests.integration.test_sdk import local_agent
from tests.tls import OPENSSL, served_over_tls
from tests.unit.fake_api import run
from tests.waiting import eventually
from trainmaster.protocol.states import RunState
from trainmaster_agent.aggregation.server import DispatcherAccess

__all__ = ["plane"]

KUBECTL = shutil.which("kubectl", path=os.environ.get("KUBEBUILDER_ASSETS", ""))
if KUBECTL is None or OPENSSL is None:
    pytest.skip("KUBEBUILDER_ASSETS has no kubectl, or there is no openssl", allow_module_level=True)

Kubectl = Callable[..., Coroutine[Any, Any, str]]
_EDITOR = "sed -i s/weight:.*/weight:\\ 7/"
"""An editor without a terminal: it changes the weight of a queue."""
_QUEUES = """
apiVersion: trainmaster.dev/v1
kind: Queue
metadata: {name: research, labels: {team: r}}
spec: {weight: 2}
---
apiVersion: trainmaster.dev/v1
kind: Queue
metadata: {name: research.vision}
spec: {resources: {cpu: {limit: 10}}}
---
apiVersion: trainmaster.dev/v1
kind: JobPriorityClass
metadata: {name: gold}
spec: {value: 500}
---
apiVersion: trainmaster.dev/v1
kind: Reservation
metadata: {name: night}
spec: {queue: default, nodes: 4, start: "2030-01-01T20:00:00Z", end: "2030-01-02T06:00:00Z"}
"""
_JOB = """
apiVersion: trainmaster.dev/v1
kind: Job
metadata: {name: train-with-a-name.v2, labels: {team: vision}}
spec:
  roles:
  - {name: main, replicas: 1, template: {command: [sleep, "60"], resources: {cpu: 1}}}
"""


_SECONDS = 120.0
_WITHOUT_PLUGIN = [
    one for one in os.environ["PATH"].split(os.pathsep) if not (Path(one) / "kubectl-trainmaster").exists()
]
"""The folders of programs, without that of an installed plugin: kubectl complains of two plugins of one name."""


def _calls(config: Path, folder: Path, rename: Callable[[str], str]) -> Kubectl:
    """Return a function that runs kubectl, and returns what it wrote."""

    async def call(*words: str, code: int = 0, given: str = "") -> str:
        process = await asyncio.create_subprocess_exec(
            str(KUBECTL),
            *map(rename, words),
            env={
                "KUBECONFIG": str(config),
                "HOME": str(folder),
                "PATH": os.pathsep.join([str(folder), *_WITHOUT_PLUGIN]),
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                "KUBE_EDITOR": _EDITOR,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(_SECONDS):
                out, _ = await process.communicate(given.encode())
        except TimeoutError:
            process.kill()
            raise AssertionError(f"kubectl {' '.join(words)} did not end within {_SECONDS:.0f} s") from None
        assert process.returncode == code, out.decode()
        return out.decode()

    return call


@pytest.fixture
async def alone(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kubectl]:
    """Return kubectl with the kubeconfig of the command line."""
    async with served_over_tls(service.url, tmp_path) as (url, certificate):
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        written = run("--url", url, "--key", service.http.headers["authorization"][7:], "kubeconfig")
        assert written.exit_code == 0, written.stderr
        config = tmp_path / "kubeconfig"
        config.write_text(written.stdout)
        yield _calls(config, tmp_path, str)


@pytest.fixture(params=["alone", "aggregated"])
def kubectl(request: pytest.FixtureRequest) -> Kubectl:
    """Return kubectl for either way in."""
    found: Kubectl = request.getfixturevalue(request.param)
    return found


def _with_group(word: str) -> str:
    """Return a word of a command with the group, where the cluster's own jobs have the word without."""
    for own in ("jobs", "job"):
        if word == own or word.startswith(own + "/"):
            return word.replace(own, own + ".trainmaster.dev", 1)
    return word


@pytest.fixture
async def aggregated(service: Service, plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Kubectl]:
    """Return kubectl as the administrator of a cluster with the extension API server."""
    key = service.http.headers["authorization"][7:]
    async with extension_server(plane, DispatcherAccess(service.url, key), tmp_path):
        yield _calls(plane.kubeconfig, tmp_path, _with_group)


async def test_kubectl_reads_everything(service: Service, kubectl: Kubectl) -> None:
    await service.http.put("/v1/queues/research", json={"path": "research"})
    await service.http.put("/v1/queues/research/vision", json={"path": "research/vision"})
    first = await service.submit("first", "research/vision", labels={"team": "a"})
    second = await service.submit("second", labels={"team": "b"})
    for words, expected in {
        ("api-resources",): "jobpriorityclasses",
        ("api-versions",): "trainmaster.dev/v1",
        ("get", "jobs", "-A"): first,
        ("get", "tj", "-A", "-o", "wide"): second,
        ("get", "jobs.trainmaster.dev", "-n", "research-vision"): first,
        ("get", "jobs", "-n", "research-vision", "-l", "team=b"): "No resources found in research-vision namespace.",
        ("get", "jobs", "-A", "--field-selector", "status.state=queued"): first,
        ("get", "job", first, "-n", "research-vision", "-o", "yaml"): "generateName: first-",
        ("get", "jobs", "-A", "-o", "name"): f"job.trainmaster.dev/{second}",
        ("get", "jobs", "-A", "-o", "jsonpath={.items[*].status.state}"): "queued queued",
        ("get", "jobs", "-A", "-o", "custom-columns=N:.metadata.generateName,Q:.spec.queue"): "second-   default",
        ("get", "jobs", "-A", "--sort-by", ".metadata.generateName", "--no-headers"): first,
        ("get", "jobs", "-A", "--show-labels"): "team=a",
        ("get", "queues"): "research.vision",
        ("get", "queue", "research.vision", "-o", "json"): '"path": "research/vision"',
        ("get", "clusters", "-o", "wide"): "AGENT",
        ("get", "jpc"): "PREEMPTIBLE",
        ("get", "trainmaster", "-A"): "queue.trainmaster.dev/research.vision",
        ("describe", "job", first, "-n", "research-vision"): "Generate Name:",
        ("describe", "queue", "research"): "Kind:         Queue",
        ("explain", "jobs.spec.roles", "--api-version=trainmaster.dev/v1"): "Identical members of a job",
        ("explain", "queues.spec.weight"): "FIELD: weight",
        ("get", "--raw", "/openapi/v3"): "serverRelativeURL",
    }.items():
        assert expected in await kubectl(*words), words


async def test_kubectl_reads_what_a_server_of_its_own_has(service: Service, alone: Kubectl) -> None:
    await service.http.put("/v1/queues/research", json={"path": "research"})
    assert "research" in await alone("get", "ns")
    assert "trainmaster" in await alone("version", "-o", "json")
    assert 'the server doesn\'t have a resource type "secrets"' in await alone("get", "secrets", code=1)
    assert "(MethodNotAllowed)" in await alone("delete", "namespace", "default", "--wait=false", code=1)


async def test_a_kind_that_is_not_served_is_named_and_the_rest_of_its_file_is_taken(
    service: Service, alone: Kubectl, tmp_path: Path
) -> None:
    await service.http.put("/v1/queues/default", json={"path": "default"})
    container = {"name": "main", "image": "busybox", "command": ["true"]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": {"template": template}}
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "b"}}
    path = tmp_path / "both.yaml"
    path.write_text(yaml.safe_dump_all([job, settings]))
    said = await alone("apply", "-f", str(path), code=1)
    assert "job.batch/train created" in said
    assert 'no matches for kind "ConfigMap" in version "v1"' in said


async def test_kubectl_shows_what_happened_and_what_members_write(service: Service, alone: Kubectl) -> None:
    agent = service.agent()
    await agent.connect()
    job = await service.submit("train")
    run_id = (await agent.next_start())["run"]
    member = {"role": "main", "index": 0, "state": "running", "node": "n1"}
    await agent.report(run_id, RunState.RUNNING, 1, members=[member])
    text = "step 1\nstep 2\n"
    chunk = {"role": "main", "index": 0, "offset": 0, "data": text, "nextOffset": len(text)}
    body = {"session": agent.session, "chunks": [chunk], "end": False}
    await agent.http.post(f"/agent/v1/streams/{run_id}", json=body, headers=agent._headers())
    pod = f"{job}.main.0"
    for words, expected in (
        (("get", "pods"), "Running"),
        (("get", "po", "-o", "wide"), "n1"),
        (("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=10s"), "condition met"),
        (("get", "runs"), "private   1"),
        (("get", "run", run_id, "-o", "jsonpath={.status.state}"), "running"),
        (("describe", "run", run_id), "Why Here:"),
        (("explain", "run.status.whyHere"), "explains the choice"),
        (("describe", "pod", pod), "Controlled By:  Job/" + job),
    ):
        assert expected in await alone(*words), words
    assert "cluster private does not let users run commands in members" in await alone("exec", pod, "--", "ls", code=1)
    end = {"category": "exit", "exitCode": 3, "message": "no such file"}
    await agent.report(run_id, RunState.FAILED, 2, end=end, members=[member | {"state": "failed", "exitCode": 3}])
    shown: tuple[tuple[tuple[str, ...], str], ...] = (
        (("logs", pod), text),
        (("logs", pod, "--tail=1", "--timestamps"), " step 2"),
        (("logs", "-f", pod), text),
        (("logs", "-l", f"trainmaster.dev/job-name={job}"), text),
        (("logs", pod, "-c", "main", "--limit-bytes=6"), "step 1"),
        (("get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"), "3"),
        (("get", "events"), "RunFailed"),
        (("get", "events", "--field-selector", "type=Warning", "-o", "name"), f"event/{job}."),
        (("get", "events", "-A", "--sort-by=.lastTimestamp"), f"job/{job}"),
        (("events", "--for", f"job.trainmaster.dev/{job}"), "no such file"),
        (("describe", "job", job), "exit code 3, no such file"),
    )
    for given, expected in shown:
        found = await alone(*given)
        assert expected in found, (given, found)


async def test_kubectl_runs_commands_in_members_and_copies_files(
    service: Service, alone: Kubectl, tmp_path: Path
) -> None:
    async with local_agent(service, tmp_path):
        template = {"command": ["sleep", "600"], "resources": {"cpu": "1"}}
        job = await service.submit("train", roles=[{"name": "main", "template": template}])
        await service.until(job, "running")
        pod = f"{job}.main.0"
        assert await alone("exec", pod, "--", "echo", "hello") == "hello\n"
        assert await alone("exec", "-i", pod, "--", "cat", given="from here") == "from here"
        assert "exit code 3" in await alone("exec", pod, "--", "sh", "-c", "exit 3", code=3)
        assert "'nothing' was not found" in await alone("exec", pod, "--", "nothing", code=127)
        talk = {
            "command": ["sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.5; done"],
            "resources": {"cpu": "1"},
        }
        talking = await service.submit("talk", roles=[{"name": "main", "template": talk}])
        await service.until(talking, "running")
        assert "line 8" in await alone("attach", f"{talking}.main.0")
        assert "is offered over WebSockets" in await alone("port-forward", pod, ":1", code=1)
        (tmp_path / "there.txt").write_text("content")
        await alone("cp", str(tmp_path / "there.txt"), f"{pod}:copied.txt")
        assert await alone("exec", pod, "--", "cat", "copied.txt") == "content"
        await alone("cp", f"{pod}:copied.txt", str(tmp_path / "back.txt"))
        assert (tmp_path / "back.txt").read_text() == "content"


async def test_kubectl_creates_jobs_and_asks_for_rights(service: Service, alone: Kubectl) -> None:
    """Objects that newer versions of kubectl send in protobuf, and older ones in JSON."""
    assert "job.batch/made created" in await alone(
        "create", "job", "made", "--image=busybox", "--", "sh", "-c", "exit 0"
    )
    shown = json.loads(await alone("get", "jobs.batch", "made", "-o", "json"))
    container = shown["spec"]["template"]["spec"]["containers"][0]
    assert (container["image"], container["command"]) == ("busybox", ["sh", "-c", "exit 0"])
    assert "created (server dry run)" in await alone(
        "create", "job", "x", "--image=busybox", "--dry-run=server", "--", "true"
    )
    assert "must have small letters" in await alone("create", "job", "No_Name", "--image=busybox", "--", "true", code=1)
    assert await alone("auth", "can-i", "create", "pods") == "yes\n"
    assert await alone("auth", "can-i", "create", "pods", "--subresource=exec") == "yes\n"
    assert (await alone("auth", "can-i", "create", "pods", "--subresource=eviction", code=1)).startswith("no")
    assert (await alone("auth", "can-i", "patch", "events", code=1)).startswith(
        "no - a key with the role admin has here"
    )
    assert "pods/exec" in await alone("auth", "can-i", "--list")
    assert "admin" in await alone("auth", "whoami")


async def test_the_command_line_is_a_plugin_of_kubectl(service: Service, alone: Kubectl, tmp_path: Path) -> None:
    program = tmp_path / "kubectl-trainmaster"
    program.write_text(f"#!{sys.executable} -P\nfrom trainmaster.cli.kubectl_plugin import main\nmain()\n")
    program.chmod(0o755)
    job = await service.submit("first")
    assert str(program) in await alone("plugin", "list")
    assert job in await alone("trainmaster", "jobs")
    assert "private" in await alone("trainmaster", "why", job)
    assert "Usage: kubectl trainmaster" in await alone("trainmaster", "--help")
    assert "there is no job" in await alone("trainmaster", "job", "nothing-1234567", code=13)


async def test_kubectl_pages_through_many_jobs(service: Service, kubectl: Kubectl) -> None:
    roles = [{"name": "main", "template": {"command": ["true"]}}]
    jobs = [{"kind": "Job", "name": f"j{number}", "queue": "default", "roles": roles} for number in range(250)]
    assert (await service.http.post("/v1/jobs", json={"jobs": jobs})).status_code == 201
    assert len((await kubectl("get", "jobs", "-A", "--chunk-size", "40", "--no-headers")).splitlines()) == 250
    assert len(json.loads(await kubectl("get", "jobs", "-A", "-o", "json"))["items"]) == 250
    assert len(list(yaml.safe_load(await kubectl("get", "jobs", "-n", "default", "-o", "yaml"))["items"])) == 250


async def test_kubectl_says_what_is_wrong(service: Service, kubectl: Kubectl) -> None:
    for words, expected in {
        (
            "get",
            "job",
            "none-0000000",
            "-n",
            "default",
        ): 'Error from server (NotFound): jobs.trainmaster.dev "none-0000000" not found',
        ("get", "queue", "none"): 'Error from server (NotFound): queues.trainmaster.dev "none" not found',
        ("get", "jobs", "-A", "--field-selector", "status.state!=queued"): "jobs are selected by field=value here",
        ("get", "jobs", "-A", "--field-selector", "spec.x=y"): "jobs are not selected by 'spec.x'",
        ("delete", "cluster", "private", "--wait=false"): "(MethodNotAllowed)",
        ("delete", "job", "none", "-n", "default"): '(NotFound): jobs.trainmaster.dev "none" not found',
    }.items():
        assert expected in await kubectl(*words, code=1), words


async def test_kubectl_says_of_which_kinds_there_are_none(alone: Kubectl, tmp_path: Path) -> None:
    for version, kind in (
        ("v1", "ConfigMap"),
        ("batch/v1beta1", "CronJob"),
        ("trainer.kubeflow.org/v1alpha1", "Other"),
    ):
        path = tmp_path / f"{kind}.yaml"
        path.write_text(yaml.safe_dump({"apiVersion": version, "kind": kind, "metadata": {"name": "x"}}))
        assert f'no matches for kind "{kind}" in version "{version}"' in await alone("apply", "-f", str(path), code=1)


async def test_kubectl_changes_what_is_declared(service: Service, kubectl: Kubectl, tmp_path: Path) -> None:
    (tmp_path / "queues.yaml").write_text(_QUEUES)
    file = "-f", str(tmp_path / "queues.yaml")
    unchanged = "queue.trainmaster.dev/research unchanged"
    for words, expected in (
        (("apply", *file), "jobpriorityclass.trainmaster.dev/gold created"),
        (("apply", *file), unchanged),
        (("diff", *file), ""),
        (("apply", "view-last-applied", *file[:1], file[1]), "weight: 2"),
        (("get", *file, "-o", "name"), "queue.trainmaster.dev/research.vision"),
        (("apply", "--server-side", "--force-conflicts", *file), "queue.trainmaster.dev/research serverside-applied"),
        (("apply", "--server-side", *file), "jobpriorityclass.trainmaster.dev/gold serverside-applied"),
        (("patch", "queue", "research", "--type", "merge", "-p", '{"spec":{"weight":3}}'), "patched"),
        (("patch", "queue", "research", "--type", "merge", "-p", '{"spec":{"weight":3}}'), "patched (no change)"),
        (("patch", "queue", "research", "--type", "json", "-p", '[{"op":"remove","path":"/spec/weight"}]'), "patched"),
        (("label", "queue", "research", "x=y"), "labeled"),
        (("get", "queues", "-l", "x in (y),team", "-o", "name"), "queue.trainmaster.dev/research"),
        (("label", "queue", "research", "x-"), "unlabeled"),
        (("annotate", "queue", "research.vision", "note=hello"), "annotated"),
        (("get", "queue", "research.vision", "-o", "jsonpath={.metadata.annotations.note}"), "hello"),
        (("replace", *file), "queue.trainmaster.dev/research replaced"),
        (("edit", "queue", "research"), "queue.trainmaster.dev/research edited"),
        (("wait", "--for=jsonpath={.spec.weight}=7", "queue/research", "--timeout=10s"), "condition met"),
        (("get", "queue", "research", "-o", "yaml", "--show-managed-fields"), "manager: kubectl-edit"),
        (("describe", "queue", "research"), "Weight:  7"),
        (
            ("scale", "reservation/night", "--replicas=6", "--current-replicas=4"),
            "reservation.trainmaster.dev/night scaled",
        ),
        (("scale", "rsv", "night", "--replicas=5"), "reservation.trainmaster.dev/night scaled"),
        (("get", "rsv", "night"), "5"),
        (("get", "rsv", "night", "--subresource=scale", "-o", "jsonpath={.spec.replicas}"), "5"),
        (("auth", "can-i", "update", "reservations.trainmaster.dev/scale"), "yes"),
        (("delete", "rsv", "night"), 'reservation.trainmaster.dev "night" deleted'),
        (("delete", "jpc", "gold"), 'jobpriorityclass.trainmaster.dev "gold" deleted'),
        (("delete", "queue", "research.vision", "research"), 'queue.trainmaster.dev "research" deleted'),
        (("wait", "--for=delete", "queue/research", "--timeout=10s"), ""),
    ):
        found = await kubectl(*words)
        assert expected in found, (words, found)
        if expected == "":
            assert not found, words


async def test_kubectl_submits_follows_changes_and_deletes_jobs(
    service: Service, kubectl: Kubectl, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(_JOB)
    file, name = ("-f", str(tmp_path / "job.yaml")), "train-with-a-name.v2"
    watching = asyncio.create_task(kubectl("get", "jobs", "-w", "--request-timeout=30s"))
    for words, expected in (
        (("create", *file, "--dry-run=server", "-o", "yaml"), "Queued"),
        (("apply", *file), f"job.trainmaster.dev/{name} created"),
        (("apply", *file), f"job.trainmaster.dev/{name} unchanged"),
        (("diff", *file), ""),
        (("get", "job", name), "queued"),
        (("patch", "job", name, "--type", "merge", "-p", '{"spec":{"priority":5}}'), "patched"),
        (
            ("patch", "job", name, "--type", "json", "-p", '[{"op":"add","path":"/spec/suspend","value":true}]'),
            "patched",
        ),
        (("wait", "--for=condition=Suspended", f"job/{name}", "--timeout=10s"), "condition met"),
        (("patch", "job", name, "--type", "merge", "-p", '{"spec":{"suspend":false}}'), "patched"),
        (("wait", "--for=jsonpath={.status.state}=queued", f"job/{name}", "--timeout=10s"), "condition met"),
        (("label", "job", name, "tier=x"), "labeled"),
        (("get", "jobs", "-l", "tier,team!=audio", "-o", "name"), f"job.trainmaster.dev/{name}"),
        (("annotate", "job", name, "note=hello"), "annotated"),
        (("apply", "--server-side", "--force-conflicts", *file), "serverside-applied"),
        (("get", "job", name, "-o", "yaml", "--show-managed-fields"), "operation: Apply"),
        (("describe", "job", name), "Priority:  5"),
        (("delete", *file), f'job.trainmaster.dev "{name}" deleted'),
        (("get", "jobs"), "No resources found in default namespace."),
        (("create", *file), f"job.trainmaster.dev/{name} created"),
        (("delete", "jobs", "-l", "team=vision"), f'job.trainmaster.dev "{name}" deleted'),
        (("create", *file), f"job.trainmaster.dev/{name} created"),
        (("delete", "jobs", "--all"), f'job.trainmaster.dev "{name}" deleted'),
    ):
        found = await kubectl(*words)
        assert expected in found, (words, found)
        if expected == "":
            assert not found, words
    twice = await kubectl("create", *file) + await kubectl("create", *file, code=1)
    assert "(AlreadyExists)" in twice
    wrong = await kubectl("apply", "-f", "-", code=1, given=_JOB.replace("replicas", "replica"))
    assert "spec.roles[0].replica" in wrong
    seen = await watching
    assert all(word in seen for word in (name, "queued", "cancelled")), seen


_PI = """
apiVersion: batch/v1
kind: Job
metadata: {name: pi, labels: {app: pi}}
spec:
  parallelism: 2
  completions: 4
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: pi, image: perl, command: [perl, -e, "print 3.14"], resources: {requests: {cpu: "1"}}}
"""
_SET = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: set}
spec:
  replicatedJobs:
  - name: workers
    template:
      spec:
        template:
          spec:
            restartPolicy: Never
            containers: [{name: main, image: busybox, command: [sleep, "60"]}]
"""


async def test_kubectl_submits_manifests_of_other_apis(service: Service, alone: Kubectl, tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "pi.yaml").write_text(_PI)
    (folder / "set.yaml").write_text(_SET)
    assert "job.batch/pi created" in await alone("apply", "-f", str(folder))
    agent = service.agent()
    again = await alone("apply", "-f", str(folder))
    assert again.count("unchanged") == 2, again
    pi, where = "jobs.batch/pi", ("-f", str(folder / "pi.yaml"))
    for words, expected in (
        (("api-resources", "--api-group=jobset.x-k8s.io"), "JobSet"),
        (("get", "jobs"), "pi"),
        (("get", "jobs.batch,jobsets"), "jobset.jobset.x-k8s.io/set"),
        (("get", "jobs.batch", "-o", "wide", "-l", "app=pi"), "queued"),
        (("get", *where, "-o", "yaml"), "trainmaster.dev/state: queued"),
        (("diff", *where), ""),
        (("explain", "job", "--api-version=batch/v1"), "is queued, placed on a cluster"),
        (("explain", "jobsets.spec"), "FIELD: spec"),
        (("describe", pi), "Completions:    4"),
        (("describe", "jobset", "set"), "Submitted"),
        (("label", pi, "team=x"), "labeled"),
        (("annotate", pi, "note=y"), "annotated"),
        (("patch", pi, "-p", '{"spec": {"suspend": true}}'), "patched"),
        (("get", pi, "-o", "jsonpath={.spec.suspend}"), "true"),
        (("patch", pi, "--type=merge", "-p", '{"spec": {"suspend": false}}'), "patched"),
        (("patch", pi, "--type=json", "-p", '[{"op": "remove", "path": "/metadata/annotations/note"}]'), "patched"),
        (("apply", "--server-side", "--force-conflicts", *where), "serverside-applied"),
        (("replace", *where, "--dry-run=server"), "replaced"),
        (("create", *where, "--dry-run=server"), ""),
    ):
        code = 1 if words[0] == "create" else 0
        assert expected in await alone(*words, code=code), words
    refused = await alone("patch", pi, "-p", '{"spec": {"completions": 5}}', code=1)
    assert "spec.completions: is fixed once the job is submitted" in refused
    await agent.connect(capabilities=("gang", "podTemplate", "workload:batch/v1/Job"))
    run_id = (await agent.next_start())["run"]
    members = [{"role": "main", "index": index, "state": "running", "node": "n1"} for index in range(2)]
    await agent.report(run_id, RunState.RUNNING, 1, members=members, object_status={"active": 2})
    await alone("wait", "--for=jsonpath={.status.active}=2", pi, "--timeout=20s")
    assert "2 active" in await alone("get", pi)
    text = "3.14\n"
    chunk = {"role": "main", "index": 0, "offset": 0, "data": text, "nextOffset": len(text)}
    body = {"session": agent.session, "chunks": [chunk], "end": False}
    await agent.http.post(f"/agent/v1/streams/{run_id}", json=body, headers=agent._headers())
    assert "pi.main.1" in await alone("get", "pods", "-l", "job-name=pi")
    done = {"succeeded": 4, "conditions": [{"type": "Complete", "status": "True"}]}
    await agent.report(run_id, RunState.SUCCEEDED, 2, object_status=done)
    await alone("wait", "--for=condition=Complete", pi, "--timeout=20s")
    assert "3.14" in await alone("logs", pi)
    assert "RunSucceeded" in await alone("events", "--for", pi)
    assert "deleted" in await alone("delete", "-f", str(folder))
    assert "No resources found" in await alone("get", "jobs.batch,jobsets")


_POD = """
apiVersion: v1
kind: Pod
metadata: {name: train, labels: {app: train}}
spec:
  restartPolicy: Never
  containers:
  - {name: main, image: busybox, command: [echo, hello], resources: {requests: {cpu: "1"}}}
"""


async def test_kubectl_submits_pods(service: Service, alone: Kubectl, tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(_POD)
    where = ("-f", str(path))
    assert "pod/train created" in await alone("apply", *where)
    for words, expected in (
        (("apply", *where), "pod/train unchanged"),
        (("apply", "--server-side", "--force-conflicts", *where), "serverside-applied"),
        (("get", "pods"), "train"),
        (("get", "pod", "train", "-o", "jsonpath={.status.phase}"), "Pending"),
        (("describe", "pod", "train"), "echo"),
        (("explain", "pod"), "VERSION:    v1"),
        (("label", "pod", "train", "team=x"), "labeled"),
        (("annotate", "pod/train", "note=y"), "annotated"),
        (("diff", *where), ""),
        (("run", "again", "--image=busybox", "--restart=Never", "--labels=app=x", "--", "true"), "pod/again created"),
        (("get", "pods", "-l", "app=x", "-o", "name"), "pod/again"),
        (("delete", "pod", "again"), "deleted"),
    ):
        assert expected in await alone(*words), words
    refused = await alone("run", "web", "--image=busybox", code=1)
    assert "spec.restartPolicy" in refused
    assert "must be Never" in refused
    agent = service.agent()
    await agent.connect(capabilities=("gang", "podTemplate", "workload:v1/Pod"))
    run_id = (await agent.next_start())["run"]
    members = [{"role": "pod", "index": 0, "state": "running", "node": "n1"}]
    await agent.report(run_id, RunState.RUNNING, 1, members=members)
    await alone("wait", "--for=condition=Ready", "pod/train", "--timeout=20s")
    chunk = {"role": "pod", "index": 0, "offset": 0, "data": "hello\n", "nextOffset": 6}
    body = {"session": agent.session, "chunks": [chunk], "end": False}
    await agent.http.post(f"/agent/v1/streams/{run_id}", json=body, headers=agent._headers())
    await agent.report(run_id, RunState.SUCCEEDED, 2, members=[{**members[0], "state": "succeeded", "exitCode": 0}])
    await alone("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/train", "--timeout=20s")
    assert await alone("logs", "train") == "hello\n"
    assert "Completed" in await alone("get", "pods")
    assert "RunSucceeded" in await alone("events", "--for", "pod/train")
    assert "deleted" in await alone("delete", *where)
    assert "No resources found" in await alone("get", "pods")


_CRON_JOB = """
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, labels: {team: a}}
spec:
  schedule: "0 3 * * *"
  timeZone: Europe/Berlin
  concurrencyPolicy: Forbid
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers:
          - {name: main, image: i, resources: {requests: {cpu: "1"}}}
"""


async def test_kubectl_has_cron_jobs(service: Service, alone: Kubectl, tmp_path: Path) -> None:
    file = tmp_path / "cronjob.yaml"
    file.write_text(_CRON_JOB)
    assert "cronjob.batch/nightly created" in await alone("apply", "-f", str(file))
    assert "cronjob.batch/nightly unchanged" in await alone("apply", "-f", str(file))
    file.write_text(_CRON_JOB.replace("image: i", "image: other").replace("Forbid", "Replace"))
    assert "cronjob.batch/nightly configured" in await alone("apply", "-f", str(file))
    assert "serverside-applied" in await alone("apply", "--server-side", "--force-conflicts", "-f", str(file))
    for words, expected in {
        ("get", "cronjobs"): "Europe/Berlin",
        ("get", "cj", "-A", "-o", "wide"): "NEXT DUE",
        ("get", "cj", "-l", "team=b"): "No resources found",
        ("get", "schedules.trainmaster.dev"): "0 3 * * *",
        ("get", "cj", "nightly", "-o", "jsonpath={.spec.concurrencyPolicy}"): "Replace",
        ("explain", "cronjobs.spec.timeZone"): "Time zone of the expression",
        ("patch", "cj", "nightly", "-p", '{"spec": {"suspend": true}}'): "cronjob.batch/nightly patched",
        ("label", "cj", "nightly", "tier=x"): "cronjob.batch/nightly labeled",
    }.items():
        assert expected in await alone(*words), words
    await pass_time(service, days=1)
    await alone("patch", "cj", "nightly", "-p", '{"spec": {"suspend": false}}')
    await turn(service)
    described = await alone("describe", "cronjob", "nightly")
    for expected in ("Active Jobs:", "nightly-2", "SuccessfulCreate", "Concurrency Policy:"):
        assert expected in described
    job = (await alone("get", "jobs.batch", "-o", "name")).strip()
    assert "CronJob/nightly" in await alone("describe", job)
    manual = await alone("create", "job", "--from=cronjob/nightly", "by-hand", "--dry-run=client", "-o", "yaml")
    assert "job.batch/by-hand created" in await alone("apply", "-f", "-", given=manual)
    assert "job.batch/typed created" in await alone("create", "job", "--from=cronjob/nightly", "typed")
    assert 'cronjob.batch "nightly" deleted' in await alone("delete", "cj", "nightly")
    await turn(service)
    assert "No resources found" in await alone("get", "jobs.batch")


_GROUP = """
apiVersion: v1
kind: Pod
metadata:
  name: ring-%d
  labels: {kueue.x-k8s.io/pod-group-name: ring}
  annotations: {kueue.x-k8s.io/pod-group-total-count: "2"}
spec:
  restartPolicy: Never
  containers:
  - {name: main, image: busybox, command: [echo, hello], resources: {requests: {cpu: "1"}}}
"""


async def test_kubectl_submits_a_group_of_pods(service: Service, alone: Kubectl, tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(_GROUP % 0)
    where = ("-f", str(path))
    assert "pod/ring-0 created" in await alone("apply", *where)
    assert "pod group 'ring' has 1 of 2 pods" in await alone("describe", "pod", "ring-0")
    path.write_text(f"{_GROUP % 0}---{_GROUP % 1}")
    said = await alone("apply", *where)
    assert "pod/ring-0 unchanged" in said
    assert "pod/ring-1 created" in said
    agent = service.agent()
    await agent.connect(capabilities=("gang", "podTemplate"))
    run = await agent.next_start()
    members = [{"role": "ring", "index": index, "state": "running", "node": "n1"} for index in range(2)]
    await agent.report(run["run"], RunState.RUNNING, 1, members=members)
    await alone("wait", "--for=condition=Ready", "pod/ring-0", "pod/ring-1", "--timeout=20s")
    assert "pod/ring-1" in await alone("get", "pods", "-l", "kueue.x-k8s.io/pod-group-name=ring", "-o", "name")
    assert "cannot be changed" in await alone("label", "pod", "ring-0", "team=x", code=1)
    deleted = asyncio.create_task(alone("delete", *where))

    async def is_being_deleted() -> bool:
        pod = (await service.http.get("/api/v1/namespaces/default/pods/ring-0")).json()
        return "deletionTimestamp" in pod["metadata"]

    await eventually(is_being_deleted)
    await agent.report(run["run"], RunState.CANCELLED, 2)
    assert 'pod "ring-1" deleted' in await deleted
    assert "No resources found" in await alone("get", "pods")


_WORKFLOW = """
apiVersion: trainmaster.dev/v1
kind: Workflow
metadata: {name: nightly, labels: {team: a}}
spec:
  steps:
  - name: first
    job: {roles: [{name: main, template: {command: ["true"], resources: {cpu: 100m}}}]}
  - name: second
    after: [first]
    job: {roles: [{name: main, template: {command: [sh, -c, "exit 3"], resources: {cpu: 100m}}}]}
"""


async def test_kubectl_has_workflows(
    request: pytest.FixtureRequest, service: Service, kubectl: Kubectl, tmp_path: Path
) -> None:
    file = tmp_path / "workflow.yaml"
    file.write_text(_WORKFLOW)

    async def is_described() -> bool:
        """Return whether the API server has fetched the document of what it aggregates, as it does after some seconds."""
        return "apis/trainmaster.dev/v1" in await kubectl("get", "--raw", "/openapi/v3")

    await eventually(is_described, 60)
    assert "(server dry run)" in await kubectl("create", "-f", str(file), "--dry-run=server")
    assert "No resources found" in await kubectl("get", "workflows")
    assert "workflow.trainmaster.dev/nightly created" in await kubectl("apply", "-f", str(file))
    assert "workflow.trainmaster.dev/nightly unchanged" in await kubectl("apply", "-f", str(file))
    assert await kubectl("diff", "-f", str(file)) == ""
    assert "serverside-applied" in await kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
    table = (await kubectl("get", "workflows")).splitlines()
    assert table[0].split() == ["NAME", "QUEUE", "STATE", "STEPS", "AGE"]
    assert table[1].split()[:4] == ["nightly", "default", "running", "0/2"]
    for words, expected in {
        ("get", "wf", "-l", "team=b"): "No resources found",
        (
            "get",
            "wf",
            "-A",
            "--field-selector",
            "status.state=running",
            "-o",
            "name",
        ): "workflow.trainmaster.dev/nightly",
        ("explain", "workflows.spec.steps.forEach"): "Elements for each of which the step has a job",
        ("explain", "workflows.spec.notify.stepFailed"): "each step that has failed",
        ("label", "wf", "nightly", "tier=x"): "nightly labeled",
        ("annotate", "wf", "nightly", "note=y"): "nightly annotated",
        ("auth", "can-i", "create", "workflows.trainmaster.dev"): "yes",
        ("api-resources", "--api-group=trainmaster.dev"): "workflows",
    }.items():
        assert expected in await kubectl(*words), words
    file.write_text(_WORKFLOW.replace("exit 3", "exit 4"))
    assert "is fixed once the workflow is submitted" in await kubectl("apply", "-f", str(file), code=1)
    async with local_agent(service, tmp_path):
        waited = await kubectl("wait", "--for=condition=Failed", "workflow/nightly", "--timeout=60s")
        assert "condition met" in waited
        described = await kubectl("describe", "workflow", "nightly")
        # Events of the fleet are those of the dispatcher's own address.
        events = ("StepSucceeded", "StepFailed") if request.node.callspec.params["kubectl"] == "alone" else ()
        for expected in ("Submitted By:", "its job failed: ", *events):
            assert expected in described
        assert "2/2" in await kubectl("get", "wf", "nightly")
        assert 'workflow.trainmaster.dev "nightly" deleted' in await kubectl("delete", "wf", "nightly")
        assert "No resources found" in await kubectl("get", "workflows")
        assert "workflow.trainmaster.dev/nightly created" in await kubectl("create", "-f", str(file)), (
            "its name is free"
        )
        assert 'workflow.trainmaster.dev "nightly" deleted' in await kubectl("delete", "-f", str(file))
