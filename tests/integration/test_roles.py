"""Roles for some queues: what each may see and change in its own subtree and in others, and what a queue administrator may declare."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from tests.conftest import Service, job
from tests.integration.rows import picture
from tests.integration.test_authorization import ALLOWED, Call, call, make_key, opens
from tests.waiting import eventually
from trainmaster.protocol.permissions import TAKE_QUEUES, Permission
from trainmaster.protocol.states import KeyRole
from trainmaster_dispatcher.domain.role_bindings import Grant
from trainmaster_dispatcher.store.keys import Caller

SECRET = "sesame"  # a part of all names in the subtree of others
OWN, OTHER = "org/own", f"org/{SECRET}"
_SCOPED = sorted(TAKE_QUEUES)
_FREE = {
    # Answers that are the same for everybody who has the role, whatever is in the subtree.
    ("GET", "/v1/whoami"),
    ("POST", "/v1/sign-out"),
    ("GET", "/v1/doctor"),
    ("GET", "/v1/changes"),  # does not end; tests/integration/test_page_changes.py
}
Names = dict[str, str]


@dataclass
class Subtrees:
    """The objects of two subtrees, each with one of each kind that a route names."""

    service: Service
    own: Names = field(default_factory=dict)
    other: Names = field(default_factory=dict)


async def _put(service: Service, address: str, **fields: Any) -> None:
    answer = await service.http.put(f"/v1/{address}", json=fields)
    assert answer.is_success, answer.text


async def _objects(service: Service, queue: str, word: str) -> Names:
    spec = job(f"{word}-job", queue, labels={"team": word}, group=f"{word}-group")
    answer = await service.http.post("/v1/jobs", json=spec)
    assert answer.status_code == 201, answer.text
    names = {"job_id": str(answer.json()["id"]), "path": queue, "group": f"{word}-group"}
    template = {key: value for key, value in job("", queue).items() if key not in ("name", "queue")}
    flow = {"name": f"{word}-flow", "queue": queue, "steps": [{"name": "one", "job": template}]}
    made = await service.http.post("/v1/workflows", json=flow)
    assert made.status_code == 201, made.text
    names["workflow_id"] = str(made.json()["id"])
    schedule = {"name": f"{word}-schedule", "schedule": "0 3 * * *", "queue": queue, "job": template}
    made = await service.http.post("/v1/schedules", json=schedule)
    assert made.status_code == 201, made.text
    names["schedules"] = f"{word}-schedule"
    await _put(service, f"burst-policies/{word}", name=word, queues=[queue], budget={"day": "10"}, paused=True)
    await _put(service, f"role-bindings/{word}", name=word, groups=[word], role="viewer", queues=[queue])
    await _put(service, f"clusters/{word}", name=word, onlyQueues=[queue])
    return names | {"burst-policies": word, "role-bindings": word, "clusters": word}


@pytest.fixture
async def subtrees(service: Service) -> Subtrees:
    await _put(service, "queues/org", path="org")
    for path in (OWN, OTHER):
        await _put(service, f"queues/{path}", path=path, jobActions="any", resources={"cpu": {"guaranteed": "4"}})
    own, other = await _objects(service, OWN, "ours"), await _objects(service, OTHER, SECRET)
    return Subtrees(service, own, other)


def _filled(path: str, names: Names) -> str | None:
    """Return the address of a route about an object of these; None for a route that names none."""
    found = path.replace("{path:path}", names["path"])
    for name in ("job_id", "group", "workflow_id"):
        found = found.replace(f"{{{name}}}", names[name])
    kind = path.split("/")[2] if path.startswith("/v1/") else ""
    if kind in names:
        found = found.replace("{name}", names[kind])
    return None if found == path or "{" in found else found


async def _answers(http: httpx.AsyncClient, names: Names, methods: set[str]) -> dict[Call, httpx.Response]:
    found = {}
    for method, path in ALLOWED:
        address = _filled(path, names) if path.startswith("/v1/") else None
        if method in methods and address is not None:
            body = {} if method == "GET" else {"content": b"[]"}
            found[method, path] = await call(http, method, address, **body)
    return found


@pytest.mark.parametrize("role", _SCOPED)
async def test_a_role_for_some_queues_reads_these_and_nothing_of_others(subtrees: Subtrees, role: KeyRole) -> None:
    async with subtrees.service.as_key(await make_key(subtrees.service, role, queues=[OWN])) as http:
        own = await _answers(http, subtrees.own, {"GET"})
        other = await _answers(http, subtrees.other, {"GET"})
        lists = {
            path: await http.get(path)
            for method, path in ALLOWED
            if method == "GET" and path.startswith("/v1/") and "{" not in path and (method, path) not in _FREE
            if opens(role, ALLOWED[method, path], for_queues=True)
        }
    assert len(own) == len(other) >= 15
    for (method, path), answer in own.items():
        allowed = opens(role, ALLOWED[method, path], for_queues=True)
        if allowed:
            # A job that is no array and has not run has neither elements nor a session.
            is_none = "has no `array`" in answer.text or answer.status_code in (409, 422)
            assert answer.status_code == 200 or is_none, (path, answer.text)
        else:
            assert answer.status_code == 403, (path, answer.text)
    for (_, path), answer in other.items():
        assert answer.status_code in (403, 404, 422), (path, answer.text)
        assert "guaranteed" not in answer.text
    for path, answer in lists.items():
        assert answer.status_code in (200, 422), (path, answer.text)
        assert SECRET not in answer.text, (path, answer.text)
    if opens(role, Permission.JOBS_LIST, for_queues=True):
        assert [one["name"] for one in lists["/v1/jobs"].json()["jobs"]] == ["one", "ours-job"]


@pytest.mark.parametrize("role", _SCOPED)
async def test_a_role_for_some_queues_changes_nothing_of_others(subtrees: Subtrees, role: KeyRole) -> None:
    changes = {"POST", "PUT", "PATCH", "DELETE"}
    async with subtrees.service.as_key(await make_key(subtrees.service, role, queues=[OWN])) as http:
        before = await _settled(subtrees.service)
        for (method, path), answer in (await _answers(http, subtrees.other, changes)).items():
            assert answer.status_code in (403, 404, 422, 400), (method, path, answer.text)
        assert (await http.post("/v1/jobs", json=job("theirs", OTHER))).status_code == 403
        assert await picture(subtrees.service.stores) == before
        bulk = {"filter": {"labels": {"team": SECRET}}}
        for action in ("cancel", "suspend", "resume", "retry"):
            answer = await http.post(f"/v1/jobs/{action}", json=bulk)
            assert answer.status_code == 403 or answer.json()["matched"] == 0, answer.text
    assert (await subtrees.service.job(subtrees.other["job_id"]))["state"] == "queued"


async def _settled(service: Service) -> dict[str, Any]:
    """Return the picture of the store once nothing changes by itself: the first step of a workflow is submitted a moment later."""
    pictures: list[dict[str, Any]] = []

    async def is_settled() -> bool:
        pictures.append(await picture(service.stores))
        return len(pictures) > 2 and pictures[-1] == pictures[-2] == pictures[-3]

    await eventually(is_settled)
    return pictures[-1]


@pytest.mark.parametrize("role", [KeyRole.VIEWER, KeyRole.AUDITOR, KeyRole.FINANCE])
async def test_roles_that_only_read_change_nothing_of_their_own_either(subtrees: Subtrees, role: KeyRole) -> None:
    async with subtrees.service.as_key(await make_key(subtrees.service, role, queues=[OWN])) as http:
        before = await _settled(subtrees.service)
        for (method, path), answer in (await _answers(http, subtrees.own, {"POST", "PUT", "PATCH", "DELETE"})).items():
            assert answer.status_code == 403, (method, path, answer.text)
        assert (await http.post("/v1/jobs", json=job("new", OWN))).status_code == 403
        assert (await http.post("/v1/jobs?dryRun=true", json=job("new", OWN))).status_code == 403
    assert await picture(subtrees.service.stores) == before


async def test_an_operator_and_an_auditor_read_all_and_finance_the_costs(subtrees: Subtrees) -> None:
    service = subtrees.service
    for role in (KeyRole.OPERATOR, KeyRole.AUDITOR):
        async with service.as_key(await make_key(service, role)) as http:
            names = [one["name"] for one in (await http.get("/v1/jobs")).json()["jobs"]]
            assert {"ours-job", f"{SECRET}-job"} <= set(names)
            assert (await http.get(f"/v1/jobs/{subtrees.other['job_id']}/why")).status_code == 200
            assert (await http.get("/v1/audit")).status_code == 200
            assert len((await http.get("/v1/queues")).json()["queues"]) >= 3
            cancelled = await http.post(f"/v1/jobs/{subtrees.own['job_id']}/suspend")
            assert cancelled.status_code == (200 if role is KeyRole.OPERATOR else 403)
            assert (await http.post("/v1/jobs", json=job("new", OWN))).status_code == 403
    async with service.as_key(await make_key(service, KeyRole.FINANCE)) as http:
        assert (await http.get("/v1/usage?by=queue")).status_code == 200
        assert (await http.put("/v1/price-books/new", json={"name": "new"})).status_code == 201
        assert (await http.get("/v1/jobs")).status_code == 403
        assert (await http.get(f"/v1/jobs/{subtrees.own['job_id']}")).status_code == 403


def test_roles_of_one_person_add_up() -> None:
    """A viewer of one subtree and submitter of another one submits to the latter alone."""
    both = Caller(1, "ana", KeyRole.SUBMITTER, grants=(Grant(KeyRole.VIEWER, ("a",)), Grant(KeyRole.SUBMITTER, ("b",))))
    assert both.with_permission(Permission.JOBS_READ).queues == ("a", "b")
    assert both.with_permission(Permission.JOBS_SUBMIT).queues == ("b",)
    assert not both.has(Permission.JOBS_CHANGE, "a/x")
    assert both.has(Permission.JOBS_CHANGE, "b/x")
    everywhere = replace(both, grants=(*both.grants, Grant(KeyRole.AUDITOR)))
    assert everywhere.with_permission(Permission.JOBS_READ).has_every_queue
    assert not everywhere.with_permission(Permission.JOBS_SUBMIT).has_every_queue


# -- a queue administrator


@pytest.fixture
async def queue_admin(subtrees: Subtrees) -> AsyncIterator[httpx.AsyncClient]:
    async with subtrees.service.as_key(await make_key(subtrees.service, "queue-admin", queues=[OWN])) as http:
        yield http


async def test_a_queue_administrator_divides_the_own_guarantee(
    subtrees: Subtrees, queue_admin: httpx.AsyncClient
) -> None:
    for one in (subtrees.own["job_id"],):
        await subtrees.service.http.post(f"/v1/jobs/{one}/cancel", json={})
    empty = f"{OWN}-empty"
    await _put(subtrees.service, f"queues/{empty}", path=empty, resources={"cpu": {"guaranteed": "4"}})
    async with subtrees.service.as_key(await make_key(subtrees.service, "queue-admin", queues=[empty])) as http:
        first = {"path": f"{empty}/a", "weight": 2, "resources": {"cpu": {"guaranteed": "3"}}}
        assert (await http.put(f"/v1/queues/{empty}/a", json=first)).status_code == 201
        more = {"path": f"{empty}/b", "resources": {"cpu": {"guaranteed": "2"}}}
        refused = await http.put(f"/v1/queues/{empty}/b", json=more)
        assert (refused.status_code, "guaranteed more cpu than it has itself" in refused.text) == (403, True)
        more["resources"] = {"cpu": {"guaranteed": "1"}}
        assert (await http.put(f"/v1/queues/{empty}/b", json=more)).status_code == 201
        applied = await http.post("/v1/apply", json={"documents": [{"kind": "Queue", **more, "weight": 3}]})
        assert applied.status_code == 200, applied.text
        gone = await http.delete(f"/v1/queues/{empty}/b")
        assert gone.status_code == 204, gone.text
        assert (await http.patch(f"/v1/queues/{empty}", json={"weight": 5})).status_code == 403, "its own root"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("allowedKinds", ["private", "public", "edge"]),
        ("preemption", "none"),
        ("minRunTime", "1h"),
        ("priceFactor", "0.5"),
        ("namespace", "default"),
        ("admission", {"privileged": True}),
    ],
)
async def test_what_concerns_other_queues_is_set_by_admins(
    service: Service, subtrees: Subtrees, field: str, value: Any
) -> None:
    await _put(service, "queues/team", path="team")
    async with service.as_key(await make_key(service, "queue-admin", queues=["team"])) as http:
        answer = await http.put("/v1/queues/team/x", json={"path": "team/x", field: value})
        assert answer.status_code in (403, 422), answer.text
        if answer.status_code == 403:
            assert answer.json()["mistakes"][0]["path"] == field
        assert (await http.put("/v1/queues/team/x", json={"path": "team/x"})).status_code == 201
        patched = await http.patch("/v1/queues/team/x", json={field: value})
        assert patched.status_code in (403, 422), patched.text
        applied = {"documents": [{"kind": "Queue", "path": "team/x", field: value}]}
        assert (await http.post("/v1/apply", json=applied)).status_code in (403, 422)


async def test_a_queue_administrator_binds_roles_and_policies_for_the_own_queues_alone(
    subtrees: Subtrees, queue_admin: httpx.AsyncClient
) -> None:
    http, before = queue_admin, await _settled(subtrees.service)

    async def bound(name: str, **fields: Any) -> int:
        return (await http.put(f"/v1/role-bindings/{name}", json={"name": name, "groups": ["g"], **fields})).status_code

    for role in ("admin", "operator", "auditor", "finance"):
        assert await bound("new", role=role) == 403, role
        if role != "admin":
            assert await bound("new", role=role, queues=[OWN]) == 403, role
    assert await bound("new", role="viewer", queues=[OTHER]) == 403
    assert await bound("new", role="viewer", queues=[OWN, OTHER]) == 403
    assert await bound(SECRET, role="viewer", queues=[OWN]) == 403, "that of another subtree"
    assert (await http.delete(f"/v1/role-bindings/{SECRET}")).status_code == 403
    policy = {"name": "new", "budget": {"day": "1"}, "paused": True}
    for queues in ([OTHER], [OWN, OTHER], ["org"]):
        answer = await http.put("/v1/burst-policies/new", json=policy | {"queues": queues})
        assert answer.status_code == 403, answer.text
        tried = await http.post("/v1/burst-policies/preview", json={"policies": [policy | {"queues": queues}]})
        assert tried.status_code == 403, tried.text
    for kind, spec in (
        ("priority-classes", {"value": 1000}),
        ("datasets", {"size": "1Gi", "clusters": ["ours"]}),
        ("price-books", {}),
        ("clusters", {}),
    ):
        assert (await http.put(f"/v1/{kind}/new", json={"name": "new", **spec})).status_code == 403, kind
    rolled_back = {"kind": "RoleBinding", "name": SECRET, "revision": 1}
    assert (await http.post("/v1/rollback", json=rolled_back)).status_code == 403
    documents = [{"kind": "RoleBinding", "name": SECRET, "groups": ["g"], "role": "viewer", "queues": [OWN]}]
    assert (await http.post("/v1/apply", json={"documents": documents, "force": True})).status_code == 403
    assert await picture(subtrees.service.stores) == before
    assert await bound("new", role="submitter", queues=[f"{OWN}"]) == 201
    assert (await http.put("/v1/burst-policies/new", json=policy | {"queues": [OWN]})).status_code == 201
    assert (await http.delete("/v1/role-bindings/new")).status_code == 204
    assert (await http.delete("/v1/burst-policies/new")).status_code == 204


async def test_a_queue_administrator_changes_jobs_of_others_in_the_own_queues(subtrees: Subtrees) -> None:
    service = subtrees.service
    await _put(service, f"queues/{OWN}", path=OWN, jobActions="own")
    for role, status in (("submitter", 409), ("queue-admin", 200)):
        async with service.as_key(await make_key(service, role, queues=[OWN])) as http:
            answer = await http.post(f"/v1/jobs/{subtrees.own['job_id']}/cancel", json={})
            code = "job-of-another" if role == "submitter" else None
            assert (answer.status_code == 200) == (status == 200), answer.text
            assert answer.json().get("code") == code


# -- reports


async def test_can_i_and_who_can(subtrees: Subtrees) -> None:
    service = subtrees.service
    async with service.as_key(await make_key(service, "viewer", queues=[OWN])) as http:

        async def can(permission: str, **parameters: str) -> dict[str, Any]:
            answer = await http.get("/v1/can-i", params={"permission": permission, **parameters})
            assert answer.status_code == 200, answer.text
            return dict(answer.json())

        read = await can("jobs.read", queue=OWN)
        assert (read["allowed"], read["why"]) == (True, f"by the role viewer for {OWN}, of the key")
        submit = await can("jobs.submit", queue=OWN)
        assert (submit["allowed"], submit["grants"]) == (False, [])
        assert "its roles: viewer" in submit["why"]
        refused = await http.get("/v1/can-i", params={"permission": "jobs.read", "queue": OTHER})
        assert refused.json()["code"] == "unknown-queue"
        assert (await http.get("/v1/can-i?permission=all")).status_code == 422
        whole = await http.get("/v1/can-i", params={"permission": "audit.read", "queue": OWN})
        assert whole.status_code == 422
        seen = (await http.get("/v1/who-can", params={"permission": "jobs.read", "queue": OWN})).json()
        assert {"kind": "group", "name": "ours", "role": "viewer", "queues": [OWN], "roleBinding": "ours"} in seen[
            "subjects"
        ]
        assert all(one["queues"] == [OWN] for one in seen["subjects"])
        assert seen["others"] >= 1, "the admin's key"
        assert (await http.get("/v1/people")).status_code == 403
    of_admin = (await service.http.get("/v1/who-can", params={"permission": "jobs.submit"})).json()
    assert "admin" in {one["role"] for one in of_admin["subjects"]}
    assert of_admin["others"] == 0
    found = (await service.http.get("/v1/people")).json()
    assert {"name": "ours", "people": 0, "roleBindings": ["ours"]} in found["groups"]


async def test_whoami_says_roles_and_permissions(service: Service) -> None:
    async with service.as_key(await make_key(service, "finance")) as http:
        me = (await http.get("/v1/whoami")).json()
    assert (me["role"], me["roles"]) == ("finance", [{"role": "finance", "queues": []}])
    assert "prices.write" in me["permissions"]
    assert "jobs.read" not in me["permissions"]
