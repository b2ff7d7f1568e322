"""Members that request nothing are charged, and sent to their cluster, with what the installation gives them."""

from typing import Any

import pytest

from tests.conftest import Service, job
from tests.waiting import eventually
from trainmaster_dispatcher.services.settings import Settings


@pytest.fixture
def default_requests() -> str:
    """The default requests that ship."""
    return str(Settings.model_fields["default_requests"].default)


def bare(**fields: Any) -> dict[str, Any]:
    spec = job("bare", "narrow", **fields)
    del spec["roles"][0]["template"]["resources"]
    return spec


async def test_a_queues_limit_holds_for_members_that_request_nothing(service: Service) -> None:
    await service.http.put("/v1/queues/narrow", json={"path": "narrow", "limits": {"cpu": "100m"}})
    agent = service.agent()
    await agent.connect(cpu=4)
    gang = (await service.http.post("/v1/jobs", json=bare(replicas=100))).json()["id"]
    jobs = [one["id"] for one in (await service.http.post("/v1/jobs", json={"jobs": [bare()] * 2})).json()["jobs"]]
    start = await agent.next_start()
    assert start["job"] in jobs
    assert start["spec"]["roles"][0]["template"]["resources"] == {"cpu": "100m", "memory": "64Mi"}
    (other,) = set(jobs) - {start["job"]}

    async def is_told() -> bool:
        return bool((await service.http.get(f"/v1/jobs/{other}/why")).json()["token"] == "QueueLimit")

    await eventually(is_told)
    why = (await service.http.get(f"/v1/jobs/{gang}/why")).json()
    assert (why["token"], why["forEver"]) == ("QueueLimit", True), "100 members take 10 cores"
    shown = {one["path"]: one for one in (await service.http.get("/v1/queues?usage=true")).json()["queues"]}
    assert shown["narrow"]["usage"]["used"] == {"cpu": "0.1", "memory": "64Mi"}
    assert shown["narrow"]["usage"]["share"] > 0
