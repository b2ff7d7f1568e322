"""Pods of jobs with files on a real API server: it takes them in a namespace of the level ``restricted``, as they are."""

import pytest

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import need_programs, plane
from tests.unit.test_kubernetes_manifests import made, role
from trainmaster_agent.placement.gates import Gates
from trainmaster_agent.runtime.kubernetes.config import FilesConfig

__all__ = ["plane"]

need_programs(whole_module=True)

CONFIG = FilesConfig(image="registry.example.com/agent:1")
_NAMESPACE = "files-of-jobs"


async def test_an_api_server_takes_pods_with_inputs_and_outputs(plane: ControlPlane) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    manifests = made(
        role(replicas=2),
        placement=Gates(),
        files=CONFIG,
        inputs=[{"files": f"sha256:{'a' * 64}", "path": "code"}],
        outputs=[{"name": "model", "path": "out"}],
        run_as_user=65532,
    )
    async with plane.client() as api:
        await api.post("/api/v1/namespaces", {"metadata": {"name": _NAMESPACE, "labels": labels}})
        try:
            await api.post(f"/api/v1/namespaces/{_NAMESPACE}/serviceaccounts", {"metadata": {"name": "default"}})
        except ApiError as error:
            if error.status != 409:  # the controller manager was quicker
                raise
        for index in range(2):
            body = manifests.pod("worker", index)
            body["metadata"]["namespace"] = _NAMESPACE
            del body["spec"]["priorityClassName"], body["metadata"]["ownerReferences"]
            path = f"/api/v1/namespaces/{_NAMESPACE}/pods?dryRun=All&fieldValidation=Strict"
            stored = await api.post(path, body)
            sidecars = [one for one in stored["spec"]["initContainers"] if one.get("restartPolicy") == "Always"]
            assert [one["name"] for one in sidecars] == (["store-files"] if index == 0 else [])
        body["spec"]["initContainers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
        with pytest.raises(ApiError, match="violates PodSecurity"):
            await api.post(path, body)
