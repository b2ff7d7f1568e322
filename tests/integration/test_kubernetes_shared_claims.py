"""ResourceClaims that members of a run share, on the fake API server: made before the pods, and removed with the run."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conformance.kube_lab import KubeLab
from tests.conformance.runtime_suite import RUNS, A, B, Part, start_run, stop_run, until_over, until_state
from tests.fake_kube.nodes import FakeNodes
from tests.fake_kube.server import FakeKube
from tests.integration.fake_lab import AGENT_NAMESPACE, NAMESPACE, fake_cluster, lab_on, two_nodes
from tests.unit.dra_objects import API, device, device_class, resource_slice
from tests.waiting import eventually
from trainmaster.cluster_model.capabilities import Capability
from trainmaster.protocol.states import RunState
from trainmaster_agent.kube.errors import NotFoundError
from trainmaster_agent.kube.paths import CONFIG_MAPS, PODS, RESOURCE_CLAIMS, Resource
from trainmaster_agent.kube.pods import LABEL_RUN
from trainmaster_agent.runtime.kubernetes import orphans
from trainmaster_agent.runtime.kubernetes.record import LABEL_RECORD, TOMBSTONE

DEVICE_KINDS = ("deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices")
SHARED = {"devices": [{"name": "gpu", "class": "gpu", "sharedBy": 2}]}


@pytest.fixture
async def kube() -> AsyncIterator[FakeKube]:
    async with fake_cluster() as server:
        server.table.serve(API, DEVICE_KINDS)
        yield server


@pytest.fixture
async def nodes(kube: FakeKube) -> AsyncIterator[FakeNodes]:
    with two_nodes(kube) as nodes:
        yield nodes


@pytest.fixture
async def lab(kube: FakeKube, nodes: FakeNodes) -> AsyncIterator[KubeLab]:
    lab = lab_on(kube, nodes)
    await lab.api.create(Resource(API, "deviceclasses", "DeviceClass"), None, device_class())
    for name in ("node-0", "node-1"):
        body = resource_slice(name, [device("gpu-0"), device("gpu-1")])
        await lab.api.create(Resource(API, "resourceslices", "ResourceSlice"), None, body)
    await lab.open()
    try:
        yield lab
    finally:
        await lab.close()


async def claims(lab: KubeLab) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    async for items, _ in lab.api.pages(RESOURCE_CLAIMS, NAMESPACE):
        found |= {one["metadata"]["name"]: one for one in items}
    return found


async def until_claims(lab: KubeLab, *names: str) -> None:
    async def reached() -> bool:
        return sorted(await claims(lab)) == sorted(names)

    await eventually(reached)


async def test_they_are_offered_where_the_agent_may_make_claims(lab: KubeLab) -> None:
    async def is_offered() -> bool:
        return Capability.SHARED_DEVICES in (await lab.runtime.capacity()).capabilities

    await eventually(is_offered)


async def test_claims_are_made_for_groups_of_members_and_removed_with_the_run(lab: KubeLab, nodes: FakeNodes) -> None:
    await lab.runtime.start(start_run(lab, A, Part(RUNS, count=4, extra=SHARED)))
    await until_state(lab, A, RunState.RUNNING)
    made = await claims(lab)
    assert sorted(made) == [f"{A}-worker-0", f"{A}-worker-1"]
    assert {one["metadata"]["labels"][LABEL_RUN] for one in made.values()} == {A}
    await lab.runtime.stop(stop_run(A))
    await until_over(lab, A)
    await lab.runtime.forget(A)
    await until_claims(lab)


async def test_a_member_that_starts_again_has_the_same_claim(lab: KubeLab) -> None:
    failure = {"action": "restartMember", "limit": 3}
    await lab.runtime.start(start_run(lab, A, Part(RUNS, count=2, extra=SHARED), memberFailure=failure))
    await until_state(lab, A, RunState.RUNNING)
    before = {name: one["metadata"]["uid"] for name, one in (await claims(lab)).items()}
    name = f"{A}-worker-1"
    first = await lab.api.get(PODS, NAMESPACE, name)
    await lab.api.delete(PODS, NAMESPACE, name)

    async def runs_again() -> bool:
        try:
            pod = await lab.api.get(PODS, NAMESPACE, name)
        except NotFoundError:
            return False
        return pod["metadata"]["uid"] != first["metadata"]["uid"] and bool(pod["spec"].get("nodeName"))

    await eventually(runs_again, 20)
    again = await lab.api.get(PODS, NAMESPACE, name)
    assert again["spec"]["resourceClaims"] == [{"name": "devices", "resourceClaimName": f"{A}-worker-0"}]
    # The claim keeps it on its node; a node chosen anew might be another one.
    assert "kubernetes.io/hostname" in (first["spec"].get("nodeSelector") or {})
    assert "kubernetes.io/hostname" not in (again["spec"].get("nodeSelector") or {})
    assert {name: one["metadata"]["uid"] for name, one in (await claims(lab)).items()} == before


async def test_what_an_agent_left_of_an_ended_run_is_removed_and_claims_of_pods_are_not_touched(
    lab: KubeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "_PATIENCE", 0.3)
    for run in (A, B):
        await lab.runtime.start(start_run(lab, run, Part(RUNS, count=2, extra=SHARED)))
        await until_state(lab, run, RunState.RUNNING)
    (of_a,) = [one for name, one in (await claims(lab)).items() if name.startswith(A)]
    pod = await lab.api.get(
        PODS, NAMESPACE, f"{B}-worker-0"
    )  # an owner that exists, as Kubernetes removes the claim otherwise
    owner = {"apiVersion": "v1", "kind": "Pod", "name": f"{B}-worker-0", "uid": pod["metadata"]["uid"]}
    metadata = {"name": "of-a-pod", "labels": of_a["metadata"]["labels"], "ownerReferences": [owner]}
    await lab.kubernetes.close()
    await lab.api.patch(CONFIG_MAPS, AGENT_NAMESPACE, A, {"metadata": {"labels": {LABEL_RECORD: TOMBSTONE}}})
    await lab.api.create(RESOURCE_CLAIMS, NAMESPACE, {**of_a, "metadata": metadata})
    await lab.restart()
    await lab.runtime.renew(lab.now())
    await until_claims(lab, f"{B}-worker-0", "of-a-pod")
