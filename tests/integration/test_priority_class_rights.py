"""Users take only priority classes that their queue allows: at submit, in dry runs and when they change jobs. Admins take all."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.conftest import Service, job
from tests.integration.rows import picture
from tests.integration.test_authorization import make_key

CODE = "priority-class-not-allowed"


@pytest.fixture
async def user(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    """A key for ``org``, with the leaves ``org/plain`` and ``org/rich``; the second allows a class that cannot be preempted."""
    await service.http.put("/v1/priority-classes/firm", json={"name": "firm", "value": 0, "preemptible": False})
    for path, named in (("org", []), ("org/plain", []), ("org/rich", ["firm", "normal"])):
        answer = await service.http.put(f"/v1/queues/{path}", json={"path": path, "priorityClasses": named})
        assert answer.is_success, answer.text
    async with service.as_key(await make_key(service, "user", queues=["org"])) as http:
        yield http


async def post(http: httpx.AsyncClient, *specs: dict[str, Any], dry: bool = False) -> httpx.Response:
    return await http.post(f"/v1/jobs?dryRun={str(dry).lower()}", json={"jobs": list(specs)})


async def test_a_submission_with_a_class_that_is_not_allowed_is_refused(
    service: Service, user: httpx.AsyncClient
) -> None:
    good = job("good", "org/plain")
    before = await picture(service.stores)
    for name in ("firm", "high"):
        for dry in (True, False):
            answer = await post(user, good, job("bad", "org/plain", priorityClass=name), dry=dry)
            assert (answer.status_code, answer.json()["code"]) == (403, CODE)
            assert answer.json()["detail"].startswith(
                f"priority class '{name}' is not allowed in queue 'org/plain'; allowed are: low, normal;"
            )
    assert (await post(user, job("bad", "org/rich", priorityClass="low"))).json()["code"] == CODE
    assert await picture(service.stores) == before
    allowed = [good, job("low", "org/plain", priorityClass="low"), job("firm", "org/rich", priorityClass="firm")]
    assert (await post(user, *allowed)).status_code == 201
    assert (await post(service.http, job("bad", "org/plain", priorityClass="high"))).status_code == 201, "an admin may"


async def test_a_job_gets_no_class_by_a_change_that_it_could_not_be_submitted_with(
    service: Service, user: httpx.AsyncClient
) -> None:
    made = (await post(user, job("plain", "org/plain"), job("rich", "org/rich"))).json()
    ids = [one["id"] for one in made["jobs"]]
    change = {"priorityClass": "firm", "priority": 3}
    answer = await user.patch(f"/v1/jobs/{ids[0]}", json=change)
    assert (answer.status_code, answer.json()["code"]) == (403, CODE)
    many = {"filter": {"queue": "org"}, "patch": change}
    done = (await user.post("/v1/jobs/reprioritise", json=many)).json()
    assert done == {"matched": 2, "changed": 1, "refused": 0, "dryRun": False}
    found = [(await service.job(one)) for one in ids]
    assert [(one["priorityClass"], one["priority"]) for one in found] == [("normal", 0), ("firm", 3)]
    only = {"filter": {"queue": "org/plain"}, "patch": change}
    assert (await user.post("/v1/jobs/reprioritise", json=only)).json()["code"] == CODE
    assert (await service.http.post("/v1/jobs/reprioritise", json=only)).json()["changed"] == 1


async def test_a_queue_names_classes_that_there_are(service: Service, user: httpx.AsyncClient) -> None:
    answer = await service.http.put("/v1/queues/x", json={"path": "x", "priorityClasses": ["normal", "none"]})
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown-priority-class")
    shown = (await user.get("/v1/queues/org/rich")).json()
    assert shown["priorityClasses"] == ["firm", "normal"]
