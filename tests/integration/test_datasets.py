"""Data that admins declare decides where jobs go, and clusters that make trouble are passed over."""

from typing import Any

from tests.conftest import Service
from tests.integration.rows import rows
from tests.waiting import eventually
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.services.feed_follower import Follower


async def put(service: Service, kind: str, name: str, body: dict[str, Any]) -> None:
    answer = await service.http.put(f"/v1/{kind}/{name}", json=body)
    assert answer.status_code in (200, 201), answer.text


async def test_a_job_goes_to_where_its_data_is_declared_to_be_and_the_agent_need_not_know(service: Service) -> None:
    edge = service.agent("edge")
    await service.agent("private", session="session-2", holder="holder-2").connect(cpu=8)
    await edge.connect(cpu=8)
    await put(service, "datasets", "images", {"name": "images", "size": "100Gi", "clusters": ["edge"]})
    job_id = await service.submit(placement={"datasets": ["images"]})
    start = await edge.next_start()
    assert start["job"] == job_id
    assert start["spec"]["placement"]["datasets"] == []


async def test_what_is_declared_is_shown_changed_and_removed(service: Service) -> None:
    await put(service, "datasets", "images", {"name": "images", "size": "100Gi", "regions": ["eu"], "remote": True})
    (shown,) = (await service.http.get("/v1/datasets")).json()["datasets"]
    assert (shown["size"], shown["regions"], shown["remote"]) == ("100Gi", ["eu"], True)
    assert (await service.http.delete("/v1/datasets/images")).status_code == 204
    assert (await service.http.delete("/v1/datasets/images")).status_code == 404


async def test_mistakes_in_a_dataset_are_told(service: Service) -> None:
    for fields, code in (
        ({"size": "-1Gi"}, "invalid-spec"),
        ({"size": "0"}, "invalid-spec"),
        ({"clusters": ["nowhere"]}, "unknown-cluster"),
        ({"colour": "red"}, "invalid-spec"),
    ):
        answer = await service.http.put("/v1/datasets/images", json={"name": "images", "size": "1Gi", **fields})
        assert answer.json()["code"] == code, answer.text
    assert (await service.http.get("/v1/datasets")).json() == {"datasets": []}


async def test_data_that_may_not_leave_its_region_says_so(service: Service) -> None:
    await service.agent("private").connect(cpu=8)
    await put(service, "datasets", "images", {"name": "images", "size": "1Gi", "regions": ["eu"], "remote": True})
    job_id = await service.submit(placement={"datasets": ["images"]})

    async def is_reported() -> bool:
        why = (await service.http.get(f"/v1/jobs/{job_id}/why")).json()
        return "dataset images stays in region eu, this one has none" in str(why["verdicts"])

    await eventually(is_reported)
    await put(service, "clusters", "private", {"name": "private", "region": "eu"})

    async def nearer() -> bool:
        why = (await service.http.get(f"/v1/jobs/{job_id}/why")).json()
        return "dataset images is on no cluster" in str(why["verdicts"])

    await eventually(nearer)


async def test_a_cluster_that_has_returned_a_run_is_known_for_it(service: Service) -> None:
    agent = service.agent("private")
    await agent.connect(cpu=8)
    await service.submit()
    start = await agent.next_start()
    await agent.report(start["run"], RunState.RETURNED, 1, message="no room")
    (found,) = await rows(service.stores, "SELECT level FROM cluster_troubles")
    assert found.level == 1.0
    follower = Follower()
    await follower.absorb(service.stores, 0.0)
    assert list(follower.state.trouble.values()) == [0.5]
    await rows(service.stores, "UPDATE cluster_troubles SET at = now() - interval '3 hours' RETURNING 1")
    await follower.absorb(service.stores, 0.0)
    assert follower.state.trouble == {}
