"""Faults of real nodes: kubelets that stop, machines that crash or are silent, and drains, as users see them."""

import shutil
from functools import partial

from tests.cluster.chart import JOBS
from tests.nodes.requirements import need_real_nodes
from tests.nodes.system import NodeSystem
from trainmaster.protocol.states import JobState

need_real_nodes()

TICKS = "echo started; i=0; while [ ! -e /tmp/end ]; do i=$((i+1)); echo tick $i; sleep 0.5; done; echo done"
"""Runs until somebody makes the file."""


def end(system: NodeSystem, job: str) -> None:
    """Let the program end."""
    make(system, job, "/tmp/end")


def make(system: NodeSystem, job: str, path: str) -> None:
    """Make a file in the member. A kubelet that has just started does not know its pods yet, and the call is made again."""
    made = partial(system.call, "exec", job, "--", "touch", path)
    system.until(lambda: made()[0] == 0, lambda: made()[1], 30)


def test_a_job_goes_on_while_its_kubelet_starts_again(system: NodeSystem) -> None:
    job = system.submit("kubelet", TICKS)
    system.until_printed(job, "tick 2")
    machine = system.machine_of(job)
    machine.stop_kubelet()
    machine.start_kubelet()
    system.until_ready(machine)
    end(system, job)
    ended = system.until_ended(job)
    assert (ended.state, len(ended.runs)) == (JobState.SUCCEEDED, 1)
    output = system.output(job)
    assert output.count("started") == 1
    assert output.rstrip().endswith("done")


def test_a_crashed_node_is_not_blamed_on_the_program_and_the_job_runs_elsewhere(system: NodeSystem) -> None:
    job = system.submit("crash", TICKS)
    system.until_printed(job, "tick 2")
    machine = system.machine_of(job)
    machine.crash()
    system.until_why(job, machine.name)
    machine.boot()
    system.until(lambda: len(system.client.job(job).runs) == 2, lambda: system.describe(job), 120)
    first = min(system.client.job(job).runs, key=lambda run: run.attempt)
    assert (first.state, first.category) == ("failed", "nodeLost")
    system.until_printed(job, "tick 2")
    end(system, job)
    assert system.until_ended(job).state is JobState.SUCCEEDED


def test_a_silent_node_is_named_and_its_job_starts_again_once_the_node_is_removed(system: NodeSystem) -> None:
    job = system.submit("silent", TICKS)
    system.until_printed(job, "tick 2")
    machine = system.machine_of(job)
    machine.cut()
    try:
        system.until_why(job, f"{machine.name}.*(not ready|not answer|silent)")
        system.until(lambda: "deletionTimestamp" in system.pods(job)[0]["metadata"], lambda: system.describe(job), 120)
        assert len(system.client.job(job).runs) == 1  # what runs there may go on
        system.kubectl("delete", "node", machine.name)
        system.until(lambda: len(system.client.job(job).runs) == 2, lambda: system.describe(job), 120)
        first = min(system.client.job(job).runs, key=lambda run: run.attempt)
        assert (first.state, first.category) == ("failed", "nodeLost")
        system.until_printed(job, "tick 2")
        assert system.machine_of(job) is not machine
    finally:
        machine.plug_in()
        machine.stop_kubelet()
        machine.start_kubelet()
    end(system, job)
    assert system.until_ended(job).state is JobState.SUCCEEDED


def test_a_drained_node_gives_its_job_up_without_a_retry(system: NodeSystem) -> None:
    job = system.submit("drain", f"trap 'echo told to end; exit 1' TERM; {TICKS}")
    system.until_printed(job, "tick 2")
    machine = system.machine_of(job)
    try:
        system.kubectl("drain", machine.name, "--timeout=60s")
        system.until(lambda: len(system.client.job(job).runs) == 2, lambda: system.describe(job), 120)
        first = min(system.client.job(job).runs, key=lambda run: run.attempt)
        assert first.state == "preempted"
        assert "told to end" in system.output(job, "--attempt", "1")
        assert system.client.job(job).retries_used == 0
        system.until_printed(job, "tick 2")
        assert system.machine_of(job) is not machine
    finally:
        system.kubectl("uncordon", machine.name)
    end(system, job)
    assert system.until_ended(job).state is JobState.SUCCEEDED


def test_a_member_is_evicted_by_a_node_that_runs_out_of_disk_and_its_job_is_tried_elsewhere(system: NodeSystem) -> None:
    """The member is within its own limit. Nothing else lives on the node."""
    fill = (
        "echo waits; until [ -e /tmp/go ]; do sleep 0.2; done; dd if=/dev/zero of=/tmp/big bs=1M count=2048; sleep 600"
    )
    script = f"case $TRAINMASTER_RUN_ID in *-r1) {fill};; esac; {TICKS}"
    template = {
        "command": ["sh", "-c", script],
        "resources": {"cpu": "100m", "memory": "256Mi", "ephemeral-storage": "4Gi"},
    }
    job = system.submit_template("pressure", template, retries={"limit": 1})
    system.until_printed(job, "waits")
    machine = system.machine_of(job)
    least = shutil.disk_usage(machine.folder).free - 2**30
    try:
        machine.configure_kubelet(evictionHard={"nodefs.available": str(least)}, evictionPressureTransitionPeriod="10s")
        system.until_ready(machine)
        make(system, job, "/tmp/go")
        system.until(lambda: len(system.client.job(job).runs) == 2, lambda: system.describe(job), 180)
        first = min(system.client.job(job).runs, key=lambda run: run.attempt)
        assert (first.state, first.category) == ("failed", "evicted")
        assert "The node was low on resource: ephemeral-storage" in system.trainmaster("job", job)
        assert system.client.job(job).retries_used == 1
        system.until_printed(job, "tick 2")
        assert system.machine_of(job) is not machine
    finally:
        machine.configure_kubelet()
        machine.import_images()
    end(system, job)
    assert system.until_ended(job).state is JobState.SUCCEEDED
    system.until(lambda: not system.has_pressure(machine), machine.last_words, 60)


def test_nothing_is_left_of_ended_jobs(system: NodeSystem) -> None:
    left = "pods,services,configmaps,podgroups.scheduling.k8s.io"

    def names() -> str:
        found = system.kubectl("-n", JOBS, "get", left, "-o", "name").split()
        return " ".join(one for one in found if one != "configmap/kube-root-ca.crt")

    system.until(lambda: not names(), names, 60)
