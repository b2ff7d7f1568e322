"""Admission policies of queues: what a submission may use of a cluster goes by its queue, by those above it, or by the default."""

from typing import Any

import pytest

from tests.conftest import FakeAgent, Service
from tests.waiting import eventually
from trainmaster.protocol.agent import ReportedAdmission

SAFE: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def pod(**spec: Any) -> list[dict[str, Any]]:
    """Return roles of one pod template that the default policy allows but for ``spec``."""
    body = {
        "containers": [{"name": "main", "image": "example/train:1", "securityContext": SAFE}],
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        **spec,
    }
    return [{"name": "main", "podTemplate": {"spec": body}}]


CLAIM = pod(volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "datasets-imagenet"}}])
ACCOUNT = pod(serviceAccountName="trainer")
HOST = pod(hostNetwork=True)


async def put_queue(service: Service, path: str, **fields: Any) -> None:
    answer = await service.http.put(f"/v1/queues/{path}", json={"path": path, **fields})
    assert answer.status_code in (200, 201), answer.text


async def submit(service: Service, queue: str, roles: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    answer = await service.http.post("/v1/jobs", json={"kind": "Job", "name": "j", "queue": queue, "roles": roles})
    return answer.status_code, answer.json()


@pytest.fixture
async def queues(service: Service) -> Service:
    await put_queue(service, "org", admission={"claims": ["datasets-*"], "serviceAccounts": ["trainer"]})
    await put_queue(service, "org/team")
    await put_queue(service, "org/strict", admission={"images": ["registry.example.com/*"]})
    return service


@pytest.mark.parametrize("roles", [CLAIM, ACCOUNT], ids=["claim", "account"])
async def test_a_queue_below_one_with_a_policy_goes_by_it(queues: Service, roles: list[dict[str, Any]]) -> None:
    assert (await submit(queues, "org/team", roles))[0] == 201
    status, problem = await submit(queues, "default", roles)
    assert (status, problem["code"]) == (422, "pod-template-refused")
    assert problem["mistakes"][0]["path"].startswith("roles[0].podTemplate.spec.")


async def test_a_queues_own_policy_takes_the_place_of_the_one_above(queues: Service) -> None:
    status, problem = await submit(queues, "org/strict", CLAIM)
    assert status == 422
    assert {one["path"] for one in problem["mistakes"]} == {
        "roles[0].podTemplate.spec.containers[0].image",
        "roles[0].podTemplate.spec.volumes[0].persistentVolumeClaim.claimName",
    }
    allowed = [{"name": "main", "template": {"image": "registry.example.com/x:1", "command": ["true"]}}]
    assert (await submit(queues, "org/strict", allowed))[0] == 201
    other = [{"name": "main", "template": {"image": "evil/miner:1", "command": ["true"]}}]
    status, problem = await submit(queues, "org/strict", other)
    assert (status, problem["mistakes"][0]["path"]) == (422, "roles[0].template.image")


VOLUME: dict[str, Any] = {
    "accessModes": ["ReadWriteOnce"],
    "resources": {"requests": {"storage": "2Ti"}},
    "storageClassName": "fast",
}


async def test_a_queue_says_which_volumes_its_pods_may_have_made(service: Service) -> None:
    volumes = pod(volumes=[{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": VOLUME}}}])
    await put_queue(service, "wide", admission={"storageClasses": ["fast"], "mostVolumeSize": "4Ti"})
    assert (await service.http.get("/v1/queues/wide")).json()["admission"]["mostVolumeSize"] == "4Ti"
    assert (await submit(service, "wide", volumes))[0] == 201
    status, problem = await submit(service, "default", volumes)
    assert (status, problem["code"]) == (422, "pod-template-refused")
    assert {one["path"].rpartition(".")[2] for one in problem["mistakes"]} == {"storage", "storageClassName"}


async def test_what_no_policy_allows_is_refused_in_every_queue(queues: Service) -> None:
    for queue in ("org/team", "org/strict", "default"):
        status, problem = await submit(queues, queue, HOST)
        assert (status, problem["code"]) == (422, "pod-template-refused"), queue


async def test_of_a_call_with_one_refused_job_none_is_taken_and_its_place_is_told(queues: Service) -> None:
    jobs = [
        {"kind": "Job", "name": "j", "queue": queue, "roles": roles}
        for queue, roles in (("org/team", CLAIM), ("default", pod()), ("default", CLAIM))
    ]
    answer = await queues.http.post("/v1/jobs", json={"jobs": jobs})
    assert answer.status_code == 422
    assert [one["path"] for one in answer.json()["mistakes"]] == [
        "jobs[2].roles[0].podTemplate.spec.volumes[0].persistentVolumeClaim.claimName"
    ]
    assert (await queues.http.get("/v1/jobs")).json()["jobs"] == []


async def test_a_dry_run_goes_by_the_queues_policy_too(queues: Service) -> None:
    for queue, status in (("org/team", 200), ("default", 422)):
        answer = await queues.http.post(
            "/v1/jobs?dryRun=true", json={"kind": "Job", "name": "j", "queue": queue, "roles": CLAIM}
        )
        assert answer.status_code == status, answer.text


async def test_a_policy_with_a_mistake_is_refused(service: Service) -> None:
    answer = await service.http.put("/v1/queues/org", json={"path": "org", "admission": {"claims": ["a*b"]}})
    assert (answer.status_code, answer.json()["mistakes"][0]["path"]) == (422, "admission.claims[0]")


# What agents say that their clusters refuse

NEEDS_IMAGE = {"needsImage": True, "policy": {"images": ["registry.example.com/*"]}}


def runs(image: str) -> list[dict[str, Any]]:
    return [{"name": "main", "template": {"image": image, "command": ["true"]}}]


async def connect(service: Service, cluster: str, admission: dict[str, Any] | None = None) -> FakeAgent:
    agent = service.agent(cluster, session=f"session-{cluster}")
    await agent.connect(admission=None if admission is None else ReportedAdmission.model_validate(admission))
    return agent


async def test_a_job_that_no_cluster_admits_is_refused_with_its_place(service: Service) -> None:
    await connect(service, "private", NEEDS_IMAGE)
    for cluster in ("public", "edge"):
        assert (await service.http.delete(f"/v1/clusters/{cluster}")).status_code == 204
    for image, message in (("", "must name an image"), ("docker.io/x:1", "is not allowed here")):
        for path in ("/v1/jobs", "/v1/jobs?dryRun=true"):
            body = {"kind": "Job", "name": "j", "queue": "default", "roles": runs(image)}
            answer = await service.http.post(path, json=body)
            assert answer.status_code == 422, answer.text
            problem = answer.json()
            assert problem["code"] == "pod-template-refused"
            assert problem["mistakes"][0]["path"] == "roles[0].template.image"
            assert message in problem["mistakes"][0]["message"]
            assert "cluster private" in problem["mistakes"][0]["message"]
    assert (await submit(service, "default", runs("registry.example.com/x:1")))[0] == 201
    assert (await service.http.get("/v1/jobs")).json()["jobs"][0]["name"] == "j"


async def test_a_job_goes_where_it_is_admitted_and_is_told_why_not_elsewhere(service: Service) -> None:
    strict = await connect(service, "private", NEEDS_IMAGE)
    open_to_all = await connect(service, "edge")
    for _ in range(3):
        await service.submit(roles=runs(""))
        assert (await open_to_all.next_start())["job"]
    assert (await strict.desired())["start"] == []
    template = {"command": ["true"], "resources": {"cpu": "1"}}
    await service.submit("wide", roles=[{"name": "main", "replicas": 3, "template": template}])
    await open_to_all.next_start()
    waits = await service.submit("waits", roles=[{"name": "main", "replicas": 3, "template": template}])

    async def is_told() -> bool:
        reason = (await service.http.get(f"/v1/jobs/{waits}/why")).json()
        return ("private", "admission", "its agent does not admit roles[0].template.image of the job") in {
            (one["cluster"], one["check"], one["sentence"]) for one in reason.get("verdicts", ())
        }

    await eventually(is_told)


async def test_a_selector_of_the_cluster_s_own_name_brings_it_into_question(service: Service) -> None:
    await connect(service, "private", NEEDS_IMAGE)
    await connect(service, "edge")
    body = {
        "kind": "Job",
        "name": "j",
        "queue": "default",
        "roles": runs(""),
        "placement": {"selector": {"name": "private"}},
    }
    answer = await service.http.post("/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["mistakes"][0]["path"]) == (422, "roles[0].template.image")
