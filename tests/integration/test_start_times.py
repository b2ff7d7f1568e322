"""Jobs with a start time over REST: held until then, also across suspend and resume."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.conftest import Service, job
from tests.integration.rows import execute, picture


async def submitted(service: Service, **fields: Any) -> str:
    answer = await service.http.post("/v1/jobs", json=job("later", **fields))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def shown(service: Service, job_id: str) -> dict[str, Any]:
    answer = await service.http.get(f"/v1/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def acted(service: Service, job_id: str, action: str) -> dict[str, Any]:
    answer = await service.http.post(f"/v1/jobs/{job_id}/{action}")
    assert answer.status_code == 200, answer.text
    return await shown(service, job_id)


async def let_it_come(service: Service) -> None:
    """Let the start times of all jobs come."""
    await execute(
        service.stores,
        "UPDATE jobs SET eligible_at = now() - interval '1 s',"
        " hold_until = CASE WHEN hold_until IS NOT NULL THEN now() - interval '1 s' END",
    )


async def test_it_waits_for_its_start_time_and_then_runs(service: Service) -> None:
    agent = service.agent()
    await agent.connect(cpu=4)
    later = await submitted(service, startAfter="2h")
    before = await shown(service, later)
    assert (before["state"], before["holdCause"]) == ("held", "startTime")
    until = datetime.fromisoformat(before["holdUntil"])
    submitted_at = datetime.fromisoformat(before["submittedAt"])
    assert abs((until - submitted_at) - timedelta(hours=2)) < timedelta(seconds=1)
    why = (await service.http.get(f"/v1/jobs/{later}/why")).json()
    assert before["holdUntil"][:19] in str(why), why
    first = await service.submit("first")
    assert (await agent.next_start())["job"] == first  # what came before does not hold it back
    await let_it_come(service)
    assert (await agent.next_start())["job"] == later


async def test_a_moment_that_has_passed_delays_nothing(service: Service) -> None:
    agent = service.agent()
    await agent.connect(cpu=4)
    late = await submitted(service, startAfter="2020-01-01T00:00:00Z")
    assert (await agent.next_start())["job"] == late


async def test_each_job_of_a_set_waits_from_its_own_submission(service: Service) -> None:
    template = {"command": ["train", "${seed}"], "resources": {"cpu": "1"}}
    spec = job("later", startAfter="1h") | {"roles": [{"name": "main", "template": template}]}
    body = {"job": spec, "parameters": [{"seed": "1"}, {"seed": "2"}]}
    answer = await service.http.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    for one in answer.json()["jobs"]:
        assert (await shown(service, one["id"]))["holdCause"] == "startTime"


async def test_resume_starts_it_before_its_time(service: Service) -> None:
    later = await submitted(service, startAfter="2h")
    assert (await acted(service, later, "resume"))["state"] == "queued"


async def test_a_start_time_outlasts_suspend_and_resume(service: Service) -> None:
    moment = (datetime.now(UTC) + timedelta(hours=3)).isoformat()
    for fields in ({"startAfter": moment}, {"startAfter": moment, "suspend": True}):
        later = await submitted(service, **fields)
        held = await acted(service, later, "suspend")
        assert (held["holdCause"], held.get("holdUntil")) == ("user", None)
        again = await acted(service, later, "resume")
        assert (again["state"], again["holdCause"]) == ("held", "startTime")
        assert datetime.fromisoformat(again["holdUntil"]) - datetime.fromisoformat(moment) < timedelta(seconds=1)
    await acted(service, later, "suspend")
    await let_it_come(service)
    assert (await acted(service, later, "resume"))["state"] == "queued"


@pytest.mark.parametrize("given", ["tomorrow", "2037-01-01T00:00:00", True, -1, [], "2037-01-01T25:00:00Z"])
async def test_what_is_no_start_time_is_refused_with_its_path(service: Service, given: Any) -> None:
    before = await picture(service.stores)
    answer = await service.http.post("/v1/jobs", json=job("later", startAfter=given))
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-spec"), answer.text
    (mistake,) = answer.json()["mistakes"]
    assert mistake["path"] == "startAfter"
    assert "2h" in mistake["message"] or "string" in mistake["message"]
    assert await picture(service.stores) == before
