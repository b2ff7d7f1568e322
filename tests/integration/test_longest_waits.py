"""The longest waits of priority classes: what is shipped, what is said of a class without one, and when room is kept for a job."""

from datetime import datetime, timedelta
from typing import Any

from tests.conftest import Service, job
from tests.integration.test_leader_queries import why, why_with
from trainmaster.protocol.tenants import PriorityClassSpec
from trainmaster_dispatcher.domain.priority_classes import SHIPPED


async def apply(service: Service, *documents: dict[str, Any], **fields: Any) -> dict[str, Any]:
    answer = await service.http.post("/v1/apply", json={"documents": list(documents), "applier": "test", **fields})
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


async def test_the_shipped_classes_bound_the_wait(service: Service) -> None:
    classes = (await service.http.get("/v1/priority-classes")).json()["priorityClasses"]
    assert [PriorityClassSpec.model_validate(one) for one in classes] == list(SHIPPED)
    assert all(one.longest_wait is not None for one in SHIPPED)


async def test_a_class_without_a_longest_wait_is_allowed_and_warned_of(service: Service) -> None:
    document = {"kind": "PriorityClass", "name": "batch", "value": 5}
    for dry_run in (True, False):
        warnings = (await apply(service, document, dryRun=dry_run))["warnings"]
        assert [(one["kind"], one["name"]) for one in warnings] == [("PriorityClass", "batch")]
        assert warnings[0]["message"].startswith("no longestWait: its jobs may wait for as long as ")
    assert (await apply(service, document))["warnings"] == [], "nothing changes, so nothing new is said"
    assert (await apply(service, document | {"longestWait": "2h"}))["warnings"] == []


async def test_an_installation_that_loses_its_default_class_is_told(service: Service) -> None:
    normal = {"kind": "PriorityClass", "name": "normal", "value": 0, "longestWait": "30m", "default": False}
    warnings = (await apply(service, normal, dryRun=True))["warnings"]
    assert [(one["name"], one["message"]) for one in warnings] == [
        ("normal", "it was the default, and now no class is: jobs that name none are refused")
    ]
    assert (await apply(service, normal))["warnings"] == warnings
    refused = await service.http.post("/v1/jobs", json={"jobs": [job("a")]})
    assert refused.status_code == 422
    assert "none is the default; there are: high, low, normal. An admin can" in refused.json()["detail"]
    assert (await apply(service, normal | {"default": True}))["warnings"] == []


async def test_a_job_that_lacks_capacity_is_told_when_room_is_kept_for_it(service: Service) -> None:
    agent = service.agent()
    await agent.connect(cpu=4)
    first = await service.submit("first", cpu="3")
    await service.until(first, "dispatched", "running", "placing", "leased")
    waiting = await service.submit("waiting", cpu="2")
    reason_of_job = await why_with(service, waiting, token="InsufficientCapacity")
    due = datetime.fromisoformat((await service.job(waiting))["submittedAt"]) + timedelta(minutes=30)
    assert reason_of_job["details"]["keptFrom"] == f"{due:%Y-%m-%dT%H:%M:%SZ}"
    assert reason_of_job["sentence"].endswith(
        f" From {due:%Y-%m-%dT%H:%M:%SZ} on, what is freed on a cluster is kept for it,"
        " after jobs before it for which that is done already."
    )
    await apply(service, {"kind": "PriorityClass", "name": "unbounded", "value": 0})
    answer = await service.http.post("/v1/jobs", json=job("other", cpu="2") | {"priorityClass": "unbounded"})
    other = str(answer.json()["id"])
    reason_of_job = await why_with(service, other, token="InsufficientCapacity")
    assert reason_of_job["sentence"].endswith(
        " Its class unbounded has no longestWait, so nothing bounds how long it may wait."
    )
    assert "keptFrom" not in (await why(service, first))["details"]
