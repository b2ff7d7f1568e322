"""Who may do what: every route asks for a key, each role opens its own routes, and nobody sees or changes what is not theirs."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, WebSocketRoute

from tests.conftest import Service, job
from tests.integration.rows import execute, picture, rows
from tests.waiting import eventually
from trainmaster.protocol.agent import RunReport
from trainmaster.protocol.permissions import (
    KIND_READ,
    KIND_WRITE,
    NEED_QUEUES,
    TAKE_QUEUES,
    Permission,
    permissions_of,
)
from trainmaster.protocol.resource_kinds import KINDS
from trainmaster.protocol.states import KeyRole, RunState
from trainmaster_dispatcher.api import keyring as keyring_module
from trainmaster_dispatcher.api.app import make_app
from trainmaster_dispatcher.api.keyring import Keyring
from trainmaster_dispatcher.api.openapi import document
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store import keys as key_store
from trainmaster_dispatcher.store.database import StoreAwayError, Transaction
from trainmaster_dispatcher.web.assets import addresses

OPEN = {
    "/healthz",
    "/readyz",
    "/metrics",
    "/docs",
    "/docs/files/{name}",
    "/redoc",
    "/openapi.json",
    "/agent/openapi.json",
    "/api",
    "/api/v1",
    "/apis",
    "/apis/{name}",
    "/apis/{name}/{version}",
    "/openapi/v2",
    "/openapi/v3",
    "/openapi/v3/api/v1",
    "/openapi/v3/apis/{name}/{version}",
    "/version",
    "/v1/sign-in",
    "/v1/sign-in/browser",
    "/v1/sign-in/callback",
    "/v1/sign-in/key",
    "/static/{name:path}",
    *addresses(),
}
"""What tells nothing that is worth a key."""
Call = tuple[str, str]
WEB_SOCKET = "WEBSOCKET"
"""The method of calls that open a WebSocket."""
_HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "v4.channel.k8s.io",
}
WRITES = "write"
"""One of the permissions to change declared objects."""
ANY_PERSON = "person"
"""Any role but those of owners of clusters and agents."""
Needed = Permission | str
ALLOWED: dict[Call, Needed] = {
    ("POST", "/v1/jobs"): Permission.JOBS_SUBMIT,
    ("GET", "/v1/jobs"): Permission.JOBS_LIST,
    ("POST", "/v1/jobs/cancel"): Permission.JOBS_CHANGE,
    ("POST", "/v1/jobs/suspend"): Permission.JOBS_CHANGE,
    ("POST", "/v1/jobs/resume"): Permission.JOBS_CHANGE,
    ("POST", "/v1/jobs/retry"): Permission.JOBS_CHANGE,
    ("POST", "/v1/jobs/reprioritise"): Permission.JOBS_CHANGE,
    ("GET", "/v1/jobs/{job_id}"): Permission.JOBS_LIST,
    ("PATCH", "/v1/jobs/{job_id}"): Permission.JOBS_CHANGE,
    ("POST", "/v1/jobs/{job_id}/cancel"): Permission.JOBS_CHANGE,
    ("POST", "/v1/jobs/{job_id}/suspend"): Permission.JOBS_CHANGE,
    ("POST", "/v1/jobs/{job_id}/resume"): Permission.JOBS_CHANGE,
    ("POST", "/v1/jobs/{job_id}/retry"): Permission.JOBS_CHANGE,
    ("GET", "/v1/jobs/{job_id}/why"): Permission.JOBS_READ,
    ("GET", "/v1/jobs/{job_id}/dependencies"): Permission.JOBS_READ,
    ("GET", "/v1/jobs/{job_id}/elements"): Permission.JOBS_READ,
    ("GET", "/v1/jobs/{job_id}/elements/jobs"): Permission.JOBS_READ,
    ("GET", "/v1/jobs/{job_id}/elements/results"): Permission.JOBS_READ,
    ("POST", "/v1/jobs/{job_id}/elements/cancel"): Permission.JOBS_CHANGE,
    ("POST", "/v1/files"): Permission.JOBS_SUBMIT,
    ("PUT", "/v1/files/{upload}"): Permission.JOBS_SUBMIT,
    ("POST", "/v1/files/{upload}/finish"): Permission.JOBS_SUBMIT,
    ("GET", "/v1/jobs/{job_id}/artifacts"): Permission.JOBS_READ,
    ("GET", "/v1/jobs/{job_id}/artifacts/{artifact}"): Permission.JOBS_READ,
    ("GET", "/v1/jobs/{job_id}/artifacts/{artifact}/data"): Permission.JOBS_READ,
    ("GET", "/agent/v1/files/{run}"): Permission.AGENT,
    ("GET", "/agent/v1/files/{run}/inputs/{number}"): Permission.AGENT,
    ("POST", "/agent/v1/files/{run}/outputs"): Permission.AGENT,
    ("PUT", "/agent/v1/files/{run}/uploads/{upload}"): Permission.AGENT,
    ("POST", "/agent/v1/files/{run}/uploads/{upload}"): Permission.AGENT,
    ("POST", "/agent/v1/files/{run}/problem"): Permission.AGENT,
    ("GET", "/agent/v1/arrays/{run}"): Permission.AGENT,
    ("POST", "/agent/v1/arrays/{run}"): Permission.AGENT,
    ("GET", "/v1/jobs/{job_id}/events"): Permission.JOBS_READ,
    ("GET", "/v1/jobs/{job_id}/logs"): Permission.JOBS_READ,
    ("GET", "/v1/events"): Permission.JOBS_READ,
    ("POST", "/v1/burst-policies/preview"): Permission.POLICIES_WRITE,
    ("GET", "/v1/workload"): Permission.SIMULATIONS_RUN,
    ("POST", "/v1/schedules"): Permission.JOBS_SUBMIT,
    ("GET", "/v1/schedules"): Permission.JOBS_READ,
    ("GET", "/v1/schedules/{name}"): Permission.JOBS_READ,
    ("PUT", "/v1/schedules/{name}"): Permission.JOBS_SUBMIT,
    ("PATCH", "/v1/schedules/{name}"): Permission.JOBS_SUBMIT,
    ("DELETE", "/v1/schedules/{name}"): Permission.JOBS_CHANGE,
    ("POST", "/v1/schedules/{name}/run"): Permission.JOBS_SUBMIT,
    ("POST", "/v1/workflows"): Permission.JOBS_SUBMIT,
    ("GET", "/v1/workflows"): Permission.JOBS_READ,
    ("GET", "/v1/workflows/{workflow_id}"): Permission.JOBS_READ,
    ("POST", "/v1/workflows/{workflow_id}/cancel"): Permission.JOBS_CHANGE,
    ("POST", "/v1/workflows/{workflow_id}/resume"): Permission.JOBS_CHANGE,
    ("GET", "/v1/groups"): Permission.JOBS_READ,
    ("GET", "/v1/groups/{group}"): Permission.JOBS_READ,
    ("POST", "/v1/groups/{group}/close"): Permission.JOBS_CHANGE,
    ("POST", "/v1/groups/{group}/cancel"): Permission.JOBS_CHANGE,
    ("GET", "/v1/sessions"): Permission.JOBS_READ,
    ("POST", "/v1/jobs/{job_id}/session-links"): Permission.JOBS_CONNECT,
    ("POST", "/v1/simulations"): Permission.SIMULATIONS_RUN,
    ("GET", "/v1/simulations"): Permission.SIMULATIONS_READ,
    ("GET", "/v1/simulations/{simulation}"): Permission.SIMULATIONS_READ,
    ("GET", "/v1/simulations/{simulation}/report"): Permission.SIMULATIONS_READ,
    ("POST", "/v1/simulations/{simulation}/cancel"): Permission.SIMULATIONS_RUN,
    ("DELETE", "/v1/simulations/{simulation}"): Permission.SIMULATIONS_RUN,
    ("GET", "/v1/usage"): Permission.USAGE_READ,
    ("GET", "/v1/top"): Permission.JOBS_LIST,
    ("GET", "/v1/jobs/{job_id}/use"): Permission.JOBS_LIST,
    ("POST", "/agent/v1/use"): Permission.AGENT,
    ("GET", "/v1/attainment"): Permission.USAGE_READ,
    ("POST", "/v1/clusters/{name}/cordon"): Permission.CLUSTERS_OPERATE,
    ("POST", "/v1/clusters/{name}/uncordon"): Permission.CLUSTERS_OPERATE,
    ("POST", "/v1/clusters/{name}/join"): Permission.CLUSTERS_OPERATE,
    ("POST", "/v1/clusters/{name}/rotate"): Permission.CLUSTERS_OPERATE,
    ("POST", "/v1/clusters/{name}/drain"): Permission.CLUSTERS_OPERATE,
    ("POST", "/v1/clusters/{name}/declare-lost"): Permission.CLUSTERS_WRITE,
    ("GET", "/v1/clusters/{name}/quarantined-runs"): Permission.CLUSTERS_OPERATE,
    ("POST", "/v1/clusters/{name}/stop-quarantined"): Permission.CLUSTERS_WRITE,
    ("GET", "/v1/whoami"): Permission.ACCOUNT,
    ("GET", "/v1/notices"): Permission.ACCOUNT,
    ("PUT", "/v1/notices"): Permission.ACCOUNT,
    ("DELETE", "/v1/notices"): Permission.ACCOUNT,
    ("GET", "/v1/doctor"): Permission.HEALTH_READ,
    ("GET", "/v1/keys"): Permission.KEYS_READ,
    ("POST", "/v1/keys"): Permission.KEYS_WRITE,
    ("DELETE", "/v1/keys/{key_id}"): Permission.KEYS_REVOKE,
    ("POST", "/v1/keys/{key_id}/restore"): Permission.KEYS_WRITE,
    ("POST", "/v1/keys/{key_id}/email"): Permission.KEYS_WRITE,
    ("POST", "/v1/keys/{key_id}/rotate"): Permission.ACCOUNT,
    ("GET", "/v1/audit"): Permission.AUDIT_READ,
    ("POST", "/v1/apply"): WRITES,
    ("GET", "/v1/history"): Permission.AUDIT_READ,
    ("POST", "/v1/rollback"): WRITES,
    ("GET", "/v1/webhooks/secrets/{path:path}"): Permission.JOBS_SUBMIT,
    ("POST", "/v1/webhooks/secrets/{path:path}/rotate"): Permission.JOBS_SUBMIT,
    ("GET", "/v1/webhooks/dead"): Permission.JOBS_READ,
    ("POST", "/v1/webhooks/dead/{letter}/retry"): Permission.JOBS_CHANGE,
    ("DELETE", "/v1/webhooks/dead/{letter}"): Permission.JOBS_CHANGE,
    ("POST", "/agent/v1/sync"): Permission.AGENT,
    ("GET", "/agent/v1/desired"): Permission.AGENT,
    ("POST", "/agent/v1/output/{run}"): Permission.AGENT,
    ("POST", "/agent/v1/streams/{stream}"): Permission.AGENT,
    ("GET", "/v1/can-i"): Permission.ACCOUNT,
    ("GET", "/v1/who-can"): Permission.ACCESS_READ,
    ("GET", "/v1/people"): Permission.KEYS_READ,
    ("GET", "/v1/changes"): Permission.JOBS_READ,
    ("GET", "/v1/efficiency"): Permission.USAGE_READ,
    ("POST", "/v1/queues/{path:path}/what-if"): Permission.SIMULATIONS_RUN,
    ("GET", "/v1/series"): Permission.CLUSTERS_READ,
    ("GET", "/v1/series/metrics"): Permission.CLUSTERS_READ,
}
"""Each route with the permission that it needs. A new route has to be written down here."""
for kind in KINDS.values():
    one = f"{kind.address}/{{path:path}}" if kind.key == "path" else f"{kind.address}/{{name}}"
    ALLOWED |= {("GET", kind.address): KIND_READ[kind.kind], ("GET", one): KIND_READ[kind.kind]}
    ALLOWED |= {(method, one): KIND_WRITE[kind.kind] for method in ("PUT", "PATCH", "DELETE")}
ALLOWED["POST", "/v1/sign-out"] = Permission.ACCOUNT
_GROUP = "/apis/trainmaster.dev/v1"
_NAMED = "/namespaces/{namespace}"
_PODS = f"/api/v1{_NAMED}/pods"
_OF_JOBS: dict[str, Needed] = {
    "GET": Permission.JOBS_READ,
    "POST": Permission.JOBS_SUBMIT,
    **dict.fromkeys(("PUT", "PATCH", "DELETE"), Permission.JOBS_CHANGE),
}
"""The permissions of calls of the Kubernetes API about jobs, by their method."""
for one in (
    *(f"/api/v1{place}/{kind}" for place in ("", _NAMED) for kind in ("events", "pods")),
    *(f"/api/v1{_NAMED}/{kind}/{{name}}" for kind in ("events", "pods")),
    *(f"{_GROUP}/runs", f"{_GROUP}{_NAMED}/runs", f"{_GROUP}{_NAMED}/runs/{{name}}", f"{_GROUP}/jobs"),
    f"{_PODS}/{{name}}/log",
):
    ALLOWED["GET", one] = Permission.JOBS_READ
ALLOWED |= {("GET", f"/api/v1/namespaces{one}"): Permission.QUEUES_READ for one in ("", "/{name}")}
ALLOWED |= {(method, f"{_PODS}/{{name}}/{{subresource}}"): Permission.JOBS_READ for method in _OF_JOBS}
ALLOWED |= {(method, f"{_PODS}/{{name}}"): Permission.JOBS_CHANGE for method in ("PUT", "PATCH", "DELETE")}
ALLOWED["POST", _PODS] = Permission.JOBS_SUBMIT
_DECLARED = {"GET": KIND_READ["Queue"], **dict.fromkeys(("POST", "PUT", "PATCH", "DELETE"), KIND_WRITE["Queue"])}
"""``{plural}`` stands for queues."""
ALLOWED |= {(method, f"{_GROUP}/{{plural}}"): _DECLARED[method] for method in ("GET", "POST")}
ALLOWED |= {
    (method, f"{_GROUP}/{{plural}}/{{name}}"): _DECLARED[method] for method in ("GET", "PUT", "PATCH", "DELETE")
}
ALLOWED |= {(method, f"{_GROUP}/{{plural}}/{{name}}/scale"): _DECLARED[method] for method in ("GET", "PUT", "PATCH")}
_OF_KIND = f"/apis/{{group}}/{{api_version}}{_NAMED}/{{plural}}"
"""Of a group that this server does not know, so that nobody needs a permission to hear that."""
ALLOWED |= {
    ("GET", "/apis/{group}/{api_version}/{plural}"): ANY_PERSON,
    **{(method, _OF_KIND): ANY_PERSON for method in ("GET", "POST", "DELETE")},
    **{(method, f"{_OF_KIND}/{{name}}"): ANY_PERSON for method in ("GET", "PUT", "PATCH", "DELETE")},
    **{(method, f"{of}/{{path:path}}"): ANY_PERSON for method in _OF_JOBS for of in ("/api", "/apis")},
    ("GET", "/openapi/{path:path}"): ANY_PERSON,
}
for place in (f"{_GROUP}{{}}/jobs", f"{_GROUP}{{}}/schedules", f"{_GROUP}{{}}/workflows", "/apis/batch/v1{}/cronjobs"):
    within = place.format(_NAMED)
    ALLOWED |= {("GET", place.format("")): Permission.JOBS_READ}
    ALLOWED |= {(method, within): _OF_JOBS[method] for method in ("GET", "POST")}
    ALLOWED |= {(method, f"{within}/{{name}}"): _OF_JOBS[method] for method in ("GET", "PUT", "PATCH", "DELETE")}
ALLOWED["DELETE", f"{_GROUP}{_NAMED}/jobs"] = Permission.JOBS_CHANGE
ALLOWED |= {
    ("POST", f"/apis/{one}"): ANY_PERSON
    for one in (
        "authorization.k8s.io/v1/selfsubjectaccessreviews",
        "authorization.k8s.io/v1/selfsubjectrulesreviews",
        "authentication.k8s.io/v1/selfsubjectreviews",
    )
}
for one in ("exec", "attach", "portforward"):
    ALLOWED[WEB_SOCKET, f"/v1/jobs/{{job_id}}/{one}"] = Permission.JOBS_CONNECT
    ALLOWED[WEB_SOCKET, f"{_PODS}/{{name}}/{one}"] = Permission.JOBS_CONNECT
ALLOWED[WEB_SOCKET, "/agent/v1/member-streams/{stream}"] = Permission.AGENT


def opens(role: KeyRole, needed: Needed, *, for_queues: bool = False) -> bool:
    """Return whether a role opens a route that needs this."""
    has = permissions_of(role, for_queues=for_queues)
    if needed == WRITES:
        return not has.isdisjoint(KIND_WRITE.values())
    if needed == ANY_PERSON:
        return role not in (KeyRole.OWNER, KeyRole.AGENT)
    return needed in has


def calls_of(routes: Iterable[BaseRoute]) -> Iterator[Call]:
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from calls_of(included.routes)
        elif isinstance(route, APIRoute):
            yield from ((method, route.path) for method in route.methods or ())
        elif isinstance(route, WebSocketRoute):
            yield WEB_SOCKET, route.path
        else:
            yield "GET", str(getattr(route, "path", route))


@pytest.fixture(scope="module")
def every_call() -> list[Call]:
    """Method and path of each route of the application that is not open to everybody."""
    app = make_app(Settings.model_validate({"database_url": "postgresql://nowhere/none"})).routes
    assert isinstance(app, FastAPI)
    return sorted({call for call in calls_of(app.routes) if call[1] not in OPEN})


def address(path: str) -> str:
    path = path.replace("{workflow_id}", "x-w0000001")
    for name in ("job_id", "path:path", "name", "group", "stream", "namespace"):
        path = path.replace(f"{{{name}}}", "x-0000001")
    path = path.replace("{plural}", "queues")
    return path.replace("{key_id}", "999999").replace("{simulation}", "999999").replace("{letter}", "999999")


async def call(http: httpx.AsyncClient, method: str, path: str, **options: Any) -> httpx.Response:
    """Make a call to an address that stands for a route; a WebSocket is one that is refused."""
    if method != WEB_SOCKET:
        return await http.request(method, address(path), **options)
    return await http.get(address(path), headers={**options.get("headers", {}), **_HANDSHAKE})


def code_of(answer: httpx.Response) -> str:
    """Return the code of a refusal: of a problem, or of a Status of the Kubernetes API."""
    body = answer.json()
    return str(body["details"]["causes"][0]["reason"] if body.get("kind") == "Status" else body["code"])


_NUMBERS = count(1)


async def make_key(service: Service, role: str, **fields: object) -> str:
    answer = await service.http.post("/v1/keys", json={"name": f"a {role} {next(_NUMBERS)}", "role": role, **fields})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["key"])


def test_the_table_of_rights_has_every_route(every_call: list[Call]) -> None:
    assert set(every_call) == set(ALLOWED), "each route is in ALLOWED"


def test_openapi_shows_the_permission_of_each_call() -> None:
    app = make_app(Settings.model_validate({"database_url": "postgresql://nowhere/none"})).routes
    assert isinstance(app, FastAPI)
    shown = {
        (method.upper(), path): operation.get("x-permission")
        for path, methods in document(app)["paths"].items()
        for method, operation in methods.items()
    }
    writes = " or ".join(dict.fromkeys(KIND_WRITE.values()))
    for (method, path), needed in ALLOWED.items():
        if path.startswith(("/v1", "/agent")) and method != WEB_SOCKET and (method, path) != ("POST", "/v1/sign-out"):
            address = path.replace(":path", "")
            if (method, address) in shown:
                assert shown[method, address] == (writes if needed == WRITES else needed), (method, path)
    assert sum(one is not None for one in shown.values()) > 100


async def test_every_route_refuses_who_shows_no_valid_key(service: Service, every_call: list[Call]) -> None:
    revoked = await make_key(service, "admin")
    key_id = (await service.http.get("/v1/keys")).json()["keys"][-1]["id"]
    assert (await service.http.delete(f"/v1/keys/{key_id}")).status_code == 204
    expired = await make_key(service, "admin", expiresIn="1h")
    await execute(
        service.stores, "UPDATE api_keys SET expires_at = now() - interval '1 ms' WHERE expires_at IS NOT NULL"
    )
    before = await picture(service.stores)
    headers: list[dict[str, str]] = [{"Authorization": f"Bearer {key}"} for key in ("tmk_wrong", revoked, expired)]
    headers += [{}, {"Authorization": "Bearer"}, {"Authorization": "Basic tmk_admin"}, {"Authorization": "tmk_admin"}]
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as nobody:
        for method, path in every_call:
            for header in headers:
                answer = await call(nobody, method, path, headers=header, json={})
                refusal = (answer.status_code, code_of(answer), answer.headers.get("www-authenticate"))
                assert refusal == (401, "unauthenticated", "Bearer"), (method, path, header)
        for path in ("/healthz", "/readyz"):
            assert (await nobody.get(path)).status_code == 200
    assert await picture(service.stores) == before


async def test_a_key_that_was_in_use_is_dead_soon_after_it_was_revoked(service: Service) -> None:
    http = service.as_key(await make_key(service, "user", queues=["default"]))
    assert (await http.get("/v1/jobs")).status_code == 200
    key_id = (await service.http.get("/v1/keys")).json()["keys"][-1]["id"]
    await service.http.delete(f"/v1/keys/{key_id}")

    async def dead() -> bool:
        return (await http.get("/v1/jobs")).status_code == 401

    await eventually(dead, 4)


async def test_each_role_opens_its_own_routes_only(service: Service, every_call: list[Call]) -> None:
    """Each role for the whole installation, and each that may be for some queues for one, makes every call of the API."""
    own = address("{name}")
    assert (await service.http.put(f"/v1/clusters/{own}", json={"name": own})).status_code == 201
    callers: list[tuple[KeyRole, bool, str]] = [
        (KeyRole.ADMIN, False, "tmk_admin"),
        (KeyRole.AGENT, False, "tmk_private"),
        (KeyRole.OWNER, False, await make_key(service, "owner", clusters=[own])),
    ]
    for role in KeyRole:
        if role in TAKE_QUEUES:
            callers.append((role, True, await make_key(service, role, queues=["default"])))
        if role in TAKE_QUEUES - NEED_QUEUES:
            callers.append((role, False, await make_key(service, role)))
    assert {role for role, _, _ in callers} == set(KeyRole)
    tried = refused = 0
    for role, for_queues, key in callers:
        async with service.as_key(key) as http:
            for method, path in every_call:
                answer = await call(http, method, path, content=b"[]")
                allowed = opens(role, ALLOWED[method, path], for_queues=for_queues)
                assert (answer.status_code != 403) == allowed, (role, for_queues, method, path, answer.text)
                assert allowed or code_of(answer) == "forbidden"
                tried, refused = tried + 1, refused + (not allowed)
    assert refused > 500, (tried, refused)


@dataclass
class Tenants:
    """Two teams with a job each, and a user of the first one."""

    service: Service
    user: httpx.AsyncClient
    own: str
    other: str


@pytest.fixture
async def tenants(service: Service) -> AsyncIterator[Tenants]:
    for path in ("org", "org/a", "org/a/x", "org/ab", "org/b"):
        await service.http.put(f"/v1/queues/{path}", json={"path": path, "jobActions": "any"})
    key = await make_key(service, "user", queues=["org/a"])
    own = await service.submit("own", "org/a/x", labels={"of": "all"})
    other = await service.submit("other", "org/ab", labels={"of": "all"})
    async with service.as_key(key) as user:
        yield Tenants(service, user, own, other)


async def test_a_user_submits_to_own_queues_and_below_only(tenants: Tenants) -> None:
    for queue, status in {"org/a/x": 201, "org/ab": 403, "org/b": 403, "org": 403, "default": 403, "none": 403}.items():
        assert (await tenants.user.post("/v1/jobs", json=job(queue=queue))).status_code == status, queue
    both = {"jobs": [job(queue="org/a/x"), job(queue="org/b")]}
    before = await picture(tenants.service.stores)
    assert (await tenants.user.post("/v1/jobs", json=both)).status_code == 403
    assert await picture(tenants.service.stores) == before


async def test_the_job_of_another_is_as_if_it_were_not_there(tenants: Tenants) -> None:
    before = await picture(tenants.service.stores)
    for job_id, status in ((tenants.other, 404), ("other-0000001", 404), (tenants.own, 200)):
        for path in ("", "/why", "/events", "/logs"):
            answer = await tenants.user.get(f"/v1/jobs/{job_id}{path}")
            assert answer.status_code == status, path
        if status == 404:
            for action in ("cancel", "suspend", "resume", "retry"):
                assert (await tenants.user.post(f"/v1/jobs/{job_id}/{action}")).status_code == 404
            assert (await tenants.user.patch(f"/v1/jobs/{job_id}", json={"priority": 1})).status_code == 404
    stream = await tenants.user.get(f"/v1/jobs/{tenants.other}/events", headers={"Accept": "text/event-stream"})
    assert stream.status_code == 404
    assert await picture(tenants.service.stores) == before
    assert (await tenants.user.patch(f"/v1/jobs/{tenants.own}", json={"priority": 1})).status_code == 200


async def test_lists_show_a_user_own_queues_and_jobs_only(tenants: Tenants) -> None:
    async def names(**parameters: str) -> list[str]:
        answer = await tenants.user.get("/v1/jobs", params=parameters)
        return [item["name"] for item in answer.json()["jobs"]]

    for parameters in (
        {},
        {"queue": "org"},
        {"queue": "org/a"},
        {"label": "of=all"},
        {"name": "*"},
        {"state": "queued"},
    ):
        assert await names(**parameters) == ["own"], parameters
    for queue in ("org/ab", "org/b", "default", "none"):
        answer = await tenants.user.get("/v1/jobs", params={"queue": queue})
        assert answer.json()["code"] == "unknown-queue", "a queue of others is as if it were not there"
        assert (await tenants.user.get(f"/v1/queues/{queue}")).status_code == 404
    shown = (await tenants.user.get("/v1/queues")).json()["queues"]
    assert [queue["path"] for queue in shown] == ["org", "org/a", "org/a/x"]


async def test_bulk_actions_of_a_user_touch_own_jobs_only(tenants: Tenants) -> None:
    for action, patch in (
        ("reprioritise", {"patch": {"priority": 5}}),
        ("suspend", {}),
        ("resume", {}),
        ("cancel", {}),
    ):
        body = {"filter": {"labels": {"of": "all"}}, **patch}
        answer = await tenants.user.post(f"/v1/jobs/{action}", json=body | {"dryRun": True})
        assert answer.json() == {"matched": 1, "changed": 0, "refused": 0, "dryRun": True}
        assert (await tenants.user.post(f"/v1/jobs/{action}", json=body)).json()["changed"] == 1
    other = await tenants.service.job(tenants.other)
    assert (other["state"], other["version"]) == ("queued", 1)
    assert (await tenants.service.job(tenants.own))["state"] == "cancelled"


async def test_an_agents_key_opens_its_own_cluster_only(service: Service) -> None:
    owner, thief = service.agent(), service.agent("edge", session="session-e", holder="holder-e")
    await owner.connect()
    job_id = await service.submit(placement={"clusters": ["private"]})
    run = (await owner.next_start())["run"]
    await owner.report(run, RunState.RUNNING, 1)
    await thief.sync()  # what the first sync of a session reports is not looked at
    before = await picture(service.stores)
    for state in (RunState.SUCCEEDED, RunState.FAILED, RunState.LOST):
        answer = await thief.sync(RunReport(run=run, generation=1, seq=9, state=state))
        assert (answer.json()["unknown"], answer.json()["settled"]) == ([run], [])
    assert (await thief.desired())["start"] == []
    wrong = {
        "session": thief.session,
        "chunks": [{"role": "main", "index": 0, "offset": 0, "data": "x", "nextOffset": 1}],
    }
    assert (await thief.http.post(f"/agent/v1/streams/{run}", json=wrong, headers=thief._headers())).status_code == 404
    stolen = {"session": owner.session}
    for answer in (
        await thief.http.get("/agent/v1/desired", params=stolen, headers=thief._headers()),
        await thief.http.post("/agent/v1/streams/x", json=stolen, headers=thief._headers()),
        await thief.http.post("/agent/v1/sync", json={**stolen, "holder": "h", "number": 1}, headers=thief._headers()),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "session-superseded")
    after = await picture(service.stores)
    assert after["versions"] == before["versions"]
    assert await rows(service.stores, "SELECT 1 FROM run_tails") == []
    assert (await service.job(job_id))["state"] == "running"
    assert (await owner.sync()).status_code == 200


async def test_keys_are_read_once_while_no_key_changes(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    read = key_store.all_that_count
    reads: list[float] = []

    async def counted(tx: Transaction) -> dict[bytes, key_store.CountingKey]:
        reads.append(clock)
        return await read(tx)

    clock = 1000.0
    secret = await make_key(service, "user", queues=["default"])
    monkeypatch.setattr(key_store, "all_that_count", counted)
    keyring = Keyring(service.stores, lambda: clock)
    for _ in range(3):
        caller = await keyring.caller(secret)
        assert caller is not None
        assert caller.queues == ("default",)
        assert await keyring.caller("tmk_unknown") is None
        clock += 5
    assert reads == [1000.0]
    other = await make_key(service, "user", queues=["default"])
    assert await keyring.caller(secret) is not None
    clock += 1
    assert await keyring.caller(other) is not None, "a key counts as soon as it is made"
    del reads[0]
    at = clock
    clock += 59
    await keyring.caller(secret)
    clock += 2
    await keyring.caller(secret)
    assert reads == [1015.0, at + 61] or reads == [at, at + 61], "kept for a minute at most"


async def test_a_key_may_be_used_by_whoever_has_just_made_it(service: Service) -> None:
    keyring = Keyring(service.stores, lambda: 1000.0)
    assert await keyring.caller("tmk_admin") is not None
    secret = await make_key(service, "user", queues=["default"])
    assert await keyring.caller(secret) is not None, "though the last look was at this very moment of its clock"


async def test_wrong_keys_cost_few_looks_and_displace_no_good_one(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyring_module, "_MOST_UNKNOWN", 100)
    looks = 0
    revision = key_store.revision

    async def counted(tx: Transaction) -> str:
        nonlocal looks
        looks += 1
        return await revision(tx)

    monkeypatch.setattr(key_store, "revision", counted)
    keyring = Keyring(service.stores)
    assert await keyring.caller("tmk_admin") is not None
    for batch in range(5):
        found = await asyncio.gather(*[keyring.caller(f"tmk_wrong_{batch}_{n}") for n in range(100)])
        assert found == [None] * 100
    assert looks <= 5 + 5 + 1, "those that come together share one"
    before = looks
    assert await asyncio.gather(*[keyring.caller(f"tmk_wrong_4_{n}") for n in range(100)]) == [None] * 100
    assert len(keyring._unknown) <= 100
    assert await keyring.caller("tmk_admin") is not None
    assert looks <= before + 1, "what is known to be wrong is looked for no more"


async def test_a_key_that_is_kept_expires_in_time(service: Service) -> None:
    clock = 1000.0
    keyring = Keyring(service.stores, lambda: clock)
    secret = await make_key(service, "admin", expiresIn="1h")
    await execute(
        service.stores, "UPDATE api_keys SET expires_at = now() + interval '20 s' WHERE expires_at IS NOT NULL"
    )
    assert await keyring.caller(secret) is not None
    await execute(
        service.stores, "UPDATE api_keys SET expires_at = now() - interval '1 s' WHERE expires_at IS NOT NULL"
    )
    clock += 15
    assert await keyring.caller(secret) is not None, "kept"
    clock += 6
    assert await keyring.caller(secret) is None


async def test_a_key_read_just_before_it_was_revoked_is_not_kept_beyond_that(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1000.0
    keyring = Keyring(service.stores, lambda: clock)
    secret = await make_key(service, "user", queues=["default"])
    key_id = (await service.http.get("/v1/keys")).json()["keys"][-1]["id"]
    read = key_store.all_that_count

    async def slow(tx: Transaction) -> dict[bytes, key_store.CountingKey]:
        outcome = await read(tx)
        monkeypatch.setattr(key_store, "all_that_count", read)
        assert (await service.http.delete(f"/v1/keys/{key_id}")).status_code == 204
        return outcome

    monkeypatch.setattr(key_store, "all_that_count", slow)
    assert await keyring.caller(secret) is not None
    assert keyring.counts(key_id)
    clock += 1
    assert await keyring.caller(secret) is None
    assert not keyring.counts(key_id)


async def test_when_keys_cannot_be_looked_at_nobody_waits_for_others_to_find_out(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []

    async def away(tx: Transaction) -> str:
        tried.append(clock)
        raise StoreAwayError("away")

    clock = 1000.0
    keyring = Keyring(service.stores, lambda: clock)
    monkeypatch.setattr(key_store, "revision", away)
    answers = await asyncio.gather(*[keyring.caller(f"tmk_{n}") for n in range(50)], return_exceptions=True)
    assert all(isinstance(answer, StoreAwayError) for answer in answers)
    assert len(tried) == 1
    clock += 1
    with pytest.raises(StoreAwayError):
        await keyring.caller("tmk_1")
    assert len(tried) == 2, "it is tried again a second later"
    monkeypatch.undo()
    clock += 1
    assert await keyring.caller("tmk_admin") is not None


async def test_a_process_that_stood_still_does_not_tell_that_the_store_is_away(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyring_module, "_LONGEST_LOOK", 0.4)
    monkeypatch.setattr(keyring_module, "_STALL_SECONDS", 0.2)
    revision, reads = key_store.revision, 0

    async def standing_still(tx: Transaction) -> str:
        nonlocal reads
        reads += 1
        if reads == 1:
            time.sleep(1)  # noqa: ASYNC251 - the whole process stands still
        return await revision(tx)

    monkeypatch.setattr(key_store, "revision", standing_still)
    assert await Keyring(service.stores).caller("tmk_admin") is not None
    assert reads >= 2

    async def silent(tx: Transaction) -> str:
        nonlocal reads
        reads += 1
        await asyncio.sleep(60)
        return await revision(tx)

    reads = 0
    monkeypatch.setattr(keyring_module, "_STALL_SECONDS", 30)
    monkeypatch.setattr(key_store, "revision", silent)
    with pytest.raises(StoreAwayError):
        await Keyring(service.stores).caller("tmk_admin")
    assert reads == 1, "a store that does not answer is not waited for twice"
