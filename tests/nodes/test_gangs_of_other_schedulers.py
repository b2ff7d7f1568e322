"""Gangs that schedulers of other projects place on real kubelets, as users see them; the scheduler killed while they wait and run."""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL
from typing import Any

import orjson
import pytest

from tests.cluster.chart import JOBS
from tests.cluster.schedulers import ASSETS, assets_of
from tests.nodes.images import BUSYBOX
from tests.nodes.requirements import need_real_nodes
from tests.nodes.system import NodeSystem, open_system
from trainmaster.protocol.states import JobState

need_real_nodes()

PROGRAMS = {"volcano": "vc-scheduler", "kai": "scheduler", "coscheduling": "kube-scheduler"}
"""The program of each scheduler that places pods."""
WORDS = {
    "volcano": "tasks in gang unschedulable",
    "kai": "3 pods while 4 are required for gang scheduling",
    "coscheduling": "nodes are available",
}
"""What each of them says of a gang that does not fit."""
GROUPS = {"volcano": "scheduling.volcano.sh", "kai": "scheduling.run.ai", "coscheduling": "scheduling.x-k8s.io"}
"""The API group of its PodGroups."""
THERE = [name for name in PROGRAMS if assets_of(name) is not None]
if not THERE:
    pytest.skip(f"{ASSETS} names no folder with {', '.join(PROGRAMS)}", allow_module_level=True)

TICKS = (
    "echo rank $TRAINMASTER_RANK started; i=0; while [ ! -e /tmp/end ]; do i=$((i+1)); echo tick $i; sleep 0.5; done;"
    " sleep 2; echo done"
)
"""Runs until somebody makes the file, and on a little: the command that makes it would be killed with the member."""
EACH_OTHER = """
(while :; do echo word-$TRAINMASTER_RANK | nc -l -p 7777; done) &
for peer in $(cut -d: -f1 $TRAINMASTER_ADDRESSES_FILE); do
  until word=$(nc -w 2 $peer 7777 2>/dev/null </dev/null) && [ -n "$word" ]; do sleep 0.3; done
  echo $TRAINMASTER_RANK got $word
done
sleep 5
"""
"""Each member serves a word at a port and reads that of every member."""


@pytest.fixture(scope="module", params=THERE)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeSystem]:
    """Provide a system for each scheduler: their kinds and webhooks stay out of the way of one another."""
    name = request.param
    with open_system(tmp_path_factory.mktemp(name), Path(os.environ["KUBE_BIN"]), name) as system:
        yield system


@pytest.fixture
def system(opened: NodeSystem) -> NodeSystem:
    opened.until_ready()
    return opened


def share(system: NodeSystem, percent: int) -> str:
    """Return a part of a node's CPU. Two members of 45 percent are on a node, and not three."""
    cpu = orjson.loads(system.kubectl("get", "node", "node-1", "-o", "json"))["status"]["allocatable"]["cpu"]
    whole = int(cpu[:-1]) if cpu.endswith("m") else 1000 * int(cpu)
    return f"{whole * percent // 100}m"


def submit(system: NodeSystem, name: str, script: str, members: int, **job: Any) -> str:
    """Submit a gang whose members have 45 percent of a node's CPU each."""
    template = {"command": ["sh", "-c", script], "resources": {"cpu": share(system, 45), "memory": "64Mi"}}
    return system.submit_template(name, template, replicas=members, **job)


def nodes_of(system: NodeSystem, job: str) -> list[str]:
    return sorted(pod["spec"].get("nodeName", "") for pod in system.pods(job))


def end(system: NodeSystem, job: str, members: int) -> None:
    """Let the programs of all members end."""
    for member in range(members):
        assert system.call("exec", f"{job}/main-{member}", "--", "touch", "/tmp/end")[0] == 0


def kill_scheduler(system: NodeSystem, *programs: str) -> None:
    """Kill programs of the scheduler with SIGKILL, all unless some are named. Of Volcano the webhook is one."""
    assert system.scheduler is not None
    daemons = system.scheduler.daemons
    for program in programs or daemons:
        asyncio.run(daemons[program].stop(SIGKILL))


def start_scheduler(system: NodeSystem) -> None:
    assert system.scheduler is not None
    for daemon in system.scheduler.daemons.values():
        daemon.start()


def occupy(system: NodeSystem, node: str, percent: int) -> None:
    """Take a part of a node's CPU for a pod of somebody else, which no scheduler has placed."""
    container = {
        "name": "main",
        "image": BUSYBOX,
        "command": ["sleep", "1000"],
        "resources": {"requests": {"cpu": share(system, percent)}},
    }
    spec = {
        "nodeName": node,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "containers": [container],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "occupant"}, "spec": spec}
    path = system.plane.folder / "occupant.json"
    path.write_bytes(orjson.dumps(pod))
    system.kubectl("create", "-f", str(path))


def free(system: NodeSystem) -> None:
    system.kubectl("delete", "pod", "occupant", "--ignore-not-found")


def test_a_gang_on_both_nodes_starts_together_and_its_members_reach_each_other(system: NodeSystem) -> None:
    job = submit(system, "together", EACH_OTHER, 4)
    system.until_state(job, "running")
    assert nodes_of(system, job) == ["node-1", "node-1", "node-2", "node-2"]
    for rank in range(4):
        for peer in range(4):
            system.until_printed(job, f"{rank} got word-{peer}")
    ended = system.until_ended(job)
    assert (ended.state, len(ended.runs)) == (JobState.SUCCEEDED, 1)
    assert {one["state"] for one in ended.runs[0].members} == {"succeeded"}
    assert len(ended.runs[0].members) == 4


def test_the_exit_code_of_a_member_ends_the_gang_and_is_shown(system: NodeSystem) -> None:
    script = f"if [ $TRAINMASTER_RANK = 1 ]; then sleep 2; echo out of data; exit 7; fi; {TICKS}"
    ended = system.until_ended(submit(system, "seven", script, 3))
    run = ended.runs[0]
    assert (ended.state, run.category, run.exit_code) == (JobState.FAILED, "exit", 7)
    assert "main-1 ended with exit code 7" in system.why(ended.id)
    assert "out of data" in system.output(ended.id)
    assert "rank 0 started" in system.output(ended.id)


def test_a_gang_that_does_not_fit_says_what_is_missing_and_starts_once_it_is_free(system: NodeSystem) -> None:
    """The dispatcher knows of the pod that is in the way, and sends nothing."""

    def reported() -> str:
        return system.client.cluster("north").capacity["cpu"]

    whole = reported()
    occupy(system, "node-1", 30)
    try:
        system.until(lambda: reported() != whole, reported, 60)
        job = submit(system, "large", TICKS, 4)
        print(f"\n{system.until_why(job, 'room for 3 of the 4 members')}")
        assert (system.client.job(job).state, system.client.job(job).runs) == ("queued", [])
    finally:
        free(system)
    system.until_state(job, "running")
    end(system, job, 4)
    assert system.until_ended(job).state is JobState.SUCCEEDED


def test_a_gang_waits_as_a_whole_and_says_in_the_words_of_its_scheduler_why(system: NodeSystem) -> None:
    """The pod that is in the way comes after the gang was sent, while the scheduler is down: three of four members would fit."""
    assert system.scheduler is not None
    name, program = system.scheduler.name, PROGRAMS[system.scheduler.name]
    kill_scheduler(system, program)
    try:
        job = submit(system, "waits", TICKS, 4)
        system.until_why(job, "waits for nodes for 4 of 4 members")
        occupy(system, "node-1", 30)
        start_scheduler(system)
        why = system.until_why(job, WORDS[name])
        print(f"\n{name}: {why}")
        kill_scheduler(system)
        start_scheduler(system)
        system.until_why(job, WORDS[name])
        time.sleep(5)  # what must not happen would have happened by now
        assert nodes_of(system, job) == ["", "", "", ""]
    finally:
        start_scheduler(system)
        free(system)
    system.until_state(job, "running")
    assert nodes_of(system, job) == ["node-1", "node-1", "node-2", "node-2"]
    end(system, job, 4)
    ended = system.until_ended(job)
    assert (ended.state, len(ended.runs)) == (JobState.SUCCEEDED, 1)


def test_a_running_gang_goes_on_while_its_scheduler_is_killed(system: NodeSystem) -> None:
    job = submit(system, "goes-on", TICKS, 4)
    system.until_state(job, "running")
    before = {pod["metadata"]["uid"] for pod in system.pods(job)}
    kill_scheduler(system)
    try:
        ticks = system.output(job).count("tick")
        system.until(lambda: system.output(job).count("tick") > ticks + 8, lambda: system.describe(job), 60)
    finally:
        start_scheduler(system)
    system.until(lambda: system.output(job).count("tick") > ticks + 40, lambda: system.describe(job), 60)
    assert {pod["metadata"]["uid"] for pod in system.pods(job)} == before
    end(system, job, 4)
    ended = system.until_ended(job)
    assert (ended.state, len(ended.runs)) == (JobState.SUCCEEDED, 1)


def test_nothing_is_left_of_ended_gangs(system: NodeSystem) -> None:
    assert system.scheduler is not None
    left = f"pods,services,configmaps,podgroups.{GROUPS[system.scheduler.name]}"

    def names() -> str:
        found = system.kubectl("-n", JOBS, "get", left, "-o", "name").split()
        return " ".join(one for one in found if one != "configmap/kube-root-ca.crt")

    system.until(lambda: not names(), names, 60)
