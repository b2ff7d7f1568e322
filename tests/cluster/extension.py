"""The extension API server of the agent beside a control plane, reached by it through a Service without pods."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.processes import reserve_port
from tests.waiting import eventually
from trainmaster_agent.aggregation.server import DispatcherAccess, ExtensionServer, Listening
from trainmaster_agent.kube.access import open_access
from trainmaster_agent.kube.client import ApiServer

NAME, NAMESPACE = "trainmaster-api", "default"
_API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
_SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"


@asynccontextmanager
async def extension_server(
    plane: ControlPlane, dispatcher: DispatcherAccess, folder: Path, is_away: bool = False
) -> AsyncIterator[int]:
    """Serve the dispatcher's Kubernetes API as one of this cluster; give the port. ``is_away``: the dispatcher does not answer."""
    certificate, key, port = folder / "extension.crt", folder / "extension.key", reserve_port()
    names = f"subjectAltName=DNS:{NAME}.{NAMESPACE}.svc,DNS:localhost"
    plane.certificates.sign(certificate, key, names, "extension", "serverAuth")
    stop = asyncio.Event()
    async with ApiServer(await open_access(plane.kubeconfig, None)) as access, plane.client() as api:
        server = ExtensionServer(access, dispatcher, Listening("127.0.0.1", port, certificate, key))
        serving = asyncio.create_task(server.run(stop))
        await api.post(_SERVICES, _service(port))
        await api.post(_API_SERVICES, _api_service(plane, port))

        async def is_available() -> bool:
            if serving.done():
                serving.result()
            found = await api.get(f"{_API_SERVICES}/v1.trainmaster.dev")
            conditions = found.get("status", {}).get("conditions", [])
            if is_away:
                return any("503" in one.get("message", "") for one in conditions)
            if not any(one["type"] == "Available" and one["status"] == "True" for one in conditions):
                return False
            try:
                await api.get("/apis/trainmaster.dev/v1")
            except ApiError:
                return False
            return True

        try:
            await eventually(is_available, 30)
            yield port
        finally:
            await api.delete(f"{_API_SERVICES}/v1.trainmaster.dev")
            await api.delete(f"{_SERVICES}/{NAME}")
            stop.set()
            await serving


def _service(port: int) -> dict[str, object]:
    spec = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME}, "spec": spec}


def _api_service(plane: ControlPlane, port: int) -> dict[str, object]:
    spec = {
        "group": "trainmaster.dev",
        "version": "v1",
        "groupPriorityMinimum": 1000,
        "versionPriority": 15,
        "caBundle": b64encode(plane.certificates.authority.read_bytes()).decode(),
        "service": {"name": NAME, "namespace": NAMESPACE, "port": port},
    }
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1.trainmaster.dev"},
        "spec": spec,
    }
