"""ConfigMaps of pods that share GPUs by KAI, on the fake API server: created with the pods whose admission has named them."""

from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.conformance.kube_lab import KubeLab
from tests.conformance.runtime_suite import RUNS, A, Part, start_run, until_state
from tests.fake_kube.errors import ApiError
from tests.fake_kube.objects import Object
from tests.fake_kube.resources import PODS as FAKE_PODS
from tests.fake_kube.resources import Resource
from tests.fake_kube.server import FakeKube
from tests.integration.fake_lab import NAMESPACE, fake_cluster, lab_on, two_nodes
from trainmaster.protocol.states import RunState
from trainmaster_agent.kube.paths import CONFIG_MAPS, PODS

NAMES = ("gpu-of-a-shared-gpu-0", "gpu-of-a-shared-gpu-0-evar")
NAMED = {"runai/shared-gpu-configmap": "gpu-of-a-shared-gpu"}
"""Annotations that KAI's admission adds to a pod with a part of a GPU."""


async def run_one(added: dict[str, str], *, sharing: str = "kai", refused: str = "") -> dict[str, Any]:
    """Run a job of one member until it is running, with annotations that admission has added to its pod; return the owners of
    the ConfigMaps that belong to the pod, by name.
    """
    async with AsyncExitStack() as stack:
        kube = await stack.enter_async_context(fake_cluster())
        nodes = stack.enter_context(two_nodes(kube))
        _admit(kube, added, refused)
        lab = lab_on(kube, nodes, capacity={"gpuSharing": sharing})
        await lab.open()
        stack.push_async_callback(lab.close)
        await lab.runtime.start(start_run(lab, A, Part(RUNS)))
        await until_state(lab, A, RunState.RUNNING)
        return await owned(lab)


def _admit(kube: FakeKube, added: dict[str, str], refused: str) -> None:
    """Add annotations to pods that are created, as a webhook does, and refuse an object of a name, as a quota does."""
    create = kube.verbs.create

    def admit(resource: Resource, namespace: str, body: Object, **options: bool) -> Object:
        if resource == FAKE_PODS:
            body["metadata"].setdefault("annotations", {}).update(added)
        elif body["metadata"].get("name") == refused:
            raise ApiError(403, "exceeded quota: objects", reason="Forbidden")
        return create(resource, namespace, body, **options)

    kube.verbs.create = admit  # type: ignore[method-assign]


async def owned(lab: KubeLab) -> dict[str, Any]:
    pod = await lab.api.get(PODS, NAMESPACE, f"{A}-worker-0")
    found: dict[str, Any] = {}
    async for items, _ in lab.api.pages(CONFIG_MAPS, NAMESPACE):
        owners = {one["metadata"]["name"]: one["metadata"].get("ownerReferences") for one in items}
        found |= {name: refs for name, refs in owners.items() if refs and refs[0]["uid"] == pod["metadata"]["uid"]}
    return found


async def test_they_are_created_with_the_pod_and_belong_to_it() -> None:
    found = await run_one(NAMED)
    assert sorted(found) == sorted(NAMES)
    assert {refs[0]["kind"] for refs in found.values()} == {"Pod"}


async def test_a_pod_runs_whose_config_maps_are_refused() -> None:
    assert list(await run_one(NAMED, refused=NAMES[0])) == [NAMES[1]]


@pytest.mark.parametrize(("added", "sharing"), [({}, "kai"), (NAMED, "none")])
async def test_none_is_created_that_kai_does_not_name_or_read(added: dict[str, str], sharing: str) -> None:
    assert await run_one(added, sharing=sharing) == {}
