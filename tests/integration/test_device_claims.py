"""Devices of Dynamic Resource Allocation that pods have by claims: counted at submission, by quota, limits and free capacity."""

from typing import Any

import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.test_kube_changes import value_of
from tests.integration.test_kube_pod_groups import member
from tests.integration.test_kube_pods import PODS
from tests.integration.test_queue_admission import pod, put_queue, submit
from tests.waiting import eventually
from trainmaster.protocol.agent import CapacityReport, NodeGroup
from trainmaster.protocol.device_claims import ClaimTemplate, claim_template
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.services.usage_ledger import Accounting

GPU = "deviceclass.resource.kubernetes.io/gpu"
TWO = claim_template("two-gpus", {"gpu": 2})
CLAIM = [{"name": "gpus", "resourceClaimTemplateName": "two-gpus"}]
PATH = "roles[0].podTemplate.spec.resourceClaims[0].resourceClaimTemplateName"
ONE_CLAIM = pod(resourceClaims=CLAIM)
BIG = pod(resourceClaims=[{"name": "gpus", "resourceClaimName": "big"}])
BIG_PATH = "roles[0].podTemplate.spec.resourceClaims[0].resourceClaimName"


@pytest.fixture
async def queues(service: Service) -> Service:
    await put_queue(service, "org", admission={"resourceClaims": ["*"]})
    await put_queue(service, "org/free")
    await put_queue(service, "org/limited", resources={GPU: {"limit": 3}})
    return service


async def connect(service: Service, *templates: ClaimTemplate, cluster: str = "private", gpus: int = 8) -> FakeAgent:
    agent = service.agent(cluster, session=f"session-{cluster}")
    group = NodeGroup(name="node", count=1, free={"cpu": 8000, "memory": 2**34, GPU: gpus})
    capabilities = ("gang", "podTemplate", *(one.capability for one in templates))
    report = CapacityReport(groups=(group,), runtime="test", scheduler="test", capabilities=capabilities)
    answer = await agent.sync(capacity=report)
    if answer.json()["sendFull"]:
        await agent.sync(full=True)
    return agent


async def why(service: Service, job: str) -> str:
    return (await service.http.get(f"/v1/jobs/{job}/why")).text


async def test_claims_are_counted_by_what_clusters_report(queues: Service) -> None:
    agent = await connect(queues, TWO)
    status, answer = await submit(queues, "org/free", ONE_CLAIM)
    assert status == 201, answer
    start = await agent.next_start()
    assert start["spec"]["roles"][0]["claimTemplates"] == {"two-gpus": {"gpu": 2}}


async def test_a_limit_holds_for_devices_by_claims(queues: Service) -> None:
    agent = await connect(queues, TWO)
    first = await submit(queues, "org/limited", ONE_CLAIM)
    second = await submit(queues, "org/limited", ONE_CLAIM)
    assert (first[0], second[0]) == (201, 201)
    assert (await agent.next_start())["job"] == first[1]["id"]

    async def is_told() -> bool:
        return GPU in await why(queues, second[1]["id"])

    await eventually(is_told)
    assert (await agent.desired())["start"] == []


async def test_devices_that_a_cluster_does_not_have_are_waited_for(queues: Service) -> None:
    agent = await connect(queues, TWO, gpus=3)
    first, second = await submit(queues, "org/free", ONE_CLAIM), await submit(queues, "org/free", ONE_CLAIM)
    assert (await agent.next_start())["job"] == first[1]["id"]

    async def is_told() -> bool:
        return GPU in await why(queues, second[1]["id"])

    await eventually(is_told)


@pytest.mark.parametrize(
    ("templates", "message"),
    [
        ((), "reported by no cluster"),
        (
            (ClaimTemplate("two-gpus", fault="it has alternatives"),),
            "cluster private cannot be counted: it has alternatives",
        ),
    ],
)
async def test_what_cannot_be_counted_is_refused_with_its_path(
    queues: Service, templates: tuple[ClaimTemplate, ...], message: str
) -> None:
    await connect(queues, *templates)
    status, problem = await submit(queues, "org/free", ONE_CLAIM)
    assert (status, problem["code"]) == (422, "devices-not-counted")
    assert problem["mistakes"][0]["path"] == PATH
    assert message in problem["mistakes"][0]["message"]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", "annotations": {"trainmaster.dev/queue": "org/free"}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", **ONE_CLAIM[0]["podTemplate"]["spec"]}}},
    }
    answer = await queues.http.post("/v1/jobs", json=job)
    assert answer.json()["mistakes"][0]["path"] == ("spec.template.spec.resourceClaims[0].resourceClaimTemplateName")


async def test_clusters_that_ask_for_different_devices_under_a_name_have_to_be_told_apart(queues: Service) -> None:
    await connect(queues, TWO)
    await connect(queues, claim_template("two-gpus", {"gpu": 1}), cluster="edge")
    status, problem = await submit(queues, "org/free", ONE_CLAIM)
    assert (status, problem["code"]) == (422, "devices-not-counted")
    assert "name one of them in placement.clusters" in problem["mistakes"][0]["message"]
    body = {"kind": "Job", "name": "j", "queue": "org/free", "roles": ONE_CLAIM, "placement": {"clusters": ["private"]}}
    assert (await queues.http.post("/v1/jobs", json=body)).status_code == 201


async def test_a_cluster_without_the_template_is_not_eligible_and_says_so(queues: Service) -> None:
    await connect(queues, TWO, gpus=0)
    other = await connect(queues, cluster="edge")
    job = (await submit(queues, "org/free", ONE_CLAIM))[1]["id"]

    async def is_told() -> bool:
        return "its agent reports no ResourceClaimTemplate two-gpus in the namespaces of jobs" in await why(queues, job)

    await eventually(is_told)
    assert (await other.desired())["start"] == []


async def test_what_a_submission_says_of_templates_itself_counts_for_nothing(queues: Service) -> None:
    agent = await connect(queues, TWO)
    roles: list[dict[str, Any]] = [ONE_CLAIM[0] | {"claimTemplates": {"two-gpus": {"gpu": 1}, "other": {"gpu": 1}}}]
    assert (await submit(queues, "org/free", roles))[0] == 201
    start = await agent.next_start()
    assert start["spec"]["roles"][0]["claimTemplates"] == {"two-gpus": {"gpu": 2}}


async def test_claims_need_an_allowance(queues: Service) -> None:
    await connect(queues, TWO, ClaimTemplate("big", is_claim=True))
    status, problem = await submit(queues, "default", ONE_CLAIM)
    assert (status, problem["code"]) == (422, "pod-template-refused")
    assert problem["mistakes"][0]["path"] == PATH
    status, problem = await submit(queues, "default", BIG)
    assert (status, problem["code"]) == (422, "pod-template-refused")
    assert problem["mistakes"][0]["path"] == BIG_PATH
    assert "ResourceClaim big is not allowed here" in problem["mistakes"][0]["message"].replace("'", "").replace(
        '"', ""
    )


async def test_a_claim_of_a_cluster_is_its_owners_and_counts_on_no_job(queues: Service) -> None:
    claim = ClaimTemplate("big", (("gpu", 8),), is_claim=True)
    other = await connect(queues, cluster="edge")
    agent = await connect(queues, claim, gpus=0)
    for _ in range(2):
        status, answer = await submit(queues, "org/limited", BIG)
        assert status == 201, answer
        assert (await agent.next_start())["job"] == answer["id"]
    assert (await other.desired())["start"] == []


async def test_a_claim_that_no_cluster_has_is_refused(queues: Service) -> None:
    await connect(queues, claim_template("big", {"gpu": 1}))
    status, problem = await submit(queues, "org/free", BIG)
    assert (status, problem["code"]) == (422, "devices-not-counted")
    assert problem["mistakes"][0]["path"] == BIG_PATH
    assert "is reported by no cluster where the job may run" in problem["mistakes"][0]["message"]


async def test_a_claim_that_went_is_waited_for(queues: Service) -> None:
    await connect(queues, ClaimTemplate("big", is_claim=True, fault="it has constraints"), gpus=0)
    await queues.http.post("/v1/clusters/private/cordon")
    status, answer = await submit(queues, "org/free", BIG)
    assert status == 201, answer
    await connect(queues)

    async def is_told() -> bool:
        return "its agent reports no ResourceClaim big in the namespaces of jobs" in await why(queues, answer["id"])

    await eventually(is_told)


async def test_pods_of_a_group_are_counted_with_their_claims_and_so_is_the_job_of_the_group(service: Service) -> None:
    await put_queue(service, "default", admission={"resourceClaims": ["*"]})
    agent = service.agent("private", session="session-private")
    capabilities = ("gang", "podTemplate", "workload:v1/Pod", TWO.capability)
    group = NodeGroup(name="node", count=1, free={"cpu": 8000, "memory": 2**34, GPU: 4})
    await agent.sync(
        capacity=CapacityReport(groups=(group,), runtime="test", scheduler="test", capabilities=capabilities), full=True
    )
    for name in ("a", "b"):
        one = member(name, total=2)
        one["spec"]["resourceClaims"] = CLAIM
        value_of(await service.http.post(PODS, json=one), 201)
    start = await agent.next_start()
    assert [role["claimTemplates"] for role in start["spec"]["roles"]] == [{"two-gpus": {"gpu": 2}}]


async def test_devices_of_a_template_go_only_where_the_cluster_offers_them(service: Service) -> None:
    await connect(service, TWO)
    template = {"command": ["true"], "devices": [{"name": "gpu", "class": "gpu", "count": 2}]}
    body = {"kind": "Job", "name": "j", "queue": "default", "roles": [{"name": "main", "template": template}]}
    answer = await service.http.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text

    async def is_told() -> bool:
        return "runtime does not offer devices" in await why(service, answer.json()["id"])

    await eventually(is_told)
    report = CapacityReport(
        groups=(NodeGroup(name="node", count=1, free={"cpu": 8000, "memory": 2**34, GPU: 2}),),
        runtime="test",
        scheduler="test",
        capabilities=("devices",),
    )
    able = service.agent("edge", session="session-edge")
    await able.sync(capacity=report, full=True)
    assert (await able.next_start())["job"] == answer.json()["id"]


async def test_a_class_that_no_cluster_has_is_warned_of(service: Service) -> None:
    await connect(service)
    template = {"command": ["true"], "devices": [{"name": "gpu", "class": "gpus"}]}
    body = {"kind": "Job", "name": "j", "queue": "default", "roles": [{"name": "main", "template": template}]}
    (warning,) = (await service.http.post("/v1/jobs", json=body)).json()["warnings"]
    assert warning["path"] == "roles[0].template.devices[0].class"
    assert GPU in warning["message"]


SHARED = {
    "replicas": 4,
    "template": {
        "image": "train:1",
        "command": ["train"],
        "resources": {"cpu": "1"},
        "devices": [{"name": "gpu", "class": "gpu", "sharedBy": 2}],
    },
}


async def connect_sharing(
    service: Service, *, gpus: int = 8, offers: tuple[str, ...] = ("sharedDevices",)
) -> FakeAgent:
    agent = service.agent("private", session="session-private")
    group = NodeGroup(name="node", count=2, free={"cpu": 8000, "memory": 2**34, GPU: gpus})
    capabilities = ("gang", "devices", *offers)
    report = CapacityReport(groups=(group,), runtime="test", scheduler="test", capabilities=capabilities)
    answer = await agent.sync(capacity=report)
    if answer.json()["sendFull"]:
        await agent.sync(full=True)
    return agent


async def share(service: Service, queue: str = "org/free", **role: object) -> str:
    spec = {"kind": "Job", "name": "share", "queue": queue, "roles": [{"name": "main", **SHARED, **role}]}
    answer = await service.http.post("/v1/jobs", json=spec)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def test_members_that_share_devices_are_sent_as_members_and_limited_by_devices(queues: Service) -> None:
    agent = await connect_sharing(queues)
    first, second = await share(queues, "org/limited"), await share(queues, "org/limited")
    start = await agent.next_start()
    assert (start["job"], start["sizes"], start["pins"]) == (first, {"main": 4}, {"node": {"main": 4}})

    async def is_told() -> bool:
        return f"2 of its 3 {GPU}; this job needs 2 more" in await why(queues, second)

    await eventually(is_told)
    await agent.report(start["run"], RunState.RUNNING, 2, placement={"node": {"main": 3}})
    await agent.report(start["run"], RunState.RUNNING, 3, placement={"node": {"main": 4}})
    await agent.report(start["run"], RunState.SUCCEEDED, 4)
    assert (await agent.next_start())["job"] == second


async def test_what_members_share_is_used_and_charged_once(queues: Service) -> None:
    agent = await connect_sharing(queues)
    await share(queues)
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 2, placement={"node": {"main": 4}})
    await agent.report(run, RunState.SUCCEEDED, 3)
    assert await Accounting(queues.stores.database).run() == 1
    answer = await queues.http.get("/v1/usage", params={"by": "queue"})
    (row,) = answer.json()["rows"]
    used = row.get("usage", row)
    assert used["devices"][GPU] == pytest.approx(2 / 4 * used["members"], abs=1e-6)
    assert used["cpu"] == pytest.approx(used["members"], abs=1e-6)


async def test_devices_of_a_node_are_shared_there_alone(queues: Service) -> None:
    agent = await connect_sharing(queues, gpus=1)
    first, second = await share(queues, replicas=4), await share(queues, replicas=2)
    assert (await agent.next_start())["job"] == first

    async def is_told() -> bool:
        return "for 2 members that share devices" in await why(queues, second)

    await eventually(is_told)


async def test_agents_that_share_no_devices_get_no_such_job(queues: Service) -> None:
    agent = await connect_sharing(queues, offers=())
    job = await share(queues)

    async def is_told() -> bool:
        return "sharedDevices" in await why(queues, job)

    await eventually(is_told)
    assert (await agent.desired())["start"] == []
