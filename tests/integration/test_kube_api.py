"""The Kubernetes API over HTTP: discovery, lists, tables, selectors, pages, rights and errors."""

import asyncio
from typing import Any

import pytest

from tests.conftest import Service
from tests.waiting import eventually
from trainmaster.protocol.states import RunState

GROUP = "/apis/trainmaster.dev/v1"
JOBS = f"{GROUP}/namespaces/default/jobs"
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
AGGREGATED = {"Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"}


async def get(service: Service, path: str, status: int = 200, client: Any = None, **more: Any) -> dict[str, Any]:
    answer = await (client or service.http).get(path, **more)
    assert answer.status_code == status, answer.text
    value: dict[str, Any] = answer.json()
    return value


async def put_queue(service: Service, path: str) -> None:
    answer = await service.http.put(f"/v1/queues/{path}", json={"path": path})
    assert answer.status_code in (200, 201), answer.text


async def test_discovery_needs_no_more_than_the_address(service: Service) -> None:
    assert (await get(service, "/api"))["versions"] == ["v1"]
    assert (await get(service, "/apis"))["groups"][0]["name"] == "trainmaster.dev"
    assert (await get(service, "/apis/trainmaster.dev"))["preferredVersion"]["version"] == "v1"
    names = {one["name"] for one in (await get(service, GROUP))["resources"]}
    assert {"jobs", "queues", "clusters", "jobpriorityclasses", "burstpolicies", "pricebooks"} <= names
    group, *others = (await get(service, "/apis", headers=AGGREGATED))["items"]
    assert {one["metadata"]["name"] for one in others} >= {"batch", "jobset.x-k8s.io", "kubeflow.org", "ray.io"}
    resources = group["versions"][0]["resources"]
    subresources = {
        f"{one['resource']}/{sub['subresource']}" for one in resources for sub in one.get("subresources", ())
    }
    assert subresources == {"reservations/scale"}
    assert {one["resource"] for one in resources} | subresources == names
    (core,) = (await get(service, "/api", headers=AGGREGATED))["items"]
    assert core["versions"][0]["resources"][0]["resource"] == "namespaces"
    assert (await get(service, "/api/v1"))["resources"][0]["name"] == "namespaces"
    for path in (await get(service, "/openapi/v3"))["paths"].values():
        assert "components" in await get(service, path["serverRelativeURL"])
    assert "trainmaster" in (await get(service, "/version"))["gitVersion"]


async def test_jobs_are_shown_as_objects_and_as_tables(service: Service) -> None:
    await put_queue(service, "research")
    await put_queue(service, "research/vision")
    first = await service.submit("one", "research/vision", labels={"team": "a"})
    second = await service.submit("two", "default", labels={"team": "b"})
    found = await get(service, f"{GROUP}/jobs")
    assert [one["metadata"]["name"] for one in found["items"]] == [second, first]
    assert (found["kind"], found["apiVersion"]) == ("JobList", "trainmaster.dev/v1")
    assert found["items"][1]["metadata"]["namespace"] == "research-vision"
    assert found["items"][1]["spec"]["roles"][0]["template"]["command"] == ["true"]
    one = await get(service, f"{GROUP}/namespaces/research-vision/jobs/{first}")
    assert (one["metadata"]["labels"], one["status"]["state"]) == ({"team": "a"}, "queued")
    assert one["status"]["conditions"][0]["type"] == "Queued"

    async def names(path: str, **parameters: str) -> list[str]:
        table = await get(service, path, headers=TABLE, params=parameters)
        assert table["kind"] == "Table"
        return [row["cells"][0] for row in table["rows"]]

    assert await names(f"{GROUP}/namespaces/research-vision/jobs") == [first]
    assert await names(f"{GROUP}/namespaces/research/jobs") == []
    assert await names(f"{GROUP}/namespaces/none/jobs") == []
    assert await names(f"{GROUP}/jobs", labelSelector="team=b") == [second]
    assert await names(f"{GROUP}/jobs", labelSelector="team in (a)") == [first]
    assert await names(f"{GROUP}/jobs", labelSelector="team in (a,b),team notin (b)") == [first]
    assert await names(f"{GROUP}/jobs", labelSelector="team!=a,team") == [second]
    assert await names(f"{GROUP}/jobs", labelSelector="!team") == []
    assert await names(f"{GROUP}/jobs", labelSelector="!other") == [second, first]
    assert await names(f"{GROUP}/jobs", fieldSelector="status.state=running") == []
    assert await names(f"{GROUP}/jobs", fieldSelector="metadata.namespace=default") == [second]
    assert await names(f"{GROUP}/jobs", fieldSelector=f"metadata.name={first}") == [first]
    assert await names(f"{GROUP}/namespaces/default/jobs", fieldSelector=f"metadata.name={first}") == []
    assert await names(f"{GROUP}/namespaces/default/jobs", fieldSelector="metadata.namespace=research-vision") == []
    assert await names("/api/v1/namespaces") == ["default", "research-vision"]
    assert await names("/api/v1/namespaces/research-vision") == ["research-vision"]


@pytest.mark.parametrize("headers", [TABLE, {}])
async def test_a_list_goes_on_by_its_token(service: Service, headers: dict[str, str]) -> None:
    body = {"jobs": [{"kind": "Job", "name": f"j{n}", "queue": "default", "roles": ROLES} for n in range(230)]}
    assert (await service.http.post("/v1/jobs", json=body)).status_code == 201
    found: list[str] = []
    sizes, following = [], ""
    while True:
        page = await get(service, f"{GROUP}/jobs", headers=headers, params={"limit": "150", "continue": following})
        rows = [row["object"] for row in page["rows"]] if headers else page["items"]
        found += [row["metadata"]["generateName"] for row in rows]
        sizes.append(len(rows))
        following = page["metadata"].get("continue", "")
        if not following:
            break
    assert found == [f"j{n}-" for n in reversed(range(230))]
    assert sizes == ([150, 80] if headers else [100, 100, 30])


ROLES = [{"name": "main", "template": {"command": ["true"]}}]


async def test_declared_objects_have_names_that_kubernetes_allows(service: Service) -> None:
    await put_queue(service, "research")
    await put_queue(service, "research/vision")
    queues = await get(service, f"{GROUP}/queues")
    assert [one["metadata"]["name"] for one in queues["items"]] == ["default", "research", "research.vision"]
    one = await get(service, f"{GROUP}/queues/research.vision")
    assert (one["status"]["path"], one["status"]["isLeaf"]) == ("research/vision", True)
    table = await get(service, f"{GROUP}/clusters", headers=TABLE)
    assert "State" in {column["name"] for column in table["columnDefinitions"]}
    classes = await get(service, f"{GROUP}/jobpriorityclasses", params={"fieldSelector": "metadata.name!=normal"})
    assert "normal" not in {one["metadata"]["name"] for one in classes["items"]}


async def test_two_queues_may_have_one_namespace_by_their_paths(service: Service) -> None:
    await put_queue(service, "a")
    await put_queue(service, "a/b")
    await put_queue(service, "a-b")
    jobs = [await service.submit("one", "a/b"), await service.submit("two", "a-b")]
    await service.submit("three")
    found = (await get(service, f"{GROUP}/namespaces/a-b/jobs"))["items"]
    assert [(one["metadata"]["name"], one["spec"]["queue"]) for one in found] == [(jobs[1], "a-b"), (jobs[0], "a/b")]


async def test_a_user_sees_own_queues_alone(service: Service) -> None:
    await put_queue(service, "mine")
    hidden = await service.submit("hidden")
    shown = await service.submit("shown", "mine")
    made = await service.http.post("/v1/keys", json={"name": "u", "role": "user", "queues": ["mine"]})
    assert made.status_code == 201, made.text
    async with service.as_key(made.json()["key"]) as user:
        found = await get(service, f"{GROUP}/jobs", client=user)
        assert [one["metadata"]["name"] for one in found["items"]] == [shown]
        assert [
            one["metadata"]["name"] for one in (await get(service, "/api/v1/namespaces", client=user))["items"]
        ] == ["mine"]
        await get(service, f"{GROUP}/namespaces/default/jobs/{hidden}", 404, user)
        await get(service, f"{GROUP}/queues/default", 404, user)


@pytest.mark.parametrize(
    ("path", "status", "reason", "message"),
    [
        (
            f"{GROUP}/namespaces/default/jobs/none-0000000",
            404,
            "NotFound",
            'jobs.trainmaster.dev "none-0000000" not found',
        ),
        (f"{GROUP}/namespaces/default/jobs/x", 404, "NotFound", 'jobs.trainmaster.dev "x" not found'),
        (f"{GROUP}/queues/none", 404, "NotFound", 'queues.trainmaster.dev "none" not found'),
        (f"{GROUP}/none", 404, "NotFound", "could not find the requested resource"),
        ("/apis/apps/v1/deployments", 404, "NotFound", "could not find the requested resource"),
        ("/api/v1/secrets", 404, "NotFound", "could not find the requested resource"),
        ("/api/v1/namespaces/none", 404, "NotFound", 'namespaces "none" not found'),
        (f"{GROUP}/jobs?watch=true&resourceVersion=1", 410, "Expired", "too old resource version: 1"),
        (f"{GROUP}/queues?watch=true&resourceVersion=1", 410, "Expired", "too old resource version: 1"),
        (f"{GROUP}/jobs?watch=true&fieldSelector=status.state=none", 422, "Invalid", "there is no job state"),
        (
            f"{GROUP}/jobs?resourceVersion=1&resourceVersionMatch=Exact",
            410,
            "Expired",
            "exactly the resource version 1",
        ),
        (f"{GROUP}/queues?watch=true&resourceVersion=x", 422, "Invalid", "resourceVersion"),
        (f"{GROUP}/jobs?labelSelector=a%20b", 422, "Invalid", "labelSelector"),
        (f"{GROUP}/jobs?fieldSelector=a=b", 422, "Invalid", "not selected by 'a'"),
        (f"{GROUP}/jobs?fieldSelector=status.state!=queued", 422, "Invalid", "selected by field=value here"),
        (f"{GROUP}/jobs?fieldSelector=status.state=none", 422, "Invalid", "there is no job state"),
        (f"{GROUP}/jobs?limit=many", 422, "Invalid", "limit"),
        (f"{GROUP}/jobs?includeObject=all", 422, "Invalid", "includeObject"),
        (f"{GROUP}/jobs?continue=none", 400, "BadRequest", ""),
    ],
)
async def test_what_is_wrong_is_said_in_a_status(
    service: Service, path: str, status: int, reason: str, message: str
) -> None:
    found = await get(service, path, status)
    assert (found["kind"], found["apiVersion"], found["status"], found["code"]) == ("Status", "v1", "Failure", status)
    assert found["reason"] == reason
    assert message in found["message"]


async def test_nothing_is_read_without_a_key_or_changed(service: Service) -> None:
    async with service.as_key("tmk_wrong") as stranger:
        for path in (f"{GROUP}/jobs", "/api/v1/namespaces", f"{GROUP}/queues", "/apis/none"):
            found = await get(service, path, 401, stranger)
            assert (found["kind"], found["reason"]) == ("Status", "Unauthorized")
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = await service.http.request(method, "/api/v1/namespaces/default")
        assert (answer.status_code, answer.json()["reason"]) == (405, "MethodNotAllowed")


async def test_a_status_says_why_a_job_waits_and_what_it_has_cost(service: Service) -> None:
    book = {"name": "own", "onDemand": {"cpu": "3600000"}}
    assert (await service.http.put("/v1/price-books/own", json=book)).status_code == 201
    cluster = {"name": "private", "clusterKind": "private", "priceBook": "own"}
    assert (await service.http.put("/v1/clusters/private", json=cluster)).status_code in (200, 201)
    agent = service.agent()
    await agent.connect()
    large = await service.submit("large", cpu="100000")

    async def is_looked_at() -> bool:
        return bool((await get(service, f"{JOBS}/{large}"))["status"]["why"]["token"] != "NotLookedAtYet")

    await eventually(is_looked_at)
    waits = await get(service, f"{JOBS}/{large}")
    reason = (await service.http.get(f"/v1/jobs/{large}/why")).json()
    assert waits["status"]["why"]["sentence"] == reason["sentence"]
    assert waits["status"]["why"]["token"] == reason["token"]
    (queued,) = waits["status"]["conditions"]
    assert (queued["type"], queued["message"]) == ("Queued", reason["sentence"])
    assert "cost" not in waits["status"]
    small = await service.submit("small", cpu="1")
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 1}})
    await asyncio.sleep(0.01)
    runs = (await get(service, f"{JOBS}/{small}"))["status"]
    assert float(runs["cost"]) >= 10  # a thousand in a second
    assert runs["charge"] == runs["cost"]
    assert "why" not in runs
    await agent.report(run, RunState.SUCCEEDED, 3)
    ended = [(await get(service, f"{JOBS}/{small}"))["status"]["cost"] for _ in range(2)]
    assert ended[0] == ended[1]
    assert float(ended[0]) >= float(runs["cost"])
    held = await service.submit("held", suspend=True)
    assert (await get(service, f"{JOBS}/{held}"))["status"]["why"]["token"] == "HeldByUser"
