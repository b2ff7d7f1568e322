"""The owner of clusters: what a key of this role sees and does there, and that it opens nothing else."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.rows import picture, value
from tests.integration.test_authorization import make_key
from tests.waiting import eventually
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.states import KeyRole, RunState
from trainmaster.protocol.tenants import JoinSpec
from trainmaster_dispatcher.services import clusters, tenants
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller


@dataclass
class Stage:
    """The owner of the cluster ``private``, a job that runs there and one that runs on ``edge``."""

    service: Service
    owner: httpx.AsyncClient
    agents: dict[str, FakeAgent]
    jobs: dict[str, str]


@pytest.fixture
async def stage(service: Service) -> AsyncIterator[Stage]:
    agents = {name: service.agent(name, session=f"s-{name}", holder=f"h-{name}") for name in ("private", "edge")}
    jobs = {}
    for name, agent in agents.items():
        await agent.connect()
        jobs[name] = await service.submit(f"on-{name}", labels={"at": name}, placement={"clusters": [name]})
        run = (await agent.next_start())["run"]
        await agent.report(run, RunState.RUNNING, 1)
    key = await make_key(service, "owner", clusters=["private"])
    async with service.as_key(key) as owner:
        yield Stage(service, owner, agents, jobs)


async def _get(http: httpx.AsyncClient, path: str, **parameters: str) -> Any:
    answer = await http.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def _refused(answer: httpx.Response, *words: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), answer.text
    for word in words:
        assert word in answer.json()["detail"]


async def test_a_key_of_this_role_names_clusters_that_exist(service: Service) -> None:
    async def refused(**fields: object) -> tuple[int, str, str]:
        answer = await service.http.post("/v1/keys", json={"name": "olga", **fields})
        body = answer.json()
        return answer.status_code, body["code"], body["detail"]

    before = await picture(service.stores)
    assert await refused(role="owner", clusters=["privat"]) == (
        422,
        "unknown-cluster",
        "there is no cluster 'privat'; did you mean 'private'?",
    )
    assert (await refused(role="owner"))[:2] == (422, "invalid-parameter")
    assert "only an owner's key" in (await refused(role="user", queues=["default"], clusters=["edge"]))[2]
    assert "an owner's has a list" in (await refused(role="owner", cluster="edge"))[2]
    assert (
        "a key for the role owner has no queues"
        in (await refused(role="owner", clusters=["edge"], queues=["default"]))[2]
    )
    assert await picture(service.stores) == before
    answer = await service.http.post(
        "/v1/keys", json={"name": "olga", "role": "owner", "clusters": ["private", "edge", "private"]}
    )
    assert (answer.status_code, answer.json()["role"]) == (201, "owner")
    listed = (await _get(service.http, "/v1/keys"))["keys"][-1]
    assert (listed["role"], listed["clusters"], listed["queues"]) == ("owner", ["edge", "private"], [])
    taken = await service.http.post("/v1/keys", json={"name": "olga", "role": "admin"})
    assert (taken.status_code, taken.json()["code"]) == (409, "conflict"), "it is a person's key"


async def test_an_owner_sees_the_own_clusters_with_their_runs_and_no_other(stage: Stage) -> None:
    me = await _get(stage.owner, "/v1/whoami")
    assert (me["role"], me["clusters"], me["queues"]) == ("owner", ["private"], [])
    await stage.service.http.patch("/v1/clusters/private", json={"onlyQueues": ["default"]})
    shown = (await _get(stage.owner, "/v1/clusters"))["clusters"]
    assert [(one["name"], one["liveRuns"], one["onlyQueues"]) for one in shown] == [("private", 1, ["default"])]
    assert shown[0]["groups"], "its capacity is the owner's to see"
    assert (await _get(stage.owner, "/v1/clusters/private"))["state"] == "ready"
    for name in ("edge", "none"):
        await _refused(
            await stage.owner.get(f"/v1/clusters/{name}"), f"owner of cluster {name}", "has owner of cluster private"
        )
    report = await _get(stage.owner, "/v1/doctor")
    assert report["key"]["clusters"] == ["private"]
    assert [check["name"] for check in report["checks"]] == ["agent private"]
    user = stage.service.as_key(await make_key(stage.service, "user", queues=["default"]))
    assert (await _get(user, "/v1/doctor"))["checks"] == []


async def test_an_owner_sees_jobs_of_the_own_clusters_without_what_they_say(stage: Stage) -> None:
    page = (await _get(stage.owner, "/v1/jobs"))["jobs"]
    assert [job["id"] for job in page] == [stage.jobs["private"]]
    assert (page[0]["queue"], page[0]["cluster"], page[0]["submittedBy"]) == ("default", "private", "admin")
    for parameters in ({"cluster": "private"}, {"queue": "default"}, {"label": "at=private"}, {"name": "on-*"}):
        found = (await _get(stage.owner, "/v1/jobs", **parameters))["jobs"]
        assert [job["name"] for job in found] == ["on-private"], parameters
    for parameters in ({"queue": "no/queue"}, {"label": "at=edge"}):
        assert (await _get(stage.owner, "/v1/jobs", **parameters))["jobs"] == [], "queues cannot be guessed"
    await _refused(await stage.owner.get("/v1/jobs", params={"cluster": "edge"}), "edge", "private")

    job = await _get(stage.owner, f"/v1/jobs/{stage.jobs['private']}")
    assert "spec" not in job
    assert [(run["cluster"], run["state"]) for run in job["runs"]] == [("private", "running")]
    assert not job["runs"][0].get("whyHere")
    assert not job["runs"][0]["scores"]["table"]
    assert (await _get(stage.service.http, f"/v1/jobs/{stage.jobs['private']}"))["runs"][0]["whyHere"]
    for other in (stage.jobs["edge"], "none-0000001"):
        answer = await stage.owner.get(f"/v1/jobs/{other}")
        assert (answer.status_code, answer.json()["code"]) == (404, "not-found")


async def test_parameters_and_runs_elsewhere_are_not_shown_to_an_owner(stage: Stage) -> None:
    body = {
        "job": {
            "name": "sweep",
            "queue": "default",
            "placement": {"clusters": ["private", "edge"]},
            "roles": [{"name": "main", "template": {"command": ["run", "${token}"], "resources": {"cpu": "1"}}}],
        },
        "parameters": [{"token": "hush"}],
    }
    await stage.service.http.post("/v1/clusters/private/cordon")
    submitted = await stage.service.http.post("/v1/jobs", json=body)
    assert submitted.status_code == 201, submitted.text
    job_id = submitted.json()["jobs"][0]["id"]
    run = (await stage.agents["edge"].next_start())["run"]
    assert (await stage.owner.get(f"/v1/jobs/{job_id}")).status_code == 404, "it has not been there"
    await stage.service.http.post("/v1/clusters/private/uncordon")
    await stage.service.http.post("/v1/clusters/edge/cordon")
    await stage.agents["edge"].report(run, RunState.RETURNED, 1)
    await stage.agents["private"].next_start()
    shown = await stage.owner.get(f"/v1/jobs/{job_id}")
    listed = await stage.owner.get("/v1/jobs", params={"name": "sweep"})
    assert [(one["attempt"], one["cluster"]) for one in shown.json()["runs"]] == [(2, "private")]
    assert [one["id"] for one in listed.json()["jobs"]] == [job_id]
    assert "hush" not in shown.text + listed.text


async def test_an_owner_closes_opens_and_drains_the_own_clusters_only(stage: Stage) -> None:
    before = await picture(stage.service.stores)
    for action in ("cordon", "uncordon", "drain", "join", "rotate"):
        for name in ("edge", "none"):
            body = {"name": name} if action == "join" else {}
            answer = await stage.owner.post(f"/v1/clusters/{name}/{action}", json=body)
            await _refused(answer, f"owner of cluster {name}")
    for action in ("declare-lost", "stop-quarantined"):
        await _refused(await stage.owner.post(f"/v1/clusters/private/{action}", json={}), "admin")
    for method in ("PUT", "PATCH", "DELETE"):
        await _refused(await stage.owner.request(method, "/v1/clusters/private", json={}), "admin")
    for action in ("cancel", "suspend"):
        await _refused(await stage.owner.post(f"/v1/jobs/{stage.jobs['private']}/{action}"), "owner of cluster private")
    assert await picture(stage.service.stores) == before

    assert (await stage.owner.post("/v1/clusters/private/cordon")).json() == {"name": "private", "cordoned": True}
    assert (await stage.owner.post("/v1/clusters/private/uncordon")).json()["cordoned"] is False
    drained = await stage.owner.post("/v1/clusters/private/drain", json={})
    assert (drained.status_code, drained.json()["stopped"]) == (200, 1)
    assert await _get(stage.owner, "/v1/clusters/private/quarantined-runs") == {"runs": []}


async def test_an_owner_makes_rotates_and_revokes_keys_of_the_own_agents(stage: Stage) -> None:
    joined = await stage.owner.post("/v1/clusters/private/join", json={"name": "private"})
    assert joined.status_code == 201, joined.text
    made = joined.json()["key"]
    assert (made["role"], made["name"], joined.json()["created"]) == ("agent", "agent-private", False)
    rotated = await stage.owner.post("/v1/clusters/private/rotate", json={})
    assert rotated.status_code == 201
    every = (await _get(stage.service.http, "/v1/keys"))["keys"]
    shown = (await _get(stage.owner, "/v1/keys"))["keys"]
    assert {key["id"] for key in shown} == {key["id"] for key in every if key.get("cluster") == "private"}
    assert (await stage.owner.delete(f"/v1/keys/{made['id']}")).status_code == 204
    for key in every:
        if key.get("cluster") != "private":
            await _refused(await stage.owner.delete(f"/v1/keys/{key['id']}"), "cluster private", "role owner")
    assert (await stage.owner.delete("/v1/keys/999999")).status_code == 404
    other = next(key for key in every if key.get("cluster") == "edge")
    assert (await stage.service.http.delete(f"/v1/keys/{other['id']}")).status_code == 204
    lines = (await _get(stage.owner, "/v1/audit", action="revoke key"))["audit"]
    assert [line["target"] for line in lines] == [str(made["id"])], "no key of another cluster's agent"
    await _refused(
        await stage.owner.post("/v1/keys", json={"name": "x", "role": "agent", "cluster": "private"}), "admin"
    )


async def test_an_owner_reads_what_was_done_to_the_own_clusters(stage: Stage) -> None:
    await stage.owner.post("/v1/clusters/private/cordon")
    for name in ("private", "edge"):
        await stage.service.http.patch(f"/v1/clusters/{name}", json={"description": "text"})
    await stage.service.http.put("/v1/datasets/private", json={"name": "private", "size": "1Gi"})
    lines = (await _get(stage.owner, "/v1/audit"))["audit"]
    assert {line["target"] for line in lines} == {"private"}
    assert [line["action"] for line in lines][:2] == ["patch cluster", "cordon"], (
        "a data set of that name is no cluster"
    )
    await _refused(await stage.owner.get("/v1/audit", params={"target": "edge"}), "edge")


async def test_with_a_removed_cluster_the_right_to_it_is_gone(stage: Stage) -> None:
    key = await make_key(stage.service, "owner", clusters=["private", "edge"])
    async with stage.service.as_key(key) as both:
        assert (await stage.service.http.delete("/v1/clusters/private?force=true")).status_code == 204

        async def is_refused() -> bool:
            return (await both.get("/v1/clusters/private")).status_code == 403

        await eventually(is_refused, 4)
        assert (await _get(both, "/v1/whoami"))["clusters"] == ["edge"]
        await stage.service.http.put("/v1/clusters/private", json={"name": "private"})
        assert await value(stage.service.stores, "SELECT count(*) FROM clusters WHERE name = 'private'") == 1
        await _refused(await stage.owner.post("/v1/clusters/private/cordon"), "no cluster any more")
        assert (await _get(stage.owner, "/v1/jobs"))["jobs"] == []
        assert (await both.get("/v1/clusters/private")).status_code == 403, "another one of its name is not theirs"


async def test_a_cluster_that_is_gone_a_moment_ago_is_made_by_no_owner_and_names_no_other(service: Service) -> None:
    """A key is cached for a second: the right may be older than the removal."""
    await service.http.put("/v1/clusters/private-2", json={"name": "private-2"})
    owner = Caller(1, "olga", KeyRole.OWNER, clusters=("private-1",))
    calls: list[Callable[[Transaction], Awaitable[object]]] = [
        lambda tx: clusters.join(tx, owner, JoinSpec(name="private-1")),
        lambda tx: clusters.rotate(tx, owner, "private-1", revoke_old=False),
        lambda tx: tenants.cordon(tx, owner, "private-1", True),
    ]
    for call in calls:
        with pytest.raises(ProblemError) as refused:
            async with service.stores.database.transaction() as tx:
                await call(tx)
        assert (refused.value.code, refused.value.detail) == (Code.NOT_FOUND, "there is no cluster 'private-1'")
    assert await value(service.stores, "SELECT count(*) FROM clusters WHERE name = 'private-1'") == 0


async def test_to_the_release_before_the_key_is_a_users_without_queues(service: Service) -> None:
    await make_key(service, "owner", clusters=["edge"], name="olga")
    assert (
        await value(service.stores, "SELECT role::text || array_length(clusters, 1) FROM api_keys WHERE name = 'olga'")
        == "user1"
    )
    assert await value(service.stores, "SELECT queues = '{}' FROM api_keys WHERE name = 'olga'") is True


async def test_the_owners_commands_show_a_held_job_and_say_when_the_clusters_were_removed(stage: Stage) -> None:
    service = stage.service
    key = await make_key(service, "owner", clusters=["private"])

    def command(*words: str) -> str:
        env = os.environ | {"TRAINMASTER_URL": service.url, "TRAINMASTER_API_KEY": key, "COLUMNS": "200"}
        program = [sys.executable, "-m", "trainmaster.cli.main", *words]
        ended = subprocess.run(program, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout + ended.stderr

    held = await service.submit("returned", placement={"clusters": ["private"]})
    start = await stage.agents["private"].next_start()
    await stage.agents["private"].report(
        start["run"], RunState.RETURNED, 1, message="there is no Role trainmaster-jobs"
    )
    await service.until(held, "held")
    assert "there is no Role trainmaster-jobs" in await asyncio.to_thread(command, "job", held)
    assert (await service.http.delete("/v1/clusters/private?force=true")).status_code == 204
    await service.http.put("/v1/clusters/private", json={"name": "private"})

    async def is_told() -> bool:
        return "that this key was made for were removed" in await asyncio.to_thread(command, "clusters")

    await eventually(is_told, 10)
    assert "none any more: they were removed" in await asyncio.to_thread(command, "whoami")
