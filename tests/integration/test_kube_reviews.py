"""Questions of a caller about itself by the Kubernetes API: what it may do, and who it is."""

from typing import Any

import httpx
import pytest

from tests.conftest import Service
from tests.integration.test_kube_changes import value_of

ACCESS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
RULES = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
SELF = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


@pytest.fixture
async def user(service: Service) -> httpx.AsyncClient:
    for path in ("research", "sales"):
        assert (await service.http.put(f"/v1/queues/{path}", json={"path": path})).is_success
    made = await service.http.post("/v1/keys", json={"name": "ann", "role": "user", "queues": ["research"]})
    return service.as_key(made.json()["key"])


async def access(http: httpx.AsyncClient, **attributes: str) -> tuple[bool, str]:
    status = value_of(await http.post(ACCESS, json={"spec": {"resourceAttributes": attributes}}), 201)["status"]
    return status["allowed"], status.get("reason", "")


CASES: list[tuple[dict[str, str], str, str]] = [
    ({"verb": "create", "resource": "pods", "namespace": "research"}, "", ""),
    ({"verb": "create", "resource": "pods", "namespace": "sales"}, "", "has the namespace 'sales'"),
    ({"verb": "create", "resource": "pods"}, "", "name a namespace"),
    ({"verb": "list", "resource": "pods"}, "", ""),
    ({"verb": "get", "resource": "pods", "subresource": "log", "namespace": "research"}, "", ""),
    ({"verb": "create", "resource": "pods", "subresource": "exec", "namespace": "research"}, "", ""),
    (
        {"verb": "create", "resource": "pods", "subresource": "eviction", "namespace": "research"},
        "has here: nothing",
        "",
    ),
    ({"verb": "delete", "group": "batch", "resource": "jobs", "namespace": "research"}, "", ""),
    (
        {"verb": "create", "group": "trainmaster.dev", "resource": "queues"},
        "",
        "the role user has here: get, list, watch",
    ),
    ({"verb": "get", "group": "trainmaster.dev", "resource": "queues"}, "", ""),
    ({"verb": "patch", "resource": "events", "namespace": "research"}, "has here: get, list, watch", ""),
    ({"verb": "get", "resource": "secrets", "namespace": "research"}, "no resource 'secrets'", ""),
    ({"verb": "*", "group": "*", "resource": "*"}, "", "only admins"),
]
"""What is asked for, why an admin may not, and why a user of the queue research may not beside that."""


async def test_the_rights_of_a_key_are_told(service: Service, user: httpx.AsyncClient) -> None:
    for attributes, never, not_user in CASES:
        allowed, why = await access(service.http, **attributes)
        assert (allowed, never in why) == (not never, True), (attributes, why)
        allowed, why = await access(user, **attributes)
        assert (allowed, (never or not_user) in why) == (not (never or not_user), True), (attributes, why)


async def test_what_is_told_holds(service: Service, user: httpx.AsyncClient) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]},
    }
    for namespace in ("research", "sales"):
        allowed, _ = await access(user, verb="create", resource="pods", namespace=namespace)
        answer = await user.post(f"/api/v1/namespaces/{namespace}/pods", json=pod)
        assert answer.is_success == allowed, answer.text


async def test_paths_that_need_no_key_may_be_read(user: httpx.AsyncClient) -> None:
    for path, verb, allowed in (
        ("/version", "get", True),
        ("/apis/x", "get", True),
        ("/version", "post", False),
        ("/x", "get", False),
    ):
        body = {"spec": {"nonResourceAttributes": {"path": path, "verb": verb}}}
        assert value_of(await user.post(ACCESS, json=body), 201)["status"]["allowed"] == allowed, path


async def test_rules_are_those_of_the_namespace(service: Service, user: httpx.AsyncClient) -> None:
    async def resources(http: httpx.AsyncClient, namespace: str) -> dict[str, Any]:
        status = value_of(await http.post(RULES, json={"spec": {"namespace": namespace}}), 201)["status"]
        return {one["resources"][0]: one["verbs"] for one in status["resourceRules"]}

    own, other = await resources(user, "research"), await resources(user, "sales")
    assert "create" in own["pods"]
    assert own["pods/exec"] == ["create", "get"]
    assert own["queues"] == other["queues"] == ["get", "list", "watch"]
    assert "pods" not in other
    assert "create" in (await resources(service.http, "anywhere"))["queues"]


async def test_a_key_knows_its_name(user: httpx.AsyncClient) -> None:
    item = value_of(await user.post(SELF, json={}), 201)
    assert item["status"]["userInfo"] == {"username": "ann", "groups": ["trainmaster:user", "system:authenticated"]}


async def test_other_bodies_are_refused(user: httpx.AsyncClient) -> None:
    bodies: list[dict[str, Any]] = [{}, {"spec": []}, {"kind": "Pod"}, {"spec": {"resourceAttributes": {"verb": 1}}}]
    for body in bodies:
        answer = await user.post(ACCESS, json=body)
        assert (answer.status_code, answer.json()["kind"]) == (422, "Status"), body
