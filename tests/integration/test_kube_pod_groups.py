"""Groups of pods that are created one by one by the Kubernetes API: one job once all have been, and pods by their own names."""

import asyncio
from typing import Any

import pytest

from tests.conftest import FakeAgent, Service
from tests.integration.test_kube_changes import value_of
from tests.integration.test_kube_events_and_pods import watching
from tests.integration.test_kube_pods import PODS, TABLE, a_pod, names
from tests.waiting import eventually
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.services import pod_groups

GROUP, TOTAL = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"
SUFFIX = 'metadata.annotations["kueue.x-k8s.io/{}"]'


def member(name: str, total: int = 3, group: str = "ring", image: str = "i", **metadata: Any) -> dict[str, Any]:
    container = {"name": "main", "image": image, "resources": {"requests": {"cpu": "1"}}}
    labels = {GROUP: group, "app": "x", **metadata.pop("labels", {})}
    annotations = {TOTAL: str(total), **metadata.pop("annotations", {})}
    return a_pod(name, {"labels": labels, "annotations": annotations, **metadata}, containers=[container])


async def created(service: Service, *pods: dict[str, Any]) -> list[dict[str, Any]]:
    return [value_of(await service.http.post(PODS, json=one), 201) for one in pods]


async def refused(service: Service, pod: dict[str, Any], status: int = 422) -> dict[str, Any]:
    return value_of(await service.http.post(PODS, json=pod), status)


def path_of(status: dict[str, Any]) -> str:
    (cause,) = status["details"]["causes"]
    return str(cause["field"])


async def pod(service: Service, name: str) -> dict[str, Any]:
    return value_of(await service.http.get(f"{PODS}/{name}"))


async def jobs(service: Service) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await service.http.get("/v1/jobs")).json()["jobs"]
    return found


async def agent_of(service: Service) -> FakeAgent:
    agent = service.agent()
    await agent.connect(cpu=16, capabilities=("gang", "podTemplate", "workload:v1/Pod"))
    return agent


async def test_pods_of_a_group_wait_for_the_last_one_and_are_one_job_then(service: Service) -> None:
    agent = await agent_of(service)
    (first,) = await created(service, member("leader", image="lead"))
    assert first["status"]["phase"] == "Pending"
    assert first["metadata"]["annotations"]["trainmaster.dev/why"] == "pod group 'ring' has 1 of 3 pods"
    await created(service, member("worker-0"))
    waits = await pod(service, "leader")
    scheduled = waits["status"]["conditions"][0]
    assert (scheduled["type"], scheduled["status"]) == ("PodScheduled", "False")
    assert scheduled["message"] == "pod group 'ring' has 2 of 3 pods"
    assert await jobs(service) == [], "no half of a job"
    assert waits["metadata"]["uid"] == first["metadata"]["uid"]
    early = value_of(await service.http.get(f"{PODS}/leader/log"), 409)
    assert early["message"] == "the pod 'leader' has no output yet: pod group 'ring' has 2 of 3 pods"
    await created(service, member("worker-1"))
    (job,) = await jobs(service)
    start = await agent.next_start()
    assert start["sizes"] == {"leader": 1, "worker": 2}
    assert [role["podTemplate"]["spec"]["containers"][0]["image"] for role in start["spec"]["roles"]] == ["lead", "i"]
    assert "workload" not in start["spec"]
    members = [
        {"role": "leader", "index": 0, "state": "running", "node": "n0"},
        {"role": "worker", "index": 0, "state": "running", "node": "n1"},
        {"role": "worker", "index": 1, "state": "running", "node": "n2"},
    ]
    await agent.report(start["run"], RunState.RUNNING, 1, members=members)
    runs = await pod(service, "worker-1")
    assert (runs["status"]["phase"], runs["spec"]["nodeName"]) == ("Running", "n2")
    assert runs["metadata"]["annotations"]["trainmaster.dev/job"] == job["id"]
    assert (await pod(service, "leader"))["metadata"]["uid"] == first["metadata"]["uid"]
    assert sorted(await names(service)) == ["leader", "worker-0", "worker-1"]
    assert await names(service, labelSelector=f"{GROUP}=ring", fieldSelector="metadata.name=worker-0") == ["worker-0"]
    table = value_of(await service.http.get(PODS, headers=TABLE))
    assert sorted(row["cells"][0] for row in table["rows"]) == ["leader", "worker-0", "worker-1"]
    ended = [{**one, "state": "succeeded", "exitCode": 0} for one in members]
    await agent.report(start["run"], RunState.SUCCEEDED, 2, members=ended)
    assert (await pod(service, "worker-0"))["status"]["phase"] == "Succeeded"


async def test_a_group_of_one_name_is_one_at_a_time(service: Service) -> None:
    agent = await agent_of(service)
    await created(service, member("a", 2), member("b", 2))
    extra = await refused(service, member("c", 2), 409)
    assert "has all of its 2 pods, and runs as ring-" in extra["message"]
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    await agent.report(run, RunState.SUCCEEDED, 2)
    again = await refused(service, member("a", 2), 409)
    assert again["reason"] == "AlreadyExists"
    (next_one,) = await created(service, member("c", 5))
    assert next_one["metadata"]["annotations"]["trainmaster.dev/why"] == "pod group 'ring' has 1 of 5 pods"
    assert (await pod(service, "a"))["status"]["phase"] == "Succeeded", "that of the group before"
    assert value_of(await service.http.delete(f"{PODS}/a"))["status"] == "Success"
    await created(service, member("a", 5))
    assert sorted(await names(service)) == ["a", "b", "c"]


async def test_what_pods_of_a_group_say_has_to_agree(service: Service) -> None:
    await created(service, member("a"))
    count = await refused(service, member("b", 4))
    assert path_of(count) == SUFFIX.format("pod-group-total-count")
    assert "3 in other pods of the group" in count["message"]
    late = member("b")
    late["spec"]["activeDeadlineSeconds"] = 60
    assert path_of(await refused(service, late)) == "spec.activeDeadlineSeconds"
    assert (await refused(service, member("a"), 409))["reason"] == "AlreadyExists"
    assert await names(service) == ["a"]
    for annotation, value in (
        ("pod-group-total-count", "none"),
        ("pod-group-total-count", "0"),
        ("pod-group-fast-admission", "true"),
        ("retriable-in-group", "true"),
    ):
        wrong = member("b", annotations={f"kueue.x-k8s.io/{annotation}": value})
        assert path_of(await refused(service, wrong)) == SUFFIX.format(annotation)
    nameless = member("b")
    del nameless["metadata"]["name"]
    nameless["metadata"]["generateName"] = "b-"
    assert path_of(await refused(service, nameless)) == "metadata.name"


async def test_a_pod_of_a_group_is_checked_as_if_it_were_one_by_itself(service: Service) -> None:
    host = member("a")
    host["spec"]["hostNetwork"] = True
    assert path_of(await refused(service, host)) == "spec.hostNetwork"
    always = member("a")
    always["spec"]["restartPolicy"] = "Always"
    assert path_of(await refused(service, always)) == "spec.restartPolicy"
    assert await names(service) == []


async def test_more_than_sixteen_kinds_of_pods_are_refused_at_the_pod_that_is_one_too_many(service: Service) -> None:
    await created(service, *(member(f"p{number}", 20, image=f"i{number}") for number in range(16)))
    assert path_of(await refused(service, member("more", 20, image="other"))) == "spec"
    await created(service, member("more", 20, image="i3"))


async def test_names_are_shared_with_jobs(service: Service) -> None:
    await created(service, member("a"))
    assert (await refused(service, a_pod("a"), 409))["reason"] == "AlreadyExists"
    await created(service, a_pod("b"))
    assert (await refused(service, member("b"), 409))["reason"] == "AlreadyExists"


async def test_queues_of_one_namespace_do_not_share_a_group(service: Service) -> None:
    for path in ("one", "two"):
        answer = await service.http.put(f"/v1/queues/{path}", json={"path": path, "namespace": "shared"})
        assert answer.status_code in (200, 201), answer.text
    address = "/api/v1/namespaces/shared/pods"

    def of(name: str, queue: str) -> dict[str, Any]:
        return member(name, labels={"kueue.x-k8s.io/queue-name": queue})

    value_of(await service.http.post(address, json=of("a", "one")), 201)
    other = value_of(await service.http.post(address, json=of("b", "two")), 422)
    assert path_of(other) == f'metadata.labels["{GROUP}"]'
    same = value_of(await service.http.post(address, json=of("a", "two")), 409)
    assert same["reason"] == "AlreadyExists"
    kept = await service.http.delete("/v1/queues/one")
    assert kept.status_code == 409, "a queue with pods that wait is not removed"


async def test_a_pod_of_a_group_that_waits_is_deleted_alone_and_the_group_goes_on(service: Service) -> None:
    await created(service, member("a"), member("b"))
    assert value_of(await service.http.delete(f"{PODS}/a"))["status"] == "Success"
    assert value_of(await service.http.get(f"{PODS}/a"), 404)
    why = (await pod(service, "b"))["metadata"]["annotations"]["trainmaster.dev/why"]
    assert why == "pod group 'ring' has 1 of 3 pods"
    value_of(await service.http.delete(f"{PODS}/b"))
    assert await names(service) == []
    await created(service, member("a", 2), member("b", 2))
    assert len(await jobs(service)) == 1, "a group without pods is none: another count is taken"


async def test_deleting_one_pod_of_a_running_group_ends_all_of_it(service: Service) -> None:
    agent = await agent_of(service)
    await created(service, member("a", 2), member("b", 2))
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    item = value_of(await service.http.delete(f"{PODS}/a"))
    assert item["metadata"]["deletionTimestamp"]
    await agent.report(run, RunState.CANCELLED, 2)
    assert await names(service) == ["b"]
    assert (await pod(service, "b"))["status"]["phase"] == "Failed"
    (job,) = await jobs(service)
    assert job["state"] == "cancelled"
    value_of(await service.http.delete(f"{PODS}/b"))
    assert await names(service) == []
    shown = value_of(await service.http.get("/apis/trainmaster.dev/v1/namespaces/default/jobs"))["items"]
    assert shown == [], "the job of a group is an object as long as one of its pods is"


async def test_a_watch_tells_that_a_pod_of_a_group_is_gone(service: Service) -> None:
    agent = await agent_of(service)
    await created(service, member("a", 2), member("b", 2))
    run = (await agent.next_start())["run"]
    await agent.report(run, RunState.RUNNING, 1)
    version = value_of(await service.http.get(PODS))["metadata"]["resourceVersion"]
    async with watching(service, PODS, resourceVersion=version) as events:
        value_of(await service.http.delete(f"{PODS}/a"))
        await agent.report(run, RunState.CANCELLED, 2)

        def gone() -> set[str]:
            return {one["object"]["metadata"]["name"] for one in events if one["type"] == "DELETED"}

        async def first_is_gone() -> bool:
            return gone() == {"a"}

        async def all_are_gone() -> bool:
            return gone() == {"a", "b"}

        await eventually(first_is_gone)
        value_of(await service.http.delete(f"{PODS}/b"))
        await eventually(all_are_gone)


async def test_pods_of_a_group_are_not_changed(service: Service) -> None:
    await created(service, member("a"))
    patch = {"metadata": {"labels": {"app": "y"}}}
    merge = {"Content-Type": "application/merge-patch+json"}
    changed = value_of(await service.http.patch(f"{PODS}/a", json=patch, headers=merge), 405)
    assert "delete it, and create it again" in changed["message"]


async def test_a_watch_has_the_pods_from_when_their_group_is_complete(service: Service) -> None:
    await created(service, member("a", 2))
    version = value_of(await service.http.get(PODS))["metadata"]["resourceVersion"]
    async with watching(service, PODS, resourceVersion=version, fieldSelector="metadata.name=a") as events:
        await created(service, member("b", 2))

        async def is_told() -> bool:
            return bool(events)

        await eventually(is_told)
    assert {one["object"]["metadata"]["name"] for one in events} == {"a"}
    assert events[0]["object"]["metadata"]["annotations"]["trainmaster.dev/job"]


async def test_a_dry_run_leaves_nothing(service: Service) -> None:
    value_of(await service.http.post(PODS, json=member("a", 1), params={"dryRun": "All"}), 201)
    assert (await names(service), await jobs(service)) == ([], [])
    await created(service, member("a"))
    value_of(await service.http.delete(f"{PODS}/a", params={"dryRun": "All"}))
    assert await names(service) == ["a"]


async def test_pods_that_are_created_at_once_become_one_job(service: Service) -> None:
    given = [member(f"w-{number}", 8) for number in range(8)]
    answers = await asyncio.gather(*(service.http.post(PODS, json=one) for one in given))
    assert [one.status_code for one in answers] == [201] * 8
    assert len(await jobs(service)) == 1


async def test_a_queue_holds_so_many_pods_of_incomplete_groups(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_groups, "_MOST_WAITING", 2)
    await created(service, member("a"), member("b"))
    full = await refused(service, member("c"), 429)
    assert "has 2 pods of incomplete groups" in full["message"]
    assert (await service.http.delete(f"{PODS}/a")).is_success
    await created(service, member("c"))
