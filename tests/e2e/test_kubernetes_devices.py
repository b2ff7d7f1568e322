"""Devices of Dynamic Resource Allocation: counted, promised, allocated by kube-scheduler and released, on a real control plane."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bench.kube_stage import KubeCluster, KubeStage
from bench.stage import ADMIN_KEY
from tests.cluster.chart import JOBS, helm, install_agent
from tests.cluster.fixtures import Cluster, cluster, need_programs, plane
from tests.cluster.fixtures import pod as a_pod
from tests.unit.dra_objects import API, DRIVER, device, device_class, resource_slice
from tests.waiting import eventually
from trainmaster.client.http import Client
from trainmaster.protocol.errors import Code, ProblemError

need_programs(whole_module=True)
if helm() is None:
    pytest.skip("there is no helm to render the agent's chart with", allow_module_level=True)
__all__ = ["cluster", "plane"]

GPU, ODD = "deviceclass.resource.kubernetes.io/gpu", "deviceclass.resource.kubernetes.io/odd"
NODE = {"cpu": "8", "memory": "16Gi", "pods": "50"}
PATIENCE = 60.0
CLASS = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].model == 'a100'"
ODD_CLASS = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].odd == 'yes'"
DRA = f"/apis/{API}"
SAFE: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def claim_template(name: str, **exactly: Any) -> dict[str, Any]:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", **exactly}}
    return {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": [request]}}}}


def job(name: str, role: dict[str, Any], queue: str = "default/all") -> dict[str, Any]:
    return {"kind": "Job", "name": name, "queue": queue, "roles": [{"name": "main", **role}]}


def member(*devices: dict[str, Any], gate: str = "end", **resources: str) -> dict[str, Any]:
    template = {
        "image": "sim",
        "command": ["sim", "gate", gate],
        "resources": {"cpu": "100m", "memory": "16Mi", **resources},
    }
    return {"template": template | ({"devices": list(devices)} if devices else {})}


def claiming_pod(template: str, field: str = "resourceClaimTemplateName") -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "sim",
        "command": ["sim", "gate", "end"],
        "resources": {"requests": {"cpu": "100m", "memory": "16Mi"}, "claims": [{"name": "gpus"}]},
        "securityContext": SAFE,
    }
    return {
        "podTemplate": {
            "spec": {
                "containers": [container],
                "resourceClaims": [{"name": "gpus", field: template}],
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            }
        }
    }


class Devices:
    """The system with one cluster, whose two nodes have four devices each; half of them are odd."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client

    async def submit(self, spec: dict[str, Any]) -> str:
        return (await asyncio.to_thread(self.client.submit, spec))[0]

    async def until(self, job: str, state: str) -> None:
        async def reached() -> bool:
            return (await asyncio.to_thread(self.client.job, job)).state == state

        try:
            await eventually(reached, PATIENCE)
        except AssertionError as error:
            found = await asyncio.to_thread(self.client.job, job)
            why = await asyncio.to_thread(self.client.why, job)
            raise AssertionError(f"{job} is not {state}: {found}; {why}") from error

    async def until_reported(self, **amounts: int) -> None:
        """Wait until the agent reports these numbers of devices, by class, beside those of others."""
        found: dict[str, int] = {}

        async def reached() -> bool:
            groups = (await asyncio.to_thread(self.client.cluster, "north")).groups
            for name in amounts:
                resource = f"deviceclass.resource.kubernetes.io/{name}"
                found[name] = sum(group.count * group.free.get(resource, 0) for group in groups)
            return found == amounts

        try:
            await eventually(reached, PATIENCE)
        except AssertionError as error:
            raise AssertionError(f"the agent reports {found}, not {amounts}") from error

    async def until_told(self, job: str, *words: str) -> None:
        said = ""

        async def is_told() -> bool:
            nonlocal said
            said = str(await asyncio.to_thread(self.client.why, job))
            return all(one in said for one in words)

        try:
            await eventually(is_told, PATIENCE)
        except AssertionError as error:
            raise AssertionError(f"why of {job} does not say {words}: {said}") from error

    async def allocated(self, namespace: str = JOBS) -> int:
        """Return the number of devices that kube-scheduler has allocated to claims of a namespace."""
        claims = (await self.cluster.api.get(f"{DRA}/namespaces/{namespace}/resourceclaims"))["items"]
        allocations = [(one.get("status") or {}).get("allocation") for one in claims]
        return sum(len(one["devices"]["results"]) for one in allocations if one)

    async def claims(self) -> dict[str, dict[str, Any]]:
        """Return the claims of the namespace for jobs by name."""
        found = await self.cluster.api.get(f"{DRA}/namespaces/{JOBS}/resourceclaims")
        return {one["metadata"]["name"]: one for one in found["items"]}

    async def until_no_claims(self) -> None:
        async def reached() -> bool:
            return not await self.claims()

        await eventually(reached, PATIENCE)

    async def nodes_of(self, job: str) -> dict[str, str]:
        """Return the node of each pod of a job's first run by the name of the claim that it names."""
        pods = (await self.cluster.api.get(f"/api/v1/namespaces/{JOBS}/pods"))["items"]
        own = [pod for pod in pods if pod["metadata"]["name"].startswith(f"{job}-r1-")]
        found: dict[str, set[str]] = {}
        for pod in own:
            for claim in pod["spec"].get("resourceClaims") or ():
                found.setdefault(claim["resourceClaimName"], set()).add(pod["spec"]["nodeName"])
        assert all(len(nodes) == 1 for nodes in found.values()), found
        return {name: nodes.pop() for name, nodes in found.items()}

    async def until_allocated(self, count: int) -> None:
        async def reached() -> bool:
            return await self.allocated() == count

        await eventually(reached, PATIENCE)

    async def claim_templates(self) -> list[str]:
        found = await self.cluster.api.get(f"{DRA}/namespaces/{JOBS}/resourceclaimtemplates")
        return sorted(one["metadata"]["name"] for one in found["items"])


@pytest.fixture
async def devices(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Devices]:
    """``request.param``: the ``placement`` of the agent's configuration."""
    await cluster.kubelet.add_nodes("node", 2, allocatable=NODE)
    api = cluster.api
    classes = (device_class("gpu", CLASS), device_class("odd", CLASS, ODD_CLASS))
    made = [f"{DRA}/deviceclasses/{one['metadata']['name']}" for one in classes]
    for one in classes:
        await api.post(f"{DRA}/deviceclasses", one)
    for node in ("node-0", "node-1"):
        gpus = [device(f"gpu-{index}", model="a100", odd="yes" if index % 2 else "no") for index in range(4)]
        await api.post(f"{DRA}/resourceslices", resource_slice(node, gpus))
        made.append(f"{DRA}/resourceslices/{node}-slice")
    installed = await install_agent(cluster.plane, "north")
    for one in (claim_template("two-gpus", count=2), claim_template("every-gpu", allocationMode="All")):
        await api.post(f"{DRA}/namespaces/{JOBS}/resourceclaimtemplates", one)
        made.append(f"{DRA}/namespaces/{JOBS}/resourceclaimtemplates/{one['metadata']['name']}")
    config = installed.config | {"admission": {"resourceClaims": ["*"]}}
    if placement := getattr(request, "param", None):
        config["placement"] = {**config.get("placement", {}), **placement}
    stage = KubeStage(tmp_path, [KubeCluster("north", installed.kubeconfig, config)])
    try:
        await asyncio.to_thread(stage.start)
        with Client(stage.urls[0], ADMIN_KEY) as client:
            queues: dict[str, dict[str, Any]] = {
                "default/all": {},
                "default/claims": {"admission": {"resourceClaims": ["*"]}},
                "default/few": {"resources": {GPU: {"limit": 1}}},
                "default/two": {"resources": {GPU: {"limit": 2}}},
            }
            for name, fields in queues.items():
                await asyncio.to_thread(client.put, "Queue", name, {"path": name, **fields})
            yield Devices(cluster, client)
    finally:
        for path in made:
            await api.delete(path)
        await asyncio.to_thread(stage.stop)


async def test_devices_are_promised_allocated_and_released(devices: Devices) -> None:
    api, namespace = devices.cluster.api, devices.cluster.namespace
    await devices.until_reported(gpu=8, odd=4)

    await api.post(f"{DRA}/namespaces/{namespace}/resourceclaimtemplates", claim_template("one", count=1))
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    foreign = a_pod("foreign", "gate", "foreign", cpu="100m", resourceClaims=claims)
    foreign["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    await api.post(devices.cluster.pods, foreign)
    await devices.cluster.until_phase("foreign", "Running", PATIENCE)
    assert await devices.allocated(namespace) == 1
    await devices.until_reported(gpu=7)

    wanted = {
        "name": "gpu",
        "class": "gpu",
        "count": 2,
        "selectors": [f"device.attributes['{DRIVER}'].model == 'a100'"],
    }
    by_devices = await devices.submit(job("devices", {"replicas": 2, **member(wanted)}))
    by_template = await devices.submit(job("template", claiming_pod("two-gpus"), queue="default/claims"))
    for one in (by_devices, by_template):
        await devices.until(one, "running")
    await devices.until_allocated(6)
    await devices.until_reported(gpu=7)  # what our own members have is subtracted by the dispatcher
    assert await devices.claim_templates() == sorted(("every-gpu", f"{by_devices}-r1-main", "two-gpus"))

    with pytest.raises(ProblemError, match="allocationMode All") as refused:
        await devices.submit(job("every", claiming_pod("every-gpu"), queue="default/claims"))
    assert refused.value.code is Code.DEVICES_NOT_COUNTED
    third = await devices.submit(job("third", member({"name": "gpu", "class": "gpu", "count": 2})))
    limited = await devices.submit(
        job("limited", member({"name": "gpu", "class": "gpu", "count": 2}), queue="default/few")
    )
    await devices.until_told(third, GPU)
    await devices.until_told(limited, GPU, "default/few")
    assert await devices.allocated() == 6

    devices.cluster.kubelet.open_gate("end")
    for one in (by_devices, by_template, third):
        await devices.until(one, "succeeded")
    await devices.until_allocated(0)

    async def only_the_owners_are_left() -> bool:
        return await devices.claim_templates() == ["every-gpu", "two-gpus"]

    await eventually(only_the_owners_are_left, PATIENCE)
    devices.cluster.kubelet.open_gate("foreign")
    await devices.until_reported(gpu=8, odd=4)


async def test_a_class_may_be_written_into_resources_and_overlaps_another(devices: Devices) -> None:
    await devices.until_reported(gpu=8, odd=4)
    running = await devices.submit(job("extended", {"replicas": 3, **member(**{ODD: "1"})}))
    await devices.until(running, "running")
    await devices.until_allocated(3)
    await devices.until_reported(gpu=5, odd=4)
    devices.cluster.kubelet.open_gate("end")
    await devices.until(running, "succeeded")
    await devices.until_reported(gpu=8, odd=4)


async def test_a_class_whose_selector_fails_for_a_device_is_not_counted(devices: Devices) -> None:
    await devices.until_reported(gpu=8, odd=4)
    path = f"{DRA}/resourceslices"
    await devices.cluster.api.post(
        path, resource_slice("node-0", [device("old", model="a100")], name="old", pool="old")
    )
    try:
        await devices.until_reported(gpu=9, odd=0)
    finally:
        await devices.cluster.api.delete(f"{path}/old")
    await devices.until_reported(gpu=8, odd=4)


@pytest.mark.parametrize(
    "devices", [{"scheduler": "native"}, {"scheduler": "gates"}], indirect=True, ids=["native", "gates"]
)
async def test_members_share_devices_by_one_claim(devices: Devices) -> None:
    await devices.until_reported(gpu=8, odd=4)
    shared = {"name": "gpu", "class": "gpu", "sharedBy": 2}
    first = await devices.submit(job("first", {"replicas": 4, **member(shared)}, queue="default/two"))
    await devices.until(first, "running")
    assert sorted(await devices.claims()) == [f"{first}-r1-main-0", f"{first}-r1-main-1"]
    assert await devices.allocated() == 2
    assert sorted(await devices.nodes_of(first)) == [f"{first}-r1-main-0", f"{first}-r1-main-1"]
    await devices.until_reported(gpu=8)  # the dispatcher subtracts what its own runs have

    second = await devices.submit(job("second", {"replicas": 2, **member(shared)}, queue="default/two"))
    await devices.until_told(second, GPU, "default/two")
    # Two devices are in use, so that a job of six more claims fits, and none of seven.
    rest = await devices.submit(job("rest", {"replicas": 12, **member(shared, gate="rest")}))
    seven = await devices.submit(job("seven", {"replicas": 14, **member(shared, gate="rest")}))
    await devices.until(rest, "running")
    assert await devices.allocated() == 8
    await devices.until_told(seven, "members")
    placed = await devices.nodes_of(rest)
    assert len(placed) == 6
    both = [*placed.values(), *(await devices.nodes_of(first)).values()]
    assert {node: both.count(node) for node in both} == {"node-0": 4, "node-1": 4}

    devices.cluster.kubelet.open_gate("end")
    for one in (first, second):
        await devices.until(one, "succeeded")
    devices.cluster.kubelet.open_gate("rest")
    for one in (rest, seven):
        await devices.until(one, "succeeded")
    await devices.until_no_claims()
    await devices.until_reported(gpu=8, odd=4)


@pytest.mark.parametrize("devices", [{"scheduler": "gates"}], indirect=True)
async def test_devices_that_others_hold_leave_less_for_members_that_share(devices: Devices) -> None:
    """Each node has one device left: the members of a claim stay together where there is one."""
    api, namespace = devices.cluster.api, devices.cluster.namespace
    await devices.until_reported(gpu=8, odd=4)
    await api.post(f"{DRA}/namespaces/{namespace}/resourceclaimtemplates", claim_template("three", count=3))
    for index in range(2):
        claims = [{"name": "gpu", "resourceClaimTemplateName": "three"}]
        foreign = a_pod(f"foreign-{index}", "gate", "foreign", cpu="100m", resourceClaims=claims)
        foreign["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        await api.post(devices.cluster.pods, foreign)
        await devices.cluster.until_phase(f"foreign-{index}", "Running", PATIENCE)
    await devices.until_reported(gpu=2)
    shared = {"name": "gpu", "class": "gpu", "sharedBy": 2}
    pairs = await devices.submit(job("pairs", {"replicas": 4, **member(shared)}))
    await devices.until(pairs, "running")
    assert sorted((await devices.nodes_of(pairs)).values()) == ["node-0", "node-1"]
    assert await devices.allocated() == 2
    await devices.until_reported(gpu=2)
    devices.cluster.kubelet.open_gate("end")
    await devices.until(pairs, "succeeded")
    await devices.until_no_claims()
    devices.cluster.kubelet.open_gate("foreign")
    await devices.until_reported(gpu=8, odd=4)


async def test_jobs_share_a_claim_of_the_cluster(devices: Devices) -> None:
    """Its devices are nobody's but its owner's: they count on no job, and are not free once it has them."""
    api = devices.cluster.api
    await devices.until_reported(gpu=8, odd=4)
    spec = claim_template("notebooks", count=2)["spec"]["spec"]
    path = f"{DRA}/namespaces/{JOBS}/resourceclaims"
    await api.post(path, {"metadata": {"name": "notebooks"}, "spec": spec})

    async def is_reported() -> bool:
        found = await asyncio.to_thread(devices.client.cluster, "north")
        return "claim:notebooks devices=gpu:2" in (found.capabilities or ())

    try:
        await eventually(is_reported, PATIENCE)
        role = {"replicas": 2, **claiming_pod("notebooks", "resourceClaimName")}
        jobs = [await devices.submit(job(name, role, queue="default/claims")) for name in ("first", "second")]
        for one in jobs:
            await devices.until(one, "running")
        assert await devices.allocated() == 2
        await devices.until_reported(gpu=6)
        devices.cluster.kubelet.open_gate("end")
        for one in jobs:
            await devices.until(one, "succeeded")
        await devices.until_reported(gpu=8)
        assert list(await devices.claims()) == ["notebooks"]
    finally:
        await api.delete(f"{path}/notebooks")
