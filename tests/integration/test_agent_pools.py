"""Pools of nodes that a Kubernetes agent reads from the objects of its cluster's autoscalers, on the fake API server."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conformance.kube_lab import KubeLab
from tests.conformance.runtime_suite import SUCCEEDS, A, Part, start_run, until, until_state
from tests.fake_kube.server import FakeKube
from tests.integration.fake_lab import NAMESPACE, fake_cluster, lab_on, two_nodes
from tests.unit.autoscaler_texts import YAML_1_36
from tests.unit.test_autoscaler_pools import config_map, node_pool
from tests.waiting import eventually
from trainmaster.protocol.states import RunState
from trainmaster_agent.kube.client import MERGE_PATCH
from trainmaster_agent.kube.paths import CONFIG_MAPS, NODES, PODS, Resource
from trainmaster_agent.placement.provisioned import POD_TEMPLATES, PROVISIONING_REQUESTS
from trainmaster_agent.runtime.kubernetes.watch_setup import NODE_POOLS

A100 = {"name": "a100", "labels": {"pool": "a100"}, "resources": {"cpu": "30"}}
NAME = "cluster-autoscaler-status"


@pytest.fixture
async def kube() -> AsyncIterator[FakeKube]:
    async with fake_cluster() as kube:
        yield kube


@pytest.fixture
async def lab(kube: FakeKube) -> AsyncIterator[KubeLab]:
    with two_nodes(kube) as nodes:
        lab = lab_on(kube, nodes, capacity={"scalePools": [A100], "autoscaler": {"nodeLabel": "group"}})
        await lab.open()
        try:
            yield lab
        finally:
            await lab.close()


async def until_pools(lab: KubeLab, **wanted: tuple[int, int]) -> None:
    """Wait until the report has exactly these pools, each with the most nodes and those that may still come."""

    async def are_reported() -> bool:
        report = await lab.runtime.capacity()
        return {pool.name: (pool.most, pool.count) for pool in report.pools} == wanted

    await eventually(are_reported)


async def put_status(lab: KubeLab, text: str) -> None:
    # Of this moment: an older report would be one of an autoscaler that no longer runs.
    made: dict[str, Any] = config_map(text)
    del made["metadata"]["annotations"]
    await lab.api.create(CONFIG_MAPS, "kube-system", made)


async def test_the_pools_follow_the_status_of_the_autoscaler_and_its_nodes(lab: KubeLab) -> None:
    assert (await lab.runtime.capacity()).not_counted == (
        "pools without mostNodes of which no autoscaler reports a node group: a100",
    )
    await put_status(lab, YAML_1_36)
    await until_pools(lab, a100=(10, 6))
    await lab.api.create(CONFIG_MAPS, "kube-system", {"metadata": {"name": "other"}, "data": {"status": "{}"}})
    await lab.api.patch(NODES, None, "node-0", {"metadata": {"labels": {"group": "cpu"}}})
    await until_pools(lab, a100=(10, 6), cpu=(6, 0))
    changed = {"data": {"status": YAML_1_36.replace("maxSize: 10", "maxSize: 7")}}
    await lab.api.patch(CONFIG_MAPS, "kube-system", NAME, changed)
    await until_pools(lab, a100=(7, 3), cpu=(6, 0))
    await lab.api.delete(CONFIG_MAPS, "kube-system", NAME)
    await until_pools(lab)


async def test_an_unreadable_status_is_named_and_left_out(lab: KubeLab) -> None:
    await put_status(lab, "nodeGroups: 3")

    async def is_named() -> bool:
        return (
            f"1 objects that cannot be read, such as ConfigMap kube-system/{NAME}"
            in (await lab.runtime.capacity()).not_counted
        )

    await eventually(is_named)
    assert (await lab.runtime.capacity()).pools == ()
    await lab.api.patch(CONFIG_MAPS, "kube-system", NAME, {"data": {"status": YAML_1_36}})
    await until_pools(lab, a100=(10, 6))


async def test_node_pools_of_karpenter_are_pools(kube: FakeKube) -> None:
    kube.serve("karpenter.sh/v1", ["nodepools"])
    with two_nodes(kube) as nodes:
        lab = lab_on(kube, nodes, capacity={"scalePools": [A100 | {"name": "gpu"}]})
        await lab.open()
        try:
            made = node_pool() | {"apiVersion": "karpenter.sh/v1", "kind": "NodePool"}
            await lab.api.create(NODE_POOLS, None, made)
            await lab.api.patch(NODES, None, "node-1", {"metadata": {"labels": {"karpenter.sh/nodepool": "gpu"}}})
            await until_pools(lab, gpu=(16, 16))
        finally:
            await lab.close()


@pytest.mark.parametrize("is_sent_for_them", [True, False])
async def test_gates_are_open_to_the_autoscaler_for_runs_that_are_sent_for_its_nodes(
    kube: FakeKube, is_sent_for_them: bool
) -> None:
    with two_nodes(kube) as nodes:
        lab = lab_on(kube, nodes, capacity={"scalePools": [A100 | {"mostNodes": 2}]})
        await lab.open()
        try:
            order = start_run(lab, A, Part(SUCCEEDS, count=2, cpu="6"))
            pins = {"+a100": {"worker": 2}} if is_sent_for_them else {}
            await lab.runtime.start(order.model_copy(update={"pins": pins}))

            async def gates() -> list[bool]:
                pods = (await lab.api.call("GET", PODS.path(NAMESPACE)))["items"]
                return [bool(pod["spec"].get("schedulingGates")) for pod in pods]

            async def are_as_wanted() -> bool:
                return await gates() == [not is_sent_for_them] * 2

            await eventually(are_as_wanted)
            await until(lab, A, lambda status: "waits for nodes for 2 of 2 members" in status.message)
            for number in range(2):
                nodes.add_node(f"new-{number}", {"cpu": "8", "memory": "8Gi", "pods": "110"})
            await until_state(lab, A, RunState.SUCCEEDED)
        finally:
            await lab.close()


ATOMIC = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"


@pytest.mark.parametrize("answer", ["Failed", "Provisioned"])
async def test_nodes_are_asked_for_by_a_request_whose_failure_returns_the_run(kube: FakeKube, answer: str) -> None:
    kube.serve("autoscaling.x-k8s.io/v1", ["provisioningrequests"])
    capacity = {"scalePools": [A100 | {"mostNodes": 2}], "autoscaler": {"provisioningRequest": ATOMIC}}
    with two_nodes(kube) as nodes:
        lab = lab_on(kube, nodes, capacity=capacity)
        await lab.open()
        try:
            order = start_run(lab, A, Part(SUCCEEDS, count=2, cpu="6"))
            await lab.runtime.start(order.model_copy(update={"pins": {"+a100": {"worker": 2}}}))
            await until(lab, A, lambda status: "has not answered the request for its nodes yet" in status.message)
            request = await lab.api.get(PROVISIONING_REQUESTS, NAMESPACE, A)
            assert request["spec"]["podSets"] == [{"count": 2, "podTemplateRef": {"name": f"{A}-worker"}}]

            async def items(resource: Resource) -> list[dict[str, Any]]:
                found: list[dict[str, Any]] = (await lab.api.call("GET", resource.path(NAMESPACE)))["items"]
                return found

            async def all_wait() -> bool:
                return len(await items(PODS)) == 2

            await eventually(all_wait)
            for pod in await items(PODS):
                assert pod["spec"]["schedulingGates"], "they wait for the answer"
                assert pod["metadata"]["annotations"]["autoscaling.x-k8s.io/consume-provisioning-request"] == A
            condition = {"type": answer, "status": "True", "reason": "Because", "message": "of the provider"}
            path = PROVISIONING_REQUESTS.path(NAMESPACE, A, "status")
            await lab.api.call("PATCH", path, body={"status": {"conditions": [condition]}}, content_type=MERGE_PATCH)
            if answer == "Failed":
                status = await until_state(lab, A, RunState.RETURNED)
                assert "the autoscaler provides no nodes for it: Because: of the provider" in status.message
            else:
                for number in range(2):
                    nodes.add_node(f"new-{number}", {"cpu": "8", "memory": "8Gi", "pods": "110"})
                await until_state(lab, A, RunState.SUCCEEDED)

            await lab.runtime.forget(A)

            async def nothing_is_left() -> bool:
                return not [one for kind in (PODS, POD_TEMPLATES, PROVISIONING_REQUESTS) for one in await items(kind)]

            await eventually(nothing_is_left)
        finally:
            await lab.close()
