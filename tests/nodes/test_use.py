"""The use of members on real kubelets, beside what the kernel counts in the cgroups of their containers."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from statistics import fmean

import orjson
import pytest

from tests.cluster.chart import NAMESPACE, RELEASE
from tests.nodes.images import PYTHON
from tests.nodes.requirements import need_real_nodes
from tests.nodes.system import USE_SECONDS, NodeSystem
from trainmaster.protocol.member_use import MemberUseView, UseOfJob
from trainmaster.protocol.states import JobState

need_real_nodes()

MIB = 2**20
SHARES = (0.3, 0.6, 0.05)
"""Parts of a core that the members use."""
LIMIT = 200
HELD = (64, 150, 0.965 * LIMIT)
"""MiB that the members hold; the last one is near its limit."""
BURN_AND_HOLD = f"""
import os, time
index = int(os.environ["TRAINMASTER_ROLE_INDEX"])
share, pages = {SHARES}[index], {HELD}[index] * 256
def own():
    resident, shared = map(int, open("/proc/self/statm").read().split()[1:3])
    return resident - shared
held = []
while own() < pages - 32:
    held.append(b"x" * 131072)
print("holds", flush=True)
began, used = time.monotonic(), time.process_time()
while True:
    while time.process_time() - used < share * (time.monotonic() - began): pass
    time.sleep(0.005)
"""
EAT_AT_FIRST = """
import os, time
time.sleep(LIVES_FOR if os.environ["TRAINMASTER_RESTARTS"] == "0" else 0)
held = []
while os.environ["TRAINMASTER_RESTARTS"] == "0":
    held.append(b"x" * 1000000)
time.sleep(1000)
"""
_SETTLE_SECONDS = 30
"""Time after which the kubelet has forgotten how the members began: its own readings are up to 15 s old."""
_MEASURED_SECONDS = 75
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"


def members_of(system: NodeSystem, job: str, many: int) -> list[MemberUseView]:
    """Return the members of a job once the use of all of them is known."""
    found: list[UseOfJob] = []

    def is_known() -> bool:
        found[:] = [system.client.use_of(job)]
        return sum(one.cpu is not None and one.memory is not None for one in found[0].members) == many

    system.until(is_known, lambda: f"{found} {system.describe(job)}", 90)
    return list(found[0].members)


def uids_of(system: NodeSystem, job: str) -> list[tuple[int, str]]:
    """Return node number and uid of the pods of a job's members, by index."""
    pods = sorted(system.pods(job), key=lambda pod: int(pod["metadata"]["labels"]["trainmaster.dev/index"]))
    return [(int(pod["spec"]["nodeName"].rpartition("-")[2]), pod["metadata"]["uid"]) for pod in pods]


def test_use_is_within_five_percent_of_what_the_kernel_counts(system: NodeSystem) -> None:
    template = {"image": PYTHON, "command": ["python3", "-c", BURN_AND_HOLD]}
    resources = {"cpu": "700m", "memory": f"{LIMIT}Mi"}
    job = system.submit_template("burn", {**template, "resources": resources}, replicas=len(SHARES))
    system.until_state(job, "running")
    system.until(lambda: system.output(job).count("holds") == len(SHARES), lambda: system.describe(job), 60)
    members_of(system, job, len(SHARES))
    time.sleep(_SETTLE_SECONDS)
    pods = uids_of(system, job)
    since, before = datetime.now(UTC), [system.machines[node].kernel_use(uid) for node, uid in pods]
    time.sleep(_MEASURED_SECONDS)
    after = [system.machines[node].kernel_use(uid) for node, uid in pods]
    answer = system.client.use_of(job, since=since, step=USE_SECONDS)
    assert answer.missing == ""
    assert answer.series is not None
    history = {(one.member, one.metric): [value for value in one.values if value is not None] for one in answer.series}
    seen = []
    for index, (then, now) in enumerate(zip(before, after, strict=True)):
        member = answer.members[index]
        kernel = (now.cpu_seconds - then.cpu_seconds) / (now.at - then.at)
        cores, memory = history[f"main-{index}", "cpu"], history[f"main-{index}", "memory"]
        seen.append((index, SHARES[index], kernel, fmean(cores), member.cpu, now.memory, member.memory, memory[-1]))
        print(seen[-1])
        assert len(cores) >= 0.7 * _MEASURED_SECONDS / USE_SECONDS, "there are samples of the whole time"
        assert fmean(cores) == pytest.approx(kernel, rel=0.05, abs=0.002), seen
        assert fmean(cores) == pytest.approx(SHARES[index], rel=0.05, abs=0.005), seen
        assert member.memory == pytest.approx(now.memory, rel=0.05), seen
        assert memory[-1] == pytest.approx(now.memory, rel=0.05), seen
        assert HELD[index] * MIB <= (member.memory or 0) + MIB, seen
        assert (member.memory or 0) <= (HELD[index] + 25) * MIB, seen
    assert answer.use is not None
    assert answer.use.cpu_average.used == pytest.approx(sum(SHARES), rel=0.1)
    assert [(one.near_misses or 0) > 0 for one in answer.members] == [False, False, True]
    assert [(one.restarts, one.oom_kills) for one in answer.members] == [(0, 0)] * len(SHARES)
    shown = system.trainmaster("top", job)
    for index, share in enumerate(SHARES):
        (line,) = re.findall(rf"(?m)^main-{index} .*$", shown)
        assert float(line.split()[2]) == pytest.approx(share, rel=0.25, abs=0.01), shown
    system.client.cancel(job)
    system.until_ended(job)


def test_a_member_that_is_killed_for_its_memory_shows_that_and_its_restart(system: NodeSystem) -> None:
    template = {
        "image": PYTHON,
        "command": ["python3", "-c", EAT_AT_FIRST.replace("LIVES_FOR", "0")],
        "resources": {"cpu": "100m", "memory": "64Mi"},
    }
    job = system.submit_template("eats", template, memberFailure={"action": "restartMember", "limit": 3})
    system.until(lambda: _counts(system, job) == (1, 1), lambda: f"{_counts(system, job)} {system.describe(job)}", 90)
    use = system.client.job(job).use
    assert use is not None
    assert (use.restarts, use.oom_kills) == (1, 1)
    assert re.search(r"(?m)^main-0 .* 1 +\S+ +1 *$", system.trainmaster("top", job))
    system.client.cancel(job)
    system.until_ended(job)


def _counts(system: NodeSystem, job: str) -> tuple[int | None, int | None]:
    members = system.client.use_of(job).members
    return (members[0].restarts, members[0].oom_kills) if members else (None, None)


def test_a_run_that_ends_for_its_memory_shows_that(system: NodeSystem) -> None:
    """It has been sampled before; nothing can be sampled after."""
    template = {
        "image": PYTHON,
        "command": ["python3", "-c", EAT_AT_FIRST.replace("LIVES_FOR", str(2 * USE_SECONDS + 15))],
        "resources": {"cpu": "100m", "memory": "64Mi"},
    }
    job = system.submit_template("ends", template)
    system.until_state(job, "running")
    members_of(system, job, 1)
    ended = system.until_ended(job)
    assert (ended.state, ended.runs[0].category) == (JobState.FAILED, "oom")
    assert ended.use is not None
    assert ended.use.oom_kills == 1
    assert _counts(system, job) == (0, 1)


def test_the_agent_reads_kubelets_with_what_its_chart_grants_and_without_it_says_what_it_lacks(
    system: NodeSystem,
) -> None:
    assert _rights(system) == {"nodes": {"get", "list", "watch"}, "nodes/proxy": {"get"}}
    job = system.submit_template("right", {"command": ["sleep", "600"]})
    system.until_state(job, "running")
    members_of(system, job, 1)
    with _without_proxy(system):
        assert _rights(system) == {"nodes": {"get", "list", "watch"}}
        system.until(lambda: "nodes/proxy" in system.client.use_of(job).missing, lambda: system.describe(job), 60)
        assert "nodes/proxy" in system.trainmaster("top", job)
    system.until(lambda: system.client.use_of(job).missing == "", lambda: system.describe(job), 60)
    members_of(system, job, 1)
    system.client.cancel(job)
    system.until_ended(job)


def _rights(system: NodeSystem) -> dict[str, set[str]]:
    """Return what the agent may do with nodes, by resource."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": NAMESPACE},
    }
    file = system.stage.folder / "review.json"
    file.write_bytes(orjson.dumps(review))
    printed = system.kubectl("create", "--validate=false", "--as", ACCOUNT, "-f", str(file), "-o", "json")
    found: dict[str, set[str]] = {}
    for rule in orjson.loads(printed)["status"]["resourceRules"]:
        for resource in rule["resources"]:
            if resource == "*" or resource.partition("/")[0] == "nodes":
                found.setdefault(resource, set()).update(rule["verbs"])
    return found


@contextmanager
def _without_proxy(system: NodeSystem) -> Iterator[None]:
    """Take the right to read kubelets from the agent; an agent that has just started finds it again."""
    role = f"clusterrole/{RELEASE}"
    before = orjson.loads(system.kubectl("get", role, "-o", "json"))
    rules = [rule for rule in before["rules"] if "nodes/proxy" not in rule.get("resources", ())]
    assert len(rules) == len(before["rules"]) - 1
    try:
        system.kubectl("patch", role, "--type=merge", "-p", orjson.dumps({"rules": rules}).decode())
        yield
    finally:
        system.kubectl("patch", role, "--type=merge", "-p", orjson.dumps({"rules": before["rules"]}).decode())
        system.stage.kill("agent-north")
        system.stage.until_ready()
