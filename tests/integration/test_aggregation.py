"""The extension API server beside a real control plane: whose requests it takes, who may do what, and what it says of failures."""

import os
import shutil
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from tests.cluster.api import ApiClient, ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.extension import extension_server
from tests.cluster.fixtures import plane
from tests.conftest import Service
from tests.waiting import eventually
from trainmaster_agent.aggregation.server import DispatcherAccess

__all__ = ["plane"]

if shutil.which("kube-apiserver", path=os.environ.get("KUBEBUILDER_ASSETS", "")) is None:
    pytest.skip("KUBEBUILDER_ASSETS has no kube-apiserver", allow_module_level=True)

GROUP = "/apis/trainmaster.dev/v1"
JOBS = f"{GROUP}/namespaces/default/jobs"
SPEC = {"roles": [{"name": "main", "template": {"command": ["true"]}}]}
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def job(name: str) -> dict[str, Any]:
    return {"apiVersion": "trainmaster.dev/v1", "kind": "Job", "metadata": {"name": name}, "spec": SPEC}


@pytest.fixture
async def gate(service: Service) -> str:
    """Return a key that may act on behalf of everybody, in one queue."""
    made = {"name": "gate", "role": "user", "queues": ["default"], "onBehalfOf": ["*"]}
    key: str = (await service.http.post("/v1/keys", json=made)).json()["key"]
    return key


@pytest.fixture
async def port(service: Service, plane: ControlPlane, gate: str, tmp_path: Path) -> AsyncIterator[int]:
    async with extension_server(plane, DispatcherAccess(service.url, gate), tmp_path) as found:
        yield found


@pytest.fixture
async def admin(plane: ControlPlane) -> AsyncIterator[ApiClient]:
    async with plane.client() as api:
        yield api


async def called(
    plane: ControlPlane, path: str, method: str = "GET", body: Any = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    """Call the cluster's API server as the administrator, who acts as a user by headers such as ``Impersonate_User``."""
    context = ssl.create_default_context(cafile=str(plane.ca_file))
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    sent["Authorization"] = f"Bearer {plane.admin_token}"
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
        session.request(method, plane.url + path, headers=sent, json=body) as answer,
    ):
        return answer.status, await answer.json()


async def test_the_clusters_rbac_decides_who_may_do_what(
    plane: ControlPlane, port: int, admin: ApiClient, service: Service
) -> None:
    status, reply = await called(plane, JOBS, Impersonate_User="alice", Impersonate_Group="team-a")
    assert (status, reply["reason"]) == (403, "Forbidden")
    assert reply["message"].startswith(
        'jobs.trainmaster.dev is forbidden: User "alice" cannot list resource "jobs" in API group "trainmaster.dev"'
    )
    rules = [{"apiGroups": ["trainmaster.dev"], "resources": ["jobs"], "verbs": ["create", "get", "list", "delete"]}]
    role = {"kind": "Role", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "jobs"}, "rules": rules}
    await admin.post(f"{RBAC}/namespaces/default/roles", role)
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "jobs"}
    group = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "team-a"}
    binding = role | {"kind": "RoleBinding", "roleRef": reference, "subjects": [group]}
    del binding["rules"]
    await admin.post(f"{RBAC}/namespaces/default/rolebindings", binding)
    try:

        async def may() -> bool:
            # A decision is kept for 10 s.
            return (await called(plane, JOBS, Impersonate_User="bob", Impersonate_Group="team-a"))[0] == 200

        await eventually(may, 15)
        status, made = await called(
            plane, JOBS, "POST", job("of-bob"), Impersonate_User="bob", Impersonate_Group="team-a"
        )
        assert status == 201, made
        assert (made["status"]["submittedBy"], made["status"]["submittedThrough"]) == ("bob", "gate")
        for method, path, user, expected in (
            ("GET", f"{JOBS}/of-bob", "bob", 200),
            ("GET", JOBS, "mallory", 403),
            ("PATCH", f"{JOBS}/of-bob", "bob", 403),
            ("DELETE", JOBS, "bob", 403),
            ("GET", f"{JOBS}?watch=1&timeoutSeconds=1", "bob", 403),
            ("GET", f"{GROUP}/jobs", "bob", 403),
            ("GET", f"{GROUP}/queues", "bob", 403),
            ("GET", f"{GROUP}/namespaces/other/jobs", "bob", 403),
            ("DELETE", f"{JOBS}/of-bob", "carol", 403),  # by the dispatcher: bob's job is not carol's
            ("DELETE", f"{JOBS}/of-bob", "bob", 200),
        ):
            groups = {} if user == "mallory" else {"Impersonate_Group": "team-a"}
            status, reply = await called(plane, path, method, Impersonate_User=user, **groups)
            assert status == expected, (method, path, user, reply)
    finally:
        await admin.delete(f"{RBAC}/namespaces/default/rolebindings/jobs")
        await admin.delete(f"{RBAC}/namespaces/default/roles/jobs")
    # Whom the cluster lets do everything can still do no more than the key.
    await service.http.put("/v1/queues/closed", json={"path": "closed"})
    assert (await called(plane, f"{GROUP}/namespaces/closed/jobs", "POST", job("x")))[0] == 404
    status, reply = await called(plane, f"{GROUP}/queues", "POST", {"kind": "Queue", "metadata": {"name": "new"}})
    assert (status, reply["reason"]) == (403, "Forbidden")


def _context(plane: ControlPlane, certificate: tuple[Path, Path] | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(plane.ca_file))
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


async def test_only_the_clusters_api_server_is_answered(plane: ControlPlane, port: int, tmp_path: Path) -> None:
    certificates = plane.certificates
    other = tmp_path / "other.crt", tmp_path / "other.key"
    certificates.sign(*other, "subjectAltName=DNS:other", "somebody-else", "clientAuth")
    front_proxy = certificates.front_proxy, certificates.front_proxy_key
    admin = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}
    cases: tuple[tuple[tuple[Path, Path] | None, Mapping[str, str], str, int], ...] = (
        (None, admin, JOBS, 401),
        (other, admin, JOBS, 401),
        (front_proxy, {}, JOBS, 401),
        (front_proxy, admin, JOBS, 200),
        (front_proxy, {"X-Remote-User": "nobody"}, JOBS, 403),
        (front_proxy, admin, "/v1/jobs", 404),
        (front_proxy, admin, "/agent/v1/sync", 404),
        (front_proxy, admin, f"{JOBS}/%2e%2e/%2e%2e/queues", 404),
        (front_proxy, admin, f"{JOBS}/..%2f..%2fqueues", 404),
        (front_proxy, admin, GROUP, 200),
        (None, {}, "/readyz", 200),
    )
    for certificate, headers, path, expected in cases:
        connector = aiohttp.TCPConnector(ssl=_context(plane, certificate))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(URL(f"https://localhost:{port}{path}", encoded=True), headers=headers) as answer,
        ):
            assert answer.status == expected, (headers, path, await answer.text())
            if expected >= 400:
                assert (await answer.json())["kind"] == "Status"


async def test_a_dispatcher_that_does_not_answer_is_said_to_be_away(plane: ControlPlane, tmp_path: Path) -> None:
    front_proxy = plane.certificates.front_proxy, plane.certificates.front_proxy_key
    headers = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}
    async with (
        extension_server(plane, DispatcherAccess("http://127.0.0.1:9", "tmk_none"), tmp_path, is_away=True) as port,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=_context(plane, front_proxy))) as session,
        session.get(f"https://localhost:{port}{JOBS}", headers=headers) as answer,
    ):
        reply = await answer.json()
        assert (answer.status, reply["reason"]) == (503, "ServiceUnavailable")
        assert reply["message"] == "the dispatcher at http://127.0.0.1:9 does not answer; try again"


async def test_a_revoked_key_is_no_fault_of_the_user(
    plane: ControlPlane, port: int, service: Service, admin: ApiClient
) -> None:
    assert (await admin.get(JOBS))["items"] == []
    keys = (await service.http.get("/v1/keys")).json()["keys"]
    (number,) = (key["id"] for key in keys if key["name"] == "gate")
    assert (await service.http.delete(f"/v1/keys/{number}")).status_code == 204

    async def is_refused() -> bool:
        try:
            await admin.get(JOBS)
        except ApiError as error:
            return error.status == 503 and "does not accept the key" in str(error)
        return False

    await eventually(is_refused, 15)


async def test_a_watch_is_passed_on_as_it_comes(plane: ControlPlane, port: int, admin: ApiClient) -> None:
    version = (await admin.get(JOBS))["metadata"]["resourceVersion"]
    seen = []
    events = admin.watch(JOBS, version)
    await admin.post(JOBS, job("watched"))
    async for event in events:
        seen.append((event["type"], event["object"]["metadata"]["name"]))
        if len(seen) == 1:
            await admin.delete(f"{JOBS}/watched")
        if event["type"] == "DELETED":
            break
    assert seen[0] == ("ADDED", "watched")
    assert seen[-1] == ("DELETED", "watched")
