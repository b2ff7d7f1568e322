"""The simulated nodes keep their promises under a real control plane: other tests take them for the world."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import Cluster, cluster, need_programs, open_cluster, plane, pod
from tests.cluster.sandbox import overlaps
from tests.waiting import eventually

__all__ = ["cluster", "plane"]
PROGRAMS = need_programs(whole_module=True)


def exit_of(found: dict[str, Any]) -> tuple[int, str]:
    terminated = found["status"]["containerStatuses"][0]["state"]["terminated"]
    return terminated["exitCode"], terminated["reason"]


async def kubectl(cluster: Cluster, *arguments: str) -> str:
    """Return what kubectl prints; fails the test if kubectl fails."""
    process = await asyncio.create_subprocess_exec(
        str(PROGRAMS / "kubectl"),
        f"--kubeconfig={cluster.plane.kubeconfig}",
        f"--namespace={cluster.namespace}",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_nodes_are_ready_and_free_of_taints(cluster: Cluster) -> None:
    await cluster.kubelet.add_nodes("gpu", 3, allocatable={"nvidia.com/gpu": "8"}, labels={"zone": "a"})

    nodes = (await cluster.api.get("/api/v1/nodes", {"labelSelector": "zone=a"}))["items"]

    assert [node["metadata"]["name"] for node in nodes] == ["gpu-0", "gpu-1", "gpu-2"]
    assert {node["status"]["allocatable"]["nvidia.com/gpu"] for node in nodes} == {"8"}
    assert all({"type": "Ready", "status": "True"}.items() <= node["status"]["conditions"][0].items() for node in nodes)
    assert not any(node["spec"].get("taints") for node in nodes)


async def test_a_pod_runs_until_its_gate_opens_and_succeeds(cluster: Cluster) -> None:
    await cluster.kubelet.add_nodes("node")
    await cluster.run("waits", "gate", "go")
    running = await cluster.until_phase("waits", "Running")
    assert {one["type"]: one["status"] for one in running["status"]["conditions"]}["Ready"] == "True"
    assert running["status"]["podIP"]
    assert [life.name for life in cluster.kubelet.living({"name": "waits"})] == ["waits"]

    cluster.kubelet.open_gate("go")

    assert exit_of(await cluster.until_phase("waits", "Succeeded")) == (0, "Completed")
    assert cluster.kubelet.living() == []
    assert [life.name for life in cluster.kubelet.starts] == ["waits"]


@pytest.mark.parametrize(
    ("words", "exit_code", "reason"),
    [
        (["exit", "7"], 7, "Error"),
        (["signal", "9"], 137, "Error"),
        (["oom"], 137, "OOMKilled"),
        (["sleep", "0.2", "exit", "3"], 3, "Error"),
    ],
)
async def test_a_pod_fails_as_it_was_told(cluster: Cluster, words: list[str], exit_code: int, reason: str) -> None:
    await cluster.kubelet.add_nodes("node")

    await cluster.run("fails", *words)

    assert exit_of(await cluster.until_phase("fails", "Failed")) == (exit_code, reason)


async def test_an_image_that_cannot_be_pulled_leaves_the_pod_pending(cluster: Cluster) -> None:
    await cluster.kubelet.add_nodes("node")
    await cluster.run("wants", "image-error")

    async def waits() -> bool:
        found = await cluster.pod("wants")
        assert found is not None
        statuses = found["status"].get("containerStatuses", [])
        return bool(statuses) and statuses[0]["state"]["waiting"]["reason"] == "ImagePullBackOff"

    await eventually(waits)
    assert await cluster.phases() == {"wants": "Pending"}
    await cluster.api.delete(f"{cluster.pods}/wants")
    await cluster.until_gone("wants")
    assert cluster.kubelet.starts == []


async def test_a_stubborn_pod_lives_to_the_end_of_its_grace_period(cluster: Cluster) -> None:
    await cluster.kubelet.add_nodes("node")
    await cluster.run("polite", "run", terminationGracePeriodSeconds=60)
    await cluster.run("stubborn", "stubborn", terminationGracePeriodSeconds=2)
    await cluster.until_phase("polite", "Running")
    await cluster.until_phase("stubborn", "Running")

    await cluster.api.delete(f"{cluster.pods}/polite")
    await cluster.api.delete(f"{cluster.pods}/stubborn")
    await cluster.until_gone("polite")

    assert [life.name for life in cluster.kubelet.living()] == ["stubborn"]
    await cluster.until_gone("stubborn")
    assert cluster.kubelet.living() == []
    polite, stubborn = (cluster.kubelet.started({"name": name})[0] for name in ("polite", "stubborn"))
    assert polite.ended is not None
    assert stubborn.ended is not None
    assert stubborn.ended - polite.ended > 1.5


async def test_a_pod_deleted_by_force_lives_on_where_it_runs(cluster: Cluster) -> None:
    await cluster.kubelet.add_nodes("node")
    for attempt in ("first", "second"):
        await cluster.run("copy", "stubborn", terminationGracePeriodSeconds=2)
        await cluster.until_phase("copy", "Running")
        if attempt == "first":
            await cluster.api.delete(f"{cluster.pods}/copy", query={"gracePeriodSeconds": 0})

    assert len(overlaps(cluster.kubelet.starts, lambda life: life.name)) == 1


async def test_a_hanging_pod_is_never_confirmed_as_ended(cluster: Cluster) -> None:
    await cluster.kubelet.add_nodes("node")
    await cluster.run("hangs", "hang", terminationGracePeriodSeconds=1)
    await cluster.until_phase("hangs", "Running")

    await cluster.api.delete(f"{cluster.pods}/hangs")
    await asyncio.sleep(2.5)

    found = await cluster.pod("hangs")
    assert found is not None
    assert "deletionTimestamp" in found["metadata"]
    assert len(cluster.kubelet.living()) == 1
    await cluster.kubelet.remove_node("node-0")
    assert cluster.kubelet.living() == []


async def test_a_pod_past_its_deadline_fails(cluster: Cluster) -> None:
    await cluster.kubelet.add_nodes("node")

    await cluster.run("slow", "run", activeDeadlineSeconds=1)

    failed = await cluster.until_phase("slow", "Failed")
    assert failed["status"]["reason"] == "DeadlineExceeded"
    assert exit_of(failed) == (143, "Error")


async def test_a_frozen_node_says_nothing_and_its_containers_go_on(cluster: Cluster) -> None:
    await cluster.kubelet.add_nodes("node")
    await cluster.run("early", "gate", "go")
    await cluster.until_phase("early", "Running")

    cluster.kubelet.freeze()
    cluster.kubelet.open_gate("go")
    await cluster.run("late", "run")

    async def ended() -> bool:
        late = await cluster.pod("late")
        return not cluster.kubelet.living() and late is not None and "nodeName" in late["spec"]

    await eventually(ended)
    assert await cluster.phases() == {"early": "Running", "late": "Pending"}
    cluster.kubelet.thaw()
    await cluster.until_phase("early", "Succeeded")
    await cluster.until_phase("late", "Running")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_containers_go_on_while_the_api_server_is_away(cluster: Cluster, how: signal.Signals) -> None:
    await cluster.kubelet.add_nodes("node")
    await cluster.run("ends", "gate", "go")
    await cluster.run("runs", "run")
    for name in ("ends", "runs"):
        await cluster.until_phase(name, "Running")

    await cluster.plane.stop_api_server(how)
    cluster.kubelet.open_gate("go")
    await eventually(lambda: asyncio.sleep(0, len(cluster.kubelet.living()) == 1))
    await cluster.plane.start_api_server()

    await cluster.until_phase("ends", "Succeeded")
    await cluster.run("after", "succeed")
    await cluster.until_phase("after", "Succeeded", 30)
    await cluster.api.delete(f"{cluster.pods}/runs")
    await cluster.until_gone("runs")
    assert sorted(life.name for life in cluster.kubelet.starts) == ["after", "ends", "runs"]


async def test_a_gang_of_nine_waits_for_the_ninth_node(cluster: Cluster) -> None:
    await cluster.kubelet.add_nodes("node", 8, allocatable={"cpu": "2"})
    groups = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{cluster.namespace}/podgroups"
    await cluster.api.post(
        groups,
        {
            "apiVersion": "scheduling.k8s.io/v1alpha2",
            "kind": "PodGroup",
            "metadata": {"name": "gang"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 9}}},
        },
    )
    for index in range(9):
        await cluster.run(f"member-{index}", "run", cpu="2", schedulingGroup={"podGroupName": "gang"})

    async def refused() -> bool:
        events = await cluster.api.get(f"/api/v1/namespaces/{cluster.namespace}/events")
        return any(event["reason"] == "FailedScheduling" for event in events["items"])

    await eventually(refused)
    assert set((await cluster.phases()).values()) == {"Pending"}
    assert cluster.kubelet.starts == []

    await cluster.kubelet.add_nodes("node", 1, allocatable={"cpu": "2"})

    for index in range(9):
        await cluster.until_phase(f"member-{index}", "Running", 30)
    assert len(cluster.kubelet.living()) == 9

    await cluster.api.delete(cluster.pods)
    await cluster.api.delete(f"{groups}/gang")  # its finalizer waits for the pods, and for the controller manager

    async def gone() -> bool:
        return not (await cluster.api.get(groups))["items"]

    await eventually(gone)


async def test_kubectl_shows_and_follows_what_a_container_prints(cluster: Cluster) -> None:
    await cluster.kubelet.add_nodes("node")
    await cluster.run("talks", "print", "one", "print", "two", "gate", "go", "print", "three")
    await cluster.until_phase("talks", "Running")

    assert await kubectl(cluster, "logs", "talks", "--tail=1") == "two\n"
    follower = asyncio.create_task(kubectl(cluster, "logs", "talks", "--follow"))
    cluster.kubelet.write_log(cluster.namespace, "talks", "by hand")
    cluster.kubelet.open_gate("go")
    assert await follower == "one\ntwo\nby hand\nthree\n"
    await cluster.until_phase("talks", "Succeeded")
    assert await kubectl(cluster, "logs", "talks", "--limit-bytes=5") == "one\nt"


async def test_a_service_account_has_its_own_rights_and_no_others(cluster: Cluster) -> None:
    await cluster.kubelet.add_nodes("node")
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}]
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{cluster.namespace}"
    await cluster.api.post(f"{rbac}/roles", {"metadata": {"name": "maker"}, "rules": rules})
    await cluster.api.post(
        f"{rbac}/rolebindings",
        {
            "metadata": {"name": "maker"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "maker"},
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": cluster.namespace}],
        },
    )
    token = await cluster.plane.service_account_token(cluster.namespace, "default")

    async with cluster.plane.client(token) as api:
        await api.post(cluster.pods, pod("made", "succeed"))
        with pytest.raises(Exception, match="403"):
            await api.get(cluster.pods)

    await cluster.until_phase("made", "Succeeded")


async def test_pods_of_a_node_that_falls_silent_are_evicted_and_live_on(tmp_path: Path) -> None:
    plane = await ControlPlane.start(tmp_path, node_grace_seconds=3)
    soon = {
        "key": "node.kubernetes.io/unreachable",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 0,
    }
    try:
        async with open_cluster(plane, lease_seconds=0.5) as cluster:
            await cluster.kubelet.add_nodes("silent")
            await cluster.run("cut-off", "run", tolerations=[soon])
            await cluster.until_phase("cut-off", "Running")
            await cluster.kubelet.add_nodes("sound")  # were all nodes silent, none would be called unreachable

            cluster.kubelet.freeze("silent-0")

            async def evicted() -> bool:
                found = await cluster.pod("cut-off")
                return found is not None and "deletionTimestamp" in found["metadata"]

            await eventually(evicted, 20)
            assert len(cluster.kubelet.living()) == 1
            cluster.kubelet.thaw("silent-0")
            await cluster.until_gone("cut-off")

            async def sound_again() -> bool:
                return not (await cluster.api.get("/api/v1/nodes/silent-0"))["spec"].get("taints")

            await eventually(sound_again)
    finally:
        await plane.stop()
    assert not any(daemon.alive for daemon in plane.daemons.values())
