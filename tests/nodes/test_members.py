"""Members of jobs on real kubelets: how they start, end, write and reach each other, as users see it."""

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.chart import JOBS
from tests.nodes.images import BUSYBOX, MISSING, PYTHON, WITH_ENTRY_POINT
from tests.nodes.requirements import need_real_nodes
from tests.nodes.system import MAY_MOUNT, NodeSystem
from trainmaster.protocol.states import JobState

need_real_nodes()

EAT_MEMORY = "x=a; while :; do x=$x$x$x$x; done"


def test_a_job_succeeds_and_its_output_is_kept(system: NodeSystem) -> None:
    job = system.submit("hello", "echo hello from $(id -u); exit 0")
    assert system.until_ended(job).state is JobState.SUCCEEDED
    assert "hello from" in system.output(job)
    assert "hello from 0" not in system.output(job)  # members run as root nowhere


def test_an_exit_code_is_shown_with_the_failure(system: NodeSystem) -> None:
    ended = system.until_ended(system.submit("three", "echo out of data; exit 3"))
    run = ended.runs[0]
    assert (ended.state, run.category, run.exit_code) == (JobState.FAILED, "exit", 3)
    assert "exit code 3" in system.why(ended.id)


def test_results_of_the_first_member_are_shown_with_the_job(system: NodeSystem) -> None:
    leave = 'echo "{\\"member\\": \\"$TRAINMASTER_ROLE_INDEX\\"}" >"$TRAINMASTER_RESULTS"'
    ended = system.until_ended(system.submit("results", f'[ -z "$TRAINMASTER_RESULTS" ] || {leave}', replicas=2))
    assert (ended.state, ended.results, ended.results_error) == (JobState.SUCCEEDED, {"member": "0"}, "")
    failed = system.until_ended(system.submit("partly", f"{leave}; exit 3"))
    assert (failed.state, failed.results) == (JobState.FAILED, {"member": "0"})
    assert '"member"' not in failed.message
    long = system.until_ended(system.submit("long", 'yes 1234567 | head -c 9000 >"$TRAINMASTER_RESULTS"'))
    assert (long.state, long.results) == (JobState.SUCCEEDED, None)
    assert long.results_error.startswith("the results of main-0 are not a JSON object: ")
    assert "a longer text is cut" in long.results_error


def test_a_member_above_its_memory_is_killed_and_says_so(system: NodeSystem) -> None:
    ended = system.until_ended(system.submit("oom", EAT_MEMORY))
    assert (ended.state, ended.runs[0].category) == (JobState.FAILED, "oom")
    assert "memory" in system.why(ended.id)


def test_a_command_that_does_not_exist_fails_the_run_at_once_even_with_retries(system: NodeSystem) -> None:
    template = {"command": ["/opt/none"]}
    job = system.submit_template("none", template, retries={"limit": 2}, memberFailure={"action": "restartMember"})
    ended = system.until_ended(job)
    assert (ended.state, [run.category for run in ended.runs]) == (JobState.FAILED, ["config"])
    assert "no such file or directory" in system.why(job)


def test_an_image_that_does_not_exist_is_named_while_the_agent_waits_and_fails_the_run(system: NodeSystem) -> None:
    job = system.submit_template("missing", {"image": MISSING, "command": ["true"]})
    waits = system.until_why(job, "ErrImagePull|ImagePullBackOff")
    assert MISSING in waits
    ended = system.until_ended(job)
    assert (ended.state, ended.runs[0].category) == (JobState.FAILED, "image")
    assert MISSING in ended.message


def test_a_cancelled_program_ends_by_itself_within_its_grace(system: NodeSystem) -> None:
    script = "trap 'echo saved; exit 0' TERM; echo started; while :; do sleep 0.1; done"
    job = system.submit("graceful", script, stopGrace="20s")
    system.until_printed(job, "started")
    system.client.cancel(job)
    assert system.until_ended(job).state is JobState.CANCELLED
    system.until_printed(job, "saved")


def test_a_program_that_ignores_sigterm_is_killed_after_its_grace(system: NodeSystem) -> None:
    script = "trap 'echo ignored' TERM; echo started; while :; do sleep 0.1; done"
    job = system.submit("stubborn", script, stopGrace="3s")
    system.until_printed(job, "started")
    system.client.cancel(job)
    assert system.until_ended(job).state is JobState.CANCELLED
    system.until_printed(job, "ignored")


def test_a_checkpoint_signal_reaches_the_program(system: NodeSystem) -> None:
    script = "trap 'echo checkpointed; exit 0' USR1; echo started; while :; do sleep 0.1; done"
    job = system.submit("checkpoint", script, checkpoint={"signal": "SIGUSR1", "wait": "20s"})
    system.until_printed(job, "started")
    system.client.suspend(job)
    system.until_state(job, "held")
    assert "checkpointed" in system.output(job)
    system.client.cancel(job)


def test_output_is_followed_line_by_line_and_whole(system: NodeSystem) -> None:
    job = system.submit("lines", "for i in $(seq 40); do echo line $i; sleep 0.1; done")
    lines: list[str] = []
    enough = threading.Event()

    def follow() -> None:
        for piece in system.client.logs(job, follow=True):
            lines.extend(getattr(piece, "data", "").splitlines())
            enough.set()

    follower = threading.Thread(target=follow)
    follower.start()
    assert enough.wait(60)
    assert "line 40" not in lines  # the first lines came before the end
    follower.join(60)
    assert [line for line in lines if line.startswith("line ")] == [f"line {number}" for number in range(1, 41)]
    assert system.until_ended(job).state is JobState.SUCCEEDED
    assert system.output(job).count("line ") == 40


def test_a_command_runs_in_a_member(system: NodeSystem) -> None:
    job = system.submit("exec", "echo here > /tmp/file; echo ready; sleep 600")
    system.until_printed(job, "ready")
    assert system.trainmaster("exec", job, "--", "cat", "/tmp/file") == "here\n"
    assert system.call("exec", job, "--", "sh", "-c", "exit 7")[0] == 7
    system.client.cancel(job)
    system.until_ended(job)


def test_a_terminal_goes_on_with_its_process_while_the_agent_is_killed(system: NodeSystem) -> None:
    """The command is held in the container: the next agent connects to it again, and no number is missing or repeated."""
    count = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.1; done"
    words = [
        "shell",
        "--image",
        PYTHON,
        "--cpus",
        "100m",
        "--memory",
        "64Mi",
        "--queue",
        "default",
        "--",
        "sh",
        "-c",
        count,
    ]
    with system.running(*words) as shell:
        assert shell.stdout is not None
        numbers: list[int] = []
        reader = threading.Thread(target=lambda: numbers.extend(map(int, _numbers(shell))), daemon=True)
        reader.start()
        system.until(lambda: len(numbers) > 20, lambda: f"{numbers}", 90)
        for _ in range(2):
            seen = len(numbers)
            system.stage.kill("agent-north")
            system.until(lambda: len(numbers) > seen + 20, lambda: f"{numbers[-5:]}", 30)  # noqa: B023
        assert shell.poll() is None
        assert numbers == list(range(len(numbers)))
    # The session is there until it has been idle for long.
    (session,) = system.client.sessions()
    system.client.cancel(session.job)
    system.until_ended(session.job)


def _numbers(shell: "subprocess.Popen[str]") -> Iterator[str]:
    for line in shell.stdout or ():
        if (word := line.strip()).isdecimal():
            yield word


def test_members_of_a_gang_reach_each_other_by_name_across_nodes(system: NodeSystem) -> None:
    """Each member serves a word at a port and reads that of every member."""
    script = """
    (while :; do echo word-$TRAINMASTER_RANK | nc -l -p 7777; done) &
    for peer in $(cut -d: -f1 $TRAINMASTER_ADDRESSES_FILE); do
      until word=$(nc -w 2 $peer 7777 2>/dev/null </dev/null) && [ -n "$word" ]; do sleep 0.3; done
      echo $TRAINMASTER_RANK got $word
    done
    sleep 5
    """
    template = {"command": ["sh", "-c", script], "resources": {"cpu": "1100m", "memory": "64Mi"}}
    job = system.submit_template("gang", template, replicas=2)
    system.until_state(job, "running")
    nodes = {pod["spec"]["nodeName"] for pod in system.pods(job)}
    assert len(nodes) == 2
    system.until_printed(job, "0 got word-1")
    system.until_printed(job, "1 got word-0")
    assert system.until_ended(job).state is JobState.SUCCEEDED


def test_a_failed_member_starts_again_and_its_output_goes_on(system: NodeSystem) -> None:
    script = "echo life $TRAINMASTER_RESTARTS; [ $TRAINMASTER_RESTARTS -ge 2 ] || exit 9"
    job = system.submit("again", script, memberFailure={"action": "restartMember", "limit": 3})
    assert system.until_ended(job).state is JobState.SUCCEEDED
    assert [f"life {number}" in system.output(job) for number in range(3)] == [True] * 3


def test_the_output_of_a_job_of_kubernetes_is_kept_although_its_pods_are_removed_with_it(system: NodeSystem) -> None:
    container = {
        "name": "main",
        "image": BUSYBOX,
        "command": ["sh", "-c", "echo the result"],
        "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}},
    }
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "pi", "annotations": {"trainmaster.dev/queue": "default"}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }
    (job,) = system.client.submit(manifest)
    assert system.until_ended(job).state is JobState.SUCCEEDED
    system.until_printed(job, "the result")


def test_a_member_that_fills_its_disk_is_evicted(system: NodeSystem) -> None:
    template = {
        "command": ["sh", "-c", "dd if=/dev/zero of=/tmp/big bs=1M count=60; sleep 600"],
        "resources": {"cpu": "100m", "memory": "200Mi", "ephemeral-storage": "20Mi"},
    }
    ended = system.until_ended(system.submit_template("full", template), seconds=180)
    assert (ended.state, ended.runs[0].category) == (JobState.FAILED, "evicted")
    assert "ephemeral" in (said := system.why(ended.id))
    assert ".." not in said  # the kubelet's message is a sentence, with a full stop


_VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata: {name: shared-data}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  storageClassName: ""
  hostPath: {path: /tmp/trainmaster-shared-data, type: DirectoryOrCreate}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: shared-data}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  volumeName: shared-data
  resources: {requests: {storage: 1Gi}}
"""


@pytest.fixture
def mounted(system: NodeSystem, tmp_path: Path) -> Iterator[None]:
    """Create a claim, a Secret and a ConfigMap for members, and remove them afterwards: a later test looks for leftovers of jobs."""
    (tmp_path / "volume.yaml").write_text(_VOLUME)
    system.kubectl("-n", JOBS, "apply", "-f", str(tmp_path / "volume.yaml"))
    system.kubectl("-n", JOBS, "create", "secret", "generic", "wandb", "--from-literal=api-key=s3cret")
    system.kubectl("-n", JOBS, "create", "configmap", "settings", "--from-literal=a.yaml=epochs: 5")
    yield
    system.kubectl("-n", JOBS, "delete", "secret/wandb", "configmap/settings")
    system.kubectl("-n", JOBS, "delete", "-f", str(tmp_path / "volume.yaml"), "--wait=false")


@pytest.mark.usefixtures("mounted")
def test_members_have_their_volumes_secrets_shared_memory_and_files(system: NodeSystem) -> None:
    system.client.apply([{"kind": "Queue", "path": "default", "admission": MAY_MOUNT}])
    script = (
        "echo key $API_KEY $(cat /keys/api-key); cat /conf/a.yaml; cat /etc/train/b.yaml;"
        " df -k /dev/shm | awk 'NR == 2 {print \"shm\", $2}'; echo x > /cache/x && echo scratch;"
        " ls -d /data /etc/passwd; echo y > /etc/train/b.yaml || echo read-only"
    )
    template = {
        "command": ["sh", "-c", script],
        "resources": {"cpu": "100m", "memory": "64Mi", "ephemeral-storage": "10Mi"},
        "volumes": [
            {"path": "/data", "claim": "shared-data"},
            {"path": "/keys", "secret": "wandb"},
            {"path": "/conf", "configMap": "settings"},
            {"path": "/cache", "scratch": "10Mi"},
        ],
        "secretEnv": {"API_KEY": {"secret": "wandb", "key": "api-key"}},
        "sharedMemory": "32Mi",
        "files": {"/etc/train/b.yaml": "epochs: 7\n"},
    }
    job = system.submit_template("mounts", template)
    assert system.until_ended(job).state is JobState.SUCCEEDED, system.describe(job)
    said = system.output(job)
    for text in (
        "key s3cret s3cret",
        "epochs: 5",
        "epochs: 7",
        "shm 32768",
        "scratch",
        "/data",
        "/etc/passwd",
        "read-only",
    ):
        assert text in said, said


def test_elements_of_an_array_run_in_pods_and_those_of_a_deleted_pod_run_again(system: NodeSystem) -> None:
    template = {"image": PYTHON, "command": ["sh", "-c", "sleep 0.05; echo element ${element} of $TRAINMASTER_ELEMENT"]}
    array = {"count": 400}
    job = system.submit_template("tasks", template, replicas=2, array=array, retries={"limit": 3, "backOff": "1s"})

    def has_done(many: int) -> bool:
        counts = system.client.job(job).elements
        return counts is not None and counts.succeeded >= many

    system.until(lambda: has_done(50), lambda: system.describe(job), 90)
    pods = system.kubectl(
        "get", "pods", "--all-namespaces", "-l", f"trainmaster.dev/run={job}-r1", "-o", "name"
    ).split()
    namespace = system.kubectl(
        *("get", "pods", "--all-namespaces", "-l", f"trainmaster.dev/run={job}-r1"),
        "-o",
        "jsonpath={.items[0].metadata.namespace}",
    )
    assert len(pods) == 2
    system.kubectl("-n", namespace, "delete", pods[1], "--grace-period=0", "--force")
    ended = system.until_ended(job, seconds=180)
    assert (ended.state, ended.elements and ended.elements.succeeded) == (JobState.SUCCEEDED, 400)
    assert "element 399 of 399" in system.output(job)  # that of the deleted pod is gone with it


def test_elements_execute_the_entry_point_of_their_image(system: NodeSystem) -> None:
    """A container of the agent's image reads it from the registry."""
    job = system.submit_template("entry", {"image": WITH_ENTRY_POINT}, replicas=2, array={"count": 40})
    own = system.submit_template(
        "arguments", {"image": WITH_ENTRY_POINT, "args": ["number ${element}"]}, array={"count": 5}
    )
    for one, last in ((job, "entry: element 39, as the image says"), (own, "entry: element 4, number 4")):
        ended = system.until_ended(one)
        assert ended.state is JobState.SUCCEEDED, system.describe(one)
        assert last in system.output(one)


def test_a_run_whose_image_no_registry_has_fails_with_the_reason(system: NodeSystem) -> None:
    """The node has the image; the entry point is read from the registry."""
    job = system.submit_template("unknown", {"image": PYTHON}, array={"count": 5})
    ended = system.until_ended(job)
    assert ended.state is JobState.FAILED, system.describe(job)
    assert "registry.example.com" in ended.message, ended.message


def test_files_reach_pods_and_what_the_first_leaves_comes_back(system: NodeSystem, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/words").write_text("brought along")
    name = system.client.upload_files("default", tmp_path / "project")
    script = "cat words; echo; id -u; mkdir out; cp words out/copy; ln -s copy out/link; sleep 1"
    job = system.submit_template(
        "files",
        {"command": ["sh", "-c", script]},
        replicas=2,
        inputs=[{"files": name}],
        outputs=[{"name": "model", "path": "out"}],
    )
    assert system.until_ended(job).state is JobState.SUCCEEDED, system.describe(job)
    assert system.output(job).count("brought along") == 2
    system.client.download_artifact(job, "model", tmp_path / "got")
    assert (tmp_path / "got/link").read_text() == "brought along"


def test_a_run_fails_whose_pod_leaves_no_output(system: NodeSystem) -> None:
    job = system.submit_template("leaves-none", {"command": ["true"]}, outputs=[{"name": "model", "path": "out"}])
    ended = system.until_ended(job)
    assert ended.state is JobState.FAILED, system.describe(job)
    assert ended.message == "its commands have succeeded, but the output model was not stored: out does not exist"


def test_a_cancelled_pod_with_outputs_ends_within_its_grace(system: NodeSystem) -> None:
    """Its sidecar container has a longer one, and stores nothing of a run that is being stopped."""
    command = ["sh", "-c", "mkdir out; trap 'exit 0' TERM; while :; do sleep 0.1; done"]
    job = system.submit_template("stopped", {"command": command}, outputs=[{"name": "model", "path": "out"}])
    system.until_state(job, "running")
    system.client.act(job, "cancel")
    assert system.until_ended(job, seconds=25).state is JobState.CANCELLED
    assert system.client.artifacts(job).artifacts == ()
