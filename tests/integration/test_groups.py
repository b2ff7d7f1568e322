"""Groups of jobs over REST, on a real store and with the leading scheduler: numbers, closing, ends, conditions, rights."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.conftest import Service, job
from tests.integration.reported_runs import ReportedRuns
from tests.integration.rows import execute, rows, value
from tests.waiting import eventually
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.services import group_ends
from trainmaster_dispatcher.services.retention import Retention


class Groups:
    """Groups of a test, and the agent that runs their jobs."""

    def __init__(self, service: Service, runs: ReportedRuns) -> None:
        self.service = service
        self.runs = runs

    async def submit(self, *specs: dict[str, Any], code: str = "", **query: str) -> list[str]:
        answer = await self.service.http.post("/v1/jobs", json={"jobs": list(specs)}, params=query)
        if code:
            assert answer.json().get("code") == code, answer.text
            return []
        assert answer.status_code == 201, answer.text
        return [one["id"] for one in answer.json()["jobs"]]

    async def show(self, name: str = "g", **query: str) -> dict[str, Any]:
        answer = await self.service.http.get(f"/v1/groups/{name}", params=query)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def until(self, state: str, name: str = "g") -> dict[str, Any]:
        async def look() -> bool:
            return bool((await self.show(name))["state"] == state)

        await eventually(look, 10)
        return await self.show(name)

    async def act(
        self, action: str, name: str = "g", status: int = 200, body: Any = None, **query: str
    ) -> dict[str, Any]:
        answer = await self.service.http.post(f"/v1/groups/{name}/{action}", params=query, json=body)
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def pass_all(self, *ids: str, failed: bool = False) -> None:
        await self.runs.have(*ids)
        for one in ids:
            await self.runs.end(one, failed=failed)

    async def stopped(self, *ids: str) -> None:
        """Report the end of runs that were to be stopped."""
        for one in ids:
            await self.runs.come_to(one, RunState.CANCELLED, generation=2)
            await self.service.until(one, "cancelled")

    async def key(self, name: str, queue: str = "default") -> httpx.AsyncClient:
        """Return a client with a user's key."""
        answer = await self.service.http.post("/v1/keys", json={"name": name, "role": "user", "queues": [queue]})
        return self.service.as_key(answer.json()["key"])

    async def state_of(self, job_id: str) -> str:
        found = await self.service.job(job_id)
        return str(found["state"] if found["state"] != "held" else found["holdCause"])


def numbers(found: dict[str, Any]) -> tuple[int, ...]:
    return tuple(found[name] for name in ("total", "unfinished", "succeeded", "failed", "cancelled"))


@pytest.fixture
async def groups(service: Service) -> Groups:
    return Groups(service, await ReportedRuns(service).connect())


async def test_a_group_begins_with_its_first_job_and_counts_its_jobs(groups: Groups) -> None:
    ids = await groups.submit(job("a", group="g"), job("b", group="g"), job("c"))
    found = await groups.show()
    assert (found["name"], found["queue"], found["state"], found["submittedBy"]) == ("g", "default", "open", "admin")
    assert numbers(found) == (2, 2, 0, 0, 0)
    await groups.pass_all(ids[0])
    await groups.submit(job("d", group="g", suspend=True))
    found = await groups.show()
    assert numbers(found) == (3, 2, 1, 0, 0)
    assert sum(found["jobs"].values()) == 2
    assert found["jobs"]["held"] == 1
    assert (await groups.service.job(ids[0]))["group"] == "g"
    assert "group" not in await groups.service.job(ids[2])


async def test_a_group_ends_once_it_is_closed_and_all_its_jobs_have_ended(groups: Groups) -> None:
    first, second = await groups.submit(job("a", group="g"), job("b", group="g"))
    await groups.pass_all(first, second)
    found = await groups.show()
    assert (found["state"], "endedAt" in found) == ("open", False)
    await groups.act("close")
    found = await groups.until("succeeded")
    assert numbers(found) == (2, 0, 2, 0, 0)
    assert {"closedAt", "endedAt", "notifiedAt"} <= found.keys()
    assert found["jobs"] == {}
    again = await groups.act("close")
    assert again["closedAt"] == found["closedAt"]


@pytest.mark.parametrize(("failed", "cancelled", "state"), [(1, 1, "failed"), (0, 1, "cancelled"), (0, 0, "succeeded")])
async def test_the_state_says_how_it_ended(groups: Groups, failed: int, cancelled: int, state: str) -> None:
    ids = await groups.submit(*(job(f"j{n}", group="g") for n in range(3)), closeGroup="true")
    assert (await groups.show())["state"] == "closed"
    await groups.runs.have(*ids)
    for one in ids[:cancelled]:
        await groups.service.http.post(f"/v1/jobs/{one}/cancel")
        await groups.stopped(one)
    await groups.pass_all(*ids[cancelled : cancelled + failed], failed=True)
    await groups.pass_all(*ids[cancelled + failed :])
    assert numbers(await groups.until(state))[2:] == (3 - failed - cancelled, failed, cancelled)


async def test_a_closed_group_takes_no_more_jobs_and_nothing_is_stored(groups: Groups) -> None:
    await groups.submit(job("a", group="g"), closeGroup="true")
    before = await value(groups.service.stores, "SELECT count(*) FROM jobs")
    await groups.submit(job("b"), job("c", group="g"), code="group-closed")
    answer = await groups.service.http.post("/v1/jobs", json=job("b", group="g"))
    assert (answer.status_code, answer.json()["code"]) == (409, "group-closed")
    assert await value(groups.service.stores, "SELECT count(*) FROM jobs") == before
    await groups.submit(job("b"), code="invalid-parameter", closeGroup="true")


async def test_a_refused_submission_begins_no_group(groups: Groups) -> None:
    await groups.submit(job("a", group="g", after=[{"job": "none-0000000"}]), code="unknown-job")
    assert await rows(groups.service.stores, "SELECT name FROM job_groups") == []


async def test_names_are_of_a_queue(groups: Groups) -> None:
    service = groups.service
    await service.http.put("/v1/queues/other", json={"kind": "Queue", "path": "other"})
    await groups.submit(job("a", group="g"), job("b", group="g", queue="other"), job("c", group="h", queue="other"))
    answer = await service.http.get("/v1/groups/g")
    assert (answer.status_code, answer.json()["code"]) == (422, "ambiguous-group")
    assert "default, other" in answer.json()["detail"]
    assert (await groups.show(queue="other"))["queue"] == "other"
    assert (await groups.show("h"))["queue"] == "other"
    assert (await service.http.get("/v1/groups/none")).status_code == 404
    page = (await service.http.get("/v1/groups", params={"limit": 2})).json()
    rest = (await service.http.get("/v1/groups", params={"limit": 2, "cursor": page["next"]})).json()
    found = [(one["queue"], one["name"], one["total"]) for one in page["groups"] + rest["groups"]]
    assert sorted(found) == [("default", "g", 1), ("other", "g", 1), ("other", "h", 1)]
    assert "next" not in rest or rest["next"] is None
    await groups.act("close", queue="other")
    closed = (await service.http.get("/v1/groups", params={"state": "closed"})).json()["groups"]
    assert [(one["queue"], one["name"]) for one in closed] == [("other", "g")]
    only = (await service.http.get("/v1/groups", params={"queue": "default"})).json()["groups"]
    assert [one["name"] for one in only] == ["g"]


async def test_jobs_are_filtered_by_their_group(groups: Groups) -> None:
    service = groups.service
    ids = await groups.submit(*(job(f"j{n}", group="g" if n % 2 else "h") for n in range(6)), job("z"))
    page = (await service.http.get("/v1/jobs", params={"group": "g", "limit": 2})).json()
    rest = (await service.http.get("/v1/jobs", params={"group": "g", "limit": 2, "cursor": page["next"]})).json()
    assert [one["id"] for one in page["jobs"] + rest["jobs"]] == [ids[5], ids[3], ids[1]]
    assert page["jobs"][0]["group"] == "g"
    none = await service.http.get("/v1/jobs", params={"group": "none"})
    assert (none.status_code, none.json()["code"]) == (422, "unknown-group")
    counted = await service.http.post("/v1/jobs/cancel", json={"filter": {"group": "h"}, "dryRun": True})
    assert counted.json()["matched"] == 3
    events = await service.http.get("/v1/events", params={"group": "h", "after": "0", "kind": "submitted"})
    assert sorted(one["job"] for one in events.json()["events"]) == sorted([ids[0], ids[2], ids[4]])


async def test_a_cancelled_group_is_closed_and_all_its_jobs_are_cancelled(groups: Groups) -> None:
    ids = await groups.submit(*(job(f"j{n}", group="g") for n in range(4)), job("z"))
    await groups.pass_all(ids[0])
    await groups.runs.have(*ids[1:4])
    found = await groups.act("cancel", body={"grace": "5s"})
    assert (found["matched"], found["changed"], found["refused"], found["group"]["state"]) == (3, 3, 0, "closed")
    assert found["group"]["jobs"] == {"cancelling": 3}
    await groups.submit(job("late", group="g"), code="group-closed")
    again = await groups.act("cancel")
    assert (again["matched"], again["changed"]) == (3, 0)
    await groups.stopped(*ids[1:4])
    assert numbers(await groups.until("cancelled")) == (4, 0, 1, 0, 3)
    assert (await groups.act("cancel"))["matched"] == 0
    audited = await rows(
        groups.service.stores,
        "SELECT action, target, details->>'changed' AS changed FROM audit WHERE action LIKE '%group' ORDER BY id",
    )
    assert [tuple(row) for row in audited] == [
        ("cancel group", "g", "3"),
        ("cancel group", "g", "0"),
        ("cancel group", "g", "0"),
    ]


async def test_a_retry_lets_an_ended_group_run_again_and_end_as_its_jobs_do(groups: Groups) -> None:
    (one,) = await groups.submit(job("a", group="g"), closeGroup="true")
    await groups.pass_all(one, failed=True)
    before = await groups.until("failed")
    await groups.service.http.post(f"/v1/jobs/{one}/retry")
    running = await groups.until("closed")
    assert numbers(running) == (1, 1, 0, 0, 0)
    assert "endedAt" not in running
    await groups.runs.have_another(one)
    await groups.runs.end(one)
    found = await groups.until("succeeded")
    assert (numbers(found), found["notifiedAt"]) == ((1, 0, 1, 0, 0), before["notifiedAt"])


async def test_a_sweep_and_an_array_are_in_groups(groups: Groups) -> None:
    sweep = job("s", group="g")
    sweep["roles"][0]["template"]["args"] = ["${x}"]
    body = {"job": sweep, "parameters": [{"x": n} for n in range(5)]}
    answer = await groups.service.http.post("/v1/jobs", json=body, params={"closeGroup": "true"})
    assert answer.status_code == 201, answer.text
    assert numbers(await groups.show()) == (5, 5, 0, 0, 0)
    await groups.submit(job("a", group="h", array={"count": 100}))
    assert numbers(await groups.show("h")) == (1, 1, 0, 0, 0)


async def test_numbers_stay_when_retention_removes_jobs_and_the_group_goes_after_them(groups: Groups) -> None:
    service = groups.service
    ids = await groups.submit(job("a", group="g"), job("b", group="g"), closeGroup="true")
    await groups.pass_all(ids[0])
    await groups.pass_all(ids[1], failed=True)
    await groups.until("failed")
    await execute(service.stores, "UPDATE runs SET counted = true")
    await execute(
        service.stores, "UPDATE jobs SET submitted_at = now() - interval '1 year', ended_at = now() - interval '1 year'"
    )
    await Retention(service.stores.database, service.stores.settings).run()
    assert await value(service.stores, "SELECT count(*) FROM jobs") == 0
    assert numbers(await groups.show()) == (2, 0, 1, 1, 0)
    await execute(service.stores, "UPDATE job_groups SET changed_at = now() - interval '1 year'")
    await Retention(service.stores.database, service.stores.settings).run()
    assert (await service.http.get("/v1/groups/g")).status_code == 404
    await groups.submit(job("a", group="g"))
    assert (await groups.show())["state"] == "open"


async def test_a_group_whose_last_jobs_an_older_release_has_ended_ends_all_the_same(groups: Groups) -> None:
    """A process of the release before writes no changes of groups when it ends jobs."""
    ids = await groups.submit(job("a", group="g", suspend=True), job("b", group="g", suspend=True), closeGroup="true")

    async def is_folded() -> bool:
        return not await value(groups.service.stores, "SELECT count(*) FROM group_changes")

    await eventually(is_folded, 10)
    await execute(groups.service.stores, "UPDATE jobs SET state = 'failed', hold_cause = NULL, ended_at = now()")
    assert numbers(await groups.show()) == (2, 2, 0, 0, 0)
    token = await value(groups.service.stores, "SELECT token FROM leadership")
    assert await group_ends.look_again(groups.service.stores, token) == 1
    assert numbers(await groups.until("failed")) == (2, 0, 0, 2, 0)
    assert await group_ends.look_again(groups.service.stores, token) == 0
    assert ids


# -- jobs after groups


@pytest.mark.parametrize(
    ("condition", "failed", "starts"),
    [
        ("succeeded", False, True),
        ("succeeded", True, False),
        ("failed", True, True),
        ("failed", False, False),
        ("ended", True, True),
        ("ended", False, True),
    ],
)
async def test_a_job_starts_after_a_group(groups: Groups, condition: str, failed: bool, starts: bool) -> None:
    first, second = await groups.submit(job("a", group="g"), job("b", group="g"))
    (last,) = await groups.submit(job("last", after=[{"group": "g", "condition": condition}]))
    await groups.pass_all(first)
    await groups.pass_all(second, failed=failed)
    assert await groups.state_of(last) == "dependency"
    why = (await groups.service.http.get(f"/v1/jobs/{last}/why")).json()["sentence"]
    assert "group g, which is open: it has to be closed" in why
    await groups.act("close")
    if starts:
        await groups.runs.have(last)
        return
    await groups.service.until(last, "cancelled")
    message = (await groups.service.job(last))["message"]
    assert message.startswith(
        f"group g has ended and {'a job of it has failed' if failed else 'all its jobs have succeeded'}"
    )


async def test_a_held_job_starts_once_a_failed_job_of_the_group_has_succeeded_after_all(groups: Groups) -> None:
    (one,) = await groups.submit(job("a", group="g"), closeGroup="true")
    (last,) = await groups.submit(job("last", after=[{"group": "g"}], onDependencyFailure="hold"))
    await groups.pass_all(one, failed=True)
    await groups.until("failed")

    async def is_told() -> bool:
        return "trainmaster retry --group g" in (await groups.service.http.get(f"/v1/jobs/{last}/why")).json().get(
            "advice", ""
        )

    await eventually(is_told, 10)
    assert await groups.state_of(last) == "dependency"
    await groups.service.http.post(f"/v1/jobs/{one}/retry")
    await groups.runs.have_another(one)
    await groups.runs.end(one)
    await groups.runs.have(last)


async def test_conditions_on_groups_are_shown(groups: Groups) -> None:
    await groups.submit(job("a", group="g"))
    (last,) = await groups.submit(job("last", after=[{"group": "g", "condition": "ended"}]))
    found = (await groups.service.http.get(f"/v1/jobs/{last}/dependencies")).json()
    assert found["after"] == []
    assert found["afterGroups"] == [
        {"group": "g", "queue": "default", "state": "open", "condition": "ended", "conditionState": "waiting"}
    ]


async def test_a_condition_on_an_ended_group_is_met_or_refused(groups: Groups) -> None:
    (one,) = await groups.submit(job("a", group="g"), closeGroup="true")
    await groups.pass_all(one)
    await groups.until("succeeded")
    (last,) = await groups.submit(job("last", after=[{"group": "g"}]))
    await groups.runs.have(last)
    await groups.submit(job("never", after=[{"group": "g", "condition": "failed"}]), code="dependency-impossible")
    await groups.submit(job("none", after=[{"group": "none"}]), code="unknown-group")
    await groups.submit(job("bad", after=[{"group": "g", "condition": "started"}]), code="invalid-spec")
    await groups.submit(job("bad", after=[{"group": "g", "job": "a"}]), code="invalid-spec")


async def test_a_submission_may_have_a_group_and_a_job_after_it(groups: Groups) -> None:
    *ids, last = await groups.submit(
        job("a", group="g"), job("b", group="g"), job("last", after=[{"group": "g"}]), closeGroup="true"
    )
    await groups.pass_all(*ids)
    await groups.runs.have(last)


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ([job("a", group="g", after=[{"group": "g"}])], "a -> group g -> a"),
        (
            [job("a", group="g", after=[{"group": "h"}]), job("b", group="h", after=[{"group": "g"}])],
            "a -> group h -> b -> group g -> a",
        ),
        ([job("a", group="g", after=[{"job": "b"}]), job("b", after=[{"group": "g"}])], "b -> group g -> a -> b"),
    ],
    ids=["own group", "two groups", "through a job"],
)
async def test_jobs_that_would_wait_for_their_own_group_are_refused(
    groups: Groups, specs: list[Any], words: str
) -> None:
    answer = await groups.service.http.post("/v1/jobs", json={"jobs": specs})
    assert answer.json()["code"] == "invalid-spec"
    ring = answer.json()["detail"].split("each other: ")[1]
    start, expected = ring.split(" -> ")[:-1], words.split(" -> ")[:-1]
    assert start in [expected[n:] + expected[:n] for n in range(len(expected))]
    assert await rows(groups.service.stores, "SELECT name FROM job_groups") == []


async def test_circles_through_stored_jobs_are_refused(groups: Groups) -> None:
    await groups.submit(job("a", group="g", suspend=True), job("b", group="h", suspend=True))
    await groups.submit(job("c", group="g", after=[{"group": "h"}]))
    await groups.submit(job("d", group="h", after=[{"group": "g"}]), code="invalid-spec")
    (middle,) = await groups.submit(job("e", after=[{"group": "g"}]))
    await groups.submit(job("f", group="h", after=[{"job": middle}]), code="invalid-spec")
    await groups.submit(
        job("x", group="h", after=[{"job": "y"}]), job("y", after=[{"group": "g"}]), code="invalid-spec"
    )
    await groups.submit(job("own", group="g", after=[{"group": "g"}]), code="invalid-spec")
    await groups.submit(job("fine", group="i", after=[{"group": "g"}, {"job": middle}]))


# -- rights


async def test_where_users_change_only_their_own_jobs_a_group_is_of_who_began_it(groups: Groups) -> None:
    ann, bob = await groups.key("ann"), await groups.key("bob")
    answer = await ann.post("/v1/jobs", json=job("a", group="g"))
    assert answer.status_code == 201, answer.text
    for path, body in (
        ("/v1/jobs", job("b", group="g")),
        ("/v1/groups/g/close", None),
        ("/v1/groups/g/cancel", None),
    ):
        refused = await bob.post(path, json=body)
        assert (refused.status_code, refused.json()["code"]) == (403, "group-of-another"), refused.text
        assert "'ann' began group 'g'" in refused.json()["detail"]
    assert (await bob.get("/v1/groups/g")).json()["state"] == "open"
    await groups.submit(job("by-admin", group="g"))
    await groups.service.http.put("/v1/queues/default", json={"kind": "Queue", "path": "default", "jobActions": "any"})
    assert (await bob.post("/v1/jobs", json=job("b", group="g"))).status_code == 201
    assert (await bob.post("/v1/groups/g/close")).json()["state"] == "closed"


async def test_groups_of_other_queues_are_not_seen(groups: Groups) -> None:
    await groups.service.http.put("/v1/queues/other", json={"kind": "Queue", "path": "other"})
    carl = await groups.key("carl", "other")
    await groups.submit(job("a", group="g"))
    assert (await carl.get("/v1/groups/g")).status_code == 404
    assert (await carl.get("/v1/groups/g", params={"queue": "default"})).status_code == 404
    assert (await carl.post("/v1/groups/g/close", params={"queue": "default"})).status_code == 404
    assert (await carl.get("/v1/groups")).json()["groups"] == []
    assert (await carl.get("/v1/jobs", params={"group": "g"})).json()["code"] == "unknown-group"
    spec = job("b", queue="other", after=[{"group": "g", "queue": "default"}])
    assert (await carl.post("/v1/jobs", json=spec)).json()["code"] == "unknown-group"


async def test_of_two_users_who_begin_a_group_at_once_one_has_it(groups: Groups) -> None:
    people = [await groups.key(name) for name in ("ann", "bob")]
    for number in range(10):
        answers = await asyncio.gather(*(one.post("/v1/jobs", json=job("a", group=f"g{number}")) for one in people))
        assert sorted(one.status_code for one in answers) == [201, 403], [one.text for one in answers]
        assert numbers(await groups.show(f"g{number}"))[0] == 1


async def test_the_same_key_gives_the_same_answer_and_another_queue_is_another_call(groups: Groups) -> None:
    http = groups.service.http
    await groups.submit(job("a", group="g"))
    headers = {"Idempotency-Key": "k"}
    first = await http.post("/v1/groups/g/close", headers=headers)
    again = await http.post("/v1/groups/g/close", headers=headers)
    assert (again.json(), again.headers["Idempotency-Replayed"]) == (first.json(), "true")
    other = await http.post("/v1/groups/g/close", headers=headers, params={"queue": "default"})
    assert other.json()["code"] == "idempotency-key-reused"


async def test_jobs_of_a_workflows_step_are_in_a_group_until_it_is_closed(groups: Groups) -> None:
    service = groups.service
    inner = job("x", group="g")
    del inner["name"], inner["kind"], inner["queue"]
    step = {"name": "part", "forEach": [1, 2], "job": inner}
    flow = {"kind": "Workflow", "name": "flow", "queue": "default", "steps": [step]}
    assert (await service.http.post("/v1/workflows", json=flow)).status_code == 201

    async def has_both() -> bool:
        answer = await service.http.get("/v1/groups/g")
        return answer.status_code == 200 and answer.json()["total"] == 2

    await eventually(has_both, 10)
    await groups.act("close")
    late = await service.http.post("/v1/workflows", json=flow)

    async def has_failed() -> bool:
        return bool((await service.http.get(f"/v1/workflows/{late.json()['id']}")).json()["state"] == "failed")

    await eventually(has_failed, 10)
    (shown,) = (await service.http.get(f"/v1/workflows/{late.json()['id']}")).json()["steps"]
    assert "group 'g' of queue 'default' is closed" in shown["message"]
