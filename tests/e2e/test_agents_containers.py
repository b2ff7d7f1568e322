"""Containers of the agent in members' pods, on a real API server: a namespace of the level ``restricted`` takes them."""

from typing import Any

import pytest

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import need_programs, plane
from tests.unit.test_kubernetes_manifests import made, role
from trainmaster_agent.placement.gates import Gates
from trainmaster_agent.runtime.kubernetes.config import FilesConfig, ImageEntryPoints
from trainmaster_agent.runtime.kubernetes.manifests import Manifests

__all__ = ["plane"]

need_programs(whole_module=True)

FILES = FilesConfig(image="registry.example.com/agent:1")
ENTRY_POINTS = ImageEntryPoints(
    image="registry.example.com/agent:1",
    pull_secrets=("regcred", "other"),
    ca_config_map="authorities",
    registries={"docker.io": "https://mirror.example.com/hub"},
)


async def taken(plane: ControlPlane, manifests: Manifests, namespace: str) -> list[dict[str, Any]]:
    """Return the pods of two members as the API server would store them; it refuses the last one with an escalation."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    found = []
    async with plane.client() as api:
        await api.post("/api/v1/namespaces", {"metadata": {"name": namespace, "labels": labels}})
        try:
            await api.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})
        except ApiError as error:
            if error.status != 409:  # the controller manager was quicker
                raise
        path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict"
        for index in range(2):
            body = manifests.pod("worker", index)
            body["metadata"]["namespace"] = namespace
            del body["spec"]["priorityClassName"], body["metadata"]["ownerReferences"]
            found.append(await api.post(path, body))
        body["spec"]["initContainers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
        with pytest.raises(ApiError, match="violates PodSecurity"):
            await api.post(path, body)
    return found


async def test_an_api_server_takes_pods_with_inputs_and_outputs(plane: ControlPlane) -> None:
    manifests = made(
        role(replicas=2),
        placement=Gates(),
        files=FILES,
        inputs=[{"files": f"sha256:{'a' * 64}", "path": "code"}],
        outputs=[{"name": "model", "path": "out"}],
        run_as_user=65532,
    )
    for index, pod in enumerate(await taken(plane, manifests, "files-of-jobs")):
        sidecars = [one for one in pod["spec"]["initContainers"] if one.get("restartPolicy") == "Always"]
        assert [one["name"] for one in sidecars] == (["store-files"] if index == 0 else [])


async def test_an_api_server_takes_pods_whose_image_is_read(plane: ControlPlane) -> None:
    manifests = made(role(replicas=2), placement=Gates(), entry_points=ENTRY_POINTS, run_as_user=65532)
    for pod in await taken(plane, manifests, "entry-points-of-images"):
        (reads,) = pod["spec"]["initContainers"]
        assert reads["name"] == "read-entry-point"
        (volume,) = (one for one in pod["spec"]["volumes"] if one["name"] == "trainmaster-registry")
        assert len(volume["projected"]["sources"]) == 3
